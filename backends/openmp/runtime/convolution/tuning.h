// A choice among several ways to compute the same, by measurement at first use.
//
// The choice is kept in memory and in the folder "tuning" of the cache, one file for each problem,
// for this processor and version of torch. It decides how results are rounded, so the first choice
// stays: a second process that measured at the same time takes over what the first one wrote. For
// the same reason the number of threads does not belong to the key, it is only written down: with
// any number the same form computes. A file that is not whole counts as absent. Where nothing can
// be written, the choice lasts as long as the process.
#ifndef LOMA_TUNING_H
#define LOMA_TUNING_H

#include <functional>
#include <string>
#include <vector>

namespace loma {

// What was chosen for the problem in this process; empty when nothing was.
std::string known_choice(const std::string& problem);

// The position of the candidate that is used for `problem`. `problem` are lines of text, each ended
// by "\n", that say what is computed; `run(i)` computes it with candidate i. Candidate 0 is taken
// where another one is not clearly faster. Safe from several threads, which wait for each other
// while something is measured, and in a forked process.
size_t choose(const std::string& problem, const std::vector<std::string>& candidates,
              const std::function<void(size_t)>& run);

// What this module has chosen, as the text of the files.
std::vector<std::string> chosen_records();
void forget_choices();

}  // namespace loma

#endif  // LOMA_TUNING_H
