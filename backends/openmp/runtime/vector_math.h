// exp, log and tanh without branches, so that loops which call them become vector code, and vector
// versions of the C library's other functions. A value is the same in every lane, in the remainder of
// a loop, and outside of loops.
//
// Infinities, NaN, signed zeros, overflow and denormal numbers are as in the C library. Largest error
// over dense samples, in units in the last place: log 1, exp 1.2, tanh 2.6, erfc of floats 4.7. Methods:
// reduction by log(2) in two parts (W. Cody, W. Waite, Software Manual for the Elementary
// Functions, 1980), polynomials by Chebyshev interpolation on the reduced interval, log in double as
// in fdlibm's e_log.c.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "masked.h"

// glibc's vector versions (libmvec, at most 4 units in the last place off). Its headers offer them
// under -ffast-math only; under names of our own the scalar functions stay what they are elsewhere.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(_OPENMP) && !defined(__clang__)
#if __GLIBC_PREREQ(2, 35)
#define LOMA_LIBMVEC 1
extern "C" {
// "const", as -fno-math-errno makes them: a loop with conditions becomes vector code, too.
// clang-format off
#define LOMA_SIMD _Pragma("omp declare simd notinbranch") __attribute__((const))
#define LOMA_VECTOR(name)                                             \
  LOMA_SIMD float loma_##name##f(float) noexcept __asm__(#name "f");  \
  LOMA_SIMD double loma_##name(double) noexcept __asm__(#name);
#define LOMA_VECTOR2(name)                                                   \
  LOMA_SIMD float loma_##name##f(float, float) noexcept __asm__(#name "f");  \
  LOMA_SIMD double loma_##name(double, double) noexcept __asm__(#name);
LOMA_VECTOR(sin) LOMA_VECTOR(cos) LOMA_VECTOR(tan) LOMA_VECTOR(asin) LOMA_VECTOR(acos)
LOMA_VECTOR(atan) LOMA_VECTOR(sinh) LOMA_VECTOR(cosh) LOMA_VECTOR(expm1) LOMA_VECTOR(exp2)
LOMA_VECTOR(log1p) LOMA_VECTOR(log2) LOMA_VECTOR(erf) LOMA_VECTOR(erfc)
LOMA_VECTOR2(pow) LOMA_VECTOR2(atan2)
// clang-format on
#undef LOMA_VECTOR
#undef LOMA_VECTOR2
#undef LOMA_SIMD
}
#endif
#endif

namespace loma {
namespace vector {

#define LOMA_BRANCH_FREE __attribute__((always_inline)) inline

template <typename to, typename from>
LOMA_BRANCH_FREE to bits(from value) {
  static_assert(sizeof(to) == sizeof(from), "the same number of bits");
  to result;
  std::memcpy(&result, &value, sizeof(to));
  return result;
}

// What the functions need to know of a format.
template <typename real>
struct Format;

template <>
struct Format<float> {
  using Bits = uint32_t;
  static constexpr int kMantissa = 23;
  static constexpr Bits kBias = 127;
  static constexpr float kRound = 0x1.8p23f;  // x + kRound - kRound rounds x to an integer
  static constexpr float kLog2e = 0x1.715476p+0f;
  // log(2): the first part has trailing zeros, so that its product with an exponent is exact.
  static constexpr float kLn2High = 0x1.62e4p-1f, kLn2Low = 0x1.7f7d1cp-20f;
  static constexpr float kLargest = 89.0f, kSmallest = -104.0f;  // exp is inf above, 0 below
  static constexpr float kSaturated = 20.0f;                     // tanh(x / 2) is 1 above
  static constexpr Bits kRootHalf = 0x3f3504f3;                  // sqrt(1/2)

  // (exp(r) - 1 - r) / r^2 for |r| <= log(2) / 2
  LOMA_BRANCH_FREE static float exp_tail(float r) {
    float p = 1.98909908246736538e-4f;
    p = p * r + 1.39336499963092504e-3f;
    p = p * r + 8.33331092548090083e-3f;
    p = p * r + 4.16664649252859054e-2f;
    p = p * r + 1.66666666816232314e-1f;
    return p * r + 0.5f;
  }

  // log(1 + f) - f for sqrt(1/2) - 1 <= f <= sqrt(2) - 1
  LOMA_BRANCH_FREE static float log_tail(float f) {
    float p = 6.97161147145117783e-2f;
    p = p * f - 1.14797338466376356e-1f;
    p = p * f + 1.16854199234867393e-1f;
    p = p * f - 1.24256873314511061e-1f;
    p = p * f + 1.42490576456974804e-1f;
    p = p * f - 1.66678023195012541e-1f;
    p = p * f + 2.00007157488921017e-1f;
    p = p * f - 2.4999996957950882e-1f;
    p = p * f + 3.33333311800300481e-1f;
    const float square = f * f;
    return square * (f * p) - 0.5f * square;
  }
};

template <>
struct Format<double> {
  using Bits = uint64_t;
  static constexpr int kMantissa = 52;
  static constexpr Bits kBias = 1023;
  static constexpr double kRound = 0x1.8p52;
  static constexpr double kLog2e = 0x1.71547652b82fep+0;
  static constexpr double kLn2High = 0x1.62e42feep-1, kLn2Low = 0x1.a39ef35793c76p-33;
  static constexpr double kLargest = 710.0, kSmallest = -746.0;
  static constexpr double kSaturated = 44.0;
  static constexpr Bits kRootHalf = 0x3fe6a09e667f3bcd;

  LOMA_BRANCH_FREE static double exp_tail(double r) {
    double p = 2.51003854955103191e-8;
    p = p * r + 2.76200884454097482e-7;
    p = p * r + 2.75572684599970648e-6;
    p = p * r + 2.48015212959543751e-5;
    p = p * r + 1.98412698630536169e-4;
    p = p * r + 1.38888889172137169e-3;
    p = p * r + 8.33333333333006183e-3;
    p = p * r + 4.16666666666241279e-2;
    p = p * r + 1.66666666666666675e-1;
    return p * r + 0.5;
  }

  // log(1 + f) = f - (f^2 / 2 - s (f^2 / 2 + R(s^2))) with s = f / (2 + f)
  LOMA_BRANCH_FREE static double log_tail(double f) {
    const double s = f / (2.0 + f), z = s * s, half = 0.5 * f * f;
    double p = 1.479819860511658591e-1;
    p = p * z + 1.531383769920937332e-1;
    p = p * z + 1.818357216161805012e-1;
    p = p * z + 2.222219843214978396e-1;
    p = p * z + 2.857142874366239149e-1;
    p = p * z + 3.999999999940941908e-1;
    p = p * z + 6.666666666666735130e-1;
    return s * (half + p * z) - half;
  }
};

// x = n log(2) + r with |r| <= log(2) / 2: r, and n as an integer modulo 2^32 or 2^64.
template <typename real>
struct Reduced {
  real r;
  typename Format<real>::Bits n;
};

template <typename real>
LOMA_BRANCH_FREE Reduced<real> reduce(real x) {
  using F = Format<real>;
  using Bits = typename F::Bits;
  const real shifted = x * F::kLog2e + F::kRound;
  const real n = shifted - F::kRound;
  const real r = (x - n * F::kLn2High) - n * F::kLn2Low;
  return {r, bits<Bits>(shifted) - bits<Bits>(F::kRound)};
}

// 2^n, for n that is the exponent of a normal number.
template <typename real>
LOMA_BRANCH_FREE real power_of_two(typename Format<real>::Bits n) {
  using F = Format<real>;
  return bits<real>((n + F::kBias) << F::kMantissa);
}

// p 2^n, in two steps: 2^n itself may not be a normal number where the result is.
template <typename real>
LOMA_BRANCH_FREE real scaled(real p, typename Format<real>::Bits n) {
  const auto half = ((n + 4096) >> 1) - 2048;
  return p * power_of_two<real>(half) * power_of_two<real>(n - half);
}

template <typename real>
LOMA_BRANCH_FREE real exp(real x) {
  using F = Format<real>;
  x = x > F::kLargest ? F::kLargest : x;  // NaN stays
  x = x < F::kSmallest ? F::kSmallest : x;
  const Reduced<real> part = reduce(x);
  const real r = part.r;
  return scaled<real>(real(1) + (r + r * r * F::exp_tail(r)), part.n);
}

template <typename real>
LOMA_BRANCH_FREE real log(real x) {
  using F = Format<real>;
  using Bits = typename F::Bits;
  constexpr real kInfinity = std::numeric_limits<real>::infinity();
  constexpr real kUp = real(Bits(1) << F::kMantissa);
  const bool tiny = x < std::numeric_limits<real>::min();
  const real y = tiny ? x * kUp : x;
  const real shift = tiny ? real(F::kMantissa) : real(0);
  // y = 2^e m with sqrt(1/2) <= m < sqrt(2); the exponent becomes a number by way of its bits.
  const Bits rest = bits<Bits>(y) - F::kRootHalf;
  const Bits exponent = (rest + (2 * (F::kBias + 1) << (F::kMantissa - 1))) >> F::kMantissa;
  const real e =
      bits<real>(bits<Bits>(F::kRound) + exponent) - (F::kRound + real(F::kBias + 1)) - shift;
  const real m = bits<real>((rest & ((Bits(1) << F::kMantissa) - 1)) + F::kRootHalf);
  const real f = m - real(1);
  const real finite = e * F::kLn2High + (f + (F::log_tail(f) + e * F::kLn2Low));
  const real positive = x < kInfinity ? finite : x;  // infinity and NaN as they are
  const real zero = x == real(0) ? -kInfinity : positive;
  return x < real(0) ? std::numeric_limits<real>::quiet_NaN() : zero;
}

template <typename real>
LOMA_BRANCH_FREE real tanh(real x) {
  using F = Format<real>;
  // tanh(x) = (exp(y) - 1) / (exp(y) + 1) with y = 2 |x|; the difference without cancellation.
  const real y = std::abs(x) * real(2);
  const Reduced<real> part = reduce(y > F::kSaturated ? F::kSaturated : y);
  const real r = part.r, scale = power_of_two<real>(part.n);
  const real less_one = scale * (r + r * r * F::exp_tail(r)) + (scale - real(1));
  return std::copysign(less_one / (less_one + real(2)), x);
}

// The C library's own, on whole vectors where it has such.
#ifdef LOMA_LIBMVEC
#define LOMA_CALL(name, ...) \
  if constexpr (sizeof(real) == sizeof(float)) return loma_##name##f(__VA_ARGS__); else return loma_##name(__VA_ARGS__)
#else
#define LOMA_CALL(name, ...) return std::name(__VA_ARGS__)
#endif

// exp(t^2) erfc(t) / u for 0 <= t <= 10.1, where u = 1 / (1 + t / 2) and v = u - 1/2
LOMA_BRANCH_FREE float scaled_erfc(float v) {
  float p = 3.26255561e-2f;
  p = p * v - 9.86756779e-3f;
  p = p * v - 7.52636647e-2f;
  p = p * v + 5.26496890e-2f;
  p = p * v + 9.79740342e-2f;
  p = p * v - 1.03556030e-1f;
  p = p * v - 1.72045718e-1f;
  p = p * v + 1.45765000e-1f;
  p = p * v + 5.58943548e-1f;
  p = p * v + 6.87160719e-1f;
  return p * v + 5.10791354e-1f;
}

template <typename real>
LOMA_BRANCH_FREE real erfc(real x) {
  // The C library's vectors of floats look their numbers up in a table, which takes longer.
  if constexpr (sizeof(real) == sizeof(float)) {
    using F = Format<float>;
    float t = std::abs(x);
    t = t > 10.1f ? 10.1f : t;  // NaN stays; the result is 0 above
    const float half = 0.5f * t, u = 1.0f / (1.0f + half), v = (0.5f - 0.5f * half) * u;
    // exp(-t^2) with the square in two parts, the first exact.
    const float high = bits<float>(bits<uint32_t>(t) & 0xfffff000u);
    const Reduced<float> part = reduce(-high * high);
    const float r = part.r - (t - high) * (t + high);
    const float p = scaled_erfc(v) * u * (1.0f + (r + r * r * F::exp_tail(r)));
    const float tail = scaled<float>(p, part.n);
    return x < 0.0f ? 2.0f - tail : tail;
  } else {
    LOMA_CALL(erfc, x);
  }
}

// One of two numbers that are there. Compilers move a call whose value one branch wants into that
// branch, and a loop with calls in branches is no vector code: bits have no branches.
template <typename real>
LOMA_BRANCH_FREE real blend(bool first, real a, real b) {
  return pick(first, a, b);
}

// clang-format off
#define LOMA_FUNCTION(name) \
  template <typename real> LOMA_BRANCH_FREE real name(real x) { LOMA_CALL(name, x); }
#define LOMA_FUNCTION2(name) \
  template <typename real> LOMA_BRANCH_FREE real name(real x, real y) { LOMA_CALL(name, x, y); }
LOMA_FUNCTION(sin) LOMA_FUNCTION(cos) LOMA_FUNCTION(tan) LOMA_FUNCTION(asin) LOMA_FUNCTION(acos)
LOMA_FUNCTION(atan) LOMA_FUNCTION(sinh) LOMA_FUNCTION(cosh) LOMA_FUNCTION(expm1) LOMA_FUNCTION(exp2)
LOMA_FUNCTION(log1p) LOMA_FUNCTION(log2) LOMA_FUNCTION(erf)
LOMA_FUNCTION2(pow) LOMA_FUNCTION2(atan2)
// clang-format on

#undef LOMA_FUNCTION
#undef LOMA_FUNCTION2
#undef LOMA_CALL
#undef LOMA_BRANCH_FREE

}  // namespace vector
}  // namespace loma
