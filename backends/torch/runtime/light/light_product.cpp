// Matrix products for files that have nothing of torch.
#include "light_tensors.h"
#include "product.h"

namespace loma::light {

Tensor product(std::string_view equation, const Tensor& left, const Tensor& right) {
  return loma::product(equation, left, right);
}
void product_into(const Tensor& target, std::string_view equation, const Tensor& left,
                  const Tensor& right, bool add) {
  loma::product_into(target, equation, left, right, add);
}
Tensor at_place(const Tensor& tensor, int64_t dim, int64_t place) {
  return loma::at_place(tensor, dim, place);
}
Tensor places(const Tensor& tensor, int64_t dim, int64_t start, int64_t count) {
  return loma::places(tensor, dim, start, count);
}
Tensor sorted(const Groups& groups, const Tensor& tensor, int64_t dim) {
  return loma::sorted(groups, tensor, dim);
}
Tensor room(const Groups& groups, const Tensor& tensor) { return loma::room(groups, tensor); }
void put(const Groups& groups, const Tensor& sorted, const Tensor& target, int64_t dim) {
  loma::put(groups, sorted, target, dim);
}

}  // namespace loma::light
