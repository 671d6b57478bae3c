// What a module that measures itself (`loma bench --explain`) is made of: a probe for each statement
// or fused loop, which a timer on the stack adds to. Times are exclusive: what runs inside a timer
// has its own, and is taken off.
#ifndef LOMA_TIMING_H
#define LOMA_TIMING_H

#include "tables.h"

#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstdint>

namespace loma {

struct Probe {
  const char* function;
  int line;          // in the program, 0 where it has none
  const char* text;  // the statement
  std::atomic<int64_t> count{0}, nanoseconds{0}, page_faults{0};
  std::atomic<int64_t> bytes{0}, flops{0};  // at least; -1: not known
};

class Timed {
 public:
  explicit Timed(Probe& probe) : probe_(probe), outer_(innermost()) {
    innermost() = this;
    faults_ = page_faults();
    start_ = now();
  }
  ~Timed() { stop(); }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

  // What runs meanwhile moves and computes at least this much.
  void work(int64_t bytes, int64_t flops) {
    probe_.bytes.fetch_add(bytes, std::memory_order_relaxed);
    probe_.flops.fetch_add(flops, std::memory_order_relaxed);
  }
  void unknown_work() {
    probe_.bytes.store(-1, std::memory_order_relaxed);
    probe_.flops.store(-1, std::memory_order_relaxed);
  }

  void stop() {
    if (stopped_) return;
    stopped_ = true;
    const int64_t time = now() - start_, faults = page_faults() - faults_;
    probe_.count.fetch_add(1, std::memory_order_relaxed);
    probe_.nanoseconds.fetch_add(time - inner_time_, std::memory_order_relaxed);
    probe_.page_faults.fetch_add(faults - inner_faults_, std::memory_order_relaxed);
    innermost() = outer_;
    if (outer_ != nullptr) {
      outer_->inner_time_ += time;
      outer_->inner_faults_ += faults;
    }
  }

 private:
  static Timed*& innermost() {
    static thread_local Timed* timed = nullptr;
    return timed;
  }
  static int64_t now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  static int64_t page_faults() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);  // all threads: a parallel loop is one statement
    return usage.ru_minflt;
  }

  Probe& probe_;
  Timed* outer_;
  int64_t start_ = 0, faults_ = 0, inner_time_ = 0, inner_faults_ = 0;
  bool stopped_ = false;
};

}  // namespace loma

#endif  // LOMA_TIMING_H
