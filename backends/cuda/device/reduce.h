// Reductions over the threads that share an iteration. What is joined with what follows from numbers
// of threads only, so the bits of a result are the same from run to run, and in all these threads.
#pragma once

#include <cstdint>

#include "arithmetic.h"

namespace loma {

// ``kOrdered``: join(a, b) and join(b, a) may differ, if only in the sign of a zero.
struct Sum {
  static constexpr bool kOrdered = false;
  template <typename number>
  static number join(number a, number b) { return a + b; }
};

struct Prod {
  static constexpr bool kOrdered = false;
  template <typename number>
  static number join(number a, number b) { return a * b; }
};

struct Max {
  static constexpr bool kOrdered = true;
  template <typename number>
  static number join(number a, number b) { return max<number>(a, b); }
};

struct Min {
  static constexpr bool kOrdered = true;
  template <typename number>
  static number join(number a, number b) { return min<number>(a, b); }
};

// Of Argmax<number> and Argmin<number>: the value, and where it is first, as one loop over all
// elements would find it.
struct Best {
  static constexpr bool kOrdered = false;
  template <typename number, typename Better>
  static Argbest<number, Better> join(Argbest<number, Better> a, Argbest<number, Better> b) {
    if (b.position < 0) return a;
    if (a.position < 0) return b;
    const bool a_none = a.best != a.best, b_none = b.best != b.best, b_first = b.position < a.position;
    const bool same = a_none || b_none ? a_none && b_none : a.best == b.best;
    const bool b_better = b_none || (!a_none && Better()(b.best, a.best));
    return (same ? b_first : b_better) ? b : a;
  }
};

// What becomes of a number: ``factor`` times that and ``rest`` more.
template <typename number>
struct Affine {
  number factor, rest;
};

// One step of a recurrence behind another one. ``cuts``: a factor of 0 leaves out what was there,
// whatever it is.
template <bool cuts>
struct Steps {
  static constexpr bool kOrdered = true;
  template <typename number>
  static Affine<number> join(Affine<number> a, Affine<number> b) {
    const number rest = fma(b.factor, a.rest, b.rest);
    return {a.factor * b.factor, cuts && b.factor == 0 ? b.rest : rest};
  }
};

template <typename number>
inline number shuffled(unsigned mask, number value, int distance) {
  return __shfl_xor_sync(mask, value, distance);
}

template <typename number, typename Better>
inline Argbest<number, Better> shuffled(unsigned mask, Argbest<number, Better> value, int distance) {
  value.best = __shfl_xor_sync(mask, value.best, distance);
  value.position = __shfl_xor_sync(mask, value.position, distance);
  return value;
}

// The threads of a group of ``width`` neighbours in a warp, a power of 2.
template <int width>
inline unsigned lanes_mask() {
  if constexpr (width >= 32) {
    return 0xffffffffu;
  } else {
    return ((1u << width) - 1) << (threadIdx.x % 32 / width * width);
  }
}

// What ``width`` neighbours have, joined, in each of them; ``mask``: all that call this together.
// A pair joins in the order of its threads, so that both get the same.
template <typename Kind, int width, typename number>
inline number over_lanes(unsigned mask, number value) {
#pragma unroll
  for (int distance = width / 2; distance > 0; distance /= 2) {
    const number other = shuffled(mask, value, distance);
    const bool upper = Kind::kOrdered && (threadIdx.x & distance);
    value = Kind::join(upper ? other : value, upper ? value : other);
  }
  return value;
}

}  // namespace loma
