// The sweep of sweep.h by groups of four warps, each with 64 rows. While a group looks at the scores of a
// tile, another one's products are under way: of this tile's values, of the next one's keys.
#pragma once

namespace loma {

// The tiles of a matrix, one after the other.
template <int rows, int length>
class Tiles {
 public:
  explicit Tiles(const Matrix& from) : from_(from) {
    const int row = static_cast<int>(threadIdx.x) / kPieces, column = own_column();
    there_ = column < from.length;
    next_ = from.data + row * from.stride + (there_ ? column : 0);
    place_ = place_in_tile<rows, length>(row, column);
  }

  void fetch(Narrow* to, int tile) {
    constexpr int beside = kSweepThreads / kPieces;
    // Then a thread's pieces are at the same place of rows, and of as many slabs.
    constexpr bool is_regular = kSweepThreads % kPieces == 0 && rows % beside == 0 && beside % 8 == 0;
    const int64_t first = int64_t(tile) * rows;
    if (!is_regular || first + rows > from_.rows) return fetch_slabs<rows, length>(to, from_, first);
    const int width = slab_of(length, own_column()).width;
    const Narrow* const from = next_ + first * from_.stride;
#pragma unroll
    for (int k = 0; k < rows / beside; ++k) {
      copy_later(to + place_ + k * beside * width, from + k * beside * from_.stride, there_);
    }
  }

 private:
  static constexpr int kPieces = length / 8;
  static int own_column() { return static_cast<int>(threadIdx.x) % kPieces * 8; }

  const Matrix from_;
  int place_;
  bool there_;
  const Narrow* next_;
};

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
  constexpr int kStages = 4;
  Narrow* const shared_queries = reinterpret_cast<Narrow*>(shared);
  Narrow* const shared_keys = shared_queries + kRows * kDepth;
  Narrow* const shared_values = shared_keys + kStages * kColumns * kDepth;

  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0), group = warp / 4;
  const int first_row = static_cast<int>(part.row);
  const int last = static_cast<int>(std::min<int64_t>(part.row + kRows, queries.rows) - 1);
  const SweptColumns swept(first_row, last, keys.rows, high);
  const int tiles = (swept.columns + kColumns - 1) / kColumns;
  Tiles<kColumns, kDepth> tiles_of_keys(keys);
  Tiles<kColumns, kWidth> tiles_of_values(values);
  const auto begin = [&](int tile) {
    if (tile < tiles) {
      const int stage = tile % kStages;
      tiles_of_keys.fetch(shared_keys + stage * (kColumns * kDepth), tile);
      tiles_of_values.fetch(shared_values + stage * (kColumns * kWidth), tile);
    }
    copies_begun();
  };

  Narrow* const own_queries = shared_queries + group * kGroupRows * kDepth;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    fetch_slabs<kGroupRows, kDepth>(shared_queries + g * kGroupRows * kDepth, queries,
                                    part.row + g * kGroupRows);
  }
  begin(0);
  begin(1);
  SweptRows mine(first_row + warp * 16, last, high);
  copies_done();
  copies_shown();
  __syncthreads();
  begin(2);

  uint32_t own[kDepth / 16][4], weights[kColumns / 16][4] = {};
  float p[kColumns / 8][4] = {};
  load_own<kDepth>(own, own_queries);
  const auto settle_all = [&] {
    settle(p);
    settle(weights);
    settle(mine.found);
  };
  const Operand first_keys(shared_keys), first_values(shared_values);
  const auto tile_keys = [&](int tile) { return first_keys.at(tile % kStages * (kColumns * kDepth)); };
  const auto tile_values = [&](int tile) {
    return first_values.at(tile % kStages * (kColumns * kWidth));
  };
  settle_all();
  units_begin();
  multiply_tile<kColumns, kDepth>(p, own, tile_keys(0));
  units_go();

  for (int tile = 0; tile < tiles; ++tile) {
    units_done();
    settle_all();
    copies_done_before();
    copies_shown();
    group_tells(group, tile);
    const int from = tile * kColumns;
    mine.template take<reads>(p, from, swept.columns, from + kColumns <= swept.shared, score, term,
                              weight);
#pragma unroll
    for (int k = 0; k < kColumns / 16; ++k) narrow_weights(weights[k], p, k);
    settle_all();
    group_hears(group, tile);
    begin(tile + 3);
    units_begin();
    add_tile<kColumns, kWidth>(mine.found, weights, tile_values(tile));
    // Behind the last tile: of what was there, for nobody.
    multiply_tile<kColumns, kDepth>(p, own, tile_keys(tile + 1));
    units_go();
  }
  units_done();
  settle_all();
  mine.write(first_row + warp * 16, values.length, row, element);
}

}  // namespace loma
