// Running reductions along memory (backends/lowering/running.py).
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#include "tiles.h"

namespace loma {

// found[k] becomes the reduction of found[0] to found[k]: in steps of 1, 2, 4 lanes, each takes what
// so many lanes before it have found, the first ones ``none``, which changes nothing.
template <int step, typename lanes, typename Combine, int... lane>
LOMA_INLINE inline void take_lower(lanes& found, const lanes& none, Combine combine,
                                   std::integer_sequence<int, lane...> all) {
  constexpr int count = all.size();
  const lanes lower =
      __builtin_shufflevector(none, found, (lane < step ? lane : count + lane - step)...);
  found = combine(lower, found);
  if constexpr (2 * step < count) take_lower<2 * step>(found, none, combine, all);
}

// The next values from ``t`` on, ``bytes`` of them at a time; ``last`` is what has been found before.
template <int bytes, typename number, typename Combine, typename Value, typename Write>
LOMA_INLINE inline void take_vectors(int64_t& t, int64_t count, number& last, number none,
                                     Combine combine, Value&& value, Write&& write) {
  using Wide = typename Vector<number, bytes>::type;
  constexpr int lanes = bytes / static_cast<int>(sizeof(number));
  for (; t + lanes <= count; t += lanes) {
    Wide found;
#pragma omp simd
    for (int lane = 0; lane < lanes; ++lane) found[lane] = value(t + lane);
    take_lower<1>(found, Wide{} + none, combine, std::make_integer_sequence<int, lanes>());
    const Wide all = combine(Wide{} + last, found);
    last = combine(last, found[lanes - 1]);
#pragma omp simd
    for (int lane = 0; lane < lanes; ++lane) write(t + lane, all[lane]);
  }
}

// write(t, *begin . value(0) . ... . value(t)) for every t of [0, count); there is nothing at ``begin``
// where that is empty. ``none`` is the reduction of no numbers.
template <typename number, typename Combine, typename Value, typename Write>
LOMA_INLINE inline void running(int64_t count, const number* begin, number none, Combine combine,
                                Value&& value, Write&& write) {
  if (count <= 0) return;
  number last = *begin;
  int64_t t = 0;
#if defined(__AVX512F__)
  take_vectors<2 * kVectorBytes>(t, count, last, none, combine, value, write);
#endif
  take_vectors<kVectorBytes>(t, count, last, none, combine, value, write);
  for (; t < count; ++t) {
    last = combine(last, number(value(t)));
    write(t, last);
  }
}

}  // namespace loma
