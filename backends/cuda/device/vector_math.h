// The names of backends/openmp/runtime/vector_math.h on a device, whose own functions have no branches.
#pragma once

#include <cmath>

namespace loma {
namespace vector {

template <typename real>
inline real blend(bool first, real a, real b) {
  return first ? a : b;
}

// clang-format off
#define LOMA_FUNCTION(name) \
  template <typename real> inline real name(real x) { return std::name(x); }
#define LOMA_FUNCTION2(name) \
  template <typename real> inline real name(real x, real y) { return std::name(x, y); }
LOMA_FUNCTION(exp) LOMA_FUNCTION(log) LOMA_FUNCTION(tanh)
LOMA_FUNCTION(sin) LOMA_FUNCTION(cos) LOMA_FUNCTION(tan) LOMA_FUNCTION(asin) LOMA_FUNCTION(acos)
LOMA_FUNCTION(atan) LOMA_FUNCTION(sinh) LOMA_FUNCTION(cosh) LOMA_FUNCTION(expm1) LOMA_FUNCTION(exp2)
LOMA_FUNCTION(log1p) LOMA_FUNCTION(log2) LOMA_FUNCTION(erf) LOMA_FUNCTION(erfc)
LOMA_FUNCTION2(pow) LOMA_FUNCTION2(atan2)
// clang-format on

#undef LOMA_FUNCTION
#undef LOMA_FUNCTION2

}  // namespace vector
}  // namespace loma
