// What backends/cuda/device/matrix/matrix_units.h has, inside namespace loma, for kernels on the CPU: lanes of
// a warp find each other's operands in memory, between barriers.

namespace shim {

struct Lane {
  uint32_t a[4], b[2];
  const Narrow* row;
};
// Of all threads of the block that runs.
static Lane lanes[1024];

// Copies that are under way: every other thread's, so that what forgets to wait for them and what
// writes over memory that is still read are both found out.
struct Copy {
  Narrow* to;
  Narrow numbers[8];
  int begun;  // how often copies have begun before it
};
constexpr int kMost = 64;
static Copy copies[1024][kMost];
static int waiting[1024], begun[1024];

inline Lane* own_warp() { return lanes + threadIdx.x / 32 * 32; }

inline float as_float(uint16_t bits) {
#if LOMA_NARROW == 1
  return __builtin_bit_cast(float, uint32_t(bits) << 16);
#else
  const int exponent = bits >> 10 & 31;
  const float fraction = (bits & 1023) * 0x1p-10f, sign = bits >> 15 ? -1.0f : 1.0f;
  if (exponent == 31) return sign * (fraction == 0 ? __builtin_inff() : __builtin_nanf(""));
  if (exponent == 0) return sign * fraction * 0x1p-14f;
  return sign * (1 + fraction) * __builtin_bit_cast(float, uint32_t(exponent - 15 + 127) << 23);
#endif
}

inline uint16_t as_narrow(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
#if LOMA_NARROW == 1
  if (value != value) return 0x7fff;
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
#else
  const uint16_t sign = uint16_t(bits >> 16 & 0x8000);
  const float size = __builtin_fabsf(value);
  if (value != value) return 0x7fff;
  if (size >= 65520.0f) return sign | 0x7c00;
  // Rounded by adding what leaves 10 bits of the fraction, or multiples of 2 ** -24.
  const uint32_t exponent = bits >> 23 & 255;
  const uint32_t least = exponent < 113 ? 113 : exponent;
  const float magic = __builtin_bit_cast(float, (least + 13) << 23);
  volatile float sum = size + magic;
  const float rounded = sum - magic;
  const uint32_t found = __builtin_bit_cast(uint32_t, rounded);
  if (rounded < 0x1p-14f) return sign | uint16_t(rounded * 0x1p24f);
  return sign | uint16_t((found >> 13) - (112u << 10));
#endif
}

inline float half_of(uint32_t pair, int half) { return as_float(uint16_t(pair >> 16 * half)); }

}  // namespace shim

inline void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  shim::Lane* const warp = shim::own_warp();
  for (int k = 0; k < 4; ++k) warp[lane].a[k] = a[k];
  warp[lane].b[0] = b0, warp[lane].b[1] = b1;
  __syncwarp();
  for (int place = 0; place < 4; ++place) {
    const int row = lane / 4, below = place / 2, column = lane % 4 * 2 + place % 2;
    float sum = c[place];
    for (int k = 0; k < 16; ++k) {
      const uint32_t left = warp[row * 4 + k % 8 / 2].a[k / 8 * 2 + below];
      const uint32_t right = warp[column * 4 + k % 8 / 2].b[k / 8];
      sum += shim::half_of(left, k % 2) * shim::half_of(right, k % 2);
    }
    c[place] = sum;
  }
  __syncwarp();
}

inline void load_matrices(uint32_t (&to)[4], const Narrow* row) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  shim::Lane* const warp = shim::own_warp();
  warp[lane].row = row;
  __syncwarp();
  for (int k = 0; k < 4; ++k) {
    const Narrow* const own = warp[8 * k + lane / 4].row + lane % 4 * 2;
    to[k] = own[0] | uint32_t(own[1]) << 16;
  }
  __syncwarp();
}

inline void load_transposed(uint32_t (&to)[4], const Narrow* row) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  shim::Lane* const warp = shim::own_warp();
  warp[lane].row = row;
  __syncwarp();
  for (int k = 0; k < 4; ++k) {
    const shim::Lane* const two = warp + 8 * k + lane % 4 * 2;
    to[k] = two[0].row[lane / 4] | uint32_t(two[1].row[lane / 4]) << 16;
  }
  __syncwarp();
}

inline void copy_later(Narrow* to, const Narrow* from, bool there) {
  if (reinterpret_cast<uint64_t>(to) % 16 != 0) __builtin_trap();
  if (there && reinterpret_cast<uint64_t>(from) % 16 != 0) __builtin_trap();
  shim::Copy made{to, {}, shim::begun[threadIdx.x]};
  for (int k = 0; k < 8; ++k) made.numbers[k] = there ? from[k] : Narrow(0);
  int& count = shim::waiting[threadIdx.x];
  if (threadIdx.x % 2 == 0 && count < shim::kMost) {
    shim::copies[threadIdx.x][count++] = made;
    return;
  }
  for (int k = 0; k < 8; ++k) to[k] = made.numbers[k];
}

inline void copies_done() {
  for (int& count = shim::waiting[threadIdx.x]; count > 0; --count) {
    const shim::Copy& copy = shim::copies[threadIdx.x][count - 1];
    for (int k = 0; k < 8; ++k) copy.to[k] = copy.numbers[k];
  }
}

inline void copies_begun() { ++shim::begun[threadIdx.x]; }
inline void copies_done_before() {
  int& count = shim::waiting[threadIdx.x];
  int left = 0;
  for (int k = 0; k < count; ++k) {
    const shim::Copy copy = shim::copies[threadIdx.x][k];
    if (copy.begun >= shim::begun[threadIdx.x] - 1) {
      shim::copies[threadIdx.x][left++] = copy;
    } else {
      for (int n = 0; n < 8; ++n) copy.to[n] = copy.numbers[n];
    }
  }
  count = left;
}

inline uint32_t narrowed(float low, float high) {
  return shim::as_narrow(low) | uint32_t(shim::as_narrow(high)) << 16;
}

inline float widened(Narrow number) { return shim::as_float(number); }

inline float power_of_two(float x) { return std::exp2(x); }

inline uint32_t bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }

inline float larger(float a, float b) { return a != a || a > b ? a : b; }

#ifdef LOMA_GROUPS

// What warpgroups.h has. The second operand lies in shared memory as hardware finds it there: pieces of
// 16 bytes change places by the address.
struct Operand {
  const Narrow* place;

  explicit Operand(const Narrow* start) : place(start) {}
  Operand at(int numbers) const { return Operand(place + numbers); }
};

namespace shim {

inline float in_slab(const Narrow* start, int width, int row, int column) {
  const uint64_t mask = width / 8 - 1;
  uint64_t place = reinterpret_cast<uint64_t>(start) + uint64_t(row * width + column) * 2;
  place ^= (place >> 7 & mask) << 4;
  return as_float(*reinterpret_cast<const Narrow*>(place));
}

// `a` gives a number of the thread's rows, `b` one of the second operand.
template <typename A, typename B>
inline void multiply_group(float (*c)[4], int columns, bool keeps, const A& a, const B& b) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int n = 0; n < columns / 8; ++n) {
    for (int place = 0; place < 4; ++place) {
      const int column = n * 8 + lane % 4 * 2 + place % 2;
      float sum = keeps ? c[n][place] : 0;
      for (int k = 0; k < 16; ++k) sum += a(place / 2, k) * b(k, column);
      c[n][place] = sum;
    }
  }
  __syncwarp();
}

// Calls run(a) with what finds numbers in the registers of a warp's lanes.
template <typename Run>
inline void with_registers(const uint32_t (&a)[4], const Run& run) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  Lane* const warp = own_warp();
  for (int k = 0; k < 4; ++k) warp[lane].a[k] = a[k];
  __syncwarp();
  run([&](int below, int k) {
    return half_of(warp[lane / 4 * 4 + k % 8 / 2].a[k / 8 * 2 + below], k % 2);
  });
}

}  // namespace shim

template <int columns>
inline void multiply_rows(float (*c)[4], const uint32_t (&a)[4], Operand b, int width, bool keeps) {
  shim::with_registers(a, [&](const auto& own) {
    shim::multiply_group(c, columns, keeps, own,
                         [&](int k, int column) { return shim::in_slab(b.place, width, column, k); });
  });
}

template <int columns>
inline void multiply_rows(float (*c)[4], Operand a, Operand b, int width, bool keeps) {
  const int row = static_cast<int>(threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4);
  shim::multiply_group(
      c, columns, keeps, [&](int below, int k) { return shim::in_slab(a.place, width, row + 8 * below, k); },
      [&](int k, int column) { return shim::in_slab(b.place, width, column, k); });
}

inline void multiply_columns(float (*c)[4], const uint32_t (&a)[4], Operand b, int width) {
  shim::with_registers(a, [&](const auto& own) {
    shim::multiply_group(c, width, true, own,
                         [&](int k, int column) { return shim::in_slab(b.place, width, k, column); });
  });
}

// Products are there at once, turns have no meaning for results, and a group hears the other one when it
// is as far.
template <typename Number>
inline void settle(Number&) {}
inline void units_begin() {}
inline void units_go() {}
inline void units_done() {}
inline void copies_shown() {}
template <int count>
inline void fewer_registers() {}
template <int count>
inline void more_registers() {}
struct Signal {
  short count, left;  // 8 bytes in all, as on the device
  int phase;

  void begin(int of) { count = left = static_cast<short>(of), phase = 0; }
  void give() {
    if (--left == 0) left = count, ++phase;
  }
  void wait(int number) {
    while (static_cast<volatile int&>(phase) <= number) loma_shim_threads.turn();
  }
};
inline void group_tells(int, int) {}
inline void group_hears(int, int) { __syncthreads(); }

#endif
