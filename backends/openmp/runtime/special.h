// Built-in functions that the C library has not, or not as loop bodies on several threads may call
// them: sigmoid and its like, and gamma's logarithm with its derivatives.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "arithmetic.h"
#include "vector_math.h"

namespace loma {

// min(max(x, low), high)
template <typename number>
inline number clamp(number x, number low, number high) {
  return min<number>(max<number>(x, low), high);
}

// -1, 0 or 1; 0 for NaN.
template <typename number>
inline number sign(number x) {
  return number(x > 0) - number(x < 0);
}

template <typename real>
inline int64_t isnan(real x) {
  return x != x;
}

template <typename real>
inline int64_t isfinite(real x) {
  return x - x == 0;
}

template <typename real>
inline real rsqrt(real x) {
  return real(1) / std::sqrt(x);
}

template <typename real>
inline real relu(real x) {
  return x <= 0 ? real(0) : x;
}

// Both take exp of a negative number only, so that it does not overflow, and the same one for x and
// for -x: derivatives have several of them. ``by_vectors``: with vector_math.h.
template <typename real, bool by_vectors = true>
inline real sigmoid(real x) {
  const real low = -std::abs(x), small = by_vectors ? vector::exp<real>(low) : std::exp(low);
  const real share = real(1) / (real(1) + small);
  return x < 0 ? small * share : share;
}

template <typename real, bool by_vectors = true>
inline real softplus(real x) {
  const real low = -std::abs(x), small = by_vectors ? vector::exp<real>(low) : std::exp(low);
  const real rest = by_vectors ? vector::log1p<real>(small) : std::log1p(small);
  return x > 0 ? x + rest : rest;
}

template <typename real>
inline real lgamma(real x) {
#ifdef __GLIBC__
  int sign;  // std::lgamma writes it to a global variable, from every thread
  return real(::lgamma_r(double(x), &sign));
#else
  return std::lgamma(x);
#endif
}

// By reflection to positive x, by the recurrence to x >= 10, then the asymptotic series.
inline double digamma_of(double x) {
  constexpr double kPi = 3.14159265358979324;
  constexpr double kCoefficients[] = {1.0 / 12,  -691.0 / 32760, 1.0 / 132, -1.0 / 240,
                                      1.0 / 252, -1.0 / 120,     1.0 / 12};
  if (x == 0) return std::copysign(std::numeric_limits<double>::infinity(), -x);
  double result = 0, tail = 0;
  if (x < 0) {
    const double part = std::fmod(x, 1.0);
    if (part == 0 || part != part) return std::numeric_limits<double>::quiet_NaN();
    result = -kPi / std::tan(kPi * part);
    x = 1 - x;
  }
  for (; x < 10; x += 1) result -= 1 / x;
  const double z = 1 / (x * x);
  for (const double coefficient : kCoefficients) tail = (tail + coefficient) * z;
  return result + std::log(x) - 0.5 / x - tail;
}

template <typename real>
inline real digamma(real x) {
  return real(digamma_of(x));
}

// The Hurwitz zeta function, the sum of (q + k)^-s over k, for q > 0 and a whole s > 1.
inline double zeta(double s, double q) {
  constexpr double kCoefficients[] = {1.0 / 12,
                                      -1.0 / 720,
                                      1.0 / 30240,
                                      -1.0 / 1209600,
                                      1.0 / 47900160,
                                      -691.0 / 1307674368000.0,
                                      1.0 / 74724249600.0,
                                      -3617.0 / 10670622842880000.0,
                                      43867.0 / 5109094217170944000.0,
                                      -174611.0 / 802857662698291200000.0};
  double total = 0;
  for (; q < 12 + s; q += 1) total += std::pow(q, -s);
  double factor = s * std::pow(q, -s) / q;
  total += std::pow(q, 1 - s) / (s - 1) + 0.5 * std::pow(q, -s);
  for (const double coefficient : kCoefficients) {
    total += coefficient * factor;
    factor *= (s + 1) * (s + 2) / (q * q);
    s += 2;
  }
  return total;
}

// (-1)^(n + 1) n! zeta(n + 1, x); below 0 the terms on both sides of the pole next to x.
inline double polygamma_of(int64_t n, double x) {
  const double kInfinity = std::numeric_limits<double>::infinity();
  if (n == 0) return digamma_of(x);
  if (n < 0 || n > 170 || x != x || x == -kInfinity) return std::numeric_limits<double>::quiet_NaN();
  const double s = double(n) + 1, part = std::fmod(x, 1.0);
  double total = kInfinity;
  if (x > 0) {
    total = zeta(s, x);
  } else if (part != 0) {
    const double mirrored = zeta(s, -part) - zeta(s, 1 - x);
    total = zeta(s, 1 + part) + (n % 2 ? mirrored : -mirrored);
  }
  return (n % 2 ? 1 : -1) * std::tgamma(s) * total;
}

template <typename real>
inline real polygamma(int64_t n, real x) {
  return real(polygamma_of(n, x));
}

}  // namespace loma
