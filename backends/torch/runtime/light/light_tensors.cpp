#include "prelude.h"

#include "light_tensors.h"

#include <new>

namespace loma::light {

static_assert(sizeof(at::Tensor) == sizeof(Tensor) && alignof(at::Tensor) == alignof(Tensor));

namespace {

at::Tensor& whole(unsigned char* memory) {
  return *std::launder(reinterpret_cast<at::Tensor*>(memory));
}

const at::Tensor& aten(const Tensor& tensor) { return tensor; }

at::TensorOptions options_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::Float: return loma::options<float>();
    case Dtype::Double: return loma::options<double>();
    case Dtype::Int: return loma::options<int64_t>();
    case Dtype::Bool: break;
  }
  return loma::options<bool>();
}

}  // namespace

Tensor::Tensor() { new (memory_) at::Tensor(); }
Tensor::Tensor(at::Tensor tensor) { new (memory_) at::Tensor(std::move(tensor)); }
Tensor::Tensor(const Tensor& other) { new (memory_) at::Tensor(aten(other)); }
Tensor::Tensor(Tensor&& other) noexcept {
  new (memory_) at::Tensor(std::move(whole(other.memory_)));
}
Tensor& Tensor::operator=(const Tensor& other) {
  whole(memory_) = aten(other);
  return *this;
}
Tensor& Tensor::operator=(Tensor&& other) noexcept {
  whole(memory_) = std::move(whole(other.memory_));
  return *this;
}
Tensor::~Tensor() { whole(memory_).~Tensor(); }
Tensor::operator const at::Tensor&() const {
  return *std::launder(reinterpret_cast<const at::Tensor*>(memory_));
}
Tensor::operator at::Tensor&() { return whole(memory_); }

bool Tensor::defined() const { return aten(*this).defined(); }
int64_t Tensor::size(int64_t dim) const { return aten(*this).size(dim); }
void Tensor::zero_() const { aten(*this).zero_(); }
void Tensor::add_(const Tensor& other) const { aten(*this).add_(aten(other)); }
void Tensor::copy_(const Tensor& other) const { aten(*this).copy_(aten(other)); }

Tensor Tensor::expand(Sizes sizes) const { return aten(*this).expand(sizes); }
Tensor Tensor::matmul(const Tensor& other) const { return aten(*this).matmul(aten(other)); }
Tensor Tensor::permute(Sizes dims) const { return aten(*this).permute(dims); }
Tensor Tensor::reshape(Sizes sizes) const { return aten(*this).reshape(sizes); }
Tensor Tensor::transpose(int64_t dim0, int64_t dim1) const {
  return aten(*this).transpose(dim0, dim1);
}

#define LOMA_OF_NUMBERS(number)                                                            \
  template <>                                                                              \
  const number* Tensor::const_data_ptr<number>() const {                                   \
    return aten(*this).const_data_ptr<number>();                                           \
  }                                                                                        \
  template <>                                                                              \
  number* Tensor::mutable_data_ptr<number>() const {                                       \
    return aten(*this).mutable_data_ptr<number>();                                         \
  }                                                                                        \
  template <>                                                                              \
  Tensor scalar(number value) {                                                            \
    return loma::scalar(value);                                                            \
  }                                                                                        \
  template <>                                                                              \
  number item(const Tensor& tensor) {                                                      \
    return loma::item<number>(tensor);                                                     \
  }                                                                                        \
  template <>                                                                              \
  number element(const Tensor& tensor, Sizes subscripts, const char* place,                \
                 const char* name) {                                                       \
    return loma::element<number>(tensor, subscripts, place, name);                         \
  }
LOMA_OF_NUMBERS(float)
LOMA_OF_NUMBERS(double)
LOMA_OF_NUMBERS(int64_t)
LOMA_OF_NUMBERS(bool)
#undef LOMA_OF_NUMBERS

Tensor empty(Sizes sizes, Dtype dtype) { return loma::empty(sizes, options_of(dtype)); }
Tensor zeros(Sizes sizes, Dtype dtype) { return loma::zeros(sizes, options_of(dtype)); }

Tensor dense(const Tensor& tensor) { return loma::dense(tensor); }
Tensor out(const Tensor& tensor, bool in_place) { return loma::out(tensor, in_place); }
Tensor part(const Tensor& whole, int64_t dim, int64_t first, int64_t count) {
  return loma::part(whole, dim, first, count);
}
Tensor own(Tensor tensor) {
  at::Tensor taken = aten(tensor);
  tensor = Tensor();  // so that it counts for nobody else's
  return loma::own(std::move(taken));
}
Tensor copy(const Tensor& tensor) { return loma::copy(tensor); }
Tensor permuted(const Tensor& tensor, Sizes order) { return loma::permuted(tensor, order); }

Tensor cat(std::initializer_list<Tensor> tensors, int64_t dim) {
  return loma::cat(std::vector<at::Tensor>(tensors.begin(), tensors.end()), dim);
}
Tensor linear(const Tensor& x, const Tensor& w, const std::optional<Tensor>& b) {
  return loma::linear(x, w, b ? std::optional<at::Tensor>(*b) : std::nullopt);
}
Tensor slice(const Tensor& tensor, int64_t dim, int64_t start, int64_t end, int64_t step,
             const char* place) {
  return loma::slice(tensor, dim, start, end, step, place);
}
Tensor slice_into(const Tensor& tensor, Sizes sizes, int64_t dim, int64_t start, int64_t end,
                  int64_t step, const char* place) {
  return loma::slice_into(tensor, sizes, dim, start, end, step, place);
}

void refused(const char* place) {
  try {
    throw;
  } catch (c10::Error& error) {
    loma::refused(place, error);
  }
}

void check_shape(const Tensor& tensor, Sizes sizes, const char* place) {
  loma::check_shape(tensor, sizes, place);
}
Tensor shaped(Tensor tensor, Sizes sizes, const char* place) {
  loma::shaped(tensor, sizes, place);
  return tensor;
}

void check_once(const char* place, const char* target, const char* tensor, const Tensor& cells,
                std::initializer_list<Sized> axes, std::initializer_list<Sized> dims) {
  loma::check_once(place, target, tensor, cells, axes, dims);
}

}  // namespace loma::light
