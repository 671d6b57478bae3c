// The sweep of sweep.h by warps, each with sixteen rows or two times sixteen.
#pragma once

namespace loma {

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

  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int first_row = static_cast<int>(part.row);
  const int last = static_cast<int>(std::min<int64_t>(part.row + kRows, queries.rows) - 1);
  const SweptColumns swept(first_row, last, keys.rows, high);
  const int tiles = (swept.columns + kColumns - 1) / kColumns;

  fetch<kRows, kDepth>(shared_queries, queries, part.row);
  fetch<kColumns, kDepth>(shared_keys, keys, 0);
  fetch<kColumns, kWidth>(shared_values, values, 0);

  const auto own_row = [&](int s) { return first_row + (warp * kSixteens + s) * 16; };
  SweptRows mine[] = {{own_row(0), last, high},
#if LOMA_DEPTH + LOMA_WIDTH <= 128
                      {own_row(1), last, high}
#endif
  };
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

    float p[kSixteens][kColumns / 8][4] = {};
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

    const bool whole = first + kColumns <= swept.shared;
#pragma unroll
    for (int s = 0; s < kSixteens; ++s) {
      mine[s].template take<reads>(p[s], first, swept.columns, whole, score, term, weight);
    }

    const Narrow* const these_values = shared_values + stage * kColumns * kValuePitch;
#pragma unroll
    for (int k = 0; k < kColumns / 16; ++k) {
      uint32_t a[kSixteens][4];
#pragma unroll
      for (int s = 0; s < kSixteens; ++s) narrow_weights(a[s], p[s], k);
#pragma unroll
      for (int n = 0; n < kWidth / 16; ++n) {
        uint32_t b[4];
        const int from = k * 16 + lane % 16;
        load_transposed(b, these_values + from * kValuePitch + n * 16 + lane / 16 * 8);
#pragma unroll
        for (int s = 0; s < kSixteens; ++s) {
          multiply(mine[s].found[2 * n], a[s], b[0], b[1]);
          multiply(mine[s].found[2 * n + 1], a[s], b[2], b[3]);
        }
      }
    }
    copies_done();
    __syncthreads();
  }

#pragma unroll
  for (int s = 0; s < kSixteens; ++s) mine[s].write(own_row(s), values.length, row, element);
}

}  // namespace loma
