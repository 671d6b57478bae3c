// Index statements that are convolutions in one or two dimensions, for generated code.
//
// With n, c and o the batch, the channels and the filters, in each of two dimensions, and for each
// group, which is the first dimension of all three tensors, by itself:
//   correlate   y[n, o, u] = sum over c, v of image[n, c, step u + tap v + shift] other[o, c, v]
//   spread      image[n, c, step u + tap v + shift] += sum over o of g[n, o, u] other[o, c, v]
// What correlate reads outside of the image is zero; `inside`: it does not count, not even times what
// is not finite. spread writes nothing there, for what calls it has checked that. A convolution, its
// adjoints and convolutions with mirrored weights are all of these forms.
#ifndef LOMA_CONVOLUTION_STATEMENTS_H
#define LOMA_CONVOLUTION_STATEMENTS_H

#include <ATen/core/Tensor.h>

#include "geometry.h"

namespace loma {

// Seen from outside a module's library, by kernels that are loaded later.
#pragma GCC visibility push(default)

// A tensor, and which of its dimensions is the group, the first of the formula above, and so on; -1
// for one that it lacks, which then has the size 1.
struct Arranged {
  const at::Tensor& tensor;
  Order order;
};

// A view of `count` elements of a dimension from `start` on, of those that exist. What does not is
// only asked for where something else is empty: else it has been checked. Where `padded`, zeros
// stand for it, in a copy if there are any.
at::Tensor cut(const at::Tensor& tensor, int64_t dim, int64_t start, int64_t count,
               bool padded = false);

// New, dense memory of these sizes, whose dimensions lie as `order` says. The bias, of groups, if there
// are any, and filters, is added to all of it.
at::Tensor correlate(const Arranged& image, const Arranged& other, at::IntArrayRef sizes,
                     const Order& order, Geometry geometry, bool inside = false,
                     const at::Tensor* bias = nullptr);

void spread(const Arranged& image, const Arranged& g, const Arranged& other, Geometry geometry);
// The same into zeros: new, dense memory.
at::Tensor spread_out(const Arranged& g, const Arranged& other, at::IntArrayRef sizes,
                      const Order& order, Geometry geometry);

#pragma GCC visibility pop

}  // namespace loma

#endif  // LOMA_CONVOLUTION_STATEMENTS_H
