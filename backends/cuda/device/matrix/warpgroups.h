// The matrix units of Hopper GPUs (compute capability 9.0), which four warps use together: the second
// operand is read from shared memory, and a product is under way while its warps compute. Layouts of
// operands: PTX ISA, "Asynchronous warpgroup level matrix instructions".
//   LOMA_GROUPS   groups of four warps of a block
#pragma once

#include "matrix_units.h"

namespace loma {

constexpr int kGroups = LOMA_GROUPS;
static_assert(kGroups == 2, "LOMA_GROUPS: 2");
constexpr int kGroupRows = 64;  // of each

// A tile in shared memory consists of slabs, one after the other, of 64 columns, and of 32 and 16 for
// what is left. In a slab pieces of 8 numbers have changed places, so that eight rows are in different
// banks; a slab begins at a multiple of 1024 bytes.
struct Slab {
  int start, width;
};
constexpr Slab slab_of(int length, int column) {
  const int whole = length / 64 * 64, rest = length % 64, place = column - whole;
  if (place < 0) return {column / 64 * 64, 64};
  return rest >= 32 && place < 32 ? Slab{whole, 32} : Slab{whole + rest / 32 * 32, 16};
}

// Where a tile of `rows` rows has the 8 numbers that begin at `column`.
template <int rows, int length>
inline int place_in_tile(int row, int column) {
  const Slab slab = slab_of(length, column);
  const int shift = slab.width == 64 ? 0 : slab.width == 32 ? 1 : 2;
  const int piece = (column - slab.start) / 8 ^ (row >> shift & (slab.width / 8 - 1));
  return slab.start * rows + row * slab.width + piece * 8;
}

#ifndef LOMA_MATRIX_UNITS

// Where an operand begins in shared memory.
struct Operand {
  uint32_t place;  // in 16 bytes, as the lower half of what the units are told

  explicit Operand(const Narrow* start) : place((shared_address(start) & 0x3ffff) >> 4 | 1 << 16) {}
  Operand at(int numbers) const { return {place + numbers / 8, 0}; }
  // In a slab of that width.
  uint64_t told(int width) const {
    const uint32_t layout = width == 64 ? 1 : width == 32 ? 2 : 3;
    return uint64_t(uint32_t(width) | layout << 30) << 32 | place;
  }

 private:
  Operand(uint32_t place, int) : place(place) {}
};

// Registers of units that compute: to be said before that, and behind.
inline void settle(float& value) { asm volatile("" : "+f"(value) : : "memory"); }
inline void settle(uint32_t& value) { asm volatile("" : "+r"(value) : : "memory"); }
template <typename Number, int n>
inline void settle(Number (&values)[n]) {
#pragma unroll
  for (int k = 0; k < n; ++k) settle(values[k]);
}
inline void units_begin() { asm volatile("wgmma.fence.sync.aligned;" : : : "memory"); }
inline void units_go() { asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory"); }
inline void units_done() { asm volatile("wgmma.wait_group.sync.aligned 0;" : : : "memory"); }

// What this thread has copied to shared memory is there for the units behind the next barrier.
inline void copies_shown() { asm volatile("fence.proxy.async.shared::cta;" : : : "memory"); }

// The two groups of a block wait for each other: one that has said so for a round goes on, and waits where
// it needs what the other one does before it says so. They are less than two rounds apart.
inline void group_tells(int group, int round) {
  asm volatile("bar.arrive %0, 256;" : : "r"(1 + group * 2 + round % 2) : "memory");
}
inline void group_hears(int group, int round) {
  asm volatile("bar.sync %0, 256;" : : "r"(3 - group * 2 + round % 2) : "memory");
}

// Threads of a group have so many registers from here on: those that only copy leave theirs to others.
template <int count>
inline void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(count));
}
template <int count>
inline void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(count));
}

// A barrier in shared memory, of which one goes on behind `give`, and `wait` is for the phase of that
// number, 0 first. Each phase ends when `count` have given.
struct Signal {
  uint64_t state;

  void begin(int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                 : : "r"(shared_address(this)), "r"(count) : "memory");
  }
  void give() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];"
                 : : "r"(shared_address(this)) : "memory");
  }
  void wait(int phase) {
    uint32_t done;
    do {
      asm volatile(
          "{ .reg .pred there; mbarrier.try_wait.parity.shared::cta.b64 there, [%1], %2;\n"
          "selp.u32 %0, 1, 0, there; }"
          : "=r"(done) : "r"(shared_address(this)), "r"(phase % 2) : "memory");
    } while (done == 0);
  }
};

#if LOMA_NARROW == 1
#define LOMA_WIDE(n) "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 "
#else
#define LOMA_WIDE(n) "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.f16.f16 "
#endif
#define LOMA_4(k) "+f"(c[k][0]), "+f"(c[k][1]), "+f"(c[k][2]), "+f"(c[k][3])
#define LOMA_SUMS_16 LOMA_4(0), LOMA_4(1)
#define LOMA_SUMS_32 LOMA_SUMS_16, LOMA_4(2), LOMA_4(3)
#define LOMA_SUMS_64 LOMA_SUMS_32, LOMA_4(4), LOMA_4(5), LOMA_4(6), LOMA_4(7)
#define LOMA_NAMES_16 "{%0, %1, %2, %3, %4, %5, %6, %7"
#define LOMA_NAMES_32 LOMA_NAMES_16 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define LOMA_NAMES_64 \
  LOMA_NAMES_32 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
// The names of what follows: four registers or a matrix in shared memory, one more of these, whether
// there are sums yet.
#define LOMA_MULTIPLY(n, a0, a1, a2, a3, b, keep, across) \
  asm volatile("{ .reg .pred kept; setp.ne.b32 kept, %" #keep ", 0;\n" LOMA_WIDE(n) \
               LOMA_NAMES_##n "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b \
               ", kept, 1, 1, " #across "; }" \
               : LOMA_SUMS_##n \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(matrix), "r"(int(keeps)))
#define LOMA_MULTIPLY_SHARED(n, a, b, keep) \
  asm volatile("{ .reg .pred kept; setp.ne.b32 kept, %" #keep ", 0;\n" LOMA_WIDE(n) \
               LOMA_NAMES_##n "}, %" #a ", %" #b ", kept, 1, 1, 0, 0; }" \
               : LOMA_SUMS_##n : "l"(own), "l"(matrix), "r"(int(keeps)))

// c, of 64 rows and `columns` columns, is a b, or becomes c + a b if it `keeps` what it is. b has as its
// columns rows of a slab, of which it takes 16 numbers.
template <int columns>
inline void multiply_rows(float (*c)[4], const uint32_t (&a)[4], Operand b, int width, bool keeps) {
  const uint64_t matrix = b.told(width);
  if constexpr (columns == 64) LOMA_MULTIPLY(64, 32, 33, 34, 35, 36, 37, 0);
  if constexpr (columns == 32) LOMA_MULTIPLY(32, 16, 17, 18, 19, 20, 21, 0);
}
// The same for an `a` of 64 rows in shared memory.
template <int columns>
inline void multiply_rows(float (*c)[4], Operand a, Operand b, int width, bool keeps) {
  const uint64_t own = a.told(width), matrix = b.told(width);
  if constexpr (columns == 64) LOMA_MULTIPLY_SHARED(64, 32, 33, 34);
  if constexpr (columns == 32) LOMA_MULTIPLY_SHARED(32, 16, 17, 18);
}
// b has 16 rows of a slab.
inline void multiply_columns(float (*c)[4], const uint32_t (&a)[4], Operand b, int width) {
  const uint64_t matrix = b.told(width);
  constexpr bool keeps = true;
  if (width == 64) LOMA_MULTIPLY(64, 32, 33, 34, 35, 36, 37, 1);
  if (width == 32) LOMA_MULTIPLY(32, 16, 17, 18, 19, 20, 21, 1);
  if (width == 16) LOMA_MULTIPLY(16, 8, 9, 10, 11, 12, 13, 1);
}

#endif

// Products of 64 rows, which a thread has in registers or which are in shared memory, and those of a tile
// of so many rows.
template <int rows, int length>
inline void multiply_tile(float (*c)[4], const uint32_t (*own)[4], Operand tile) {
#pragma unroll
  for (int k = 0; k < length; k += 16) {
    const Slab slab = slab_of(length, k);
    const Operand b = tile.at(slab.start * rows + k - slab.start);
    multiply_rows<rows>(c, own[k / 16], b, slab.width, k > 0);
  }
}
template <int rows, int length>
inline void multiply_tile(float (*c)[4], Operand own, Operand tile) {
#pragma unroll
  for (int k = 0; k < length; k += 16) {
    const Slab slab = slab_of(length, k);
    const Operand a = own.at(slab.start * kGroupRows + k - slab.start);
    const Operand b = tile.at(slab.start * rows + k - slab.start);
    multiply_rows<rows>(c, a, b, slab.width, k > 0);
  }
}

// Adds a tile's rows, weighted.
template <int rows, int length>
inline void add_tile(float (*sum)[4], const uint32_t (&weights)[rows / 16][4], Operand tile) {
#pragma unroll
  for (int k = 0; k < rows / 16; ++k) {
#pragma unroll
    for (int column = 0; column < length; column += 16) {
      const Slab slab = slab_of(length, column);
      if (slab.start != column) continue;
      const Operand b = tile.at(slab.start * rows + k * 16 * slab.width);
      multiply_columns(sum + column / 8, weights[k], b, slab.width);
    }
  }
}

// What a thread of a group has of its 64 rows, as the first operand.
template <int length>
inline void load_own(uint32_t (*own)[4], const Narrow* tile) {
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int k = 0; k < length / 16; ++k) {
    const int row = warp * 16 + lane % 16, column = k * 16 + lane / 16 * 8;
    load_matrices(own[k], tile + place_in_tile<kGroupRows, length>(row, column));
  }
}

}  // namespace loma
