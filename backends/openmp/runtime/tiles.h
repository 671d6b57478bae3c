// Vectors of one register, and tiles of a few of them, in which generated loops sum rows and reduce.
//
// A loop over [low, high) becomes tiles of four vectors, then of one, then one vector of which only
// the first ``count`` lanes exist. So a sum along a row has four accumulators, and every sum is taken
// in an order that depends on nothing but the extents.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

// On lambdas too: what is not inlined is not turned into vector code.
#define LOMA_INLINE __attribute__((always_inline))

namespace loma {

// The numbers are those of the machine, backends/schedule/target.py.
#if defined(__AVX__)
constexpr int kVectorBytes = LOMA_VECTOR_BYTES;
#else
constexpr int kVectorBytes = LOMA_VECTOR_BYTES / 2;
#endif

template <typename number, int bytes = kVectorBytes>
struct Vector {
  typedef number type __attribute__((vector_size(bytes)));
};

template <typename number>
using Lanes = typename Vector<number>::type;

template <typename number>
constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(number));

template <int n>
using Count = std::integral_constant<int, n>;

constexpr int kTile = LOMA_TILE;  // vectors

template <typename Body, int... k>
LOMA_INLINE inline void each(Body&& body, std::integer_sequence<int, k...>) {
  (body(Count<k>()), ...);
}

// body(0), body(1) and so on, each with its number as a constant.
template <int count, typename Body>
LOMA_INLINE inline void each(Body&& body) {
  each(body, std::make_integer_sequence<int, count>());
}

// How many steps of a loop, around one of ``rest`` steps, make about ``steps`` in all; at least 1.
inline int64_t steps_of(int64_t steps, int64_t rest) {
  return rest < steps ? steps / std::max<int64_t>(rest, 1) : 1;
}

// Vectors of sums that a tile holds, so that operands have registers, too.
#if defined(__AVX512VL__)
constexpr int kAccumulators = LOMA_ACCUMULATORS;
#else
constexpr int kAccumulators = LOMA_ACCUMULATORS / 2;
#endif

// How many vectors along the row a tile of ``many`` rows has, of at most so many.
template <int many, int most>
constexpr int kWidth = std::clamp(kAccumulators / many, 1, most);

// Calls ``body(vectors, start, lanes)`` for the tiles of [low, high), each of ``many`` rows.
template <typename number, int many = 1, int most = kTile, typename Body>
LOMA_INLINE inline void tiles(int64_t low, int64_t high, Body&& body) {
  constexpr int lanes = kLanes<number>, width = kWidth<many, most>;
  for (; low + width * lanes <= high; low += width * lanes) {
    body(Count<width>(), low, Count<width * lanes>());
  }
  if constexpr (width > kTile) {
    for (; low + kTile * lanes <= high; low += kTile * lanes) {
      body(Count<kTile>(), low, Count<kTile * lanes>());
    }
  }
  if constexpr (width > 1) {
    for (; low + lanes <= high; low += lanes) body(Count<1>(), low, Count<lanes>());
  }
  if (low < high) body(Count<1>(), low, static_cast<int>(high - low));
}

// The tiles of [0, length), a length that the compiler knows: only those kinds that there are.
template <typename number, int many, int64_t length, int most = kTile, typename Body>
LOMA_INLINE inline void known_tiles(Body&& body) {
  constexpr int lanes = kLanes<number>, width = kWidth<many, most>;
  constexpr int64_t vectors = length / lanes, full = vectors / width * width * lanes;
  constexpr int left = vectors % width, rest = length % lanes;
  if constexpr (full > 0) {
    for (int64_t low = 0; low < full; low += width * lanes) {
      body(Count<width>(), low, Count<width * lanes>());
    }
  }
  if constexpr (left > 0) body(Count<left>(), full, Count<left * lanes>());
  if constexpr (rest > 0) body(Count<1>(), full + left * lanes, Count<rest>());
}

// Calls ``body(values, start)`` for groups of ``many`` values of [low, high), and of the ``rest`` that
// are left; where ``rest`` is not known, of half of ``many`` if those are many, and one by one.
template <int many, int rest = -1, typename Body>
LOMA_INLINE inline void groups(int64_t low, int64_t high, Body&& body) {
  for (; low + many <= high; low += many) body(Count<many>(), low);
  if constexpr (rest > 0) {
    if (low < high) body(Count<rest>(), low);
  } else if constexpr (rest < 0) {
    if constexpr (many >= 8) {
      if (low + many / 2 <= high) body(Count<many / 2>(), low), low += many / 2;
    }
    for (; low < high; ++low) body(Count<1>(), low);
  }
}

// All lanes of a tile become ``initial``. (A loop over the lanes would become a call of memset, through
// memory in pieces that are too short to be read back as a vector without a delay.)
template <typename number, int vectors>
LOMA_INLINE inline void fill(Lanes<number> (&sums)[vectors], Count<vectors>, number initial) {
  each<vectors>([&](int v) LOMA_INLINE { sums[v] = Lanes<number>{} + initial; });
}

template <typename number, int many, int vectors>
LOMA_INLINE inline void fill(Lanes<number> (&sums)[many][vectors], Count<vectors> all, number initial) {
  each<many>([&](int k) LOMA_INLINE { fill<number>(sums[k], all, initial); });
}

// How many lanes exist, as a number that the compiler does not know unless all do: of a load under a
// mask that is constant GCC 12 makes one of the whole vector, and a choice behind it, which reads
// behind the tensor's end.
template <int all, typename Existing>
LOMA_INLINE inline auto hidden(Existing count) {
  if constexpr (std::is_same_v<Existing, Count<all>>) {
    return count;
  } else {
    int number = count;
    __asm__("" : "+r"(number));
    return number;
  }
}

// sums[lane] = value(lane, start + lane, sums[lane]) for the lanes that exist.
template <typename number, int vectors, typename Sums, typename Existing, typename Value>
LOMA_INLINE inline void update(Sums& sums, Count<vectors>, int64_t start, Existing count,
                               Value&& value) {
  const auto existing = hidden<vectors * kLanes<number>>(count);
  each<vectors>([&](auto v) LOMA_INLINE {
    constexpr int lanes = kLanes<number>;
    const Lanes<number> old = sums[v];
    Lanes<number> next;
#pragma omp simd
    for (int lane = 0; lane < lanes; ++lane) {
      const int place = v * lanes + lane;
      next[lane] = place < existing ? value(place, start + place, old[lane]) : old[lane];
    }
    sums[v] = next;
  });
}

// The same where ``value`` only adds to its third operand, or takes none: it is worked out for all
// lanes at once, in wider registers where the processor has such. With elements narrower than sums,
// as those of a mask are, compilers make no vectors of a loop over one vector's lanes.
template <typename number, bool adds, int vectors, typename Sums, typename Existing, typename Value>
LOMA_INLINE inline void update_apart(Sums& sums, Count<vectors>, int64_t start, Existing count,
                                     Value&& value) {
  constexpr int lanes = kLanes<number>, all = vectors * lanes;
  const auto existing = hidden<all>(count);
  alignas(64) number terms[all];
  if constexpr (!std::is_same_v<Existing, Count<all>>) {
    adds ? std::memset(terms, 0, sizeof(terms)) : std::memcpy(terms, &sums[0], sizeof(terms));
  }
#pragma omp simd
  for (int place = 0; place < all; ++place) {
    if (place < existing) terms[place] = value(place, start + place, number(0));
  }
  each<vectors>([&](auto v) LOMA_INLINE {
    Lanes<number> found;
    std::memcpy(&found, terms + v * lanes, sizeof(found));
    sums[v] = adds ? sums[v] + found : found;
  });
}

// take(start + lane, sums[lane]) for the lanes that exist.
template <typename number, int vectors, typename Sums, typename Existing, typename Take>
LOMA_INLINE inline void store(const Sums& sums, Count<vectors>, int64_t start, Existing count,
                              Take&& take) {
  each<vectors>([&](auto v) LOMA_INLINE {
    constexpr int lanes = kLanes<number>;
    const auto all = sums[v];
#pragma omp simd
    for (int lane = 0; lane < lanes; ++lane) {
      const int place = v * lanes + lane;
      if (place < count) take(start + place, all[lane]);
    }
  });
}

// What one more value does to a running reduction, for numbers and for vectors of them.
struct Sum {
  template <typename value>
  LOMA_INLINE value operator()(value a, value b) const { return a + b; }
};

struct Prod {
  template <typename value>
  LOMA_INLINE value operator()(value a, value b) const { return a * b; }
};

struct Max {  // NaN if either is
  template <typename value>
  LOMA_INLINE value operator()(value a, value b) const { return ((a >= b) | (a != a)) ? a : b; }
  template <typename value>
  LOMA_INLINE static auto is_better(value a, value b) { return a > b; }
  template <typename value>
  LOMA_INLINE static auto is_best(value a, value b) { return a >= b; }
};

struct Min {
  template <typename value>
  LOMA_INLINE value operator()(value a, value b) const { return ((a <= b) | (a != a)) ? a : b; }
  template <typename value>
  LOMA_INLINE static auto is_better(value a, value b) { return a < b; }
  template <typename value>
  LOMA_INLINE static auto is_best(value a, value b) { return a <= b; }
};

// Whether a value replaces the best one so far: the first of equal ones stays, and a NaN for good.
struct ArgmaxLanes {
  template <typename value>
  LOMA_INLINE auto operator()(value a, value best) const {
    return (a > best) | ((a != a) & (best == best));
  }
};

struct ArgminLanes {
  template <typename value>
  LOMA_INLINE auto operator()(value a, value best) const {
    return (a < best) | ((a != a) & (best == best));
  }
};

// Of each lane of a tile the best value so far, and where that was. ``worst``: no value is below it,
// so that position 0 is right for as long as no other value is better.
template <typename number, int vectors>
struct Best {
  static constexpr int lanes = kLanes<number>;
  using Positions = typename Vector<int64_t, lanes * static_cast<int>(sizeof(int64_t))>::type;
  Lanes<number> next[vectors];  // what is to be compared
  Lanes<number> values[vectors];
  Positions positions[vectors] = {};

  LOMA_INLINE explicit Best(number worst) {
    each<vectors>([&](int v) LOMA_INLINE { next[v] = values[v] = Lanes<number>{} + worst; });
  }

  // Takes `next`, which is at the same position in all lanes.
  template <typename Better>
  LOMA_INLINE void take(int64_t position, Better better) {
    each<vectors>([&](int v) LOMA_INLINE { replace(v, Positions{} + position, better); });
  }

  // Takes `next`, a part of a row that begins at this position. Lanes that do not exist have what
  // they had before.
  template <int count, typename Better>
  LOMA_INLINE void take_row(Count<count>, int64_t position, Better better) {
    Positions own;
    for (int lane = 0; lane < lanes; ++lane) own[lane] = position + lane;
    each<count>([&](int v) LOMA_INLINE { replace(v, own + v * lanes, better); });
  }

  // The position of the best value in all lanes.
  template <typename Better>
  LOMA_INLINE int64_t total(Better better) const {
    number value = values[0][0];
    int64_t position = positions[0][0];
    each<vectors>([&](int v) LOMA_INLINE {
      for (int lane = 0; lane < lanes; ++lane) {
        const number other = values[v][lane];
        const bool same = other == value || (other != other && value != value);
        if (better(other, value) || (same && positions[v][lane] < position)) {
          value = other, position = positions[v][lane];
        }
      }
    });
    return position;
  }

 private:
  template <typename Better>
  LOMA_INLINE void replace(int v, Positions where, Better better) {
    const auto replaces = better(next[v], values[v]);
    values[v] = replaces ? next[v] : values[v];
    positions[v] = __builtin_convertvector(replaces, Positions) ? where : positions[v];
  }
};

// All lanes as one number, halves first.
template <typename number, int bytes, typename Combine>
LOMA_INLINE inline number fold(typename Vector<number, bytes>::type lanes, Combine combine) {
  if constexpr (bytes == 2 * sizeof(number)) {
    return combine(number(lanes[0]), number(lanes[1]));
  } else {
    using Half = typename Vector<number, bytes / 2>::type;
    Half low, high;
    std::memcpy(&low, &lanes, sizeof(Half));
    std::memcpy(&high, reinterpret_cast<const char*>(&lanes) + sizeof(Half), sizeof(Half));
    return fold<number, bytes / 2>(combine(low, high), combine);
  }
}

template <typename number, typename Combine>
LOMA_INLINE inline number total(const Lanes<number> (&lanes)[kTile], Combine combine) {
  const Lanes<number> first = combine(lanes[0], lanes[1]), second = combine(lanes[2], lanes[3]);
  return fold<number, kVectorBytes>(combine(first, second), combine);
}

// The extreme of one number's reduction. A processor compares and takes in one instruction where a NaN
// need not stay, so the NaNs are kept apart.
template <typename number>
struct Extreme {
  Lanes<number> next[kTile];  // what is to be compared; lanes that do not exist keep what they had
  Lanes<number> values[kTile], nans[kTile] = {};

  LOMA_INLINE explicit Extreme(number worst) {
    for (int v = 0; v < kTile; ++v) next[v] = values[v] = Lanes<number>{} + worst;
  }

  template <int count, typename Combine>
  LOMA_INLINE void take(Count<count>, Combine combine) {
    each<count>([&](int v) LOMA_INLINE {
      values[v] = combine.is_better(next[v], values[v]) ? next[v] : values[v];
      nans[v] = next[v] != next[v] ? next[v] : nans[v];
    });
  }

  template <typename Combine>
  LOMA_INLINE number all(Combine combine) const {
    const number nan = total<number>(nans, Sum());
    const auto better = [&](auto a, auto b) LOMA_INLINE { return combine.is_better(b, a) ? b : a; };
    return nan != nan ? nan : total<number>(values, better);
  }
};

// The position of the extreme element of one row. ``numbers`` count vectors of the row: as an Integer
// that is long enough for it, and the shorter the faster.
template <typename number, typename Integer>
struct ExtremePosition {
  static constexpr int lanes = kLanes<number>;
  using Numbers = typename Vector<Integer, lanes * static_cast<int>(sizeof(Integer))>::type;
  Lanes<number> next[kTile], values[kTile];
  // Position 0 is right for as long as no other value is better than the worst one.
  Numbers numbers[kTile] = {};

  LOMA_INLINE explicit ExtremePosition(number worst) {
    for (int v = 0; v < kTile; ++v) next[v] = values[v] = Lanes<number>{} + worst;
  }

  // Takes `next`, which begins at this position of the row, a multiple of `lanes`.
  template <int count, typename Combine>
  LOMA_INLINE void take(Count<count>, int64_t position, Combine combine) {
    const Numbers first = Numbers{} + static_cast<Integer>(position / lanes);
    each<count>([&](int v) LOMA_INLINE {
      // A NaN is neither worse nor equal, and stays for good.
      const auto replaces = ~combine.is_best(values[v], next[v]) & (values[v] == values[v]);
      values[v] = replaces ? next[v] : values[v];
      const Numbers own = first + static_cast<Integer>(v);
      numbers[v] = __builtin_convertvector(replaces, Numbers) ? own : numbers[v];
    });
  }

  template <typename Combine>
  LOMA_INLINE int64_t all(Combine combine) const {
    const number best = total<number>(values, combine);
    int64_t first = std::numeric_limits<int64_t>::max();
    each<kTile>([&](int v) LOMA_INLINE {
      const auto equal = (values[v] == best) | (values[v] != values[v]);
      for (int lane = 0; lane < lanes; ++lane) {
        const int64_t position = static_cast<int64_t>(numbers[v][lane]) * lanes + lane;
        first = equal[lane] != 0 && position < first ? position : first;
      }
    });
    return first;
  }
};

// Accumulators of one number's reduction, all at its initial value.
template <typename number>
struct Accumulators {
  Lanes<number> lanes[kTile];
  LOMA_INLINE explicit Accumulators(number initial) {
    for (auto& vector : lanes) vector = Lanes<number>{} + initial;
  }
};

// For which i of range(extent) does ``coefficient * i + rest`` lie inside range(size)? Narrows
// [begin, end), an interval of i, to those.
inline void narrow(int64_t& begin, int64_t& end, int64_t coefficient, int64_t rest, int64_t size) {
  if (coefficient < 0) {  // mirror: -c i + (size - 1 - rest)
    coefficient = -coefficient;
    rest = size - 1 - rest;
  }
  if (coefficient == 0) {
    if (rest < 0 || rest >= size) end = begin;
    return;
  }
  // The smallest i with c i + rest >= 0, and the smallest with c i + rest >= size.
  const int64_t first = rest >= 0 ? 0 : (-rest + coefficient - 1) / coefficient;
  const int64_t last = rest >= size ? 0 : (size - rest + coefficient - 1) / coefficient;
  begin = std::min(std::max(begin, first), end);
  end = std::max(std::min(end, last), begin);
}

// Which of a tile's places lie inside the tensors that they read.
struct Stretch {
  int64_t start, begin, end, last;

  template <typename Existing>
  LOMA_INLINE Stretch(int64_t start, Existing count)
      : start(start), begin(start), end(start + count), last(start + count) {}

  // Only where 0 <= coefficient * place + rest < size.
  LOMA_INLINE void narrow(int64_t coefficient, int64_t rest, int64_t size) {
    loma::narrow(begin, end, coefficient, rest, size);
  }

  LOMA_INLINE bool whole() const { return begin == start && end == last; }

  LOMA_INLINE bool has(int lane) const {
    return (lane >= static_cast<int>(begin - start)) & (lane < static_cast<int>(end - start));
  }
};

// Two rows exchange the lanes in which they are on the wrong side of a square's diagonal.
template <int step, typename lanes, int... lane>
LOMA_INLINE inline void exchange(lanes& a, lanes& b, std::integer_sequence<int, lane...> all) {
  constexpr int count = all.size();
  const lanes first = a, second = b;
  a = __builtin_shufflevector(first, second, (lane & step ? count + lane - step : lane)...);
  b = __builtin_shufflevector(first, second, (lane & step ? count + lane : lane + step)...);
}

// As many vectors as each of them has lanes, transposed: halves change places, then their halves.
template <typename lanes, int count, int step = count / 2>
LOMA_INLINE inline void transpose_lanes(lanes (&rows)[count]) {
  if constexpr (step > 0) {
    each<count>([&](auto row) LOMA_INLINE {
      if constexpr ((row & step) == 0) {
        exchange<step>(rows[row], rows[row + step], std::make_integer_sequence<int, count>());
      }
    });
    transpose_lanes<lanes, count, step / 2>(rows);
  }
}

// out[column * size + row] = in[row * stride + column]
template <int size, typename number>
LOMA_INLINE inline void transpose(number* out, const number* in, int64_t stride, int64_t rows,
                                  int64_t columns) {
  using Bits = std::conditional_t<sizeof(number) == sizeof(int64_t), int64_t, int32_t>;
  constexpr int count = kLanes<Bits>;
  if constexpr (sizeof(number) == sizeof(Bits) && size % count == 0) {
    if (rows == size && columns == size) {
      for (int row = 0; row < size; row += count) {
        for (int column = 0; column < size; column += count) {
          Lanes<Bits> square[count];
          each<count>([&](int k) LOMA_INLINE {
            std::memcpy(&square[k], in + (row + k) * stride + column, sizeof(square[k]));
          });
          transpose_lanes(square);
          each<count>([&](int k) LOMA_INLINE {
            std::memcpy(out + (column + k) * size + row, &square[k], sizeof(square[k]));
          });
        }
      }
      return;
    }
  }
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      out[column * size + row] = in[row * stride + column];
    }
  }
}

}  // namespace loma
