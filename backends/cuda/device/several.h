// A reduction in which a thread has a tile of iterations, those of neighbouring values of one axis or
// of two: what does not depend on an axis is read once for all of its values. A statement's text is
// the same for one: of what depends on an axis the types differ.
//   LOMA_TILE_ROWS     values of the first axis that a thread has
//   LOMA_TILE_COLUMNS  values of the second one
#pragma once

#include <cstdint>

#include "arithmetic.h"
#include "statement.h"

#ifndef LOMA_TILE_ROWS
#define LOMA_TILE_ROWS 1
#endif
#ifndef LOMA_TILE_COLUMNS
#define LOMA_TILE_COLUMNS 1
#endif

namespace loma {

// first + i * row + j * column for i in range(n) for j in range(m); what does not depend on an axis
// has one value of it.
template <int n, int m>
struct Places {
  int64_t first, row, column;
};
constexpr int wider(int a, int b) { return a > b ? a : b; }

template <int n, int m, int k, int l>
inline Places<wider(n, k), wider(m, l)> operator+(Places<n, m> a, Places<k, l> b) {
  return {a.first + b.first, a.row + b.row, a.column + b.column};
}
template <int n, int m>
inline Places<n, m> operator*(Places<n, m> a, int64_t b) {
  return {a.first * b, a.row * b, a.column * b};
}
template <int n, int m>
inline Places<n, m> operator*(int64_t a, Places<n, m> b) {
  return b * a;
}
template <int n, int m>
inline Places<n, m> operator+(Places<n, m> a, int64_t b) {
  return {a.first + b, a.row, a.column};
}
template <int n, int m>
inline Places<n, m> operator+(int64_t a, Places<n, m> b) {
  return b + a;
}
template <int n, int m>
inline Places<n, m> operator-(Places<n, m> a) {
  return a * -1;
}
template <int n, int m, typename Other>
inline auto operator-(Places<n, m> a, Other b) {
  return a + -b;
}
template <int n, int m>
inline Places<n, m> operator-(int64_t a, Places<n, m> b) {
  return -b + a;
}

template <typename number, int n, int m>
struct Numbers {
  number of[n * m];

  number at(int i, int j) const { return of[(n == 1 ? 0 : i) * m + (m == 1 ? 0 : j)]; }
};

template <typename number>
inline number nth(number value, int, int) {
  return value;
}
template <typename number, int n, int m>
inline number nth(const Numbers<number, n, m>& values, int i, int j) {
  return values.at(i, j);
}
template <int n, int m>
inline int64_t nth(Places<n, m> places, int i, int j) {
  return places.first + (n == 1 ? 0 : i * places.row) + (m == 1 ? 0 : j * places.column);
}

// value(i, j) for i in range(n) for j in range(m).
template <int n, int m, typename Value>
inline auto numbers(const Value& value) {
  Numbers<decltype(value(0, 0)), n, m> found;
#pragma unroll
  for (int i = 0; i < n; ++i) {
#pragma unroll
    for (int j = 0; j < m; ++j) found.of[i * m + j] = value(i, j);
  }
  return found;
}

#define LOMA_OF_NUMBERS(op)                                                                       \
  template <typename number, int n, int m, int k, int l>                                          \
  inline auto operator op(const Numbers<number, n, m>& a, const Numbers<number, k, l>& b) {       \
    return numbers<wider(n, k), wider(m, l)>([&](int i, int j) { return a.at(i, j) op b.at(i, j); }); \
  }                                                                                               \
  template <typename number, int n, int m>                                                        \
  inline auto operator op(const Numbers<number, n, m>& a, number b) {                             \
    return numbers<n, m>([&](int i, int j) { return a.at(i, j) op b; });                          \
  }                                                                                               \
  template <typename number, int n, int m>                                                        \
  inline auto operator op(number a, const Numbers<number, n, m>& b) {                             \
    return numbers<n, m>([&](int i, int j) { return a op b.at(i, j); });                          \
  }
LOMA_OF_NUMBERS(+)
LOMA_OF_NUMBERS(-)
LOMA_OF_NUMBERS(*)
LOMA_OF_NUMBERS(&&)  // of what is known without effects
#undef LOMA_OF_NUMBERS

template <typename number, int n, int m>
inline auto operator-(const Numbers<number, n, m>& a) {
  return numbers<n, m>([&](int i, int j) { return -a.at(i, j); });
}

template <typename number, int n, int m, int k, int l>
inline void operator+=(Numbers<number, n, m>& a, const Numbers<number, k, l>& b) {
  a = numbers<n, m>([&](int i, int j) { return a.at(i, j) + b.at(i, j); });
}
template <typename number, int n, int m>
inline void operator+=(Numbers<number, n, m>& a, number b) {
  a = a + b;
}

template <int exponent, typename number, int n, int m>
inline auto power(const Numbers<number, n, m>& x) {
  return numbers<n, m>([&](int i, int j) { return power<exponent, number>(x.at(i, j)); });
}

template <typename Function, typename number, int n, int m>
inline auto each(const Function& function, const Numbers<number, n, m>& x) {
  return numbers<n, m>([&](int i, int j) { return function(x.at(i, j)); });
}

// Where a sum is one of several, so is what is added.
template <typename number, typename A, typename B, int n, int m>
inline auto fma(const A& a, const B& b, const Numbers<number, n, m>& c) {
  return numbers<n, m>([&](int i, int j) {
    return fma<number>(nth(a, i, j), nth(b, i, j), c.at(i, j));
  });
}

// Elements of a tensor, read and written.
template <typename number>
inline number read(const number* data, int64_t place) {
  return data[place];
}
template <typename number, int n, int m>
inline auto read(const number* data, Places<n, m> places) {
  return numbers<n, m>([&](int i, int j) { return data[nth(places, i, j)]; });
}

// Whether places lie within an axis of that extent.
inline bool inside(int64_t place, int64_t extent) { return uint64_t(place) < uint64_t(extent); }
template <int n, int m>
inline auto inside(Places<n, m> places, int64_t extent) {
  return numbers<n, m>([&](int i, int j) { return inside(nth(places, i, j), extent); });
}

// Those that exist where ``inside``, else zeros.
template <typename number>
inline number read_if(bool inside, const number* data, int64_t place) {
  return inside ? data[place] : number(0);
}
template <typename number, int n, int m>
inline auto read_if(bool inside, const number* data, Places<n, m> places) {
  return numbers<n, m>([&](int i, int j) { return read_if(inside, data, nth(places, i, j)); });
}
template <typename number, int n, int m>
inline auto read_if(const Numbers<bool, n, m>& inside, const number* data, int64_t place) {
  return numbers<n, m>([&](int i, int j) { return read_if(inside.at(i, j), data, place); });
}
template <typename number, int n, int m, int k, int l>
inline auto read_if(const Numbers<bool, n, m>& inside, const number* data, Places<k, l> places) {
  return numbers<wider(n, k), wider(m, l)>([&](int i, int j) {
    return read_if(inside.at(i, j), data, nth(places, i, j));
  });
}

template <typename number>
inline void write(number* data, int64_t place, number value, bool adds) {
  data[place] = adds ? data[place] + value : value;
}
template <typename number, int n, int m>
inline void write(number* data, Places<n, m> places, Numbers<number, n, m> values, bool adds) {
  if (adds) values = read(data, places) + values;
#pragma unroll
  for (int i = 0; i < n; ++i) {
#pragma unroll
    for (int j = 0; j < m; ++j) data[nth(places, i, j)] = values.of[i * m + j];
  }
}

// The values of the tile's first axis, and of its second, that a part has, the first of which is
// ``value`` or, counting in groups of several, its group; how many such there are of ``extent``; and
// where a sum of the part starts.
template <int n, int m>
struct Several : Alone {};

template <typename Part>
inline int64_t several(const Part&, int64_t value) {
  return value;
}
template <int n, int m>
inline auto several(const Several<n, m>&, int64_t group) {
  if constexpr (n == 1) {
    return group;
  } else {
    return Places<n, 1>{group * n, 1, 0};
  }
}
template <typename Part>
inline int64_t several_beside(const Part&, int64_t value) {
  return value;
}
template <int n, int m>
inline auto several_beside(const Several<n, m>&, int64_t group) {
  if constexpr (m == 1) {
    return group;
  } else {
    return Places<1, m>{group * m, 0, 1};
  }
}

template <typename Part>
inline int64_t groups(const Part&, int64_t extent) {
  return extent;
}
template <int n, int m>
inline int64_t groups(const Several<n, m>&, int64_t extent) {
  return extent / n;
}
template <typename Part>
inline int64_t groups_beside(const Part&, int64_t extent) {
  return extent;
}
template <int n, int m>
inline int64_t groups_beside(const Several<n, m>&, int64_t extent) {
  return extent / m;
}

template <typename Part, typename number>
inline number start(const Part&, number zero) {
  return zero;
}
template <int n, int m, typename number>
inline auto start(const Several<n, m>&, number zero) {
  return numbers<n, m>([&](int, int) { return zero; });
}

// Of a long sum a few steps are under way at a time: a tile reads much for each.
template <int n, int m, typename Body>
inline void over(const Several<n, m>&, int64_t low, int64_t high, const Body& body) {
  constexpr int64_t kShort = 16;
  if (high - low > kShort) {
#pragma unroll 4
    for (int64_t d = low; d < high; ++d) body(d);
  } else {
#pragma unroll LOMA_UNROLL
    for (int64_t d = low; d < high; ++d) body(d);
  }
}

// body(p, part) with a tile in each, where the axes have groups of so many.
template <typename Body>
inline void several_at_once(const Grid& grid, int64_t extent, int64_t beside, const Body& body) {
  constexpr int n = LOMA_TILE_ROWS, m = LOMA_TILE_COLUMNS;
  if constexpr (kTeam == 1 && LOMA_STAGE == 0 && n * m > 1) {
    if (extent % n == 0 && beside % m == 0) {
      const int64_t count = grid.count / (n * m), all = blocks(grid) * kTeams;
      bounded(count, [&](const auto& at) {
        int64_t p = block(grid) * kTeams + threadIdx.x;
        for (; p < count; p += all) body(at(p), Several<n, m>());
      });
      return;
    }
  }
  statement(grid, body);
}

}  // namespace loma

// Functions of several numbers, by the names that a statement's text has for those of one.
namespace std {
#define LOMA_OF_NUMBERS(name)                                          \
  template <typename number, int n, int m>                             \
  inline auto name(const loma::Numbers<number, n, m>& values) {        \
    return loma::each([](number x) { return std::name(x); }, values); \
  }
LOMA_OF_NUMBERS(sqrt)
LOMA_OF_NUMBERS(exp)
#undef LOMA_OF_NUMBERS
}  // namespace std
