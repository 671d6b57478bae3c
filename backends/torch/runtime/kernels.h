// What the host's part of generated functions is made of: tensors, operators that ATen lacks, checks
// with messages. Needs ATen's core only, and `kDevice` of the device's prelude; errors are built out
// of line, so that a check costs one comparison. Numbers are the host's on any device.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <numeric>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "allocate.h"
#include "once.h"

namespace loma {

using Tensors = std::vector<at::Tensor>;

#define LOMA_COLD __attribute__((noinline, cold))

// ------------------------------------------------------------------------------------ tensors

template <typename real>
at::TensorOptions options(at::Device device = kDevice) {
  return at::TensorOptions().dtype(c10::CppTypeToScalarType<real>::value).device(device);
}

// Memory that the host may read: the tensor itself, or a copy.
inline at::Tensor on_host(const at::Tensor& tensor) {
  return tensor.is_cpu() ? tensor : tensor.cpu();
}

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
inline at::Tensor dense(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.contiguous() : tensor;
}

// What a kernel writes for an Out argument: a contiguous copy, or the argument itself.
inline at::Tensor out(const at::Tensor& tensor, bool in_place) {
  return in_place || !tensor.defined() ? tensor : tensor.clone(at::MemoryFormat::Contiguous);
}

// A contiguous tensor whose storage nobody else holds: the tensor itself where that is so already.
inline at::Tensor own(at::Tensor tensor) {
  if (!tensor.defined()) return tensor;
  const bool alone = tensor.use_count() == 1 && tensor.storage().use_count() == 1;
  return alone && tensor.is_contiguous() ? tensor : tensor.clone(at::MemoryFormat::Contiguous);
}

LOMA_COLD inline void shape_error(const char* place, at::IntArrayRef found, at::IntArrayRef expected) {
  TORCH_CHECK_VALUE(false, place, " has sizes ", found, ", expected ", expected);
}

inline void check_shape(const at::Tensor& tensor, at::IntArrayRef sizes, const char* place) {
  if (tensor.defined() && tensor.sizes() != sizes) shape_error(place, tensor.sizes(), sizes);
}

// A size variable that an argument's dimension binds, which is `wanted`.
inline void check_size(int64_t size, const char* place, const char* wanted) {
  TORCH_CHECK_VALUE(size >= 0, place, " has a size that would make it ", size, ", expected ", wanted);
}

[[noreturn]] LOMA_COLD inline void refused(const char* place, c10::Error& error) {
  if (typeid(error) == typeid(c10::Error)) TORCH_CHECK(false, place, error.what_without_backtrace());
  throw;  // one with a type of its own is the runtime's, which knows the place, or no memory
}

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
inline at::Tensor shaped(at::Tensor tensor, at::IntArrayRef sizes, const char* place) {
  if (tensor.sizes() != sizes) shape_error(place, tensor.sizes(), sizes);
  return tensor;
}

LOMA_COLD inline void element_error(const char* place, const char* tensor, int64_t dim, int64_t value,
                                    int64_t size) {
  TORCH_CHECK_VALUE(false, place, "subscript ", value, " of '", tensor, "' is outside dimension ", dim,
                    " of size ", size);
}

// One element of a tensor, its subscripts checked. ``place`` reads "f: line 4: ".
template <typename number>
number element(const at::Tensor& tensor, std::initializer_list<int64_t> subscripts, const char* place,
               const char* name) {
  int64_t offset = 0, dim = 0;
  for (int64_t subscript : subscripts) {
    if (subscript < 0 || subscript >= tensor.size(dim)) {
      element_error(place, name, dim, subscript, tensor.size(dim));
    }
    offset += subscript * tensor.stride(dim++);
  }
  if (tensor.is_cpu()) return tensor.template const_data_ptr<number>()[offset];
  return item<number>(tensor.as_strided({}, {}, tensor.storage_offset() + offset));
}

// ------------------------------------------------- operators that ATen does not have as they are

// Summed over what broadcasting from ``sizes`` added.
inline at::Tensor sum_to(at::Tensor tensor, at::IntArrayRef sizes, const char* place) {
  const int64_t extra = tensor.dim() - static_cast<int64_t>(sizes.size());
  bool expands = extra >= 0;
  std::vector<int64_t> dims;
  for (int64_t k = 0; expands && k < tensor.dim(); ++k) {
    const bool summed = k < extra || (sizes[k - extra] == 1 && tensor.size(k) != 1);
    if (summed) dims.push_back(k);
    expands = summed || tensor.size(k) == sizes[k - extra];
  }
  TORCH_CHECK_VALUE(expands, place, "sizes ", tensor.sizes(), " do not come of broadcasting ", sizes);
  return dims.empty() ? tensor : tensor.sum(dims, /*keepdim=*/true).reshape(sizes);
}

// The adjoint of a sum over ``dims`` (all of them when there are none): broadcast back to ``sizes``.
inline at::Tensor unreduce(at::Tensor tensor, at::IntArrayRef sizes, at::IntArrayRef dims, bool kept) {
  if (!kept) {
    std::vector<int64_t> shape(sizes.begin(), sizes.end());
    if (dims.empty()) std::fill(shape.begin(), shape.end(), 1);
    for (int64_t dim : dims) shape[dim < 0 ? dim + int64_t(shape.size()) : dim] = 1;
    tensor = tensor.reshape(shape);
  }
  return tensor.expand(sizes);
}

inline at::Tensor mul_no_nan(const at::Tensor& x, const at::Tensor& y) {
  return x.mul(y).masked_fill_(y.eq(0), 0);
}

// The product over ``dims``, all of them when there are none.
inline at::Tensor prod(at::Tensor tensor, at::IntArrayRef dims, bool kept) {
  const int64_t rank = tensor.dim();
  if (dims.empty()) {
    const at::Tensor whole = tensor.prod();
    return kept ? whole.reshape(std::vector<int64_t>(rank, 1)) : whole;
  }
  std::vector<int64_t> order;
  for (int64_t dim : dims) order.push_back(dim < 0 ? dim + rank : dim);
  std::sort(order.rbegin(), order.rend());
  for (int64_t dim : order) tensor = tensor.prod(dim, kept);
  return tensor;
}

// The last dimensions, ``count`` of them, in order.
inline std::vector<int64_t> last_dims(size_t count) {
  std::vector<int64_t> dims(count);
  std::iota(dims.begin(), dims.end(), -static_cast<int64_t>(count));
  return dims;
}

// ``dims`` (all of them if there are none) as one, which comes last.
inline at::Tensor to_rows(const at::Tensor& x, at::IntArrayRef dims) {
  if (dims.empty()) return x.flatten();
  return x.movedim(dims, last_dims(dims.size())).flatten(-static_cast<int64_t>(dims.size()));
}

// The other way round, to ``sizes``.
inline at::Tensor from_rows(const at::Tensor& rows, at::IntArrayRef sizes, at::IntArrayRef dims) {
  if (dims.empty()) return rows.reshape(sizes);
  std::vector<int64_t> joined;
  for (int64_t dim : dims) joined.push_back(sizes[dim < 0 ? dim + int64_t(sizes.size()) : dim]);
  return rows.unflatten(-1, joined).movedim(last_dims(dims.size()), dims);
}

// Each element at the next place along ``dim``, behind zeros or ones.
inline at::Tensor moved(const at::Tensor& x, int64_t dim, bool ones) {
  at::Tensor y = x.new_full(x.sizes(), ones ? 1 : 0);
  const int64_t size = x.size(dim);
  if (size > 1) y.narrow(dim, 1, size - 1).copy_(x.narrow(dim, 0, size - 1));
  return y;
}

inline at::Tensor slice(const at::Tensor& tensor, int64_t dim, int64_t start, int64_t end, int64_t step,
                        const char* place) {
  const int64_t size = tensor.size(dim);
  TORCH_CHECK_INDEX(0 <= start && start <= end && end <= size && step > 0, place, "slice from ", start,
                    " to ", end, " in steps of ", step, " leaves dimension ", dim, " of size ", size);
  return tensor.slice(dim, start, end, step);
}

inline at::Tensor slice_into(const at::Tensor& tensor, at::IntArrayRef sizes, int64_t dim, int64_t start,
                             int64_t end, int64_t step, const char* place) {
  at::Tensor whole = zeros(sizes, tensor.options());
  slice(whole, dim, start, end, step, place).copy_(tensor);
  return whole;
}

// What a meta tensor of positions holds is nobody's to check: it has a shape only.
inline void check_positions(const at::Tensor& index, int64_t size, const char* place) {
  const at::Tensor positions = on_host(index).contiguous();
  const int64_t* data = positions.const_data_ptr<int64_t>();
  for (int64_t k = 0; k < positions.numel(); ++k) {
    TORCH_CHECK_VALUE(data[k] >= 0 && data[k] < size, place, "index ", data[k], " is outside range(",
                      size, ")");
  }
}

inline at::Tensor one_hot(const at::Tensor& index, int64_t size, at::TensorOptions options,
                          const char* place) {
  if (!index.is_meta()) check_positions(index, size, place);
  std::vector<c10::SymInt> sizes = index.sym_sizes().vec();
  sizes.emplace_back(size);
  at::Tensor hot =
      at::_ops::zeros::call(sizes, c10::optTypeMetaToScalarType(options.dtype_opt()), std::nullopt,
                            index.device(), std::nullopt);
  return index.is_meta() ? hot : hot.scatter_(-1, index.unsqueeze(-1), 1);
}

inline at::Tensor gather(const at::Tensor& tensor, int64_t dim, const at::Tensor& index,
                         const char* place) {
  if (!index.is_meta()) check_positions(index, tensor.size(dim), place);
  return tensor.gather(dim, index);
}

inline at::Tensor scatter_add(const at::Tensor& tensor, const at::Tensor& index, at::IntArrayRef sizes,
                              int64_t dim, const char* place) {
  if (!index.is_meta()) {
    check_positions(index, sizes[dim < 0 ? dim + static_cast<int64_t>(sizes.size()) : dim], place);
  }
  return zeros(sizes, tensor.options()).scatter_add_(dim, index, tensor);
}

// ------------------------------------------------------------------ checks of index statements

// The values that an affine subscript takes: from ``low`` to ``high``, both included.
struct Interval {
  int64_t low, high;
  bool empty = false;

  explicit Interval(int64_t value) : low(value), high(value) {}

  // Adds ``coefficient * i`` for i in range(extent).
  Interval over(int64_t coefficient, int64_t extent) const {
    Interval sum = *this;
    if (extent <= 0) {
      sum.empty = true;
    } else {
      const int64_t end = coefficient * (extent - 1);
      sum.low += std::min<int64_t>(end, 0);
      sum.high += std::max<int64_t>(end, 0);
    }
    return sum;
  }

  bool inside(int64_t size) const { return empty || (low >= 0 && high < size); }
};

LOMA_COLD inline void range_error(const char* place, const char* subscript, const char* tensor,
                                  int64_t dim, int64_t size, Interval found) {
  TORCH_CHECK_VALUE(false, place, "subscript '", subscript, "' of '", tensor, "' runs from ", found.low,
                    " to ", found.high, ", outside dimension ", dim, " of size ", size,
                    "; wrap the read in zero_pad(...) if zero is meant");
}

LOMA_COLD inline void extent_error(const char* place, const char* axis, int64_t extent,
                                   const char* tensor, int64_t dim, int64_t size) {
  TORCH_CHECK_VALUE(false, place, "index '", axis, "' runs over ", extent, " values, but dimension ",
                    dim, " of '", tensor, "' has size ", size);
}

LOMA_COLD inline void empty_error(const char* place, const char* kind) {
  TORCH_CHECK_VALUE(false, place, kind, " of no elements");
}

// The numbers of the elements that an assignment names, one for each point of some axes.
inline at::Tensor cells(at::IntArrayRef extents) { return empty(extents, options<int64_t>()); }

LOMA_COLD inline void while_error(const char* function, int64_t line, int64_t limit) {
  TORCH_CHECK(false, function, ": line ", line, ": the while loop passed its max_iter of ", limit,
              " iterations");
}

LOMA_COLD inline void zero_division(const char* place, const char* what) {
  TORCH_CHECK_VALUE(false, place, what);
}

}  // namespace loma
