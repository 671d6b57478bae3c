// A reduction in which a thread has several iterations, those of neighbouring values of one axis: what
// does not depend on that axis is read once for all of them. A statement's text is the same for one:
// of what depends on the axis the types differ.
#pragma once

#include <cstdint>

#include "arithmetic.h"
#include "statement.h"

namespace loma {

constexpr int kSeveral = 4;

// first + k * step for k in range(kSeveral).
struct Places {
  int64_t first, step;
};
inline Places operator+(Places a, Places b) { return {a.first + b.first, a.step + b.step}; }
inline Places operator+(Places a, int64_t b) { return {a.first + b, a.step}; }
inline Places operator+(int64_t a, Places b) { return b + a; }
inline Places operator-(Places a) { return {-a.first, -a.step}; }
inline Places operator-(Places a, Places b) { return a + -b; }
inline Places operator-(Places a, int64_t b) { return a + -b; }
inline Places operator-(int64_t a, Places b) { return -b + a; }
inline Places operator*(Places a, int64_t b) { return {a.first * b, a.step * b}; }
inline Places operator*(int64_t a, Places b) { return b * a; }

template <typename number>
struct Numbers {
  number of[kSeveral];
};

template <typename number>
inline number nth(number value, int) {
  return value;
}
template <typename number>
inline number nth(const Numbers<number>& values, int k) {
  return values.of[k];
}

// value(k) for k in range(kSeveral).
template <typename Value>
inline auto numbers(const Value& value) {
  Numbers<decltype(value(0))> found;
#pragma unroll
  for (int k = 0; k < kSeveral; ++k) found.of[k] = value(k);
  return found;
}

#define LOMA_OF_NUMBERS(op)                                                                     \
  template <typename number>                                                                    \
  inline Numbers<number> operator op(const Numbers<number>& a, const Numbers<number>& b) {      \
    return numbers([&](int k) { return a.of[k] op b.of[k]; });                                  \
  }                                                                                             \
  template <typename number>                                                                    \
  inline Numbers<number> operator op(const Numbers<number>& a, number b) {                      \
    return numbers([&](int k) { return a.of[k] op b; });                                        \
  }                                                                                             \
  template <typename number>                                                                    \
  inline Numbers<number> operator op(number a, const Numbers<number>& b) {                      \
    return numbers([&](int k) { return a op b.of[k]; });                                        \
  }
LOMA_OF_NUMBERS(+)
LOMA_OF_NUMBERS(-)
LOMA_OF_NUMBERS(*)
#undef LOMA_OF_NUMBERS

template <typename number>
inline Numbers<number> operator-(const Numbers<number>& a) {
  return numbers([&](int k) { return -a.of[k]; });
}

template <typename number, typename A, typename B, typename C>
inline Numbers<number> fma(const A& a, const B& b, const C& c) {
  return numbers([&](int k) { return fma<number>(nth(a, k), nth(b, k), nth(c, k)); });
}

// Elements of a tensor, read and written.
template <typename number>
inline number read(const number* data, int64_t place) {
  return data[place];
}
template <typename number>
inline Numbers<number> read(const number* data, Places places) {
  return numbers([&](int k) { return data[places.first + k * places.step]; });
}

template <typename number>
inline void write(number* data, int64_t place, number value, bool adds) {
  data[place] = adds ? data[place] + value : value;
}
template <typename number>
inline void write(number* data, Places places, Numbers<number> values, bool adds) {
  if (adds) values = read(data, places) + values;
#pragma unroll
  for (int k = 0; k < kSeveral; ++k) data[places.first + k * places.step] = values.of[k];
}

// The values of the axis that a part has, the first of which is ``value`` or, counting in groups of
// several, its group; how many such there are of ``extent``; and where a sum of the part starts.
struct Several : Alone {};

template <typename Part>
inline int64_t several(const Part&, int64_t value) {
  return value;
}
inline Places several(const Several&, int64_t group) { return {group * kSeveral, 1}; }

template <typename Part>
inline int64_t groups(const Part&, int64_t extent) {
  return extent;
}
inline int64_t groups(const Several&, int64_t extent) { return extent / kSeveral; }

template <typename Part, typename number>
inline number start(const Part&, number zero) {
  return zero;
}
template <typename number>
inline Numbers<number> start(const Several&, number zero) {
  return numbers([&](int) { return zero; });
}

template <typename Body>
inline void several_at_once(const Grid& grid, int64_t extent, const Body& body) {
  if constexpr (kTeam == 1 && LOMA_STAGE == 0) {
    if (grid.beside > 1 && extent % kSeveral == 0) {
      const int64_t count = grid.count / kSeveral, all = int64_t(gridDim.x) * kTeams;
      int64_t p = int64_t(blockIdx.x) * kTeams + threadIdx.x;
      for (; p < count; p += all) body(p, Several());
      return;
    }
  }
  statement(grid, body);
}

}  // namespace loma
