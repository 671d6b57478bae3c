// What is asked before columns of a mask are left out (backends/kernels/columns.py).
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>

namespace loma {

// Whether all of the sizes are from 1 to ``most``.
inline bool within(std::initializer_list<int64_t> sizes, int64_t most) {
  for (const int64_t size : sizes) {
    if (size < 1 || size > most) return false;
  }
  return true;
}

// Whether the absolute values of numbers are from ``least`` to ``most``: of so many runs, each
// ``stride`` behind the one before.
template <typename real>
inline bool moderate(const real* numbers, int64_t runs, int64_t length, int64_t stride, real least,
                     real most) {
  for (int64_t run = 0; run < runs; ++run, numbers += stride) {
    int32_t outside = 0;  // of no other width than float32, for vectors
    for (int64_t k = 0; k < length; ++k) {
      const real value = std::abs(numbers[k]);
      outside |= int32_t(!(value >= least)) | int32_t(!(value <= most));
    }
    if (outside != 0) return false;
  }
  return true;
}

}  // namespace loma
