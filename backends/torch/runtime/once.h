// The check that an assignment to scattered elements names each of them once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <initializer_list>

#include "checks.h"

// Kernels for known sizes are libraries of their own, which call the module's.
#pragma GCC visibility push(default)

namespace loma {

// Throws where two of the cells, one for each point of the axes, are the same element of those
// dimensions that have no text.
void check_once(const char* place, const char* target, const char* tensor, const at::Tensor& cells,
                std::initializer_list<Sized> axes, std::initializer_list<Sized> dims);

}  // namespace loma

#pragma GCC visibility pop
