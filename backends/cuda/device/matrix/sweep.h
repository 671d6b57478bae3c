// A row's largest score, the sum of its exponentials and sums weighted by these, in one sweep over the
// columns: what is summed so far is scaled whenever a larger score comes (Milakov and Gimelshein,
// Online normalizer calculation for softmax, 2018; tiles as in Dao, FlashAttention-2, 2023). A score is
// any function of the product of a row of queries and one of keys. Both products run on matrix units,
// with sums in float.
//   LOMA_DEPTH    the length of queries and keys, rounded up to a multiple of 16
//   LOMA_WIDTH    that of values
#pragma once

#include <cstdint>

#include "grid.h"
#include "matrix_units.h"
#ifdef LOMA_GROUPS
#include "warpgroups.h"
#endif

#ifndef LOMA_DYNAMIC_SHARED
#define LOMA_DYNAMIC_SHARED(name) extern __shared__ __align__(1024) char name[]
#endif

namespace loma {

constexpr int kDepth = LOMA_DEPTH, kWidth = LOMA_WIDTH;
constexpr int kSweepThreads = LOMA_THREADS, kWarps = kSweepThreads / 32;
// Rows of a block. gpu_geometry.cpp counts with these.
#ifdef LOMA_GROUPS
constexpr int kRows = kGroupRows * kGroups;
#else
// Those of a warp, in sixteens: two share what is read of keys and values, if registers suffice.
constexpr int kSixteens = kDepth + kWidth <= 128 ? 2 : 1;
constexpr int kRows = 16 * kSixteens * kWarps;
#endif
constexpr int kColumns = 64;  // of a tile
// Behind each row in shared memory is room for 8 numbers, so that eight rows are in different banks.
constexpr int kPitch = kDepth + 8, kValuePitch = kWidth + 8;
static_assert(kDepth % 16 == 0 && kWidth % 16 == 0, "LOMA_DEPTH and LOMA_WIDTH: multiples of 16");

// A matrix in memory: rows of `length` numbers, `stride` apart. Both are multiples of 8.
struct Matrix {
  const Narrow* data;
  int64_t stride, rows, length;
};

// What a block sweeps for: one value of the indices around, rows from `row` on. Later rows, whose sweeps
// may be longer, come first.
struct SweepPart {
  int64_t outer, row;

  SweepPart(const Grid&, int64_t rows) {
    const int64_t parts = (rows + kRows - 1) / kRows;
    outer = quotient(blockIdx.x, parts);
    row = (parts - 1 - (int64_t(blockIdx.x) - outer * parts)) * kRows;
  }
};

// Copies rows from `first` on to shared memory, where place(row, column) has 8 numbers; zeros behind the
// last one.
template <int rows, int length, typename Place>
inline void fetch(Narrow* to, const Matrix& from, int64_t first, const Place& place) {
  constexpr int pieces = length / 8;
#pragma unroll
  for (int k = 0; k < (rows * pieces + kSweepThreads - 1) / kSweepThreads; ++k) {
    const int piece = k * kSweepThreads + static_cast<int>(threadIdx.x);
    if (rows * pieces % kSweepThreads != 0 && piece >= rows * pieces) break;
    const int row = piece / pieces, column = piece % pieces * 8;
    const bool there = first + row < from.rows && column < from.length;
    const int64_t source = there ? (first + row) * from.stride + column : 0;
    copy_later(to + place(row, column), from.data + source, there);
  }
}

template <int rows, int length>
inline void fetch(Narrow* to, const Matrix& from, int64_t first) {
  fetch<rows, length>(to, from, first, [](int row, int column) { return row * (length + 8) + column; });
}

#ifdef LOMA_GROUPS
template <int rows, int length>
inline void fetch_slabs(Narrow* to, const Matrix& from, int64_t first) {
  fetch<rows, length>(to, from, first,
                      [](int row, int column) { return place_in_tile<rows, length>(row, column); });
}
#endif

// The four lanes that have a row's columns.
template <typename Join>
inline float over_row(float value, const Join& join) {
  value = join(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return join(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

// The score of a product that is the product with a factor.
struct Scaled {
  static constexpr bool is_scaled = true;
  float factor;
  float operator()(float product, int64_t, int64_t) const { return product * factor; }
};

// Any other.
template <typename Of>
struct Scored {
  static constexpr bool is_scaled = false;
  Of of;
  float operator()(float product, int64_t t, int64_t j) const { return of(product, t, j); }
};
template <typename Of>
Scored(Of) -> Scored<Of>;

constexpr float kNear = 1024;  // to 0: the factor is at most 1 + 2 ** -14

// What a thread has of sixteen rows: of those at lane / 4 and 8 below.
struct SweptRows {
  int rows[2], ends[2];  // the rows, or the last one, and where the columns end that each has
  float largest[2], sum[2];
  float found[kWidth / 8][4] = {};

  template <typename High>
  SweptRows(int first, int last, const High& high) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      rows[h] = std::min(first + static_cast<int>(threadIdx.x) % 32 / 4 + 8 * h, last);
      ends[h] = static_cast<int>(high(rows[h]));
      largest[h] = -std::numeric_limits<float>::infinity();
      sum[h] = 0;
    }
  }

  // Makes weights of the products with a tile of columns, which begins at `from`. All columns are below
  // `columns`; `whole`: and below the ends of all rows.
  template <bool reads, typename Score, typename Term, typename Weight>
  void take(float (&p)[kColumns / 8][4], int from, int columns, bool whole, const Score& score,
            const Term& term, const Weight& weight) {
    const float none = -std::numeric_limits<float>::infinity();
    constexpr float log2_e = 1.44269504f;
    const int own = from + static_cast<int>(threadIdx.x) % 4 * 2;
    const auto column = [&](int n, int c) {
      const int j = own + n * 8 + c % 2;
      return reads && j >= columns ? columns - 1 : j;
    };
    // A positive factor of all scores is taken into the exponents.
    float factor = 1;
    if constexpr (Score::is_scaled) {
      if (score.factor > 0) factor = score.factor;
    }
    if (!Score::is_scaled || factor == 1) {
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
        for (int c = 0; c < 4; ++c) p[n][c] = score(p[n][c], rows[c / 2], column(n, c));
      }
    }
    if (!whole) {
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const int j = own + n * 8 + c % 2;
          if (j >= columns || j >= ends[c / 2]) p[n][c] = none;
        }
      }
    }
    float base[2], scale[2];
    // Two of each, as one waits for the other.
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float first = p[0][2 * h], second = p[0][2 * h + 1];
#pragma unroll
      for (int n = 1; n < kColumns / 8; ++n) {
        first = larger(first, p[n][2 * h]);
        second = larger(second, p[n][2 * h + 1]);
      }
      float most = over_row(larger(first, second), [](float a, float b) { return larger(a, b); });
      most = larger(largest[h], most * factor);
      base[h] = most == none ? 0.0f : most;
      scale[h] = power_of_two((largest[h] - base[h]) * log2_e);
      largest[h] = most;
    }
    const auto add = [&](const auto& exponential) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float totals[] = {sum[h] * scale[h], 0};
#pragma unroll
        for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            const float e = exponential(p[n][2 * h + c], h);
            totals[c] += term(e, rows[h], column(n, c));
            p[n][2 * h + c] = weight(e, rows[h], column(n, c));
          }
        }
        sum[h] = totals[0] + totals[1];
      }
    };
    // The product with the base is rounded, which changes all exponentials of a row by the same factor.
    const float in_twos = factor * log2_e, offset[] = {-base[0] * log2_e, -base[1] * log2_e};
    if (std::abs(base[0]) < kNear && std::abs(base[1]) < kNear) {
      add([&](float x, int h) { return power_of_two(std::fma(x, in_twos, offset[h])); });
    } else {
      add([&](float x, int h) { return power_of_two((x * factor - base[h]) * log2_e); });
    }
    if (scale[0] != 1 || scale[1] != 1) {
#pragma unroll
      for (int n = 0; n < kWidth / 8; ++n) {
#pragma unroll
        for (int c = 0; c < 4; ++c) found[n][c] *= scale[c / 2];
      }
    }
  }

  // Of the rows from `first` on that there are.
  template <typename Row, typename Element>
  void write(int first, int64_t width, const Row& row, const Element& element) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int t = first + lane / 4 + 8 * h;
      float total = over_row(sum[h], [](float a, float b) { return a + b; });
      const float most = largest[h];
      // Then each exponential was that of inf - inf.
      const bool infinite = most == -std::numeric_limits<float>::infinity();
      if (infinite) total = std::numeric_limits<float>::quiet_NaN();
      if (t != rows[h]) continue;
      if (lane % 4 == 0) row(most, total, t);
#pragma unroll
      for (int n = 0; n < kWidth / 8; ++n) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int e = n * 8 + lane % 4 * 2 + c;
          if (e < width) element(infinite ? total : found[n][2 * h + c], most, total, t, e);
        }
      }
    }
  }
};

// Weights as the first operand of a product.
inline void narrow_weights(uint32_t (&to)[4], const float (&p)[kColumns / 8][4], int k) {
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    const float(&pair)[4] = p[2 * k + c / 2];
    to[c] = narrowed(pair[c % 2 * 2], pair[c % 2 * 2 + 1]);
  }
}

// Which columns a block's rows have: those below `columns`, of which all have those below `shared`.
struct SweptColumns {
  int columns, shared;

  template <typename High>
  SweptColumns(int first, int last, int64_t rows, const High& high) {
    const int64_t ends[] = {high(first), high(last)};
    columns = static_cast<int>(std::min(std::max(ends[0], ends[1]), rows));
    shared = static_cast<int>(std::min(std::min(ends[0], ends[1]), rows));
  }
};

}  // namespace loma

#ifdef LOMA_GROUPS
#include "wide_sweep.h"
#else
#include "warp_sweep.h"
#endif
