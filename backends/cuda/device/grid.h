// What a kernel is given besides its tensors and ints: the layouts that the host fills in, too.
#pragma once

#include <cstdint>

namespace loma {

// Of ints that are not negative. Most fit in 32 bits, which GPUs divide several times as fast.
inline int64_t quotient(int64_t a, int64_t b) {
  return ((a | b) >> 32) == 0 ? int64_t(uint32_t(a) / uint32_t(b)) : a / b;
}
inline int64_t remainder(int64_t a, int64_t b) {
  return ((a | b) >> 32) == 0 ? int64_t(uint32_t(a) % uint32_t(b)) : a % b;
}

// What is left of a behind ``quotient``, which is a / b. By a known power of 2 those are bits of a, so
// that the compiler sees what this is a multiple of, and reads 16 bytes at once.
inline int64_t rest(int64_t a, int64_t quotient, int64_t b) {
#ifdef LOMA_KNOWN
  if ((b & (b - 1)) == 0) return a & (b - 1);
#endif
  return a - quotient * b;
}

// One of the iterations that a thread takes side by side. They have the same values of all axes but
// the last, whose length is a multiple of their number.
struct Neighbour {
  int64_t first;
  int offset;

  operator int64_t() const { return first + offset; }
};
inline int64_t quotient(const Neighbour& p, int64_t b) { return quotient(p.first, b); }
inline int64_t remainder(const Neighbour& p, int64_t b) {
  return p.first - quotient(p.first, b) * b + p.offset;
}

struct Report;

struct Grid {
  int64_t count;    // iterations
  int64_t slices;   // of a reduction in two stages
  void* parts;      // its partial results: [slices][count]
  char* workspace;  // private memory of iterations, where it is not shared memory
  int64_t bytes;    // of an iteration, a multiple of 16
  int64_t far;      // bytes of an iteration that are in the workspace in any case, likewise
  Report* report;   // where checks that fail are told
  int64_t beside;   // iterations that a thread may take side by side
  int64_t first;    // of the blocks, where a launch is for positions of lists (lists.h)
  int64_t blocks;   // so many
};

// Which of the blocks that take the iterations in turns this is, and how many there are.
#ifdef LOMA_LISTED
inline int64_t block(const Grid& grid) { return int64_t(blockIdx.x) - grid.first; }
inline int64_t blocks(const Grid& grid) { return grid.blocks; }
#else
inline int64_t block(const Grid&) { return blockIdx.x; }
inline int64_t blocks(const Grid&) { return gridDim.x; }
#endif

// A float argument: an element on the device, or a value where there is no pointer.
template <typename real>
struct Number {
  const real* pointer;
  real value;

  real operator[](int64_t) const { return pointer ? *pointer : value; }

  // Read once, before a kernel writes anything: behind a write it would be read again.
  Number read() const { return {nullptr, (*this)[0]}; }
};

}  // namespace loma
