// Scalar arithmetic with loma's meaning.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>

#include "checks.h"
#ifdef __GLIBC__
#include "masked.h"
#endif

namespace loma {

// A divisor that may be zero, in the function and the line that `place` names.
inline int64_t nonzero(int64_t divisor, const char* place,
                       const char* what = "division of an int by zero") {
  if (divisor == 0) return zero_division(place, what), 1;  // where nothing is thrown: on a device
  return divisor;
}

// Ints: "/" truncates toward zero, "//" and "%" round toward minus infinity.
inline int64_t truncdiv(int64_t a, int64_t b) {
  return b == -1 ? -a : a / b;
}

// How many values range(start, stop, step) has.
inline int64_t range_length(int64_t start, int64_t stop, int64_t step) {
  const bool up = step > 0;
  if (up ? stop <= start : stop >= start) return 0;
  const uint64_t room = up ? uint64_t(stop) - uint64_t(start) : uint64_t(start) - uint64_t(stop);
  const uint64_t count = (room - 1) / (up ? uint64_t(step) : -uint64_t(step)) + 1;
  return int64_t(std::min<uint64_t>(count, INT64_MAX));
}

inline int64_t floordiv(int64_t a, int64_t b) {
  if (b == -1) return -a;
  const int64_t q = a / b;
  return q - (a % b != 0 && ((a < 0) != (b < 0)));
}

inline int64_t mod(int64_t a, int64_t b) {
  if (b == -1) return 0;
  const int64_t r = a % b;
  return r + (r != 0 && ((r < 0) != (b < 0)) ? b : 0);
}

// The whole number of times that b fits, so that a is (a // b) * b + a % b, as in Python.
template <typename real>
inline real real_floordiv(real a, real b) {
  if (b == 0) return a / b;
  const real rest = std::fmod(a, b);
  real count = (a - rest) / b;
  if (rest != 0 && ((rest < 0) != (b < 0))) count -= 1;
  if (count == 0) return std::copysign(real(0), a / b);
  const real whole = std::floor(count);
  return count - whole > real(0.5) ? whole + 1 : whole;
}

template <typename real>
inline real real_mod(real a, real b) {
  const real r = std::fmod(a, b);
  return r != 0 && ((r < 0) != (b < 0)) ? r + b : r;
}

// The first of equals, and NaN if either is. The first choice is one instruction, which takes `a`
// where a NaN is compared; with both conditions in one, loops would stay without vectors.
template <typename number>
inline number max(number a, number b) {
  const number larger = b > a ? b : a;
  return b != b ? b : larger;
}

template <typename number>
inline number min(number a, number b) {
  const number smaller = b < a ? b : a;
  return b != b ? b : smaller;
}

// Of choices inside choices each is a choice of two values that are there, one instruction for a
// vector. With three values, one of which is taken, compilers make masks for all of them.
template <typename number>
inline number choose(bool first, number a, number b) {
  return first ? a : b;
}

// x * y + z, rounded once.
template <typename real>
inline real fma(real x, real y, real z) {
  return std::fma(x, y, z);
}

// x * y, and 0 where y is 0, even if x is infinite or NaN.
template <typename real>
inline real mul_no_nan(real x, real y) {
  return y == 0 ? real(0) : x * y;
}

#ifdef __GLIBC__
// On CPUs without a branch, so that loops in which x calls the C library get vectors.
template <>
inline float mul_no_nan<float>(float x, float y) {
  return pick(y != 0, x * y, 0.0f);
}

template <>
inline double mul_no_nan<double>(double x, double y) {
  return pick(y != 0, x * y, 0.0);
}
#endif

inline int64_t ipow(int64_t base, int64_t exponent) {
  int64_t result = 1;
  for (; exponent > 0; exponent >>= 1, base *= base) {
    if (exponent & 1) result *= base;
  }
  return result;
}

// x to a small constant power, as products.
template <int exponent, typename number>
inline number power(number x) {
  if constexpr (exponent == 0) {
    return number(1);
  } else if constexpr (exponent == 1) {
    return x;
  } else if constexpr (exponent % 2 == 0) {
    return power<exponent / 2>(x * x);
  } else {
    return x * power<exponent - 1>(x);
  }
}

// x to a small constant number of quarters, as products of square roots: those of a negative number
// are NaN, as the power is, but that of minus infinity is infinite, and of -0 it is 0.
template <int quarters, typename real>
inline real power_of_quarters(real x) {
  const real half = std::sqrt(x + real(0)), rest = quarters % 4 == 2 ? half : std::sqrt(half);
  const real root = quarters % 4 == 3 ? half * rest : rest;
  const real result = power<quarters / 4>(x) * root;
  return x == -std::numeric_limits<real>::infinity() ? -x : result;
}

// The value that every other is at least as large as (or, with a sign, as small as).
template <typename number>
constexpr number lowest() {
  return std::numeric_limits<number>::has_infinity ? -std::numeric_limits<number>::infinity()
                                                   : std::numeric_limits<number>::lowest();
}

template <typename number>
constexpr number highest() {
  return std::numeric_limits<number>::has_infinity ? std::numeric_limits<number>::infinity()
                                                   : std::numeric_limits<number>::max();
}

// Running position of the first largest (smallest) element; NaN counts as the largest (smallest).
template <typename number, typename Better>
struct Argbest {
  number best{};
  int64_t position = -1;
  void take(number value, int64_t where) {
    const bool better = Better()(value, best) || (value != value && best == best);
    if (position < 0 || better) best = value, position = where;
  }
};

template <typename number>
using Argmax = Argbest<number, std::greater<number>>;
template <typename number>
using Argmin = Argbest<number, std::less<number>>;

}  // namespace loma
