// The parallel loop.
#pragma once

#include <ATen/Parallel.h>

#include <cstdint>

#ifdef LOMA_SANITIZE_THREAD
#include <algorithm>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>
#endif

namespace loma {

#ifdef LOMA_SANITIZE_THREAD

// ThreadSanitizer does not see how OpenMP's threads wait for each other, but how these do.
inline thread_local bool inside_parallel_for = false;

inline bool in_parallel_region() { return inside_parallel_for || at::in_parallel_region(); }

template <typename Body>
void parallel_for(int64_t begin, int64_t end, int64_t grain, const Body& body) {
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

inline bool in_parallel_region() { return at::in_parallel_region(); }

// body(begin, end) for parts of [begin, end) of at least ``grain``, each on a thread.
template <typename Body>
void parallel_for(int64_t begin, int64_t end, int64_t grain, const Body& body) {
  at::parallel_for(begin, end, grain, body);
}

#endif

}  // namespace loma
