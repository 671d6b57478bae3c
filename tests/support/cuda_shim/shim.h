// CUDA's built-in names for kernels that g++ compiles for the CPU: the first include of an image.
// There are no headers of the system, so that std.h is tested too and compiling takes little time.
#pragma once

#include "threads.h"

extern "C" {
__attribute__((visibility("hidden"))) loma_shim::Threads loma_shim_threads;

#define LOMA_C(name) \
  float name##f(float); \
  double name(double);
#define LOMA_C2(name) \
  float name##f(float, float); \
  double name(double, double);
// clang-format off
LOMA_C(exp) LOMA_C(exp2) LOMA_C(expm1) LOMA_C(log) LOMA_C(log2) LOMA_C(log10) LOMA_C(log1p)
LOMA_C(sqrt) LOMA_C(cbrt) LOMA_C(sin) LOMA_C(cos) LOMA_C(tan) LOMA_C(asin) LOMA_C(acos) LOMA_C(atan)
LOMA_C(sinh) LOMA_C(cosh) LOMA_C(tanh) LOMA_C(asinh) LOMA_C(acosh) LOMA_C(atanh) LOMA_C(erf)
LOMA_C(erfc) LOMA_C(lgamma) LOMA_C(tgamma) LOMA_C(floor) LOMA_C(ceil) LOMA_C(trunc) LOMA_C(round)
LOMA_C(nearbyint) LOMA_C(rint) LOMA_C(fabs)
LOMA_C2(pow) LOMA_C2(atan2) LOMA_C2(fmod) LOMA_C2(copysign) LOMA_C2(hypot) LOMA_C2(fmax)
LOMA_C2(fmin)
// clang-format on
float fmaf(float, float, float);
double fma(double, double, double);
void* malloc(decltype(sizeof(0)));
void free(void*);
void* memcpy(void*, const void*, decltype(sizeof(0)));
void* memset(void*, int, decltype(sizeof(0)));
#undef LOMA_C
#undef LOMA_C2
}

#define __global__ __attribute__((visibility("default")))
#define __device__
#define __host__
#define __shared__ static __attribute__((section("loma_shared"), used))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)
#define __grid_constant__
#define __noinline__ __attribute__((noinline))
#define __forceinline__ inline __attribute__((always_inline))
#define __builtin_assume(holds) ((holds) ? void() : __builtin_unreachable())

#define threadIdx (loma_shim_threads.thread)
#define blockIdx (loma_shim_threads.block)
#define blockDim (loma_shim_threads.block_size)
#define gridDim (loma_shim_threads.grid_size)
#define LOMA_EXCHANGED(name) asm volatile("" : : "r"(name) : "memory")
#define LOMA_DYNAMIC_SHARED(name) char* const name = loma_shim_threads.shared
#define LOMA_END_THREAD() loma_shim_threads.end_thread()
#define LOMA_MATRIX_UNITS "shim_matrix_units.h"

inline void __syncthreads() { loma_shim_threads.barrier(); }
inline void __syncwarp(unsigned mask = 0xffffffffu) { loma_shim_threads.warp_barrier(mask); }
inline void __threadfence() {}
inline void __threadfence_system() {}

namespace loma_shim {

template <typename number>
inline number shuffle(unsigned mask, number value, unsigned source) {
  static_assert(sizeof(number) <= 8, "a value of more than 8 bytes");
  unsigned long bits = 0;
  __builtin_memcpy(&bits, &value, sizeof value);
  bits = loma_shim_threads.exchange(mask, bits, source);
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

inline unsigned lane() { return threadIdx.x % 32; }

// A lane of the same group of `width`, else the thread's own.
inline unsigned within(unsigned source, unsigned width) {
  return source / width == lane() / width ? source : lane();
}

// The kernel as the driver calls it: with pointers to its arguments.
template <unsigned long... places>
struct Places {
  template <typename... types>
  static void call(void (*kernel)(types...), void** arguments) {
    kernel(*static_cast<types*>(arguments[places])...);
  }
};

template <typename... types>
inline void run(void (*kernel)(types...), void** arguments) {
  Places<__integer_pack(sizeof...(types))...>::call(kernel, arguments);
}

}  // namespace loma_shim

template <typename number>
inline number __shfl_sync(unsigned mask, number value, int source, int width = 32) {
  const unsigned group = loma_shim::lane() / width * width;
  return loma_shim::shuffle(mask, value, group + unsigned(source) % width);
}

template <typename number>
inline number __shfl_xor_sync(unsigned mask, number value, int distance, int width = 32) {
  const unsigned source = loma_shim::lane() ^ unsigned(distance);
  return loma_shim::shuffle(mask, value, loma_shim::within(source, width));
}

template <typename number>
inline number __shfl_down_sync(unsigned mask, number value, unsigned distance, int width = 32) {
  const unsigned source = loma_shim::lane() + distance;
  return loma_shim::shuffle(mask, value, loma_shim::within(source, width));
}

template <typename number>
inline number __shfl_up_sync(unsigned mask, number value, unsigned distance, int width = 32) {
  const unsigned lane = loma_shim::lane(), source = lane % width < distance ? lane : lane - distance;
  return loma_shim::shuffle(mask, value, source);
}

inline int atomicCAS(int* address, int expected, int wanted) {
  const int found = *address;
  if (found == expected) *address = wanted;
  return found;
}

// Threads take turns only where they wait.
template <typename number>
inline number atomicAdd(number* address, number value) {
  const number found = *address;
  *address = number(found + value);
  return found;
}
inline int atomicAdd(int* address, int value) {
  const int found = *address;
  __builtin_add_overflow(found, value, address);
  return found;
}

inline float __int_as_float(int bits) { return __builtin_bit_cast(float, bits); }
inline double __longlong_as_double(long long bits) { return __builtin_bit_cast(double, bits); }

// Of the linker: where the section begins and ends. Without it (no shared memory) there are none.
extern "C" {
extern char __start_loma_shared[] __attribute__((weak, visibility("hidden")));
extern char __stop_loma_shared[] __attribute__((weak, visibility("hidden")));
__attribute__((visibility("default"), used)) loma_shim::Image loma_shim_image = {
    &loma_shim_threads, LOMA_THREADS, __start_loma_shared, __stop_loma_shared};
}
