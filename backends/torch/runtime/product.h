// Index statements that are matrix products, for generated code.
#ifndef LOMA_PRODUCT_H
#define LOMA_PRODUCT_H

#include "groups.h"

#include <ATen/core/Tensor.h>

#include <string_view>

namespace loma {

// Seen from outside a module's library, by kernels that are loaded later.
#pragma GCC visibility push(default)

// `equation` as for einsum, such as "abc,adc->abd": every letter stands in two of the three, or in
// all (the batch).

// New, dense memory with the product.
at::Tensor product(std::string_view equation, const at::Tensor& left, const at::Tensor& right);

// The product into a target that has memory, any part of a tensor: assigned, or added to it.
void product_into(at::Tensor target, std::string_view equation, const at::Tensor& left,
                  const at::Tensor& right, bool add);

// What a tensor has at one place of a dimension, or at `count` of them from `start` on. Where they do
// not exist, which has been checked unless nothing is to be read or written, zeros of that shape.
at::Tensor at_place(const at::Tensor& tensor, int64_t dim, int64_t place);
at::Tensor places(const at::Tensor& tensor, int64_t dim, int64_t start, int64_t count);

// The positions of dimension `dim`, the rows, sorted by group: a tensor itself where they are in that
// order; memory for as much, its own then; and back to where the rows were.
at::Tensor sorted(const Groups& groups, const at::Tensor& tensor, int64_t dim);
at::Tensor room(const Groups& groups, const at::Tensor& tensor);
void put(const Groups& groups, const at::Tensor& sorted, at::Tensor target, int64_t dim);

#pragma GCC visibility pop

}  // namespace loma

#endif  // LOMA_PRODUCT_H
