// The parallel loops of statements and kernels, and the memory of a kernel's private tensors.
#pragma once

#include <c10/util/FunctionRef.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "parallel.h"
#include "sanitize.h"
#include "workspace.h"

namespace loma {

using Range = c10::function_ref<void(int64_t, int64_t)>;

// Runs ``body(begin, end)`` over range(count), in parallel when there is enough to do. ``work`` is
// the number of innermost steps in one iteration. Out of line, so that every loop shares one copy.
__attribute__((noinline)) inline void parallel(int64_t count, int64_t work, Range body) {
  if (count <= 0) return;
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(work, 1));
  if (count <= grain) {
    body(0, count);
  } else {
    parallel_for(0, count, grain, [&](int64_t begin, int64_t end) { body(begin, end); });
  }
}

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
  void add(int first, int last, size_t bytes) {
    slots_.push_back({first, last, (bytes + 63) / 64 * 64 + kRedZone, 0, bytes});
  }

  void place() {
    for (size_t k = 0; k < slots_.size(); ++k) {
      Slot& slot = slots_[k];
      for (bool moved = true; moved;) {
        moved = false;
        for (size_t other = 0; other < k; ++other) {
          const Slot& old = slots_[other];
          const bool alive =
              kRedZone > 0 || (slot.first <= old.last && old.first <= slot.last);
          if (alive && slot.offset < old.offset + old.bytes && old.offset < slot.offset + slot.bytes) {
            slot.offset = old.offset + old.bytes;
            moved = true;
          }
        }
      }
      bytes_ = std::max(bytes_, slot.offset + slot.bytes);
    }
  }

  // Under AddressSanitizer: nothing but the tensors themselves may be touched.
  void guard(std::byte* memory) const {
    for (const Slot& slot : slots_) {
      forbid(memory + slot.offset + slot.exact, memory + slot.offset + slot.bytes);
    }
  }

  size_t offset(size_t slot) const { return slots_[slot].offset; }
  size_t bytes() const { return bytes_; }

 private:
  struct Slot {
    int first, last;
    size_t bytes, offset, exact;
  };
  std::vector<Slot> slots_;
  size_t bytes_ = 0;
};

// How many of ``extent`` values go through the loops of a panel at once: as many as keep its
// temporaries, of ``bytes`` for each value, in ``cache`` bytes, but enough to be worth reading
// ``operands`` bytes again for every panel, and ``least`` or more. It depends on sizes alone, as
// results may depend on it.
inline int64_t panel(int64_t extent, int64_t bytes, int64_t operands, int64_t cache,
                     int64_t least) {
  const int64_t wanted = std::max(cache, 2 * operands);
  const int64_t most = std::max(least, wanted / std::max<int64_t>(bytes, 1));
  return std::max<int64_t>(1, std::min({extent, most, kMostInPart}));
}

// A tensor's values [first, first + count) of a dimension.
inline at::Tensor part(const at::Tensor& whole, int64_t dim, int64_t first, int64_t count) {
  return count == whole.size(dim) ? whole : whole.narrow(dim, first, count);
}

// How many values of an axis make a block: so many that private tensors, of ``bytes`` for each value,
// stay in the first-level cache; ``least`` or a multiple of that, as whole vectors are.
inline int64_t block_size(int64_t extent, int64_t bytes, int64_t least) {
  const int64_t values = int64_t(LOMA_BLOCK_BYTES) / std::max<int64_t>(bytes, 4);
  const int64_t most = std::clamp<int64_t>(values / least * least, least, LOMA_BLOCK_MOST);
  return std::max<int64_t>(1, std::min({extent, most, kMostInPart}));
}

using Iterations = c10::function_ref<void(std::byte*, bool, int64_t, int64_t)>;

// Runs ``body(workspace, nested, begin, end)`` over range(count), each thread with a workspace of
// its own. ``work`` is about the number of steps in one iteration.
__attribute__((noinline)) inline void kernel(int64_t count, int64_t work, const WorkspacePlan& plan,
                                             Iterations body) {
  const auto run = [&](bool nested, int64_t begin, int64_t end) {
    const Workspace workspace(plan.bytes());
    plan.guard(workspace.data());
    body(workspace.data(), nested, begin, end);
  };
  if (count <= 0) return;
  const int64_t threads = in_parallel_region() ? 1 : at::get_num_threads();
  if (count < threads) {
    run(true, 0, count);
  } else {
    parallel(count, work, [&](int64_t begin, int64_t end) { run(false, begin, end); });
  }
}

}  // namespace loma
