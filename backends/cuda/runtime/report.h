// What a kernel on a device says about a check that failed, in memory that the host reads: the one
// layout that both share. NVRTC reads this, too, so it includes nothing else.
#pragma once

#include <cstdint>

namespace loma {

// The function of checks.h whose exception the host throws. Its arguments, in their order: the texts
// in `texts`, the numbers in `numbers`.
enum class Check : int32_t {
  element = 1,    // element_error: place, tensor; dim, value, size
  range,          // place, subscript, tensor; dim, size, low, high
  outside,        // place, subscript, tensor; dim, size, value
  extent,         // place, axis, tensor; extent, dim, size
  empty,          // place, kind
  endless,        // while_error: function; line, limit
  zero_division,  // place, what
  zero_step,      // what
  subscript,      // function; i, size, line
  storage,        // function; first, second, line
  full,           // function; capacity, line
  drained,        // function; line
  memory,         // function; size, line
  scalar,         // of the scalar layer: function; a kind of loma.runtime_errors, line, first, second
};

struct Report {
  static constexpr int32_t kFree = 0, kClaimed = 1, kReady = 2;
  static constexpr int kNumbers = 8, kTexts = 4, kLength = 256;  // of a text, with its final zero

  int32_t state;
  int32_t kind;  // a Check
  int64_t numbers[kNumbers];
  char texts[kTexts][kLength];
};

}  // namespace loma
