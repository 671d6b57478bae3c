// Measuring, and the files in which choices are kept. A file is a header, the problem's lines, what
// was measured and the line "end":
//
//   loma tuning 1
//   machine 143, Intel(R) Xeon(R) Platinum 8488C, 8, AVX512
//   torch 2.13.0
//   operator conv2d
//   ...
//   threads 2
//   seconds library 0.188
//   seconds fft 0.071
//   choice fft
//   end
#include "tuning.h"

#include "cache_roots.h"
#include "pool.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/version.h>

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <mutex>
#include <sstream>
#include <unordered_map>

namespace loma {
namespace {

namespace fs = std::filesystem;

struct Choice {
  std::string name, record;  // as in its file
};

struct Table {
  std::mutex mutex;      // of `choices`
  std::mutex measuring;  // held while something is measured, so that nothing else disturbs it
  std::unordered_map<std::string, Choice> choices;  // by problem
};

Table& table() {
  static Table* made = [] {
    // Handlers that run before a fork run in reverse: what measures needs the pool, so the pool's
    // lock has to be taken after `measuring`.
    LomaPoolStats stats;
    loma_pool_stats(&stats);
    // A child of fork has only one thread: nobody else would ever release the locks there.
    pthread_atfork([] { table().measuring.lock(); table().mutex.lock(); },
                   [] { table().mutex.unlock(); table().measuring.unlock(); },
                   [] { table().mutex.unlock(); table().measuring.unlock(); });
    return new Table();
  }();
  return *made;
}

// While the library is loaded, not at the first use: a fork that another thread has begun by then
// would not run these handlers, but its child could have the locks as they are held.
[[maybe_unused]] const Table& made_when_loaded = table();

const std::string& header() {
  static const std::string text = [] {
    std::string processor, line;
    std::ifstream info("/proc/cpuinfo");
    while (std::getline(info, line) && !line.empty()) {  // the first processor's lines
      for (const char* wanted : {"model\t", "model name\t", "stepping\t", "CPU part\t"}) {
        const auto colon = line.find(": ");
        if (line.rfind(wanted, 0) == 0 && colon != std::string::npos) {
          processor += line.substr(colon + 2) + ", ";
        }
      }
    }
    return "loma tuning 1\nmachine " + processor + at::get_cpu_capability() + "\ntorch " +
           TORCH_VERSION + "\n";
  }();
  return text;
}

std::string file_name(const std::string& problem) {
  // FNV-1a, twice, with two starting points. The text inside the file is what counts.
  std::string name;
  for (uint64_t hash : {0xcbf29ce484222325ull, 0x84222325cbf29ce4ull}) {
    for (const char c : header() + problem) {
      hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
    }
    char digits[17];
    std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(hash));
    name += digits;
  }
  return name + ".txt";
}

// The choice that a record states for the problem; empty when it is not whole, or another one's.
std::string choice_in(const std::string& record, const std::string& problem,
                      const std::vector<std::string>& candidates) {
  const std::string start = header() + problem, ending = "\nend\n", mark = "\nchoice ";
  if (record.rfind(start, 0) != 0 || record.size() < start.size() + ending.size() ||
      record.compare(record.size() - ending.size(), ending.size(), ending) != 0) {
    return {};
  }
  const auto at = record.rfind(mark);
  if (at == std::string::npos) return {};
  const auto first = at + mark.size();
  const auto name = record.substr(first, record.find('\n', first) - first);
  return std::find(candidates.begin(), candidates.end(), name) == candidates.end() ? "" : name;
}

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return file ? text.str() : std::string();
}

// Writes the record, unless another process was first. Failures leave the record in memory only.
void write_file(const fs::path& path, const std::string& record, bool replace) {
  static std::atomic<int> count{0};
  std::error_code error;
  make_cache_folder(path.parent_path());
  const fs::path draft = path.string() + "." + std::to_string(getpid()) + "." +
                         std::to_string(count++) + ".tmp";
  bool written = false;
  {
    std::ofstream file(draft, std::ios::binary);
    file << record;
    file.close();
    written = !file.fail();
  }
  constexpr auto others = fs::perms::group_write | fs::perms::others_write;
  fs::permissions(draft, others, fs::perm_options::remove, error);
  if (written) {
    if (replace && fs::is_directory(path, error)) fs::remove_all(path, error);
    if (!replace) {
      fs::create_hard_link(draft, path, error);  // fails where there is a file already
      replace = error && !fs::exists(path);      // else a file system without links
    }
    if (replace) fs::rename(draft, path, error);
  }
  fs::remove(draft, error);
}

// Seconds of each candidate, the best of some runs; infinite for one that was given up.
std::vector<double> measure(size_t count, const std::function<void(size_t)>& run) {
  constexpr double kEnough = 0.3;  // seconds
  constexpr int kLeast = 2, kTrusted = 4, kMost = 30;  // rounds
  constexpr double kHopeless = 8, kSlower = 1.5;
  constexpr double kStart = 1.0;  // seconds that a library may take to load and set itself up
  const auto now = [] { return std::chrono::steady_clock::now(); };
  const auto seconds_since = [&](auto start) {
    return std::chrono::duration<double>(now() - start).count();
  };
  const auto timed = [&](size_t i) {
    const auto start = now();
    run(i);
    return seconds_since(start);
  };
  constexpr double kNever = std::numeric_limits<double>::infinity();
  std::vector<double> best(count, kNever), first(count);
  // The first run of each also makes the library's code and touches fresh memory: it only shows
  // what need not be tried again.
  for (size_t i = 0; i < count; ++i) first[i] = timed(i);
  const double quickest = *std::min_element(first.begin(), first.end());
  const auto start = now();
  for (int round = 0; round < kMost; ++round) {
    const double leader = *std::min_element(best.begin(), best.end());
    for (size_t i = 0; i < count; ++i) {
      const bool lost = round == 0 ? first[i] > kHopeless * quickest + kStart
                        : best[i] == kNever || (round >= kTrusted && best[i] > kSlower * leader);
      if (!lost) best[i] = std::min(best[i], timed(i));
    }
    if (round + 1 >= kLeast && seconds_since(start) > kEnough) break;
  }
  return best;
}

}  // namespace

std::string known_choice(const std::string& problem) {
  Table& known = table();
  const std::lock_guard<std::mutex> lock(known.mutex);
  const auto found = known.choices.find(problem);
  return found == known.choices.end() ? std::string() : found->second.name;
}

size_t choose(const std::string& problem, const std::vector<std::string>& candidates,
              const std::function<void(size_t)>& run) {
  const auto position = [&](const std::string& name) {
    return static_cast<size_t>(std::find(candidates.begin(), candidates.end(), name) -
                               candidates.begin());
  };
  Table& known = table();
  const std::lock_guard<std::mutex> alone(known.measuring);
  if (const size_t i = position(known_choice(problem)); i < candidates.size()) return i;

  const auto folders = cache_folders("tuning");
  std::string record, name;
  for (const fs::path& folder : folders.read) {
    record = read_file(folder / file_name(problem));
    name = choice_in(record, problem, candidates);
    if (!name.empty()) break;
  }
  if (name.empty()) {
    const auto seconds = measure(candidates.size(), run);
    loma_pool_release();  // what was only tried is no measure of what calls will need
    constexpr double kClearly = 0.97;
    size_t best = 0;
    for (size_t i = 1; i < candidates.size(); ++i) {
      if (seconds[i] < kClearly * seconds[0] && seconds[i] < seconds[best]) best = i;
    }
    std::ostringstream text;
    text << header() << problem << "threads " << at::get_num_threads() << "\n";
    for (size_t i = 0; i < candidates.size(); ++i) {
      text << "seconds " << candidates[i] << " " << seconds[i] << "\n";
    }
    text << "choice " << candidates[best] << "\nend\n";
    record = text.str();
    name = candidates[best];
    if (!folders.write.empty()) {
      const fs::path path = folders.write / file_name(problem);
      std::error_code error;
      const bool broken =
          fs::exists(path, error) && choice_in(read_file(path), problem, candidates).empty();
      write_file(path, record, broken);
      const std::string kept = read_file(path);
      if (const auto other = choice_in(kept, problem, candidates); !other.empty()) {
        record = kept;
        name = other;
      }
    }
  }
  const std::lock_guard<std::mutex> lock(known.mutex);
  known.choices[problem] = {name, record};
  return position(name);
}

std::vector<std::string> chosen_records() {
  Table& known = table();
  const std::lock_guard<std::mutex> lock(known.mutex);
  std::vector<std::string> records;
  for (const auto& [problem, choice] : known.choices) records.push_back(choice.record);
  return records;
}

void forget_choices() {
  Table& known = table();
  const std::lock_guard<std::mutex> lock(known.mutex);
  known.choices.clear();
}

}  // namespace loma
