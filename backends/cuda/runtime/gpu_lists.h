// Launches for positions of lists, which go together: each by itself would leave much of a GPU idle.
#ifndef LOMA_GPU_LISTS_H
#define LOMA_GPU_LISTS_H

#include <vector>

#pragma GCC visibility push(default)

namespace loma::gpu {

// While one exists, launches of this thread wait that one launch may serve: those of kernels that are
// all that a call does. They run in any order. Whoever calls sees to it that none needs another, and
// that their tensors live until `launch`.
class Lists {
 public:
  Lists();
  ~Lists();  // what was not launched is dropped
  Lists(const Lists&) = delete;
  Lists& operator=(const Lists&) = delete;

  // Launches what waits.
  void launch();

 private:
  friend class Launcher;
  struct Group;

  static Lists*& current();
  Group& group_of(const Group& wanted);

  std::vector<Group> groups_;
  Lists* outer_;
};

}  // namespace loma::gpu

#pragma GCC visibility pop

#endif  // LOMA_GPU_LISTS_H
