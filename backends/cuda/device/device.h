// What the text of every kernel includes. The compiler is given, as macros:
//   LOMA_REAL     float or double
//   LOMA_THREADS  threads of a block, a power of 2
//   LOMA_TEAM     threads that share an iteration, a power of 2; more than 32 are the whole block
//   LOMA_ACROSS   1: neighbours are threads of neighbouring teams (statements only)
//   LOMA_STAGE    0, or 1 and 2 for a reduction in two stages (statements only), 1 and 3 for a
//                 running one
//   LOMA_SHARED   1: private memory is shared memory, 0: it is the workspace, 2: it is both
//                 (iterations only)
//   LOMA_LISTED   if a launch is for positions of lists
//   LOMA_ALIGNED  if all pointers are multiples of 16 bytes
//   LOMA_LONG     if the kernel has many loops (by its text)
//   LOMA_REGISTERS  how many a thread has at most (by a tuner, as LOMA_ROUNDS)
//   LOMA_ROUNDS   how many rounds of a loop are under way at a time
//   LOMA_KNOWN    and LOMA_KNOWN_0, ...: the ints that this kernel is for
//   LOMA_FIXED_0  and so on: the first ones, in every form of a kernel whose registers these count
//   LOMA_LANES    lanes that have a value of an inner loop (inner.h)
#pragma once

// How many rounds of a loop are under way at a time: all, if they are few and known. Of the loops of
// a long kernel for any numbers each stands in the text once: NVRTC would take a minute otherwise.
#ifdef LOMA_KNOWN
#ifdef LOMA_ROUNDS
#define LOMA_UNROLL LOMA_ROUNDS
#else
#define LOMA_UNROLL 16
#endif
#define LOMA_UNROLL_BESIDE 4
#define LOMA_BESIDE 4
#elif defined(LOMA_LONG)
#define LOMA_UNROLL 1
#define LOMA_UNROLL_BESIDE 1
#define LOMA_BESIDE 1
#else
#define LOMA_UNROLL 4
#define LOMA_UNROLL_BESIDE 1
#define LOMA_BESIDE 4
#endif

#include "arithmetic.h"
#include "checks.h"
#include "divide.h"
#include "grid.h"
#include "places.h"
#include "special.h"
#include "statement.h"
#include "team.h"

using real = LOMA_REAL;

// A multiprocessor has 65536 registers; so many blocks are to find room on it.
#ifdef LOMA_REGISTERS
#define LOMA_BLOCKS (65536 / (LOMA_THREADS * LOMA_REGISTERS))
#define LOMA_BOUNDS __launch_bounds__(LOMA_THREADS, LOMA_BLOCKS > 1 ? LOMA_BLOCKS : 1)
#else
#define LOMA_BOUNDS __launch_bounds__(LOMA_THREADS)
#endif
#define LOMA_ENTRY extern "C" __global__ void LOMA_BOUNDS
#ifdef LOMA_LISTED
#include "lists.h"
#define LOMA_KERNEL static inline __device__ void
#define LOMA_LISTS(name) \
  LOMA_ENTRY name##__lists(const __grid_constant__ loma::Lists lists_) { \
    loma::at_position<name>(lists_.words); \
  }
#else
#define LOMA_KERNEL LOMA_ENTRY
#define LOMA_LISTS(name)
#endif

#ifdef LOMA_ALIGNED
#define LOMA_POINTER(name) static_cast<void>(__builtin_assume_aligned(name, 16))
#else
#define LOMA_POINTER(name) static_cast<void>(name)
#endif

// What other threads write between barriers may not be kept: the pointer is known elsewhere, too.
#ifndef LOMA_EXCHANGED
#define LOMA_EXCHANGED(name) asm volatile("" : : "l"(name) : "memory")
#endif

#define LOMA_NUMBER_GIVEN(name) [[maybe_unused]] const int64_t name##_given_
#define LOMA_FIXED(place, name) [[maybe_unused]] constexpr int64_t name = LOMA_FIXED_##place
#ifdef LOMA_KNOWN
#define LOMA_NUMBER(place, name) [[maybe_unused]] constexpr int64_t name = LOMA_KNOWN_##place
#else
#define LOMA_NUMBER(place, name) [[maybe_unused]] const int64_t name = name##_given_
#endif
