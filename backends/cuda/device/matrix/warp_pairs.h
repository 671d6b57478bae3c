// The pass of pairs.h by warps, each with sixteen rows.
#pragma once

namespace loma {

constexpr int kTile = 32, kStages = 2;  // rows of streamed matrices at a time; how many of these

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

// p = own0[x] * streamed0[y] and q = own1[x] * streamed1[y].
template <bool has_first, bool has_second, typename Rows, typename Columns, typename First,
          typename Second, typename Which = Everywhere>
inline void pairs(const PairPart& part, const Matrix& own0, const Matrix& streamed0,
                  const Matrix& own1, const Matrix& streamed1, const Rows& of_row,
                  const Columns& of_column, const First& first, const Second& second,
                  const Which& which = {}) {
  LOMA_DYNAMIC_SHARED(shared);
  Narrow* const rows0 = reinterpret_cast<Narrow*>(shared);
  Narrow* const rows1 = rows0 + kPairRows * kPitch;
  Narrow* const tiles0 = rows1 + kPairRows * kValuePitch;
  Narrow* const tiles1 = tiles0 + kStages * kTile * kPitch;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int count = static_cast<int>(streamed0.rows);
  const int64_t last = std::min(part.row + kPairRows, own0.rows) - 1;
  const PairTiles<kTile> tiles(part.row, last, count, which);
  const int start = tiles.first * kTile;
  ColumnValues<kTile, Columns> values(tiles1 + kStages * kTile * kValuePitch, of_column, count, 0);

  if (has_first) fetch<kPairRows, kDepth>(rows0, own0, part.row);
  if (has_second) fetch<kPairRows, kWidth>(rows1, own1, part.row);
  fetch<kTile, kDepth>(tiles0, streamed0, start);
  fetch<kTile, kWidth>(tiles1, streamed1, start);
  values.read(start);
  values.store(0);

  Summed<kTile, kDepth, First> of_first;
  Summed<kTile, kWidth, Second> of_second;
  int xs[2];
  decltype(of_row(0)) of_rows[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    xs[h] = static_cast<int>(std::min(part.row + warp * 16 + lane / 4 + 8 * h, last));
    of_rows[h] = of_row(xs[h]);
  }
  copies_done();
  __syncthreads();

  for (int tile = 0; tile < tiles.count; ++tile) {
    const int from = start + tile * kTile, stage = tile % 2, next = 1 - stage;
    if (tile + 1 < tiles.count) {
      fetch<kTile, kDepth>(tiles0 + next * kTile * kPitch, streamed0, from + kTile);
      fetch<kTile, kWidth>(tiles1 + next * kTile * kValuePitch, streamed1, from + kTile);
      values.read(from + kTile);
    }
    const Narrow* const tile0 = tiles0 + stage * kTile * kPitch;
    const Narrow* const tile1 = tiles1 + stage * kTile * kValuePitch;
    float p[kTile / 8][4] = {}, q[kTile / 8][4] = {};
    if (has_first) products<kDepth>(p, rows0 + warp * 16 * kPitch, tile0, lane);
    if (has_second) products<kWidth>(q, rows1 + warp * 16 * kValuePitch, tile1, lane);
    weigh_tile<kTile>(of_first.weights, of_second.weights, p, q, first, second, xs, of_rows,
                      values, stage, from, count);
    if constexpr (First::exists) add_weighted<kDepth>(of_first.sum, of_first.weights, tile0, lane);
    if constexpr (Second::exists) {
      add_weighted<kWidth>(of_second.sum, of_second.weights, tile1, lane);
    }
    values.store(next);
    copies_done();
    __syncthreads();
  }

  const int64_t row = part.row + warp * 16;
  if constexpr (First::exists) {
    write_rows<kDepth>(of_first.sum, row, own0.rows, streamed0.length, first.write);
  }
  if constexpr (Second::exists) {
    write_rows<kWidth>(of_second.sum, row, own0.rows, streamed1.length, second.write);
  }
}

}  // namespace loma
