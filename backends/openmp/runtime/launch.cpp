// What runs the loops of generated code. Compiled with the same sanitizers.
#include "launch.h"

#include "caller.h"
#include "call_device.h"
#include "memory.h"
#include "sanitize.h"
#include "workspace.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <utility>

#ifdef LOMA_SANITIZE_THREAD
#include <exception>
#include <mutex>
#include <thread>
#elif !defined(_OPENMP)
#include <c10/util/ParallelGuard.h>

#include <atomic>
#include <exception>

// What GCC makes of "omp parallel": ``body(data)`` on each of ``threads``, or of as many as are set.
extern "C" void GOMP_parallel(void (*body)(void*), void* data, unsigned threads, unsigned flags);
extern "C" int omp_get_num_threads();
extern "C" int omp_get_thread_num();
#endif

namespace loma {
namespace {

// Bytes of temporaries in a panel that is worth a thread.
constexpr int64_t kLeastShare = 128 << 10;

// Rows that are a panel anyway.
constexpr int64_t kFewRows = 32;

}  // namespace

#ifdef LOMA_SANITIZE_THREAD

// ThreadSanitizer does not see how OpenMP's threads wait for each other, but how these do.
static thread_local bool inside_parallel_for = false;

bool in_parallel_region() { return inside_parallel_for || at::in_parallel_region(); }

void parallel_for(int64_t begin, int64_t end, int64_t grain, Range body) {
  if (begin >= end) return;
  grain = std::max<int64_t>(grain, 1);
  const int64_t most = in_parallel_region() ? 1 : at::get_num_threads();
  const int64_t count = std::min(most, (end - begin + grain - 1) / grain);
  const int64_t size = (end - begin + count - 1) / count;
  std::mutex mutex;
  std::exception_ptr error;
  const auto run = [&](int64_t first) {
    const bool before = inside_parallel_for;
    inside_parallel_for = true;
    try {
      body(first, std::min(end, first + size));
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex);
      if (error == nullptr) error = std::current_exception();
    }
    inside_parallel_for = before;
  };
  std::vector<std::thread> threads;
  for (int64_t first = begin + size; first < end; first += size) threads.emplace_back(run, first);
  run(begin);
  for (std::thread& thread : threads) thread.join();
  if (error != nullptr) std::rethrow_exception(error);
}

#else

bool in_parallel_region() { return at::in_parallel_region(); }

#ifdef _OPENMP

void parallel_for(int64_t begin, int64_t end, int64_t grain, Range body) {
  at::parallel_for(begin, end, grain, body);
}

#else

// Clang's OpenMP wants a library of its own, whose threads would stand beside torch's. What
// at::parallel_for does with "omp parallel" is a call of torch's library here: the same threads take
// the same parts.
void parallel_for(int64_t begin, int64_t end, int64_t grain, Range body) {
  if (begin >= end) return;
  at::internal::lazy_init_num_threads();
  const int64_t length = end - begin;
  if (length <= grain || length == 1 || at::in_parallel_region() || at::get_num_threads() == 1) {
    const at::internal::ThreadIdGuard first(0);
    const c10::ParallelGuard guard(true);
    body(begin, end);
    return;
  }
  std::atomic_flag failed = ATOMIC_FLAG_INIT;
  std::exception_ptr error;
  auto part = [&] {
    int64_t threads = omp_get_num_threads();
    if (grain > 0) threads = std::min(threads, (length + grain - 1) / grain);
    const int64_t thread = omp_get_thread_num(), size = (length + threads - 1) / threads;
    const int64_t first = begin + thread * size;
    if (first >= end) return;
    try {
      const at::internal::ThreadIdGuard numbered(static_cast<int>(thread));
      const c10::ParallelGuard guard(true);
      body(first, std::min(end, first + size));
    } catch (...) {
      if (!failed.test_and_set()) error = std::current_exception();
    }
  };
  GOMP_parallel([](void* data) { (*static_cast<decltype(part)*>(data))(); }, &part, 0, 0);
  if (error != nullptr) std::rethrow_exception(error);
}

#endif

#endif

void parallel(int64_t count, int64_t work, Range body) {
  if (count <= 0) return;
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(work, 1));
  if (count <= grain) {
    body(0, count);
  } else {
    parallel_for(0, count, grain, body);
  }
}

void WorkspacePlan::add(int first, int last, size_t bytes) {
  slots_.push_back({first, last, (bytes + 63) / 64 * 64 + kRedZone, 0, bytes, false});
}

void WorkspacePlan::place() { place(false, 0, &bytes_); }

void WorkspacePlan::keep_near(size_t most) {
  while (bytes_ > most) {
    const auto smaller = [](const Slot& a, const Slot& b) {
      return std::make_pair(!a.far, a.bytes) < std::make_pair(!b.far, b.bytes);
    };
    std::max_element(slots_.begin(), slots_.end(), smaller)->far = true;
    place(false, 0, &bytes_);
    place(true, kFar, &far_);
  }
}

// The slots there or here, from ``start`` on; they need ``end`` bytes.
void WorkspacePlan::place(bool far, size_t start, size_t* end) {
  *end = 0;
  for (size_t k = 0; k < slots_.size(); ++k) {
    Slot& slot = slots_[k];
    if (slot.far != far) continue;
    slot.offset = start;
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t other = 0; other < k; ++other) {
        const Slot& old = slots_[other];
        if (old.far != far) continue;
        const bool alive =
            kRedZone > 0 || (slot.first <= old.last && old.first <= slot.last);
        if (alive && slot.offset < old.offset + old.bytes && old.offset < slot.offset + slot.bytes) {
          slot.offset = old.offset + old.bytes;
          moved = true;
        }
      }
    }
    *end = std::max(*end, slot.offset + slot.bytes - start);
  }
}

void WorkspacePlan::guard(std::byte* memory) const {
  for (const Slot& slot : slots_) {
    forbid(memory + slot.offset + slot.exact, memory + slot.offset + slot.bytes);
  }
}

int64_t panel(int64_t extent, int64_t bytes, int64_t operands, int64_t cache, int64_t least) {
  const int64_t wanted = std::max(cache, 2 * operands);
  const int64_t most = std::max(least, wanted / std::max<int64_t>(bytes, 1));
  return std::max<int64_t>(1, std::min({extent, most, kMostInPart}));
}

int64_t panel_of_rows(int64_t extent, int64_t bytes, int64_t operands, int64_t cache,
                      int64_t least) {
  const int64_t quarter = std::max<int64_t>(kFewRows, (extent + 3) / 4);
  return std::min(panel(extent, bytes, operands, cache, least), quarter);
}

void panels(const char* name, int64_t extent, int64_t size, Panel body) {
  const ProfiledRange range(name);
  for (int64_t first = 0; first < extent; first += size) {
    body(first, std::min(size, extent - first));
  }
}

void panels_apart(const char* name, int64_t extent, int64_t size, int64_t bytes, int64_t cache,
                  Panel body) {
  // Kernels on a GPU are launched one after the other, on this thread's stream.
  const bool alone = in_parallel_region() || call_on_gpu();
  const int64_t threads = alone ? 1 : at::get_num_threads();
  const int64_t count = (extent + size - 1) / size;
  const bool fit = threads * size * bytes <= 2 * cache;
  if (threads == 1 || count < threads || !fit) return panels(name, extent, size, body);
  const ProfiledRange range(name);
  const CallerState state;
  parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
    const CallerState::Scope scope(state);
    const PoolScope pool;
    for (int64_t k = begin; k < end; ++k) {
      body(k * size, std::min(size, extent - k * size));
    }
  });
}

int64_t shared_panel(int64_t extent, int64_t bytes, int64_t operands, int64_t cache, int64_t least) {
  const int64_t threads = in_parallel_region() ? 1 : at::get_num_threads();
  const int64_t alone = panel(extent, bytes, operands, cache, least);
  if (threads == 1) return alone;
  const auto values = [&](int64_t many) { return std::max(least, many / std::max<int64_t>(bytes, 1)); };
  const int64_t room = values(std::max(cache, 2 * operands / threads));
  const int64_t share = std::max(values(kLeastShare), (extent + threads - 1) / threads);
  return std::min({alone, room, share});
}

int64_t block_size(int64_t extent, int64_t bytes, int64_t least) {
  const int64_t values = int64_t(LOMA_BLOCK_BYTES) / std::max<int64_t>(bytes, 4);
  const int64_t most = std::clamp<int64_t>(values / least * least, least, LOMA_BLOCK_MOST);
  return std::max<int64_t>(1, std::min({extent, most, kMostInPart}));
}

void kernel(const char* name, int64_t count, int64_t work, const WorkspacePlan& plan,
            Iterations body) {
  const ProfiledRange range(name);
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
