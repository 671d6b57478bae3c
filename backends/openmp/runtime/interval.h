// Where subscripts may be outside, on any device: what a check looks at.
#pragma once

#include <cstdint>

namespace loma {

// The values that an affine subscript takes: from ``low`` to ``high``, both included.
struct Interval {
  int64_t low, high;
  bool empty = false;

  explicit Interval(int64_t value) : low(value), high(value) {}

  // Adds ``coefficient * i`` for i in range(extent).
  Interval over(int64_t coefficient, int64_t extent) const {
    Interval sum = *this;
    if (extent <= 0) {
      sum.empty = true;
    } else {
      (coefficient < 0 ? sum.low : sum.high) += coefficient * (extent - 1);
    }
    return sum;
  }

  bool inside(int64_t size) const { return empty || (low >= 0 && high < size); }
};

// Whether there is a row for which a condition holds.
template <typename Row>
inline bool some(int64_t rows, Row holds) {
  for (int64_t row = 0; row < rows; ++row) {
    if (holds(row)) return true;
  }
  return false;
}

// A subscript, and the size of its dimension.
struct At {
  int64_t size, subscript;
};

}  // namespace loma
