// Compiled for any device's prelude, which says where tensors are.
#include "prelude.h"

#include "call_device.h"
#include "gpu_reports.h"

#include <ATen/Parallel.h>
#include <ATen/ops/zeros_ops.h>
#include <ATen/ops/empty_ops.h>
#include <ATen/ops/linear_ops.h>

#include <algorithm>
#include <numeric>

namespace loma {

static_assert(kDevice == at::kCPU);

at::Tensor empty(at::IntArrayRef sizes, const at::TensorOptions& options,
                 std::optional<at::MemoryFormat> format) {
  return at::_ops::empty_memory_format::call(
      c10::fromIntArrayRefSlow(sizes), c10::optTypeMetaToScalarType(options.dtype_opt()),
      options.layout_opt(), options.device_opt(), options.pinned_memory_opt(), format);
}

at::Tensor zeros(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return at::_ops::zeros::call(
      c10::fromIntArrayRefSlow(sizes), c10::optTypeMetaToScalarType(options.dtype_opt()),
      options.layout_opt(), options.device_opt(), options.pinned_memory_opt());
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& w, const std::optional<at::Tensor>& b) {
  return at::_ops::linear::call(x, w, b);
}

at::TensorOptions options_of(at::ScalarType dtype, at::Device device) {
  return at::TensorOptions().dtype(dtype).device(device);
}

at::Tensor part(const at::Tensor& whole, int64_t dim, int64_t first, int64_t count) {
  return count == whole.size(dim) ? whole : whole.narrow(dim, first, count);
}

at::Tensor on_host(const at::Tensor& tensor) {
  const at::Tensor found = tensor.is_cpu() ? tensor : tensor.cpu();
  // What a kernel that has failed computed is nothing to decide by.
  if (call_on_gpu()) gpu::throw_report(call_device());
  return found;
}

at::Tensor dense(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.contiguous() : tensor;
}

at::Tensor out(const at::Tensor& tensor, bool in_place) {
  return in_place || !tensor.defined() ? tensor : tensor.clone(at::MemoryFormat::Contiguous);
}

at::Tensor own(at::Tensor tensor) {
  if (!tensor.defined()) return tensor;
  const bool alone = tensor.use_count() == 1 && tensor.storage().use_count() == 1;
  return alone && tensor.is_contiguous() ? tensor : tensor.clone(at::MemoryFormat::Contiguous);
}

at::Tensor copy(const at::Tensor& tensor) { return tensor.clone(at::MemoryFormat::Contiguous); }

at::Tensor permuted(const at::Tensor& tensor, at::IntArrayRef order) {
  return tensor.permute(order).contiguous();
}

void shape_error(const char* place, at::IntArrayRef found, at::IntArrayRef expected) {
  TORCH_CHECK_VALUE(false, place, " has sizes ", found, ", expected ", expected);
}

void check_shape(const at::Tensor& tensor, at::IntArrayRef sizes, const char* place) {
  if (tensor.defined() && tensor.sizes() != sizes) shape_error(place, tensor.sizes(), sizes);
}

void refused(const char* place, c10::Error& error) {
  if (typeid(error) == typeid(c10::Error)) TORCH_CHECK(false, place, error.what_without_backtrace());
  throw;  // one with a type of its own is the runtime's, which knows the place, or no memory
}

at::Tensor shaped(at::Tensor tensor, at::IntArrayRef sizes, const char* place) {
  // An adjoint that its caller did not need is not there.
  if (tensor.defined() && tensor.sizes() != sizes) shape_error(place, tensor.sizes(), sizes);
  return tensor;
}

void element_error(const char* place, const char* tensor, int64_t dim, int64_t value, int64_t size) {
  TORCH_CHECK_VALUE(false, place, "subscript ", value, " of '", tensor, "' is outside dimension ", dim,
                    " of size ", size);
}

int64_t offset_of(const at::Tensor& tensor, std::initializer_list<int64_t> subscripts,
                  const char* place, const char* name) {
  int64_t offset = 0, dim = 0;
  for (int64_t subscript : subscripts) {
    if (subscript < 0 || subscript >= tensor.size(dim)) {
      element_error(place, name, dim, subscript, tensor.size(dim));
    }
    offset += subscript * tensor.stride(dim++);
  }
  return offset;
}

at::Tensor element_at(const at::Tensor& tensor, int64_t offset) {
  return tensor.as_strided({}, {}, tensor.storage_offset() + offset);
}

at::Tensor sum_to(at::Tensor tensor, at::IntArrayRef sizes, const char* place) {
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

at::Tensor unreduce(at::Tensor tensor, at::IntArrayRef sizes, at::IntArrayRef dims, bool kept) {
  if (!kept) {
    std::vector<int64_t> shape(sizes.begin(), sizes.end());
    if (dims.empty()) std::fill(shape.begin(), shape.end(), 1);
    for (int64_t dim : dims) shape[dim < 0 ? dim + int64_t(shape.size()) : dim] = 1;
    tensor = tensor.reshape(shape);
  }
  return tensor.expand(sizes);
}

at::Tensor mul_no_nan(const at::Tensor& x, const at::Tensor& y) {
  return x.mul(y).masked_fill_(y.eq(0), 0);
}

at::Tensor all_filters(const at::Tensor& found, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias) {
  std::vector<int64_t> sizes = found.sizes().vec();
  if (sizes[1] == weight.size(0)) return found;
  sizes[1] = weight.size(0);
  const at::Tensor result = zeros(sizes, found.options());
  if (!bias || !bias->defined()) return result;
  std::vector<int64_t> beside(sizes.size() - 1, 1);
  beside[0] = sizes[1];
  return result.add_(bias->reshape(beside));
}

at::Tensor prod(at::Tensor tensor, at::IntArrayRef dims, bool kept) {
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
static std::vector<int64_t> last_dims(size_t count) {
  std::vector<int64_t> dims(count);
  std::iota(dims.begin(), dims.end(), -static_cast<int64_t>(count));
  return dims;
}

at::Tensor to_rows(const at::Tensor& x, at::IntArrayRef dims) {
  if (dims.empty()) return x.flatten();
  return x.movedim(dims, last_dims(dims.size())).flatten(-static_cast<int64_t>(dims.size()));
}

at::Tensor from_rows(const at::Tensor& rows, at::IntArrayRef sizes, at::IntArrayRef dims) {
  if (dims.empty()) return rows.reshape(sizes);
  std::vector<int64_t> joined;
  for (int64_t dim : dims) joined.push_back(sizes[dim < 0 ? dim + int64_t(sizes.size()) : dim]);
  return rows.unflatten(-1, joined).movedim(last_dims(dims.size()), dims);
}

at::Tensor moved(const at::Tensor& x, int64_t dim, bool ones) {
  at::Tensor y = x.new_full(x.sizes(), ones ? 1 : 0);
  const int64_t size = x.size(dim);
  if (size > 1) y.narrow(dim, 1, size - 1).copy_(x.narrow(dim, 0, size - 1));
  return y;
}

at::Tensor slice(const at::Tensor& tensor, int64_t dim, int64_t start, int64_t end, int64_t step,
                 const char* place) {
  const int64_t size = tensor.size(dim);
  TORCH_CHECK_INDEX(0 <= start && start <= end && end <= size && step > 0, place, "slice from ", start,
                    " to ", end, " in steps of ", step, " leaves dimension ", dim, " of size ", size);
  return tensor.slice(dim, start, end, step);
}

at::Tensor slice_into(const at::Tensor& tensor, at::IntArrayRef sizes, int64_t dim, int64_t start,
                      int64_t end, int64_t step, const char* place) {
  at::Tensor whole = zeros(sizes, tensor.options());
  slice(whole, dim, start, end, step, place).copy_(tensor);
  return whole;
}

// What a meta tensor of positions holds is nobody's to check: it has a shape only.
static void check_positions(const at::Tensor& index, int64_t size, const char* place) {
  const at::Tensor positions = on_host(index).contiguous();
  const int64_t* data = positions.const_data_ptr<int64_t>();
  for (int64_t k = 0; k < positions.numel(); ++k) {
    TORCH_CHECK_VALUE(data[k] >= 0 && data[k] < size, place, "index ", data[k], " is outside range(",
                      size, ")");
  }
}

at::Tensor one_hot(const at::Tensor& index, int64_t size, at::TensorOptions options,
                   const char* place) {
  if (!index.is_meta()) check_positions(index, size, place);
  std::vector<c10::SymInt> sizes = index.sym_sizes().vec();
  sizes.emplace_back(size);
  at::Tensor hot =
      at::_ops::zeros::call(sizes, c10::optTypeMetaToScalarType(options.dtype_opt()), std::nullopt,
                            index.device(), std::nullopt);
  return index.is_meta() ? hot : hot.scatter_(-1, index.unsqueeze(-1), 1);
}

at::Tensor gather(const at::Tensor& tensor, int64_t dim, const at::Tensor& index, const char* place) {
  if (!index.is_meta()) check_positions(index, tensor.size(dim), place);
  return tensor.gather(dim, index);
}

at::Tensor scatter_add(const at::Tensor& tensor, const at::Tensor& index, at::IntArrayRef sizes,
                       int64_t dim, const char* place) {
  if (!index.is_meta()) {
    check_positions(index, sizes[dim < 0 ? dim + static_cast<int64_t>(sizes.size()) : dim], place);
  }
  return zeros(sizes, tensor.options()).scatter_add_(dim, index, tensor);
}

namespace {

constexpr int64_t kFewOfRow = 64, kLongRow = 4;  // elements, and how many times as many a row has

// NaN is the largest number, as for argsort.
template <typename number>
bool comes_before(number a, number b, bool descending) {
  return descending ? a > b || (a != a && b == b) : a < b || (a == a && b != b);
}

template <typename number>
void first_of_row(const number* row, int64_t size, bool descending, int64_t count, int64_t* found) {
  int64_t filled = 0;
  for (int64_t i = 0; i < size; ++i) {
    const number value = row[i];
    if (filled == count) {
      if (!comes_before(value, row[found[count - 1]], descending)) continue;
    } else {
      ++filled;
    }
    int64_t k = filled - 1;
    for (; k > 0 && comes_before(value, row[found[k - 1]], descending); --k) found[k] = found[k - 1];
    found[k] = i;
  }
}

template <typename number>
void first_of_rows(const at::Tensor& rows, bool descending, at::Tensor& found) {
  const int64_t size = rows.size(-1), count = found.size(-1);
  const number* data = rows.const_data_ptr<number>();
  int64_t* to = found.mutable_data_ptr<int64_t>();
  const int64_t some = std::max<int64_t>(1, 16384 / size);
  at::parallel_for(0, rows.numel() / size, some, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      first_of_row(data + row * size, size, descending, count, to + row * count);
    }
  });
}

}  // namespace

at::Tensor first_sorted(const at::Tensor& x, int64_t dim, bool descending, int64_t count) {
  const int64_t size = x.is_meta() || x.dim() == 0 ? 0 : x.size(dim);
  const bool numbers = x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble;
  const bool few = count > 0 && count <= kFewOfRow && count * kLongRow <= size;
  if (!x.is_cpu() || !numbers || !few) return x.argsort(true, dim, descending);
  const at::Tensor rows = x.movedim(dim, -1).contiguous();
  std::vector<int64_t> sizes = rows.sizes().vec();
  sizes.back() = count;
  at::Tensor found = empty(sizes, options_of(at::kLong, at::kCPU));
  if (x.scalar_type() == at::kFloat) {
    first_of_rows<float>(rows, descending, found);
  } else {
    first_of_rows<double>(rows, descending, found);
  }
  return found.movedim(-1, dim);
}

}  // namespace loma
