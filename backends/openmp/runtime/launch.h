// The parallel loops of statements and kernels, and the memory of a kernel's private tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "parallel.h"

#pragma GCC visibility push(default)

namespace loma {

// The loop of one statement inside a kernel: on this thread, or in parallel where the iterations of
// the kernel itself are not.
template <typename Body>
inline void inside(bool nested, int64_t count, int64_t work, const Body& body) {
  if (nested) {
    parallel(count, work, body);
  } else if (count > 0) {
    body(0, count);
  }
}

// Where the private tensors of a kernel lie in its workspace: those whose lifetimes do not overlap
// share memory. Tensors are placed in the order in which they are added, each at the lowest offset
// where it meets none that is alive at the same time.
class WorkspacePlan {
 public:
  void add(int first, int last, size_t bytes);
  void place();

  // Places the largest elsewhere, until no more than ``most`` bytes are left: kFar stands before their
  // offsets, far() is what they need. For devices with little memory that is fast.
  void keep_near(size_t most);
  static constexpr size_t kFar = size_t(1) << 48;

  // Under AddressSanitizer: nothing but the tensors themselves may be touched.
  void guard(std::byte* memory) const;

  size_t offset(size_t slot) const { return slots_[slot].offset; }
  size_t bytes() const { return bytes_; }
  size_t far() const { return far_; }

 private:
  struct Slot {
    int first, last;
    size_t bytes, offset, exact;
    bool far = false;
  };
  void place(bool far, size_t start, size_t* end);

  std::vector<Slot> slots_;
  size_t bytes_ = 0, far_ = 0;
};

// How many of ``extent`` values go through the loops of a panel at once: as many as keep its
// temporaries, of ``bytes`` for each value, in ``cache`` bytes, but enough to be worth reading
// ``operands`` bytes again for every panel, and ``least`` or more. It depends on sizes alone, as
// results may depend on it.
int64_t panel(int64_t extent, int64_t bytes, int64_t operands, int64_t cache, int64_t least);

// The same where nothing but the rounding of a library depends on it: as many as leave a panel to
// each thread, and let the panels of all of them share the cache.
int64_t shared_panel(int64_t extent, int64_t bytes, int64_t operands, int64_t cache, int64_t least);

// The same for rows that are about fewer columns the earlier they come: no more than a quarter of
// all. Sums over columns depend on it.
int64_t panel_of_rows(int64_t extent, int64_t bytes, int64_t operands, int64_t cache,
                      int64_t least);

using Panel = Callback<int64_t, int64_t>;

// body(first, count) for panels of ``size`` of ``extent`` values, one after the other. ``name`` is
// that of a range in profiles, here and below.
void panels(const char* name, int64_t extent, int64_t size, Panel body);

// The same for panels that do not meet: in parallel, each on one thread, where there are at least as
// many as threads, and those that run at once, of ``bytes`` for each value, are about what the cache
// holds. What runs inside, operators of ATen too, is as it is on the calling thread.
void panels_apart(const char* name, int64_t extent, int64_t size, int64_t bytes, int64_t cache,
                  Panel body);

// How many values of an axis make a block: so many that private tensors, of ``bytes`` for each value,
// stay in the first-level cache; ``least`` or a multiple of that, as whole vectors are.
int64_t block_size(int64_t extent, int64_t bytes, int64_t least);

using Iterations = Callback<std::byte*, bool, int64_t, int64_t>;

// Runs ``body(workspace, nested, begin, end)`` over range(count), each thread with a workspace of
// its own. ``work`` is about the number of steps in one iteration.
void kernel(const char* name, int64_t count, int64_t work, const WorkspacePlan& plan,
            Iterations body);

}  // namespace loma

#pragma GCC visibility pop
