// A module's functions for C++: what their declarations need, and what they call.
#ifndef LOMA_CALLS_H
#define LOMA_CALLS_H

#include "tables.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace loma {

using Tensors = std::vector<at::Tensor>;

// Calls function number `function` through the dispatcher, so that autograd takes part. `tensors`
// are its tensors and floats in order, without Adjoint parameters; a float of another dtype is
// converted. Out arguments are written in place; what comes back are the returned values and the
// adjoints, in order.
Tensors call(const Module& module, int function, Tensors tensors, const std::vector<int64_t>& ints);

// A float argument of a typed C++ function: a number, or a 0-dim tensor that gradients flow into.
struct Real {
  Real(double value);  // NOLINT: implicit on purpose
  Real(at::Tensor value) : tensor(std::move(value)) {}
  at::Tensor tensor;
};

}  // namespace loma

#endif  // LOMA_CALLS_H
