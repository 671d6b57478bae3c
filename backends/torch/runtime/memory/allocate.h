// New tensors, as at::empty, at::zeros and at::cat make them, whose own headers include much of ATen.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#pragma GCC visibility push(default)

namespace loma {

at::Tensor empty(at::IntArrayRef sizes, const at::TensorOptions& options,
                 std::optional<at::MemoryFormat> format = {});
at::Tensor zeros(at::IntArrayRef sizes, const at::TensorOptions& options);

at::Tensor cat(const std::vector<at::Tensor>& tensors, int64_t dim);

}  // namespace loma

#pragma GCC visibility pop
