// What kernels use of the standard library, without any header of the system: NVRTC has none. The
// names <cmath>, <cstdint> and their like all stand for this file (backends/cuda/texts.py). The
// functions of C's math library, fabsf and fabs for float and double, are built in there.
#pragma once

typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;
typedef decltype(sizeof(0)) size_t;

#define INT64_MAX 0x7fffffffffffffffL
#define INT64_MIN (-INT64_MAX - 1)

namespace std {

using ::size_t;

// clang-format off
#define LOMA_MATH(name)                                   \
  inline float name(float x) { return ::name##f(x); }     \
  inline double name(double x) { return ::name(x); }
#define LOMA_MATH2(name)                                                   \
  inline float name(float x, float y) { return ::name##f(x, y); }          \
  inline double name(double x, double y) { return ::name(x, y); }
LOMA_MATH(exp) LOMA_MATH(exp2) LOMA_MATH(expm1) LOMA_MATH(log) LOMA_MATH(log2) LOMA_MATH(log10)
LOMA_MATH(log1p) LOMA_MATH(sqrt) LOMA_MATH(cbrt) LOMA_MATH(sin) LOMA_MATH(cos) LOMA_MATH(tan)
LOMA_MATH(asin) LOMA_MATH(acos) LOMA_MATH(atan) LOMA_MATH(sinh) LOMA_MATH(cosh) LOMA_MATH(tanh)
LOMA_MATH(asinh) LOMA_MATH(acosh) LOMA_MATH(atanh) LOMA_MATH(erf) LOMA_MATH(erfc) LOMA_MATH(lgamma)
LOMA_MATH(tgamma) LOMA_MATH(floor) LOMA_MATH(ceil) LOMA_MATH(trunc) LOMA_MATH(round)
LOMA_MATH(nearbyint) LOMA_MATH(rint) LOMA_MATH(fabs)
LOMA_MATH2(pow) LOMA_MATH2(atan2) LOMA_MATH2(fmod) LOMA_MATH2(copysign) LOMA_MATH2(hypot)
LOMA_MATH2(fmax) LOMA_MATH2(fmin)
#undef LOMA_MATH
#undef LOMA_MATH2
// clang-format on

inline float fma(float x, float y, float z) { return ::fmaf(x, y, z); }
inline double fma(double x, double y, double z) { return ::fma(x, y, z); }

inline float abs(float x) { return ::fabsf(x); }
inline double abs(double x) { return ::fabs(x); }
inline int64_t abs(int64_t x) { return x < 0 ? -x : x; }
inline int32_t abs(int32_t x) { return x < 0 ? -x : x; }

template <typename type>
constexpr const type& min(const type& a, const type& b) {
  return b < a ? b : a;
}

template <typename type>
constexpr const type& max(const type& a, const type& b) {
  return a < b ? b : a;
}

template <typename type>
struct greater {
  constexpr bool operator()(const type& a, const type& b) const { return a > b; }
};

template <typename type>
struct less {
  constexpr bool operator()(const type& a, const type& b) const { return a < b; }
};

// NVRTC has no constant that is infinite, so these two are no constants.
template <typename type>
struct numeric_limits;

template <>
struct numeric_limits<float> {
  static constexpr bool has_infinity = true;
  static float infinity() { return __int_as_float(0x7f800000); }
  static float quiet_NaN() { return __int_as_float(0x7fc00000); }
  static constexpr float max() { return 0x1.fffffep127f; }
  static constexpr float lowest() { return -max(); }
  static constexpr float min() { return 0x1p-126f; }
  static constexpr float epsilon() { return 0x1p-23f; }
};

template <>
struct numeric_limits<double> {
  static constexpr bool has_infinity = true;
  static double infinity() { return __longlong_as_double(0x7ff0000000000000); }
  static double quiet_NaN() { return __longlong_as_double(0x7ff8000000000000); }
  static constexpr double max() { return 0x1.fffffffffffffp1023; }
  static constexpr double lowest() { return -max(); }
  static constexpr double min() { return 0x1p-1022; }
  static constexpr double epsilon() { return 0x1p-52; }
};

template <>
struct numeric_limits<int64_t> {
  static constexpr bool has_infinity = false;
  static int64_t infinity() { return 0; }
  static constexpr int64_t max() { return INT64_MAX; }
  static constexpr int64_t lowest() { return INT64_MIN; }
  static constexpr int64_t min() { return INT64_MIN; }
};

}  // namespace std
