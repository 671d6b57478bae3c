// What the host's part of generated functions is made of: tensors, operators that ATen lacks, checks
// with messages. Needs ATen's core only. Tensors are made on the device of the call, numbers on the
// host. What is no template is compiled once, in kernels.cpp: torch's inline functions would
// cost every generated file as much as its own loops.
#pragma once

#include <ATen/core/Tensor.h>

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <tuple>
#include <type_traits>
#include <vector>

#include "allocate.h"
#include "call_device.h"
#include "calls.h"
#include "checks.h"
#include "once.h"

#pragma GCC visibility push(default)

namespace loma {

// ------------------------------------------------------------------------------------ tensors

at::TensorOptions options_of(at::ScalarType dtype, at::Device device);

template <typename number>
at::TensorOptions options(at::Device device = call_device()) {
  return options_of(c10::CppTypeToScalarType<number>::value, device);
}

// Memory that the host may read: the tensor itself, or a copy.
at::Tensor on_host(const at::Tensor& tensor);

// A 0-dimensional tensor of one number.
template <typename number>
at::Tensor scalar(number value) {
  at::Tensor tensor = empty({}, options<number>(at::kCPU));
  *tensor.template mutable_data_ptr<number>() = value;
  return tensor;
}

// The number in a tensor of one element. A meta tensor has none; no shape depends on a float.
template <typename number>
number item(const at::Tensor& tensor) {
  if constexpr (std::is_floating_point_v<number>) {
    if (tensor.is_meta()) return number(0);
  }
  return *on_host(tensor).template const_data_ptr<number>();
}

// The tensor itself when it is contiguous (or undefined), else a contiguous copy.
at::Tensor dense(const at::Tensor& tensor);

// What a kernel writes for an Out argument: a contiguous copy, or the argument itself.
at::Tensor out(const at::Tensor& tensor, bool in_place);

// A tensor's values [first, first + count) of a dimension.
at::Tensor part(const at::Tensor& whole, int64_t dim, int64_t first, int64_t count);

// A contiguous tensor whose storage nobody else holds: the tensor itself where that is so already.
at::Tensor own(at::Tensor tensor);

// A contiguous copy.
at::Tensor copy(const at::Tensor& tensor);

// A contiguous tensor with the dimensions in that order.
at::Tensor permuted(const at::Tensor& tensor, at::IntArrayRef order);

LOMA_COLD void shape_error(const char* place, at::IntArrayRef found, at::IntArrayRef expected);

void check_shape(const at::Tensor& tensor, at::IntArrayRef sizes, const char* place);

[[noreturn]] LOMA_COLD void refused(const char* place, c10::Error& error);

// What an operator of ATen gives; its error says in which line of the program.
template <class Call>
auto located(const char* place, Call call) {
  try {
    return call();
  } catch (c10::Error& error) {
    refused(place, error);
  }
}

// The tensor, whose sizes must be these. ``place`` reads "f: line 4: 'y'".
at::Tensor shaped(at::Tensor tensor, at::IntArrayRef sizes, const char* place);

// Where an element lies behind a tensor's first, its subscripts checked.
int64_t offset_of(const at::Tensor& tensor, std::initializer_list<int64_t> subscripts,
                  const char* place, const char* name);

// The element there, as a tensor.
at::Tensor element_at(const at::Tensor& tensor, int64_t offset);

// One element of a tensor, its subscripts checked. ``place`` reads "f: line 4: ".
template <typename number>
number element(const at::Tensor& tensor, std::initializer_list<int64_t> subscripts, const char* place,
               const char* name) {
  const int64_t offset = offset_of(tensor, subscripts, place, name);
  if (tensor.is_cpu()) return tensor.template const_data_ptr<number>()[offset];
  return item<number>(element_at(tensor, offset));
}

// ------------------------------------------------- operators that ATen does not have as they are

// Summed over what broadcasting from ``sizes`` added.
at::Tensor sum_to(at::Tensor tensor, at::IntArrayRef sizes, const char* place);

// The adjoint of a sum over ``dims`` (all of them when there are none): broadcast back to ``sizes``.
at::Tensor unreduce(at::Tensor tensor, at::IntArrayRef sizes, at::IntArrayRef dims, bool kept);

at::Tensor mul_no_nan(const at::Tensor& x, const at::Tensor& y);

// What the library found for a convolution; of images without channels it has no filters, either.
at::Tensor all_filters(const at::Tensor& found, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias);

// The product over ``dims``, all of them when there are none.
at::Tensor prod(at::Tensor tensor, at::IntArrayRef dims, bool kept);

// The positions of elements in order along a dimension, of equal ones the first one first, as
// argsort(stable=True), of which the first ``count`` are wanted: where these are few, no more.
at::Tensor first_sorted(const at::Tensor& x, int64_t dim, bool descending, int64_t count);

// ``dims`` (all of them if there are none) as one, which comes last.
at::Tensor to_rows(const at::Tensor& x, at::IntArrayRef dims);

// The other way round, to ``sizes``.
at::Tensor from_rows(const at::Tensor& rows, at::IntArrayRef sizes, at::IntArrayRef dims);

// Each element at the next place along ``dim``, behind zeros or ones.
at::Tensor moved(const at::Tensor& x, int64_t dim, bool ones);

at::Tensor linear(const at::Tensor& x, const at::Tensor& w, const std::optional<at::Tensor>& b);

at::Tensor slice(const at::Tensor& tensor, int64_t dim, int64_t start, int64_t end, int64_t step,
                 const char* place);

at::Tensor slice_into(const at::Tensor& tensor, at::IntArrayRef sizes, int64_t dim, int64_t start,
                      int64_t end, int64_t step, const char* place);

at::Tensor one_hot(const at::Tensor& index, int64_t size, at::TensorOptions options,
                   const char* place);

at::Tensor gather(const at::Tensor& tensor, int64_t dim, const at::Tensor& index, const char* place);

at::Tensor scatter_add(const at::Tensor& tensor, const at::Tensor& index, at::IntArrayRef sizes,
                       int64_t dim, const char* place);

// y[t] += a[t] * y[t - 1] along a dimension, in place, on a device with kernels of its own.
at::Tensor scan_on_device(const at::Tensor& a, const at::Tensor& y, int64_t dim, size_t real_bytes);

// The numbers of the elements that an assignment names, one for each point of some axes.
inline at::Tensor cells(at::IntArrayRef extents) { return empty(extents, options<int64_t>()); }

}  // namespace loma

#pragma GCC visibility pop
