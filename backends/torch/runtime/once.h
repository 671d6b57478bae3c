// The check that an assignment to scattered elements names each of them once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <initializer_list>

// Kernels for known sizes are libraries of their own, which call the module's.
#pragma GCC visibility push(default)

namespace loma {

// An axis with its extent; a dimension with its size, or with the subscript where that is the same
// for all points.
struct Sized {
  const char* text;
  int64_t size;
};

// Throws where two of the cells, one for each point of the axes, are the same element of those
// dimensions that have no text.
void check_once(const char* place, const char* target, const char* tensor, const at::Tensor& cells,
                std::initializer_list<Sized> axes, std::initializer_list<Sized> dims);

}  // namespace loma

#pragma GCC visibility pop
