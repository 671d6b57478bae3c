// The units of a GPU that multiply small matrices of 16-bit floats, as a warp uses them, and copies from
// memory to shared memory beside computing. From sm_80 on. Layouts of fragments: PTX ISA, "Matrix
// Fragments for mma.m16n8k16 with floating point type".
//   LOMA_NARROW   the type of the operands: 1 bfloat16, 2 float16
#pragma once

#include <cstdint>

namespace loma {

using Narrow = uint16_t;  // its bits

#ifdef LOMA_MATRIX_UNITS  // a stand-in's own
#include LOMA_MATRIX_UNITS
#else

inline uint32_t shared_address(const void* place) {
  uint32_t address;
  asm("{ .reg .u64 wide; cvta.to.shared.u64 wide, %1; cvt.u32.u64 %0, wide; }"
      : "=r"(address) : "l"(place));
  return address;
}

// c += a b: c is 16x8 of float, a 16x16 and b 16x8 of narrow numbers.
inline void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#if LOMA_NARROW == 1
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
#else
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
#endif
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8x8 matrices, of which the lanes 8 k to 8 k + 7 give the rows of matrix k in shared memory.
inline void load_matrices(uint32_t (&to)[4], const Narrow* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row)) : "memory");
}

// The same, each of them transposed.
inline void load_transposed(uint32_t (&to)[4], const Narrow* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row)) : "memory");
}

// 16 bytes, which are there after the next copies_done(); zeros unless they are `there`. Those between
// two copies_begun() are there after copies_done_before(), which leaves those behind the last but one.
inline void copy_later(Narrow* to, const Narrow* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               : : "r"(shared_address(to)), "l"(from), "r"(there ? 16 : 0) : "memory");
}
inline void copies_done() { asm volatile("cp.async.wait_all;" : : : "memory"); }
inline void copies_begun() { asm volatile("cp.async.commit_group;" : : : "memory"); }
inline void copies_done_before() { asm volatile("cp.async.wait_group 1;" : : : "memory"); }

// Two numbers, the first in the lower half.
inline uint32_t narrowed(float low, float high) {
  uint32_t both;
#if LOMA_NARROW == 1
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
#else
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
#endif
  return both;
}

inline float widened(Narrow number) {
  float value;
#if LOMA_NARROW == 1
  asm("mov.b32 %0, {%1, %2};" : "=f"(value) : "h"(Narrow(0)), "h"(number));
#else
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(number));
#endif
  return value;
}

// 2 ** x within 2 units in the last place.
inline float power_of_two(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

inline uint32_t bits_of(float x) {
  uint32_t bits;
  asm("mov.b32 %0, %1;" : "=r"(bits) : "f"(x));
  return bits;
}

// NaN where one of them is.
inline float larger(float a, float b) {
  float found;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(found) : "f"(a), "f"(b));
  return found;
}

#endif

}  // namespace loma
