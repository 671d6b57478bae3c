// What the scalar layer's functions call that backends/c writes for a device: there is one thread for
// each item of a @simd function. Where they fail, the thread tells and ends.
#pragma once

#include "checks.h"
#include "grid.h"
#include "parts.h"
#include "std.h"

#define LOMA_INLINE [[maybe_unused]] static inline
#define LOMA_APART [[maybe_unused]] static __noinline__

#ifndef NULL
#define NULL nullptr
#endif
#define INT_MAX 0x7fffffff
#define INT_MIN (-INT_MAX - 1)
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fc00000)

#define memmove loma_move

#ifndef LOMA_END_THREAD
#define LOMA_END_THREAD() asm volatile("exit;")
#endif

// What functions allocate: freed at their end, or all of a thread's at once after a failure.
#ifdef LOMA_ALLOCATES
struct loma_block {
  loma_block *previous, *next;
};

LOMA_INLINE loma_block*& loma_blocks() {
  __shared__ loma_block* blocks_[LOMA_THREADS];
  return blocks_[threadIdx.x];
}

// Not at each place that calls it: a derivative's text has many, and NVRTC would take minutes.
LOMA_APART void loma_release(void* data) {
  if (data == nullptr) return;
  loma_block* const block = static_cast<loma_block*>(data) - 1;
  (block->previous != nullptr ? block->previous->next : loma_blocks()) = block->next;
  if (block->next != nullptr) block->next->previous = block->previous;
  free(block);
}
#endif

[[noreturn, maybe_unused]] LOMA_COLD static void loma_fail(int kind, const char* function, int line,
                                                            int first, int second) {
#ifdef LOMA_ALLOCATES
  while (loma_blocks() != nullptr) loma_release(loma_blocks() + 1);
#endif
  loma::tell({loma::Check::scalar, {function}, {kind, line, first, second}});
  LOMA_END_THREAD();
  __builtin_unreachable();
}

#ifdef LOMA_ALLOCATES
// A pointer to any type, as C has it.
struct loma_memory {
  void* data;

  template <typename type>
  operator type*() const {
    return static_cast<type*>(data);
  }
};

constexpr int loma_full_stack = 4, loma_no_memory = 6;  // kinds of loma.runtime_errors

LOMA_APART loma_memory loma_new(size_t bytes, const char* function, int line) {
  auto* const block = static_cast<loma_block*>(malloc(sizeof(loma_block) + bytes));
  if (block == nullptr) loma_fail(loma_no_memory, function, line, 0, 0);
  block->previous = nullptr;
  block->next = loma_blocks();
  if (block->next != nullptr) block->next->previous = block;
  loma_blocks() = block;
  return {block + 1};
}

// Memory for so many elements, all zero.
LOMA_APART loma_memory loma_allocate(size_t count, size_t size, const char* function, int line) {
  const loma_memory made = loma_new(count * size, function, line);
  memset(made.data, 0, count * size);
  return made;
}

// The memory of a stack that is full, larger.
LOMA_APART loma_memory loma_larger(void* data, int used, int* room, int limit, size_t size,
                                   const char* function, int line) {
  if (used == limit) loma_fail(loma_full_stack, function, line, limit, 0);
  int wanted = *room < 8 ? 16 : *room > INT_MAX / 2 ? INT_MAX : *room * 2;
  if (wanted > limit) wanted = limit;
  const loma_memory larger = loma_new(wanted * size, function, line);
  if (data != nullptr) memcpy(larger.data, data, used * size);
  loma_release(data);
  *room = wanted;
  return larger;
}

LOMA_INLINE loma_memory loma_grown(void* data, int used, int* room, int limit, size_t size,
                                   const char* function, int line) {
  if (used < *room) return {data};
  return loma_larger(data, used, room, limit, size, function, line);
}
#endif

LOMA_APART void loma_move(void* to, const void* from, size_t bytes) {
  auto* const target = static_cast<char*>(to);
  const auto* const source = static_cast<const char*>(from);
  if (target <= source) {
    for (size_t k = 0; k < bytes; ++k) target[k] = source[k];
  } else {
    for (size_t k = bytes; k-- > 0;) target[k] = source[k];
  }
}

// Ints wrap around.
LOMA_INLINE int loma_sum(int a, int b) { return int(unsigned(a) + unsigned(b)); }
LOMA_INLINE int loma_difference(int a, int b) { return int(unsigned(a) - unsigned(b)); }
LOMA_INLINE int loma_product(int a, int b) { return int(unsigned(a) * unsigned(b)); }

LOMA_INLINE void loma_atomic_add(float* place, float value) { atomicAdd(place, value); }
LOMA_INLINE void loma_atomic_add(int* place, int value) { atomicAdd(place, value); }

namespace loma {

// body(item) for each item of the grid; they go round over its threads.
template <typename Body>
inline void items(const Grid& grid, const Body& body) {
  *report_place() = grid.report;
#ifdef LOMA_ALLOCATES
  loma_blocks() = nullptr;
#endif
  const int64_t all = blocks(grid) * kTeams;
#pragma unroll 1
  for (int64_t item = block(grid) * kTeams + threadIdx.x; item < grid.count; item += all) {
    body(int(item));
  }
}

}  // namespace loma
