// Sums over the columns of a matrix that nobody stores: for each row x,
//   sum over y of weight(p, q, x, y) * streamed[y],
// where p and q are products of rows of two pairs of matrices, as in the backward part of attention.
// What is streamed are the matrices of the products themselves. Products run on matrix units, with sums
// in float; see sweep.h for tiles and layouts.
#pragma once

#include "sweep.h"

namespace loma {

// Right to about 22 bits.
inline float exponential(float x) { return power_of_two(x * 1.44269504f); }

// What weights need of a row or of a column alone.
template <int n>
struct Kept {
  static constexpr int count = n;
  float values[n] = {};
  float operator[](int k) const { return values[k]; }
};
template <>
struct Kept<0> {
  static constexpr int count = 0;
};

// What is kept of columns: value(read(y), y), where what is read is there some time later.
template <typename Read, typename ValueOf>
struct OfColumns {
  Read read;
  ValueOf value;
  static auto read_type() -> decltype((*static_cast<Read*>(nullptr))(0));
  static auto value_type() -> decltype((*static_cast<ValueOf*>(nullptr))(read_type(), 0));
};
template <typename Read, typename ValueOf>
OfColumns(Read, ValueOf) -> OfColumns<Read, ValueOf>;

// mul_no_nan(slope, y) is the plain product where no slope is 2 or more, infinite or NaN. `Quick` takes
// that for granted, and remembers whether it was so.
struct Exact {
  float product(float slope, float y) { return mul_no_nan(slope, y); }
  static bool holds() { return true; }
};
struct Quick {
  uint32_t bits = 0;
  float product(float slope, float y) {
    bits |= bits_of(slope);
    return slope * y;
  }
  bool holds() const { return (bits & 1u << 30) == 0; }
};

// Takes nothing.
struct Nothing {
  static constexpr bool exists = false;
};

// weight(p, q, x, y, what is kept of x, of y, products), whose sums with rows of one streamed matrix
// write(sum, x, e) takes.
template <typename Weight, typename Write>
struct Weighted {
  static constexpr bool exists = true;
  Weight weight;
  Write write;
};
template <typename Weight, typename Write>
Weighted(Weight, Write) -> Weighted<Weight, Write>;

#ifdef LOMA_GROUPS
constexpr int kPairRows = kGroupRows * kGroups;
#else
constexpr int kPairRows = 16 * kWarps;  // of a block: a sixteen for each warp
#endif

// `back`: the last rows have most columns, and begin first.
struct PairPart {
  int64_t outer, row;

  PairPart(const Grid&, int64_t rows, bool back = false) {
    const int64_t parts = (rows + kPairRows - 1) / kPairRows;
    outer = quotient(blockIdx.x, parts);
    const int64_t own = int64_t(blockIdx.x) - outer * parts;
    row = (back ? parts - 1 - own : own) * kPairRows;
  }
};

// Which columns have weights that are not zero: for row x those from low(x) on, below high(x).
template <typename Low, typename High>
struct Between {
  Low low;
  High high;
};
template <typename Low, typename High>
Between(Low, High) -> Between<Low, High>;
struct Everywhere {};

// The tiles of the columns that some row of a block has, one at least. Of rows between two others the
// columns begin and end between those of these.
template <int kTile>
struct PairTiles {
  int first, count;

  PairTiles(int64_t, int64_t, int columns, const Everywhere&)
      : first(0), count((columns + kTile - 1) / kTile) {}
  template <typename Low, typename High>
  PairTiles(int64_t row, int64_t last, int columns, const Between<Low, High>& of) {
    const int64_t all = columns, from = std::min<int64_t>(of.low(row), of.low(last));
    const int64_t end = std::max<int64_t>(of.high(row), of.high(last));
    const int64_t least = std::max<int64_t>(std::min<int64_t>(from, all - 1), 0);
    const int64_t most = std::max<int64_t>(std::min<int64_t>(end, all), least + 1);
    first = static_cast<int>(least / kTile);
    count = static_cast<int>((most + kTile - 1) / kTile) - first;
  }
};

// What is kept of the columns of a tile, in shared memory: [stage][value][column]. Threads from `first` on
// read it.
template <int kTile, typename Of>
class ColumnValues {
 public:
  using Value = decltype(Of::value_type());
  static constexpr int count = Value::count;

  ColumnValues(void* memory, const Of& of, int64_t columns, int first)
      : memory_(static_cast<float*>(memory)),
        of_(of),
        last_(static_cast<int>(columns) - 1),
        own_(static_cast<int>(threadIdx.x) - first) {}

  // Those of a tile that begins at `from` are read here, and others may see them behind `store` and a
  // barrier.
  void read(int from) {
    if constexpr (count > 0) {
      if (own_ >= 0 && own_ < kTile) {
        place_ = std::min(from + own_, last_);
        read_ = of_.read(place_);
      }
    }
  }
  void store(int stage) {
    if constexpr (count > 0) {
      if (own_ >= 0 && own_ < kTile) {
        const Value found = of_.value(read_, place_);
#pragma unroll
        for (int k = 0; k < count; ++k) memory_[(stage * count + k) * kTile + own_] = found[k];
      }
    }
  }

  // Of the columns `place` and the next one.
  void find(Value (&found)[2], int stage, int place) const {
    if constexpr (count > 0) {
#pragma unroll
      for (int k = 0; k < count; ++k) {
        struct alignas(8) Two {
          float first, second;
        };
        const auto* const two =
            reinterpret_cast<const Two*>(memory_ + (stage * count + k) * kTile + place);
        const Two both = *two;
        found[0].values[k] = both.first;
        found[1].values[k] = both.second;
      }
    }
  }

  // Behind what is kept of so many tiles.
  void* end(int stages) const { return memory_ + stages * count * kTile; }

 private:
  float* const memory_;
  const Of& of_;
  const int last_, own_;
  int place_ = 0;
  decltype(Of::read_type()) read_;
};

// What a thread has of one of the sums.
template <int kTile, int length, typename Sum>
struct Summed {
  uint32_t weights[kTile / 16][4] = {};
  float sum[length / 8][4] = {};
};
template <int kTile, int length>
struct Summed<kTile, length, Nothing> {
  uint32_t weights[1][4] = {};
};

// The weights of a tile, of whose columns those below `count` are there.
template <int kTile, bool whole, typename Product, typename First, typename Second, typename OfFirst,
          typename OfSecond, typename RowValue, typename Values>
inline void weigh(Product& product, OfFirst& to_first, OfSecond& to_second, const float (*p)[4],
                  const float (*q)[4], const First& first, const Second& second, const int (&xs)[2],
                  const RowValue (&of_rows)[2], const Values& values, int stage, int from, int count) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int n = 0; n < kTile / 8; ++n) {
    typename Values::Value of_columns[2];
    values.find(of_columns, stage, n * 8 + lane % 4 * 2);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float both[2][2];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int y = from + n * 8 + lane % 4 * 2 + c;
        const bool there = whole || y < count;
        const int inside = there ? y : count - 1;
        if constexpr (First::exists) {
          const float found = first.weight(p[n][2 * h + c], q[n][2 * h + c], xs[h], inside,
                                           of_rows[h], of_columns[c], product);
          both[0][c] = there ? found : 0.0f;
        }
        if constexpr (Second::exists) {
          const float found = second.weight(p[n][2 * h + c], q[n][2 * h + c], xs[h], inside,
                                            of_rows[h], of_columns[c], product);
          both[1][c] = there ? found : 0.0f;
        }
      }
      if constexpr (First::exists) to_first[n / 2][n % 2 * 2 + h] = narrowed(both[0][0], both[0][1]);
      if constexpr (Second::exists) to_second[n / 2][n % 2 * 2 + h] = narrowed(both[1][0], both[1][1]);
    }
  }
}

// The same for any tile: all of it is there but in the last one.
template <int kTile, typename OfFirst, typename OfSecond, typename First, typename Second,
          typename RowValue, typename Values>
inline void weigh_tile(OfFirst& to_first, OfSecond& to_second, const float (*p)[4], const float (*q)[4],
                       const First& first, const Second& second, const int (&xs)[2],
                       const RowValue (&of_rows)[2], const Values& values, int stage, int from,
                       int count) {
  Quick quick;
  if (from + kTile <= count) {
    weigh<kTile, true>(quick, to_first, to_second, p, q, first, second, xs, of_rows, values, stage,
                       from, count);
    if (quick.holds()) return;
  }
  Exact exact;
  weigh<kTile, false>(exact, to_first, to_second, p, q, first, second, xs, of_rows, values, stage,
                      from, count);
}

template <int length, typename Write>
inline void write_rows(const float (&sum)[length / 8][4], int64_t first, int64_t rows, int64_t width,
                       const Write& write) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int64_t x = first + lane / 4 + 8 * h;
    if (x >= rows) continue;
#pragma unroll
    for (int n = 0; n < length / 8; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int e = n * 8 + lane % 4 * 2 + c;
        if (e < width) write(sum[n][2 * h + c], x, e);
      }
    }
  }
}

}  // namespace loma

#ifdef LOMA_GROUPS
#include "wide_pairs.h"
#else
#include "warp_pairs.h"
#endif
