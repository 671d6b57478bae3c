// Convolutions and their adjoints, for generated code.
//
// With images x [B, C, H, W], weights w [O, C / groups, P, Q] and results y [B, O, ...]:
//   y[b, o, i] = bias[o] + sum over c, k of w[o, c, k] x[b, c, i * stride + k * dilation - padding]
// in both dimensions. Of several forms that compute the same the one runs that was measured to be
// fastest; see convolution_forms.h.
#ifndef LOMA_CONVOLUTION_H
#define LOMA_CONVOLUTION_H

#include <ATen/core/Tensor.h>

#include <optional>

namespace loma {

// Seen from outside a module's library, by kernels that are loaded later.
#pragma GCC visibility push(default)

at::Tensor conv2d(const at::Tensor& x, const at::Tensor& w, const std::optional<at::Tensor>& bias,
                  at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                  int64_t groups);
// The adjoint of conv2d with respect to x, which has the shape `shape`; `g` is that of its result.
at::Tensor conv2d_input(const at::Tensor& g, const at::Tensor& w, at::IntArrayRef shape,
                        at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                        int64_t groups);
// The adjoint of conv2d with respect to w, which has the shape `shape`.
at::Tensor conv2d_weight(const at::Tensor& g, const at::Tensor& x, at::IntArrayRef shape,
                         at::IntArrayRef stride, at::IntArrayRef padding,
                         at::IntArrayRef dilation, int64_t groups);

#pragma GCC visibility pop

}  // namespace loma

#endif  // LOMA_CONVOLUTION_H
