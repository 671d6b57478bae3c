// Division without a branch, which a compiler may move, and whose operands it reads ahead: CUDA's own
// takes another way for numbers near the ends of float's range, which no loop is unrolled across.
#pragma once

#include <cmath>
#include <limits>

// A float's reciprocal, right to a last bit or two, for what is no larger than 2^126.
#ifndef LOMA_RECIPROCAL
#ifdef __CUDACC__
#define LOMA_RECIPROCAL(x) ::__fdividef(1.0f, x)
#else
#define LOMA_RECIPROCAL(x) (1.0f / (x))
#endif
#endif

namespace loma {

template <typename real>
inline real divide(real a, real b) {
  return a / b;
}

// Rounded as a division is, but for the last bit of what has a dividend below 2^-100 or a result
// among the smallest numbers. Newton's method, and two corrections by what is left of the dividend
// (Markstein, "Computation of elementary functions on the IBM RISC System/6000 processor", 1990).
template <>
inline float divide<float>(float a, float b) {
  const float size = std::fabs(b);
  const float scale = size < 0x1p-64f ? 0x1p64f : size > 0x1p64f ? 0x1p-64f : 1.0f;
  const float by = b * scale;
  const float start = LOMA_RECIPROCAL(by);
  const float better = std::fma(std::fma(-by, start, 1.0f), start, start);
  const float inverse = better == better ? better : start;  // zero or infinite
  const float first = a * inverse;
  const float nearer = std::fma(std::fma(-by, first, a), inverse, first);
  const float nearest = std::fma(std::fma(-by, nearer, a), inverse, nearer);
  // Not &&, a branch between what neighbours read, which would not be read as 16 bytes at once.
  const bool plain = (first != 0.0f) & (std::fabs(nearest) < std::numeric_limits<float>::infinity());
  return (plain ? nearest : first) * scale;
}

}  // namespace loma
