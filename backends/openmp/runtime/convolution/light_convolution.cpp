// Convolutions for files that have nothing of torch.
#include "convolution_choice.h"
#include "convolution_statements.h"
#include "light_tensors.h"

namespace loma::light {

namespace {

loma::Arranged aten(const Arranged& arranged) { return {arranged.tensor, arranged.order}; }

}  // namespace

Tensor cut(const Tensor& tensor, int64_t dim, int64_t start, int64_t count, bool padded) {
  return loma::cut(tensor, dim, start, count, padded);
}
Tensor correlate(const Arranged& image, const Arranged& other, Sizes sizes, const Order& order,
                 Geometry geometry, bool inside, const Tensor* bias) {
  if (bias == nullptr) {
    return loma::correlate(aten(image), aten(other), sizes, order, geometry, inside);
  }
  const at::Tensor& added = *bias;
  return loma::correlate(aten(image), aten(other), sizes, order, geometry, inside, &added);
}
void spread(const Arranged& image, const Arranged& g, const Arranged& other, Geometry geometry) {
  loma::spread(aten(image), aten(g), aten(other), geometry);
}
Tensor spread_out(const Arranged& g, const Arranged& other, Sizes sizes, const Order& order,
                  Geometry geometry) {
  return loma::spread_out(aten(g), aten(other), sizes, order, geometry);
}

Tensor conv2d(const Tensor& x, const Tensor& w, const std::optional<Tensor>& bias, Sizes stride,
              Sizes padding, Sizes dilation, int64_t groups) {
  const auto added = bias ? std::optional<at::Tensor>(*bias) : std::nullopt;
  return loma::conv2d(x, w, added, stride, padding, dilation, groups);
}
Tensor conv2d_input(const Tensor& g, const Tensor& w, Sizes shape, Sizes stride, Sizes padding,
                    Sizes dilation, int64_t groups) {
  return loma::conv2d_input(g, w, shape, stride, padding, dilation, groups);
}
Tensor conv2d_weight(const Tensor& g, const Tensor& x, Sizes shape, Sizes stride, Sizes padding,
                     Sizes dilation, int64_t groups) {
  return loma::conv2d_weight(g, x, shape, stride, padding, dilation, groups);
}

}  // namespace loma::light
