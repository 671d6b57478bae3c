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

// Rows of a block: a sixteen for each warp.
constexpr int kPairRows = 16 * kWarps;
constexpr int kTile = 32;  // rows of streamed matrices at a time

struct PairPart {
  int64_t outer, row;

  PairPart(const Grid&, int64_t rows) {
    const int64_t parts = (rows + kPairRows - 1) / kPairRows;
    outer = quotient(blockIdx.x, parts);
    row = (int64_t(blockIdx.x) - outer * parts) * kPairRows;
  }
};

// The products of a warp's rows and a tile's.
template <int length>
inline void products(float (&p)[kTile / 8][4], const Narrow* rows, const Narrow* tile, int lane) {
  constexpr int pitch = length + 8;
#pragma unroll
  for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
    for (int c = 0; c < 4; ++c) p[n][c] = 0;
  }
#pragma unroll
  for (int k = 0; k < length / 16; ++k) {
    uint32_t a[4];
    load_matrices(a, rows + lane % 16 * pitch + k * 16 + lane / 16 * 8);
#pragma unroll
    for (int n = 0; n < kTile / 16; ++n) {
      uint32_t b[4];
      const int from = n * 16 + lane % 8 + lane / 16 * 8;
      load_matrices(b, tile + from * pitch + k * 16 + lane / 8 % 2 * 8);
      multiply(p[2 * n], a, b[0], b[1]);
      multiply(p[2 * n + 1], a, b[2], b[3]);
    }
  }
}

// Adds the tile's rows, weighted.
template <int length>
inline void add_weighted(float (&sum)[length / 8][4], const uint32_t (&weights)[kTile / 16][4],
                         const Narrow* tile, int lane) {
  constexpr int pitch = length + 8;
#pragma unroll
  for (int k = 0; k < kTile / 16; ++k) {
#pragma unroll
    for (int n = 0; n < length / 16; ++n) {
      uint32_t b[4];
      load_transposed(b, tile + (k * 16 + lane % 16) * pitch + n * 16 + lane / 16 * 8);
      multiply(sum[2 * n], weights[k], b[0], b[1]);
      multiply(sum[2 * n + 1], weights[k], b[2], b[3]);
    }
  }
}

// Takes nothing.
struct Nothing {
  static constexpr bool exists = false;
};

// weight(p, q, x, y), whose sums with rows of one streamed matrix write(sum, x, e) takes.
template <typename Weight, typename Write>
struct Weighted {
  static constexpr bool exists = true;
  Weight weight;
  Write write;
};
template <typename Weight, typename Write>
Weighted(Weight, Write) -> Weighted<Weight, Write>;

// What a thread has of one of the sums.
template <int length, typename Sum>
struct Summed {
  uint32_t weights[kTile / 16][4];
  float sum[length / 8][4];
};
template <int length>
struct Summed<length, Nothing> {};

template <int length, typename Write>
inline void write_rows(const float (&sum)[length / 8][4], int64_t first, int64_t rows, int64_t width,
                       int lane, const Write& write) {
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

// p = own0[x] * streamed0[y] and q = own1[x] * streamed1[y].
template <bool has_first, bool has_second, typename First, typename Second>
inline void pairs(const PairPart& part, const Matrix& own0, const Matrix& streamed0,
                  const Matrix& own1, const Matrix& streamed1, const First& first,
                  const Second& second) {
  LOMA_DYNAMIC_SHARED(shared);
  Narrow* const rows0 = reinterpret_cast<Narrow*>(shared);
  Narrow* const rows1 = rows0 + kPairRows * kPitch;
  Narrow* const tiles0 = rows1 + kPairRows * kValuePitch;
  Narrow* const tiles1 = tiles0 + 2 * kTile * kPitch;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t count = streamed0.rows, last = std::min(part.row + kPairRows, own0.rows) - 1;
  const int tiles = static_cast<int>((count + kTile - 1) / kTile);

  if (has_first) fetch<kPairRows, kDepth>(rows0, own0, part.row);
  if (has_second) fetch<kPairRows, kWidth>(rows1, own1, part.row);
  fetch<kTile, kDepth>(tiles0, streamed0, 0);
  fetch<kTile, kWidth>(tiles1, streamed1, 0);

  Summed<kDepth, First> of_first;
  Summed<kWidth, Second> of_second;
  if constexpr (First::exists) {
#pragma unroll
    for (int n = 0; n < kDepth / 8; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) of_first.sum[n][c] = 0;
    }
  }
  if constexpr (Second::exists) {
#pragma unroll
    for (int n = 0; n < kWidth / 8; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) of_second.sum[n][c] = 0;
    }
  }
  int xs[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    xs[h] = static_cast<int>(std::min(part.row + warp * 16 + lane / 4 + 8 * h, last));
  }
  copies_done();
  __syncthreads();

  for (int tile = 0; tile < tiles; ++tile) {
    const int from = tile * kTile, stage = tile % 2, next = 1 - stage;
    if (tile + 1 < tiles) {
      fetch<kTile, kDepth>(tiles0 + next * kTile * kPitch, streamed0, from + kTile);
      fetch<kTile, kWidth>(tiles1 + next * kTile * kValuePitch, streamed1, from + kTile);
    }
    const Narrow* const tile0 = tiles0 + stage * kTile * kPitch;
    const Narrow* const tile1 = tiles1 + stage * kTile * kValuePitch;
    float p[kTile / 8][4], q[kTile / 8][4];
    if (has_first) products<kDepth>(p, rows0 + warp * 16 * kPitch, tile0, lane);
    if (has_second) products<kWidth>(q, rows1 + warp * 16 * kValuePitch, tile1, lane);
    const bool whole = from + kTile <= count;
#pragma unroll
    for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float both[2][2];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int y = from + n * 8 + lane % 4 * 2 + c;
          const bool there = whole || y < count;
          const int inside = there ? y : static_cast<int>(count) - 1;
          const float own_p = has_first ? p[n][2 * h + c] : 0.0f;
          const float own_q = has_second ? q[n][2 * h + c] : 0.0f;
          if constexpr (First::exists) {
            const float found = first.weight(own_p, own_q, xs[h], inside);
            both[0][c] = there ? found : 0.0f;
          }
          if constexpr (Second::exists) {
            const float found = second.weight(own_p, own_q, xs[h], inside);
            both[1][c] = there ? found : 0.0f;
          }
        }
        if constexpr (First::exists) {
          of_first.weights[n / 2][n % 2 * 2 + h] = narrowed(both[0][0], both[0][1]);
        }
        if constexpr (Second::exists) {
          of_second.weights[n / 2][n % 2 * 2 + h] = narrowed(both[1][0], both[1][1]);
        }
      }
    }
    if constexpr (First::exists) add_weighted<kDepth>(of_first.sum, of_first.weights, tile0, lane);
    if constexpr (Second::exists) {
      add_weighted<kWidth>(of_second.sum, of_second.weights, tile1, lane);
    }
    copies_done();
    __syncthreads();
  }

  const int64_t row = part.row + warp * 16;
  if constexpr (First::exists) {
    write_rows<kDepth>(of_first.sum, row, own0.rows, streamed0.length, lane, first.write);
  }
  if constexpr (Second::exists) {
    write_rows<kWidth>(of_second.sum, row, own0.rows, streamed1.length, lane, second.write);
  }
}

}  // namespace loma
