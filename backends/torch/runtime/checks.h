// What generated code checks, and says when it fails: nothing here knows tensors.
#pragma once

#include <cstddef>
#include <cstdint>

// Kernels for known sizes are libraries of their own, which call the module's.
#pragma GCC visibility push(default)

namespace loma {

#define LOMA_COLD __attribute__((noinline, cold))

// A size variable that an argument's dimension binds, which is `wanted`.
void check_size(int64_t size, const char* place, const char* wanted);

// ------------------------------------------------------------------ checks of index statements

// The values that an affine subscript takes: from ``low`` to ``high``, both included.
struct Interval {
  int64_t low, high;
  bool empty = false;

  explicit Interval(int64_t value) : low(value), high(value) {}

  // Adds ``coefficient * i`` for i in range(extent).
  Interval over(int64_t coefficient, int64_t extent) const;

  bool inside(int64_t size) const { return empty || (low >= 0 && high < size); }
};

// Whether there is a row for which a condition holds.
template <typename Row>
inline bool some(int64_t rows, Row holds) {
  for (int64_t row = 0; row < rows; ++row) {
    if (holds(row)) return true;
  }
  return false;
}

LOMA_COLD void range_error(const char* place, const char* subscript, const char* tensor, int64_t dim,
                           int64_t size, Interval found);

LOMA_COLD void outside_error(const char* place, const char* subscript, const char* tensor, int64_t dim,
                             int64_t size, int64_t value);

LOMA_COLD void element_error(const char* place, const char* tensor, int64_t dim, int64_t value,
                             int64_t size);

LOMA_COLD void extent_error(const char* place, const char* axis, int64_t extent, const char* tensor,
                            int64_t dim, int64_t size);

LOMA_COLD void empty_error(const char* place, const char* kind);

// An axis with its extent; a dimension with its size, or with the subscript where that is the same
// for all points.
struct Sized {
  const char* text;
  int64_t size;
};

LOMA_COLD void while_error(const char* function, int64_t line, int64_t limit);

LOMA_COLD void zero_division(const char* place, const char* what);

// ------------------------------------------------------------- arrays and stacks of scalar functions

LOMA_COLD void subscript_error(int64_t i, size_t size, const char* function, int64_t line);

LOMA_COLD void storage_error(int first, int second, const char* function, int64_t line);

LOMA_COLD void full_error(int64_t capacity, const char* function, int64_t line);

LOMA_COLD void drained_error(const char* function, int64_t line);

}  // namespace loma

#pragma GCC visibility pop
