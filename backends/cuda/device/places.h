// Where subscripts may be outside, for all values of an index or for one element that a loop looks at:
// those checks of backends/torch/runtime/checks.h and kernels.h that have arguments of their own.
#pragma once

#include <cstdint>

#include "checks.h"
#include "grid.h"

namespace loma {

// The values that an affine subscript takes: from ``low`` to ``high``, both included.
struct Interval {
  int64_t low, high;
  bool empty = false;

  explicit Interval(int64_t value) : low(value), high(value) {}

  // Adds ``coefficient * i`` for i in range(extent).
  Interval over(int64_t coefficient, int64_t extent) const {
    Interval sum = *this;
    sum.empty |= extent <= 0;
    (coefficient < 0 ? sum.low : sum.high) += coefficient * (extent - 1);
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

inline void range_error(const char* place, const char* subscript, const char* tensor, int64_t dim,
                        int64_t size, Interval found) {
  tell({Check::range, {place, subscript, tensor}, {dim, size, found.low, found.high}});
}

// A subscript, and the size of its dimension.
struct At {
  int64_t size, subscript;
};

// One element of a tensor, its subscripts checked; 0 where one is outside.
template <typename value, typename number, typename... Places>
inline value element(const number* data, const char* place, const char* name, Places... places) {
  const At all[] = {places...};
  int64_t offset = 0;
  for (int dim = 0; dim < int(sizeof...(places)); ++dim) {
    const auto [size, subscript] = all[dim];
    if (subscript < 0 || subscript >= size) {
      tell({Check::element, {place, name}, {dim, subscript, size}});
      return value(0);
    }
    offset = offset * size + subscript;
  }
  return value(data[offset]);
}

template <typename value, typename number>
inline value element(const number* data, const char*, const char*) {
  return value(data[0]);
}

// A float argument, which may be a value.
template <typename value, typename number>
inline value element(const Number<number>& data, const char*, const char*) {
  return value(data[0]);
}

}  // namespace loma
