// New tensors. As at::empty and at::zeros, whose own headers include much of ATen: a second of work for
// the compiler in every file that includes them, even when they are precompiled, because it makes the
// instances of the templates in them only at the end of the file.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_ops.h>
#include <ATen/ops/zeros_ops.h>

#include <optional>

namespace loma {

__attribute__((noinline)) inline at::Tensor empty(at::IntArrayRef sizes,
                                                  const at::TensorOptions& options,
                                                  std::optional<at::MemoryFormat> format = {}) {
  return at::_ops::empty_memory_format::call(
      c10::fromIntArrayRefSlow(sizes), c10::optTypeMetaToScalarType(options.dtype_opt()),
      options.layout_opt(), options.device_opt(), options.pinned_memory_opt(), format);
}

__attribute__((noinline)) inline at::Tensor zeros(at::IntArrayRef sizes,
                                                  const at::TensorOptions& options) {
  return at::_ops::zeros::call(
      c10::fromIntArrayRefSlow(sizes), c10::optTypeMetaToScalarType(options.dtype_opt()),
      options.layout_opt(), options.device_opt(), options.pinned_memory_opt());
}

}  // namespace loma
