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

}  // namespace loma::light
