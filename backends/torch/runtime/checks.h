// What generated code checks, and says when it fails: nothing here knows tensors.
#pragma once

#include <cstddef>
#include <cstdint>

#include "interval.h"

// Kernels for known sizes are libraries of their own, which call the module's.
#pragma GCC visibility push(default)

namespace loma {

#define LOMA_COLD __attribute__((noinline, cold))

// A size variable that an argument's dimension binds, which is `wanted`.
void check_size(int64_t size, const char* place, const char* wanted);

// ------------------------------------------------------------------ checks of index statements

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
