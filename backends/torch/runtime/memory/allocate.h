// New tensors, as at::empty and at::zeros make them, whose own headers include much of ATen.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#pragma GCC visibility push(default)

namespace loma {

at::Tensor empty(at::IntArrayRef sizes, const at::TensorOptions& options,
                 std::optional<at::MemoryFormat> format = {});
at::Tensor zeros(at::IntArrayRef sizes, const at::TensorOptions& options);

}  // namespace loma

#pragma GCC visibility pop
