// A reduction in which a thread has several iterations, those of neighbouring values of one axis: what
// does not depend on that axis is read once for all of them. A statement's text is the same for one:
// of what depends on the axis the types differ.
#pragma once

#include <cstdint>

#include "arithmetic.h"
#include "statement.h"

namespace loma {

// first + k * step for k in range(n).
template <int n>
struct Places {
  int64_t first, step;
};
template <int n>
inline Places<n> operator+(Places<n> a, Places<n> b) {
  return {a.first + b.first, a.step + b.step};
}
template <int n>
inline Places<n> operator*(Places<n> a, int64_t b) {
  return {a.first * b, a.step * b};
}
template <int n>
inline Places<n> operator*(int64_t a, Places<n> b) {
  return b * a;
}
template <int n>
inline Places<n> operator+(Places<n> a, int64_t b) {
  return {a.first + b, a.step};
}
template <int n>
inline Places<n> operator+(int64_t a, Places<n> b) {
  return b + a;
}
template <int n>
inline Places<n> operator-(Places<n> a) {
  return a * -1;
}
template <int n, typename Other>
inline Places<n> operator-(Places<n> a, Other b) {
  return a + -b;
}
template <int n>
inline Places<n> operator-(int64_t a, Places<n> b) {
  return -b + a;
}

template <typename number, int n>
struct Numbers {
  number of[n];
};

template <typename number>
inline number nth(number value, int) {
  return value;
}
template <typename number, int n>
inline number nth(const Numbers<number, n>& values, int k) {
  return values.of[k];
}
template <int n>
inline int64_t nth(Places<n> places, int k) {
  return places.first + k * places.step;
}

// value(k) for k in range(n).
template <int n, typename Value>
inline auto numbers(const Value& value) {
  Numbers<decltype(value(0)), n> found;
#pragma unroll
  for (int k = 0; k < n; ++k) found.of[k] = value(k);
  return found;
}

#define LOMA_OF_NUMBERS(op)                                                              \
  template <typename number, int n>                                                      \
  inline auto operator op(const Numbers<number, n>& a, const Numbers<number, n>& b) {    \
    return numbers<n>([&](int k) { return a.of[k] op b.of[k]; });                        \
  }                                                                                      \
  template <typename number, int n>                                                      \
  inline auto operator op(const Numbers<number, n>& a, number b) {                       \
    return numbers<n>([&](int k) { return a.of[k] op b; });                              \
  }                                                                                      \
  template <typename number, int n>                                                      \
  inline auto operator op(number a, const Numbers<number, n>& b) {                       \
    return numbers<n>([&](int k) { return a op b.of[k]; });                              \
  }
LOMA_OF_NUMBERS(+)
LOMA_OF_NUMBERS(-)
LOMA_OF_NUMBERS(*)
LOMA_OF_NUMBERS(&&)  // of what is known without effects
#undef LOMA_OF_NUMBERS

template <typename number, int n>
inline auto operator-(const Numbers<number, n>& a) {
  return numbers<n>([&](int k) { return -a.of[k]; });
}

// Where a sum is one of several, so is what is added.
template <typename number, typename A, typename B, int n>
inline auto fma(const A& a, const B& b, const Numbers<number, n>& c) {
  return numbers<n>([&](int k) { return fma<number>(nth(a, k), nth(b, k), c.of[k]); });
}

// Elements of a tensor, read and written.
template <typename number>
inline number read(const number* data, int64_t place) {
  return data[place];
}
template <typename number, int n>
inline auto read(const number* data, Places<n> places) {
  return numbers<n>([&](int k) { return data[nth(places, k)]; });
}

// Whether places lie within an axis of that extent.
inline bool inside(int64_t place, int64_t extent) { return uint64_t(place) < uint64_t(extent); }
template <int n>
inline auto inside(Places<n> places, int64_t extent) {
  return numbers<n>([&](int k) { return inside(nth(places, k), extent); });
}

// Those that exist where ``inside``, else zeros.
template <typename number>
inline number read_if(bool inside, const number* data, int64_t place) {
  return inside ? data[place] : number(0);
}
template <typename number, int n>
inline auto read_if(bool inside, const number* data, Places<n> places) {
  return numbers<n>([&](int k) { return read_if(inside, data, nth(places, k)); });
}
template <typename number, int n, typename Place>
inline auto read_if(Numbers<bool, n> inside, const number* data, Place place) {
  return numbers<n>([&](int k) { return read_if(inside.of[k], data, nth(place, k)); });
}

template <typename number>
inline void write(number* data, int64_t place, number value, bool adds) {
  data[place] = adds ? data[place] + value : value;
}
template <typename number, int n>
inline void write(number* data, Places<n> places, Numbers<number, n> values, bool adds) {
  if (adds) values = read(data, places) + values;
#pragma unroll
  for (int k = 0; k < n; ++k) data[nth(places, k)] = values.of[k];
}

// The values of the axis that a part has, the first of which is ``value`` or, counting in groups of
// several, its group; how many such there are of ``extent``; and where a sum of the part starts.
template <int n>
struct Several : Alone {};

template <typename Part>
inline int64_t several(const Part&, int64_t value) {
  return value;
}
template <int n>
inline Places<n> several(const Several<n>&, int64_t group) {
  return {group * n, 1};
}

template <typename Part>
inline int64_t groups(const Part&, int64_t extent) {
  return extent;
}
template <int n>
inline int64_t groups(const Several<n>&, int64_t extent) {
  return extent / n;
}

template <typename Part, typename number>
inline number start(const Part&, number zero) {
  return zero;
}
template <int n, typename number>
inline auto start(const Several<n>&, number zero) {
  return numbers<n>([&](int) { return zero; });
}

// body(p, part) with n iterations in each, where the host has so many in mind; whether it has.
template <int n, typename Body>
inline bool several_taken(const Grid& grid, int64_t extent, const Body& body) {
  if (grid.beside != n || extent % n != 0) return false;
  const int64_t count = grid.count / n, all = blocks(grid) * kTeams;
  bounded(count, [&](const auto& at) {
    int64_t p = block(grid) * kTeams + threadIdx.x;
    for (; p < count; p += all) body(at(p), Several<n>());
  });
  return true;
}

// Kernels for known numbers have no text for others.
template <typename Body>
inline void several_at_once(const Grid& grid, int64_t extent, const Body& body) {
  if constexpr (kTeam == 1 && LOMA_STAGE == 0) {
    if (several_taken<4>(grid, extent, body)) return;
#ifdef LOMA_KNOWN
    if (several_taken<5>(grid, extent, body) || several_taken<3>(grid, extent, body)) return;
    if (several_taken<2>(grid, extent, body)) return;
#endif
  }
  statement(grid, body);
}

}  // namespace loma
