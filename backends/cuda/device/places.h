// Where subscripts may be outside, for all values of an index or for one element that a loop looks at:
// those checks of backends/torch/runtime/checks.h and kernels.h that have arguments of their own.
#pragma once

#include <cstdint>

#include "checks.h"
#include "grid.h"
#include "interval.h"

namespace loma {

inline void range_error(const char* place, const char* subscript, const char* tensor, int64_t dim,
                        int64_t size, Interval found) {
  tell({Check::range, {place, subscript, tensor}, {dim, size, found.low, found.high}});
}

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
