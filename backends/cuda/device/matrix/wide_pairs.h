// The pass of pairs.h by groups of four warps, each with 64 rows, and four warps that copy tiles for them.
// While a group weighs a tile, products of the other one are under way: of a tile with its weights, and
// those that the next weights follow from.
#pragma once

namespace loma {

// What fetch_slabs does, by so many threads, of which this is one.
template <int rows, int length, int threads>
inline void fetch_slabs_by(int thread, Narrow* to, const Matrix& from, int64_t first) {
  constexpr int pieces = length / 8;
  const bool whole = first + rows <= from.rows && from.length == length;
  const Narrow* const data = from.data + first * from.stride;
#pragma unroll
  for (int k = 0; k < (rows * pieces + threads - 1) / threads; ++k) {
    const int piece = k * threads + thread;
    if (rows * pieces % threads != 0 && piece >= rows * pieces) break;
    const int row = piece / pieces, column = piece % pieces * 8;
    const bool there = whole || (first + row < from.rows && column < from.length);
    const Narrow* const source = there ? data + row * from.stride + column : from.data;
    copy_later(to + place_in_tile<rows, length>(row, column), source, there);
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
  // Rows of a group stay in registers where sums leave so many; more sums leave registers for products
  // with fewer rows of streamed matrices at a time, too.
  constexpr bool kHeld = kDepth + kWidth <= 128;
  constexpr int kTile = kHeld ? 64 : 32, kStages = 4 * kGroupRows / kTile;
  Narrow* const rows0 = reinterpret_cast<Narrow*>(shared);
  Narrow* const rows1 = rows0 + kPairRows * kDepth;
  Narrow* const tiles0 = rows1 + kPairRows * kWidth;
  Narrow* const tiles1 = tiles0 + kStages * kTile * kDepth;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0), group = warp / 4;
  const int count = static_cast<int>(streamed0.rows);
  const int64_t last = std::min(part.row + kPairRows, own0.rows) - 1;
  const PairTiles<kTile> columns(part.row, last, count, which);
  const int tiles = columns.count, start = columns.first * kTile;
  ColumnValues<kTile, Columns> values(tiles1 + kStages * kTile * kWidth, of_column, count,
                                      128 * kGroups);

#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const int64_t from = part.row + g * kGroupRows;
    if (has_first) fetch_slabs<kGroupRows, kDepth>(rows0 + g * kGroupRows * kDepth, own0, from);
    if (has_second) fetch_slabs<kGroupRows, kWidth>(rows1 + g * kGroupRows * kWidth, own1, from);
  }
  Signal* const full = static_cast<Signal*>(values.end(kStages));
  Signal* const empty = full + kStages;
  if (threadIdx.x == 0) {
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      full[stage].begin(128);
      empty[stage].begin(4 * kGroups);
    }
  }
  copies_done();
  copies_shown();
  __syncthreads();
  if (group == kGroups) {  // the warps that copy
    fewer_registers<40>();
    const int thread = static_cast<int>(threadIdx.x) % 128;
    for (int tile = 0; tile < tiles; ++tile) {
      const int stage = tile % kStages;
      if (tile >= kStages) empty[stage].wait(tile / kStages - 1);
      const int64_t from = start + int64_t(tile) * kTile;
      fetch_slabs_by<kTile, kDepth, 128>(thread, tiles0 + stage * (kTile * kDepth), streamed0, from);
      fetch_slabs_by<kTile, kWidth, 128>(thread, tiles1 + stage * (kTile * kWidth), streamed1, from);
      copies_begun();
      if (tile > 0) {
        values.store((tile - 1) % kStages);
        copies_done_before();
        copies_shown();
        full[(tile - 1) % kStages].give();
      }
      values.read(static_cast<int>(from));
    }
    values.store((tiles - 1) % kStages);
    copies_done();
    copies_shown();
    full[(tiles - 1) % kStages].give();
  } else {
    more_registers<232>();
    Summed<kTile, kDepth, First> of_first;
    Summed<kTile, kWidth, Second> of_second;
    int xs[2];
    decltype(of_row(0)) of_rows[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      xs[h] = static_cast<int>(std::min(part.row + warp * 16 + lane / 4 + 8 * h, last));
      of_rows[h] = of_row(xs[h]);
    }

    float p[kTile / 8][4] = {}, q[kTile / 8][4] = {};
    const Operand mine0(rows0 + group * kGroupRows * kDepth), mine1(rows1 + group * kGroupRows * kWidth);
    uint32_t held0[kHeld ? kDepth / 16 : 1][4], held1[kHeld ? kWidth / 16 : 1][4];
    if constexpr (kHeld) {
      load_own<kDepth>(held0, rows0 + group * kGroupRows * kDepth);
      load_own<kWidth>(held1, rows1 + group * kGroupRows * kWidth);
    }
    const Operand first_tile0(tiles0), first_tile1(tiles1);
    const auto tile0 = [&](int tile) { return first_tile0.at(tile % kStages * (kTile * kDepth)); };
    const auto tile1 = [&](int tile) { return first_tile1.at(tile % kStages * (kTile * kWidth)); };
    const auto settle_all = [&] {
      if (has_first) settle(p);
      if (has_second) settle(q);
      if constexpr (First::exists) settle(of_first.sum);
      if constexpr (Second::exists) settle(of_second.sum);
    };
    // Behind the last tile: of what was there, for nobody.
    const auto multiply = [&](int tile) {
      if constexpr (kHeld) {
        if (has_first) multiply_tile<kTile, kDepth>(p, held0, tile0(tile));
        if (has_second) multiply_tile<kTile, kWidth>(q, held1, tile1(tile));
      } else {
        if (has_first) multiply_tile<kTile, kDepth>(p, mine0, tile0(tile));
        if (has_second) multiply_tile<kTile, kWidth>(q, mine1, tile1(tile));
      }
    };
    const auto add = [&](int tile) {
      if constexpr (First::exists) {
        add_tile<kTile, kDepth>(of_first.sum, of_first.weights, tile0(tile));
      }
      if constexpr (Second::exists) {
        add_tile<kTile, kWidth>(of_second.sum, of_second.weights, tile1(tile));
      }
    };
    full[0].wait(0);
    settle_all();
    units_begin();
    multiply(0);
    units_go();
    for (int tile = 0; tile < tiles; ++tile) {
      units_done();
      settle_all();
      if (tile > 0) {
        __syncwarp();
        if (lane == 0) empty[(tile - 1) % kStages].give();
      }
      weigh_tile<kTile>(of_first.weights, of_second.weights, p, q, first, second, xs, of_rows, values,
                        tile % kStages, start + tile * kTile, count);
      settle(of_first.weights);
      settle(of_second.weights);
      if (tile + 1 < tiles) full[(tile + 1) % kStages].wait((tile + 1) / kStages);
      units_begin();
      add(tile);
      multiply(tile + 1);
      units_go();
    }
    units_done();
    settle_all();

    const int64_t row = part.row + warp * 16;
    if constexpr (First::exists) {
      write_rows<kDepth>(of_first.sum, row, own0.rows, streamed0.length, first.write);
    }
    if constexpr (Second::exists) {
      write_rows<kWidth>(of_second.sum, row, own0.rows, streamed1.length, second.write);
    }
  }
}

}  // namespace loma
