// Index statements that are convolutions, as the convolutions of convolution_choice.h.
#include "convolution_statements.h"

#include "convolution_choice.h"

#include <ATen/ops/constant_pad_nd_ops.h>

#include <algorithm>
#include <vector>

namespace loma {
namespace {

constexpr std::array<int64_t, 2> kNone{0, 0};

// A view of four dimensions.
at::Tensor view(const Arranged& part) {
  std::vector<int64_t> own;
  for (const int64_t dim : part.order) {
    if (dim >= 0) own.push_back(dim);
  }
  at::Tensor tensor = part.tensor.permute(own);
  for (int64_t place = 0; place < 4; ++place) {
    if (part.order[place] < 0) tensor = tensor.unsqueeze(place);
  }
  return tensor;
}

// The other way round: dense, with the dimensions where `order` says.
at::Tensor restored(at::Tensor tensor, const Order& order) {
  std::vector<int64_t> own;
  for (int64_t place = 3; place >= 0; --place) {
    if (order[place] < 0) tensor = tensor.squeeze(place);
  }
  for (const int64_t dim : order) {
    if (dim >= 0) own.push_back(dim);
  }
  std::vector<int64_t> back(own.size());
  for (size_t place = 0; place < own.size(); ++place) back[own[place]] = place;
  return tensor.permute(back).contiguous();
}

// From the first to the last element of a dimension that is looked at.
int64_t extent(int64_t steps, int64_t step, int64_t taps, int64_t tap) {
  return (steps - 1) * step + (taps - 1) * tap + 1;
}

// Makes steps or taps of a tensor with these sizes positive; the dimensions in which the tensor has
// to be mirrored for that.
std::vector<int64_t> mirrored(std::array<int64_t, 2>& steps, std::array<int64_t, 2> sizes,
                              std::array<int64_t, 2>& shift) {
  std::vector<int64_t> dims;
  for (size_t d = 0; d < 2; ++d) {
    if (steps[d] > 0) continue;
    shift[d] += (sizes[d] - 1) * steps[d];
    steps[d] = -steps[d];
    dims.push_back(static_cast<int64_t>(2 + d));
  }
  return dims;
}

at::Tensor flipped(const at::Tensor& tensor, const std::vector<int64_t>& dims) {
  return dims.empty() ? tensor : tensor.flip(dims);
}

}  // namespace

at::Tensor correlate(const Arranged& image, const Arranged& other, at::IntArrayRef sizes,
                     const Order& order, Geometry geometry) {
  at::Tensor x = view(image), w = view(other);
  auto& [step, tap, shift] = geometry;
  std::array<int64_t, 2> out;
  for (size_t d = 0; d < 2; ++d) {
    out[d] = order[2 + d] < 0 ? 1 : sizes[order[2 + d]];
  }
  if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end() || x.numel() == 0 || w.numel() == 0) {
    return zeros(sizes, x.options());
  }
  w = flipped(w, mirrored(tap, {w.size(2), w.size(3)}, shift));
  const auto turned = mirrored(step, out, shift);
  // Of the two others the smaller one is the convolution's weights.
  const bool of_weights = out[0] * out[1] < w.size(2) * w.size(3);
  std::array<int64_t, 2> padding;
  std::vector<int64_t> margin;  // last dimension first; negative where the image is cut
  bool fits = true;
  for (size_t d = 0; d < 2; ++d) {
    const int64_t before = -shift[d];
    const int64_t after =
        shift[d] + extent(out[d], step[d], w.size(2 + d), tap[d]) - x.size(2 + d);
    // The convolution pads both ends alike, and may leave less than a step of the end.
    const int64_t left = before - after;
    fits = fits && before >= 0 && 0 <= left && left < (of_weights ? tap[d] : step[d]);
    padding[d] = before;
    margin.insert(margin.begin(), {before, after});
  }
  if (!fits) {
    x = at::_ops::constant_pad_nd::call(x, c10::fromIntArrayRefSlow(margin), 0);
    padding = kNone;
  }
  if (!of_weights) {
    const at::Tensor images = x.contiguous(), weights = w.contiguous();
    const at::Tensor found = conv2d(images, weights, std::nullopt, step, padding, tap, 1);
    return restored(flipped(found, turned), order);
  }
  const at::Tensor images = x.transpose(0, 1).contiguous(), g = w.transpose(0, 1).contiguous();
  const std::array<int64_t, 4> shape{w.size(0), x.size(0), out[0], out[1]};
  const at::Tensor found = conv2d_weight(g, images, shape, tap, padding, step, 1);
  return restored(flipped(found.transpose(0, 1), turned), order);
}

namespace {

// What spread adds to an image of that size, and where in it that begins; undefined if it is nothing.
at::Tensor spread_part(const Arranged& g, const Arranged& other, std::array<int64_t, 2> size,
                       Geometry& geometry) {
  at::Tensor y = view(g), w = view(other);
  if (y.numel() == 0 || w.numel() == 0) return at::Tensor();
  auto& [step, tap, shift] = geometry;
  w = flipped(w, mirrored(tap, {w.size(2), w.size(3)}, shift));
  y = flipped(y, mirrored(step, {y.size(2), y.size(3)}, shift));
  // y may be the smaller one of both: then it takes the part of the weights.
  const bool exchanged = y.size(2) * y.size(3) < w.size(2) * w.size(3);
  std::array<int64_t, 4> shape{y.size(0), w.size(1), 0, 0};
  for (size_t d = 0; d < 2; ++d) {
    shape[2 + d] = extent(y.size(2 + d), step[d], w.size(2 + d), tap[d]);
    // A convolution may leave less than a step of its image: then the part is the whole of it.
    const int64_t left = shift[d] == 0 ? size[d] - shape[2 + d] : 0;
    if (left < (exchanged ? tap[d] : step[d])) shape[2 + d] += left;
  }
  if (!exchanged) return conv2d_input(y.contiguous(), w.contiguous(), shape, step, kNone, tap, 1);
  std::swap(shape[0], shape[1]);
  const at::Tensor images = w.transpose(0, 1).contiguous(), weights = y.transpose(0, 1).contiguous();
  return conv2d_input(images, weights, shape, tap, kNone, step, 1).transpose(0, 1);
}

at::Tensor part_of(const at::Tensor& image, const at::Tensor& part, const Geometry& geometry) {
  return image.narrow(2, geometry.shift[0], part.size(2)).narrow(3, geometry.shift[1], part.size(3));
}

}  // namespace

void spread(const Arranged& image, const Arranged& g, const Arranged& other, Geometry geometry) {
  at::Tensor target = view(image);
  const at::Tensor part = spread_part(g, other, {target.size(2), target.size(3)}, geometry);
  if (part.defined()) part_of(target, part, geometry).add_(part);
}

at::Tensor spread_out(const Arranged& g, const Arranged& other, at::IntArrayRef sizes,
                      const Order& order, Geometry geometry) {
  const auto size = [&](size_t d) { return order[d] < 0 ? 1 : sizes[order[d]]; };
  const at::Tensor part = spread_part(g, other, {size(2), size(3)}, geometry);
  if (!part.defined()) return zeros(sizes, g.tensor.options());
  if (part.size(2) == size(2) && part.size(3) == size(3)) return restored(part, order);
  const at::Tensor image = zeros(sizes, part.options());
  part_of(view({image, order}), part, geometry).copy_(part);
  return image;
}

}  // namespace loma
