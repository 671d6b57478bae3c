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

#ifndef LOMA_DYNAMIC_SHARED
#define LOMA_DYNAMIC_SHARED(name) extern __shared__ __align__(16) char name[]
#endif

namespace loma {

constexpr int kDepth = LOMA_DEPTH, kWidth = LOMA_WIDTH;
constexpr int kSweepThreads = LOMA_THREADS, kWarps = kSweepThreads / 32;
// Rows of a warp, in sixteens: two share what is read of keys and values, if registers suffice.
// gpu_geometry.cpp counts with these.
constexpr int kSixteens = kDepth + kWidth <= 128 ? 2 : 1;
constexpr int kRows = 16 * kSixteens * kWarps;  // of a block
constexpr int kColumns = 64;                    // of a tile
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

template <int rows, int length>
inline void fetch(Narrow* to, const Matrix& from, int64_t first) {
  constexpr int pieces = length / 8;
#pragma unroll
  for (int k = 0; k < (rows * pieces + kSweepThreads - 1) / kSweepThreads; ++k) {
    const int piece = k * kSweepThreads + static_cast<int>(threadIdx.x);
    if (rows * pieces % kSweepThreads != 0 && piece >= rows * pieces) break;
    const int row = piece / pieces, column = piece % pieces * 8;
    const bool there = first + row < from.rows && column < from.length;
    const int64_t place = there ? (first + row) * from.stride + column : 0;
    copy_later(to + row * (length + 8) + column, from.data + place, there);
  }
}

// The four lanes that have a row's columns.
template <typename Join>
inline float over_row(float value, const Join& join) {
  value = join(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return join(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

// score(product, t, j) for row t and column j, of which row t has those below high(t), which neither
// rises and falls in turn nor is 0. p = exp(score - largest) counts as term(p, t, j) in the row's sum,
// weight(p, t, j) in the sum of values. row(largest, sum, t) and element(sum of values, largest, sum,
// t, e) take what is found. `reads`: the functions read tensors at t and j, which then are inside.
template <bool reads, typename High, typename Score, typename Term, typename Weight, typename Row,
          typename Element>
inline void sweep(const SweepPart& part, const Matrix& queries, const Matrix& keys,
                  const Matrix& values, const High& high, const Score& score, const Term& term,
                  const Weight& weight, const Row& row, const Element& element) {
  LOMA_DYNAMIC_SHARED(shared);
  Narrow* const shared_queries = reinterpret_cast<Narrow*>(shared);
  Narrow* const shared_keys = shared_queries + kRows * kPitch;
  Narrow* const shared_values = shared_keys + 2 * kColumns * kPitch;
  const float none = -std::numeric_limits<float>::infinity();
  constexpr float log2_e = 1.44269504f;

  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int first_row = static_cast<int>(part.row);
  const int last = static_cast<int>(std::min<int64_t>(part.row + kRows, queries.rows) - 1);
  const int64_t ends[] = {high(first_row), high(last)};
  const int columns = static_cast<int>(std::min(std::max(ends[0], ends[1]), keys.rows));
  const int shared_by_all = static_cast<int>(std::min(std::min(ends[0], ends[1]), keys.rows));
  const int tiles = (columns + kColumns - 1) / kColumns;

  fetch<kRows, kDepth>(shared_queries, queries, part.row);
  fetch<kColumns, kDepth>(shared_keys, keys, 0);
  fetch<kColumns, kWidth>(shared_values, values, 0);

  // Those of the thread's rows: in each sixteen lane / 4 and the one 8 below.
  int rows[kSixteens][2], row_ends[kSixteens][2];
  float largest[kSixteens][2], sum[kSixteens][2];
  float found[kSixteens][kWidth / 8][4];
#pragma unroll
  for (int s = 0; s < kSixteens; ++s) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int t = first_row + (warp * kSixteens + s) * 16 + lane / 4 + 8 * h;
      rows[s][h] = std::min(t, last);
      row_ends[s][h] = static_cast<int>(high(rows[s][h]));
      largest[s][h] = none;
      sum[s][h] = 0;
    }
#pragma unroll
    for (int n = 0; n < kWidth / 8; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) found[s][n][c] = 0;
    }
  }

  copies_done();
  __syncthreads();
  uint32_t own[kSixteens][kDepth / 16][4];
#pragma unroll
  for (int s = 0; s < kSixteens; ++s) {
#pragma unroll
    for (int k = 0; k < kDepth / 16; ++k) {
      const int from = (warp * kSixteens + s) * 16 + lane % 16;
      load_matrices(own[s][k], shared_queries + from * kPitch + k * 16 + lane / 16 * 8);
    }
  }

  for (int tile = 0; tile < tiles; ++tile) {
    const int first = tile * kColumns, stage = tile % 2;
    if (tile + 1 < tiles) {
      const int next = 1 - stage;
      fetch<kColumns, kDepth>(shared_keys + next * kColumns * kPitch, keys, first + kColumns);
      fetch<kColumns, kWidth>(shared_values + next * kColumns * kValuePitch, values,
                              first + kColumns);
    }

    float p[kSixteens][kColumns / 8][4];
#pragma unroll
    for (int s = 0; s < kSixteens; ++s) {
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
        for (int c = 0; c < 4; ++c) p[s][n][c] = 0;
      }
    }
    const Narrow* const these_keys = shared_keys + stage * kColumns * kPitch;
#pragma unroll
    for (int k = 0; k < kDepth / 16; ++k) {
#pragma unroll
      for (int n = 0; n < kColumns / 16; ++n) {
        uint32_t b[4];
        const int from = n * 16 + lane % 8 + lane / 16 * 8;
        load_matrices(b, these_keys + from * kPitch + k * 16 + lane / 8 % 2 * 8);
#pragma unroll
        for (int s = 0; s < kSixteens; ++s) {
          multiply(p[s][2 * n], own[s][k], b[0], b[1]);
          multiply(p[s][2 * n + 1], own[s][k], b[2], b[3]);
        }
      }
    }

    const int own_column = first + lane % 4 * 2;
    const bool whole = first + kColumns <= shared_by_all;
    const auto column = [&](int n, int c) {
      const int j = own_column + n * 8 + c % 2;
      return reads && j >= columns ? columns - 1 : j;
    };
#pragma unroll
    for (int s = 0; s < kSixteens; ++s) {
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          p[s][n][c] = score(p[s][n][c], rows[s][c / 2], column(n, c));
        }
      }
    }
    if (!whole) {
#pragma unroll
      for (int s = 0; s < kSixteens; ++s) {
#pragma unroll
        for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            const int j = own_column + n * 8 + c % 2;
            if (j >= columns || j >= row_ends[s][c / 2]) p[s][n][c] = none;
          }
        }
      }
    }

#pragma unroll
    for (int s = 0; s < kSixteens; ++s) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float most = largest[s][h];
#pragma unroll
        for (int n = 0; n < kColumns / 8; ++n) {
          most = larger(most, larger(p[s][n][2 * h], p[s][n][2 * h + 1]));
        }
        most = over_row(most, [](float a, float b) { return larger(a, b); });
        const float base = most == none ? 0.0f : most;
        const float scale = power_of_two((largest[s][h] - base) * log2_e);
        largest[s][h] = most;
        float total = sum[s][h] * scale;
#pragma unroll
        for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
          for (int c = 2 * h; c < 2 * h + 2; ++c) {
            const float e = power_of_two((p[s][n][c] - base) * log2_e);
            total += term(e, rows[s][h], column(n, c));
            p[s][n][c] = weight(e, rows[s][h], column(n, c));
          }
        }
        sum[s][h] = total;
#pragma unroll
        for (int n = 0; n < kWidth / 8; ++n) {
          found[s][n][2 * h] *= scale;
          found[s][n][2 * h + 1] *= scale;
        }
      }
    }

    const Narrow* const these_values = shared_values + stage * kColumns * kValuePitch;
#pragma unroll
    for (int k = 0; k < kColumns / 16; ++k) {
      uint32_t a[kSixteens][4];
#pragma unroll
      for (int s = 0; s < kSixteens; ++s) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const float(&pair)[4] = p[s][2 * k + c / 2];
          a[s][c] = narrowed(pair[c % 2 * 2], pair[c % 2 * 2 + 1]);
        }
      }
#pragma unroll
      for (int n = 0; n < kWidth / 16; ++n) {
        uint32_t b[4];
        const int from = k * 16 + lane % 16;
        load_transposed(b, these_values + from * kValuePitch + n * 16 + lane / 16 * 8);
#pragma unroll
        for (int s = 0; s < kSixteens; ++s) {
          multiply(found[s][2 * n], a[s], b[0], b[1]);
          multiply(found[s][2 * n + 1], a[s], b[2], b[3]);
        }
      }
    }
    copies_done();
    __syncthreads();
  }

#pragma unroll
  for (int s = 0; s < kSixteens; ++s) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int t = first_row + (warp * kSixteens + s) * 16 + lane / 4 + 8 * h;
      float total = over_row(sum[s][h], [](float a, float b) { return a + b; });
      const float most = largest[s][h];
      const bool infinite = most == none;  // then each exponential was that of inf - inf
      if (infinite) total = std::numeric_limits<float>::quiet_NaN();
      if (t != rows[s][h]) continue;
      if (lane % 4 == 0) row(most, total, t);
#pragma unroll
      for (int n = 0; n < kWidth / 8; ++n) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int e = n * 8 + lane % 4 * 2 + c;
          if (e < values.length) {
            element(infinite ? total : found[s][n][2 * h + c], most, total, t, e);
          }
        }
      }
    }
  }
}

}  // namespace loma
