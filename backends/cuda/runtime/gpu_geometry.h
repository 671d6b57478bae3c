// How many threads a launch has, and who of them does what: by sizes alone, so that results do not
// depend on the GPU.
#ifndef LOMA_GPU_GEOMETRY_H
#define LOMA_GPU_GEOMETRY_H

#include "gpu.h"

#include <cstdint>
#include <initializer_list>

namespace loma::gpu {

constexpr uintptr_t kWide = 16;         // bytes that a thread reads or writes at once
constexpr int64_t kPlainShared = 48 << 10;  // bytes of shared memory that any block may have

// A block has `threads`, of which each `team` shares an iteration. `across`: neighbours are threads of
// the same rank in neighbouring teams. So many `blocks` take the iterations in turns. With `slices`
// above 1 the steps of a reduction are cut, blocks for each slice, and a second launch joins them.
// A team of one may take `beside` iterations side by side, or a tile of `rows` and `columns` of them. Private memory, `shared_bytes` of a block, is
// shared memory if `shared` is 1, in workspaces of `workspace_bytes` for all blocks if it is 0, and what
// is far alone in these if it is 2.
struct Geometry {
  int threads = 1, team = 1, beside = 1;
  bool across = false;
  int shared = 1;
  int64_t blocks = 1, slices = 1;
  int64_t shared_bytes = 0, workspace_bytes = 0;
  // Of a sweep: the dtype of operands, lengths of their rows, groups of four warps that use the matrix
  // units together (0: each warp does by itself).
  int narrow = 0, depth = 0, width = 0, groups = 0;
  int registers = 0;  // of a thread (0: as many as its compiler wants)
  int rows = 1, columns = 1;
  int lanes = 0;  // that have a value of an inner loop
};

// `shape`: what a tuner wants, as far as it can be.
// `beside`: how many numbers a thread reads at once; `several`: the extent of the axis of which a
// thread may have several sums, 0 where there is none; `second`: that of a second such axis, or `pairs` of one that shares nothing; `around`: how often the loop over `inner` steps
// runs, whose values slices share before they share those.
Geometry statement_geometry(int64_t count, int64_t inner, bool across, bool splits, int beside,
                            int64_t several = 0, int64_t around = 1, int64_t second = 1,
                            bool pairs = false, const Shape& shape = {});
// The second launch of a reduction in slices.
Geometry joining_geometry(int64_t count);
// Running reductions along rows: with slices, both launches have the same threads.
Geometry running_geometry(int64_t rows, int64_t length, bool splits, bool across = false,
                          const Shape& shape = {});
// `most_shared`: the bytes of shared memory that a block can have at most on that device; `far`: bytes
// of an iteration that are never there; with `carriers`, so many blocks of one team share the iterations; `least`: the numbers of a long row
// that a thread has at least.
Geometry fused_geometry(int64_t count, int64_t inner, int64_t bytes, int64_t most_shared,
                        int64_t far = 0, const Shape& shape = {}, int64_t carriers = 0,
                        int64_t least = kUsualNumbers);
// The same with inner loops of so many `values`, of which lanes share `columns`.
Geometry lanes_geometry(int64_t count, int64_t values, int64_t columns, int64_t bytes,
                        int64_t most_shared, int64_t far);
bool lanes_fit(int64_t values, int64_t columns, std::initializer_list<int64_t> few,
               std::initializer_list<int64_t> apart, bool on_gpu);
// Registers that a thread of a fused kernel may have at most, 0 for as many as its compiler wants.
int registers_for(const Geometry& geometry, size_t real_bytes, int64_t most_shared);
// As gpu.h has it; a stand-in has few threads, and is soon busy.
int64_t carriers(int64_t rows, int64_t width, int64_t bytes, bool on_gpu);
// A pass over columns (sweep.h of the device). Whether it is worth it; and its blocks, on a GPU where
// warps use matrix units in `groups` or not.
bool sweeps_fit(int64_t rows, int64_t columns, int64_t depth, int64_t width);
Geometry sweep_geometry(int64_t outer, int64_t rows, int64_t depth, int64_t width, bool groups);
// A pass over pairs (pairs.h of the device), which keeps so many numbers of each column.
Geometry pairs_geometry(int64_t outer, int64_t rows, int64_t depth, int64_t width, int64_t kept,
                        bool groups);

}  // namespace loma::gpu

#endif  // LOMA_GPU_GEOMETRY_H
