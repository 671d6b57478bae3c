// Choices without branches, and lanes that take part in a round (backends/lowering/masked.py).
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace loma {

// One of two numbers, by their bits: a branch would keep compilers from making vectors, since they
// compute what only one side needs, a sine say, on that side alone.
template <typename number>
__attribute__((always_inline)) inline number pick(bool holds, number then, number other) {
  using Bits = std::conditional_t<sizeof(number) == 4, int32_t, int64_t>;
  Bits first, second;
  std::memcpy(&first, &then, sizeof(Bits));
  std::memcpy(&second, &other, sizeof(Bits));
  const Bits all = -Bits(holds), found = (first & all) | (second & ~all);
  number result;
  std::memcpy(&result, &found, sizeof(Bits));
  return result;
}

// Whether some lane goes on.
template <int lanes>
inline bool any(const int32_t (&on)[lanes]) {
  int32_t found = 0;
  for (int k = 0; k < lanes; ++k) found |= on[k];
  return found != 0;
}

}  // namespace loma
