// Tensors for generated files that call no operator of ATen: what the host does around loops. Each
// is an at::Tensor, whose memory it has; light_tensors.cpp passes everything on to kernels.h and its
// like, which say what the functions do.
#ifndef LOMA_LIGHT_TENSORS_H
#define LOMA_LIGHT_TENSORS_H

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

#include "checks.h"
#include "geometry.h"
#include "groups.h"

namespace at {
class Tensor;
}

#pragma GCC visibility push(default)

namespace loma::light {

using Sizes = std::initializer_list<int64_t>;

class Tensor {
 public:
  Tensor();
  Tensor(const Tensor& other);
  Tensor(Tensor&& other) noexcept;
  Tensor& operator=(const Tensor& other);
  Tensor& operator=(Tensor&& other) noexcept;
  ~Tensor();

  // For the runtime.
  Tensor(at::Tensor tensor);  // NOLINT: implicit, as are those below
  operator const at::Tensor&() const;
  operator at::Tensor&();

  bool defined() const;
  int64_t size(int64_t dim) const;
  void zero_() const;
  void add_(const Tensor& other) const;
  void copy_(const Tensor& other) const;

  Tensor expand(Sizes sizes) const;
  Tensor matmul(const Tensor& other) const;
  Tensor permute(Sizes dims) const;
  Tensor reshape(Sizes sizes) const;
  Tensor transpose(int64_t dim0, int64_t dim1) const;

  // Of float, double, int64_t and bool.
  template <typename number>
  const number* const_data_ptr() const;
  template <typename number>
  number* mutable_data_ptr() const;

 private:
  alignas(void*) unsigned char memory_[sizeof(void*)];
};

enum class Dtype : int8_t { Float, Double, Int, Bool };

template <typename number>
constexpr Dtype options();
template <>
constexpr Dtype options<float>() { return Dtype::Float; }
template <>
constexpr Dtype options<double>() { return Dtype::Double; }
template <>
constexpr Dtype options<int64_t>() { return Dtype::Int; }
template <>
constexpr Dtype options<bool>() { return Dtype::Bool; }

Tensor empty(Sizes sizes, Dtype dtype);
Tensor zeros(Sizes sizes, Dtype dtype);

// Of float, double, int64_t and bool.
template <typename number>
Tensor scalar(number value);
template <typename number>
number item(const Tensor& tensor);
template <typename number>
number element(const Tensor& tensor, Sizes subscripts, const char* place, const char* name);

Tensor dense(const Tensor& tensor);
Tensor out(const Tensor& tensor, bool in_place);
Tensor part(const Tensor& whole, int64_t dim, int64_t first, int64_t count);
Tensor own(Tensor tensor);
Tensor copy(const Tensor& tensor);
Tensor permuted(const Tensor& tensor, Sizes order);

Tensor cat(std::initializer_list<Tensor> tensors, int64_t dim);
Tensor linear(const Tensor& x, const Tensor& w, const std::optional<Tensor>& b);
Tensor slice(const Tensor& tensor, int64_t dim, int64_t start, int64_t end, int64_t step,
             const char* place);
Tensor slice_into(const Tensor& tensor, Sizes sizes, int64_t dim, int64_t start, int64_t end,
                  int64_t step, const char* place);

// To be called where an error is caught: what the runtime says of it.
[[noreturn]] LOMA_COLD void refused(const char* place);

template <class Call>
auto located(const char* place, Call call) {
  try {
    return call();
  } catch (...) {
    refused(place);
  }
}

void check_shape(const Tensor& tensor, Sizes sizes, const char* place);
Tensor shaped(Tensor tensor, Sizes sizes, const char* place);

inline Tensor cells(Sizes extents) { return empty(extents, Dtype::Int); }
void check_once(const char* place, const char* target, const char* tensor, const Tensor& cells,
                std::initializer_list<Sized> axes, std::initializer_list<Sized> dims);

Tensor product(std::string_view equation, const Tensor& left, const Tensor& right);
void product_into(const Tensor& target, std::string_view equation, const Tensor& left,
                  const Tensor& right, bool add);
Tensor at_place(const Tensor& tensor, int64_t dim, int64_t place);
Tensor places(const Tensor& tensor, int64_t dim, int64_t start, int64_t count);
Tensor sorted(const Groups& groups, const Tensor& tensor, int64_t dim);
Tensor room(const Groups& groups, const Tensor& tensor);
void put(const Groups& groups, const Tensor& sorted, const Tensor& target, int64_t dim);

struct Arranged {
  const Tensor& tensor;
  Order order;
};

Tensor cut(const Tensor& tensor, int64_t dim, int64_t start, int64_t count, bool padded = false);
Tensor correlate(const Arranged& image, const Arranged& other, Sizes sizes, const Order& order,
                 Geometry geometry, bool inside = false, const Tensor* bias = nullptr);
void spread(const Arranged& image, const Arranged& g, const Arranged& other, Geometry geometry);
Tensor spread_out(const Arranged& g, const Arranged& other, Sizes sizes, const Order& order,
                  Geometry geometry);

Tensor conv2d(const Tensor& x, const Tensor& w, const std::optional<Tensor>& bias, Sizes stride,
              Sizes padding, Sizes dilation, int64_t groups);
Tensor conv2d_input(const Tensor& g, const Tensor& w, Sizes shape, Sizes stride, Sizes padding,
                    Sizes dilation, int64_t groups);
Tensor conv2d_weight(const Tensor& g, const Tensor& x, Sizes shape, Sizes stride, Sizes padding,
                     Sizes dilation, int64_t groups);

}  // namespace loma::light

#pragma GCC visibility pop

#endif  // LOMA_LIGHT_TENSORS_H
