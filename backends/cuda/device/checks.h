// The checks of backends/torch/runtime/checks.h on a device: nothing is thrown here. The first that
// fails writes a report into memory of the host, which throws; then the kernel goes on, so whoever
// calls these makes sure that no memory outside a tensor is touched.
#pragma once

#include <cstddef>
#include <cstdint>

#include "grid.h"
#include "report.h"

#define LOMA_COLD __noinline__

namespace loma {

// Where this block's threads report. Each thread writes the same, before it reads, so no barrier is
// needed.
[[maybe_unused]] static Report** report_place() {
  __shared__ Report* report_;
  return &report_;
}

struct Told {
  Check kind;
  const char* texts[3];
  int64_t numbers[4];
};

LOMA_COLD inline void tell(const Told told) {
  Report* const report = *report_place();
  if (report == nullptr || *static_cast<volatile int32_t*>(&report->state) != Report::kFree) return;
  if (atomicCAS(&report->state, Report::kFree, Report::kClaimed) != Report::kFree) return;
  report->kind = int32_t(told.kind);
  for (int k = 0; k < 4; ++k) report->numbers[k] = told.numbers[k];
  for (int k = 0; k < 3; ++k) {
    const char* const text = told.texts[k] == nullptr ? "" : told.texts[k];
    int length = 0;
    for (; length < Report::kLength - 1 && text[length] != 0; ++length) {
      report->texts[k][length] = text[length];
    }
    report->texts[k][length] = 0;
  }
  __threadfence_system();
  *static_cast<volatile int32_t*>(&report->state) = Report::kReady;
}

inline void outside_error(const char* place, const char* subscript, const char* tensor, int64_t dim,
                          int64_t size, int64_t value) {
  tell({Check::outside, {place, subscript, tensor}, {dim, size, value}});
}

inline void extent_error(const char* place, const char* axis, int64_t extent, const char* tensor,
                         int64_t dim, int64_t size) {
  tell({Check::extent, {place, axis, tensor}, {extent, dim, size}});
}

inline void empty_error(const char* place, const char* kind) {
  tell({Check::empty, {place, kind}, {}});
}

// The loop that is endless must be left by whoever calls this.
inline void while_error(const char* function, int64_t line, int64_t limit) {
  tell({Check::endless, {function}, {line, limit}});
}

inline void zero_division(const char* place, const char* what) {
  tell({Check::zero_division, {place, what}, {}});
}

inline void subscript_error(int64_t i, size_t size, const char* function, int64_t line) {
  tell({Check::subscript, {function}, {i, int64_t(size), line}});
}

inline void storage_error(int first, int second, const char* function, int64_t line) {
  tell({Check::storage, {function}, {first, second, line}});
}

inline void full_error(int64_t capacity, const char* function, int64_t line) {
  tell({Check::full, {function}, {capacity, line}});
}

inline void drained_error(const char* function, int64_t line) {
  tell({Check::drained, {function}, {line}});
}

// A stack of so many elements cannot grow: only devices say so.
inline void memory_error(int64_t size, const char* function, int64_t line) {
  tell({Check::memory, {function}, {size, line}});
}

// Subscripts that are looked at where loops read: the first that this thread found outside. Every
// kernel that checks anything has one, made at its beginning.
class Outside {
 public:
  explicit Outside(const Grid& grid) { *report_place() = grid.report; }

  // The subscript where it is inside, else 0, which the caller has made sure exists.
  int64_t clamp(int64_t subscript, int64_t size, int64_t which) {
    return inside(subscript, size, which) ? subscript : 0;
  }

  // Whether the subscript is inside; it need not be for the statement to go on.
  bool inside(int64_t subscript, int64_t size, int64_t which) {
    if (subscript >= 0 && subscript < size) return true;
    if (which_ == 0) which_ = which, value_ = subscript;
    return false;
  }

  void check(int64_t which, const char* place, const char* subscript, const char* tensor, int64_t dim,
             int64_t size) const {
    if (which_ == which) outside_error(place, subscript, tensor, dim, size, value_);
  }

  void check_elements(int64_t which, const char* place, const char* kind) const {
    if (which_ == which) empty_error(place, kind);
  }

 private:
  int64_t which_ = 0, value_ = 0;
};

}  // namespace loma
