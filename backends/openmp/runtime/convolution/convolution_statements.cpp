// Index statements that are convolutions, as the convolutions of convolution_choice.h.
#include "convolution_statements.h"

#include "allocate.h"
#include "convolution_choice.h"
#include "product.h"

#include <ATen/ops/constant_pad_nd_ops.h>
#include <ATen/ops/sum_ops.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace loma {
namespace {

constexpr std::array<int64_t, 2> kNone{0, 0};

// A view of all five dimensions.
at::Tensor view(const Arranged& part) {
  std::vector<int64_t> own;
  for (const int64_t dim : part.order) {
    if (dim >= 0) own.push_back(dim);
  }
  at::Tensor tensor = part.tensor.permute(own);
  for (int64_t place = 0; place < 5; ++place) {
    if (part.order[place] < 0) tensor = tensor.unsqueeze(place);
  }
  return tensor;
}

// The other way round: dense, with the dimensions where `order` says.
at::Tensor restored(at::Tensor tensor, const Order& order) {
  std::vector<int64_t> own;
  for (int64_t place = 4; place >= 0; --place) {
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
    dims.push_back(static_cast<int64_t>(3 + d));
  }
  return dims;
}

at::Tensor flipped(const at::Tensor& tensor, const std::vector<int64_t>& dims) {
  return dims.empty() ? tensor : tensor.flip(dims);
}

// Convolutions have groups beside the channels of images, [g, n, c] as [n, g c], and beside the
// filters of weights, [g, o, c] as [g o, c].
at::Tensor images_of(const at::Tensor& x) { return x.transpose(0, 1).flatten(1, 2).contiguous(); }
at::Tensor weights_of(const at::Tensor& w) { return w.flatten(0, 1).contiguous(); }
at::Tensor of_images(const at::Tensor& x, int64_t groups) {
  return x.unflatten(1, {groups, x.size(1) / groups}).transpose(0, 1);
}
at::Tensor of_weights(const at::Tensor& w, int64_t groups) {
  return w.unflatten(0, {groups, w.size(0) / groups});
}

// All of its values are finite; a sum that overflows says no, too.
bool is_finite(const at::Tensor& x) {
  return std::isfinite(at::_ops::sum::call(x, std::nullopt).item<double>());
}

// What correlate computes, without a product outside of the image; steps and taps are positive.
at::Tensor inside_of(const at::Tensor& x, const at::Tensor& w, std::array<int64_t, 2> out,
                     const Geometry& geometry) {
  // no structured binding: lambdas of C++17 do not capture one
  const auto &step = geometry.step, &tap = geometry.tap, &shift = geometry.shift;
  const std::array<int64_t, 2> taps{w.size(3), w.size(4)};
  const bool by_taps = taps[0] * taps[1] <= out[0] * out[1];  // one after the other, else by steps
  const auto& fixed = by_taps ? tap : step;
  const auto& moving = by_taps ? step : tap;
  const auto& count = by_taps ? out : taps;
  at::Tensor y = zeros({x.size(0), x.size(1), w.size(1), out[0], out[1]}, x.options());
  const auto add = [&](std::array<int64_t, 2> at) {
    at::Tensor image = x, part = by_taps ? y : w;
    for (size_t d = 0; d < 2; ++d) {
      const int64_t dim = static_cast<int64_t>(3 + d), from = fixed[d] * at[d] + shift[d];
      const int64_t room = x.size(dim) - 1 - from;
      const int64_t first = from >= 0 ? 0 : (moving[d] - 1 - from) / moving[d];
      const int64_t end = room < 0 ? 0 : std::min(count[d], room / moving[d] + 1);
      if (end <= first) return;
      const int64_t begin = from + first * moving[d];
      image = image.slice(dim, begin, from + (end - 1) * moving[d] + 1, moving[d]);
      part = part.slice(dim, first, end);
    }
    const auto element = [&](const at::Tensor& t) { return t.select(4, at[1]).select(3, at[0]); };
    if (by_taps) {
      product_into(part, "gncuv,goc->gnouv", image, element(w), true);
    } else {
      product_into(element(y), "gncuv,gocuv->gno", image, part, true);
    }
  };
  const auto& all = by_taps ? taps : out;
  for (int64_t a = 0; a < all[0]; ++a) {
    for (int64_t b = 0; b < all[1]; ++b) add({a, b});
  }
  return y;
}

}  // namespace

at::Tensor cut(const at::Tensor& tensor, int64_t dim, int64_t start, int64_t count, bool padded) {
  const int64_t size = tensor.size(dim), first = std::clamp<int64_t>(start, 0, size);
  count = std::max<int64_t>(count, 0);
  const int64_t behind = std::clamp<int64_t>(start + count, first, size);
  const at::Tensor there = tensor.narrow(dim, first, behind - first);
  if (!padded || behind - first == count) return there;
  auto sizes = tensor.sizes().vec();
  sizes[dim] = count;
  at::Tensor made = zeros(sizes, tensor.options());
  if (first < behind) made.narrow(dim, first - start, behind - first).copy_(there);
  return made;
}

at::Tensor correlate(const Arranged& image, const Arranged& other, at::IntArrayRef sizes,
                     const Order& order, Geometry geometry, bool inside, const at::Tensor* bias) {
  at::Tensor x = view(image), w = view(other);
  auto& [step, tap, shift] = geometry;
  std::array<int64_t, 2> out;
  for (size_t d = 0; d < 2; ++d) {
    out[d] = order[3 + d] < 0 ? 1 : sizes[order[3 + d]];
  }
  const auto with_bias = [&](at::Tensor made) {
    const int64_t groups_ = order[0] < 0 ? 1 : sizes[order[0]];
    if (bias != nullptr) {
      view({made, order}).add_(bias->reshape({groups_, 1, sizes[order[2]], 1, 1}));
    }
    return made;
  };
  if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end() || x.numel() == 0 || w.numel() == 0) {
    return with_bias(zeros(sizes, x.options()));
  }
  w = flipped(w, mirrored(tap, {w.size(3), w.size(4)}, shift));
  const auto turned = mirrored(step, out, shift);
  const int64_t groups = x.size(0);
  // Of the two others the smaller one is the convolution's weights.
  const bool exchanged = out[0] * out[1] < w.size(3) * w.size(4);
  std::array<int64_t, 2> padding;
  std::vector<int64_t> margin;  // last dimension first; negative where the image is cut
  bool fits = true;
  for (size_t d = 0; d < 2; ++d) {
    const int64_t before = -shift[d];
    const int64_t after =
        shift[d] + extent(out[d], step[d], w.size(3 + d), tap[d]) - x.size(3 + d);
    // The convolution pads both ends alike, and may leave less than a step of the end.
    const int64_t left = before - after;
    fits = fits && before >= 0 && 0 <= left && left < (exchanged ? tap[d] : step[d]);
    padding[d] = before;
    margin.insert(margin.begin(), {before, after});
  }
  const at::Tensor whole = x;
  if (!fits) {
    x = at::_ops::constant_pad_nd::call(x, c10::fromIntArrayRefSlow(margin), 0);
    padding = kNone;
  }
  const auto finished = [&](const at::Tensor& found) {
    const bool counts = !inside || is_finite(found);
    return restored(flipped(counts ? found : inside_of(whole, w, out, geometry), turned), order);
  };
  if (!exchanged && !inside && bias != nullptr) {  // the library adds it to what is in registers
    const at::Tensor found = conv2d(images_of(x), weights_of(w), bias->flatten().contiguous(), step,
                                    padding, tap, groups);
    return finished(of_images(found, groups));
  }
  if (!exchanged) {
    const at::Tensor found =
        conv2d(images_of(x), weights_of(w), std::nullopt, step, padding, tap, groups);
    return with_bias(finished(of_images(found, groups)));
  }
  const at::Tensor images = images_of(x.transpose(1, 2)), g = images_of(w.transpose(1, 2));
  const std::array<int64_t, 4> shape{g.size(1), x.size(1), out[0], out[1]};
  const at::Tensor found = conv2d_weight(g, images, shape, tap, padding, step, groups);
  return with_bias(finished(of_weights(found, groups).transpose(1, 2)));
}

namespace {

// What spread adds to an image of that size, and where in it that begins; undefined if it is nothing.
at::Tensor spread_part(const Arranged& g, const Arranged& other, std::array<int64_t, 2> size,
                       Geometry& geometry) {
  at::Tensor y = view(g), w = view(other);
  if (y.numel() == 0 || w.numel() == 0) return at::Tensor();
  auto& [step, tap, shift] = geometry;
  w = flipped(w, mirrored(tap, {w.size(3), w.size(4)}, shift));
  y = flipped(y, mirrored(step, {y.size(3), y.size(4)}, shift));
  const int64_t groups = y.size(0);
  // y may be the smaller one of both: then it takes the part of the weights.
  const bool exchanged = y.size(3) * y.size(4) < w.size(3) * w.size(4);
  std::array<int64_t, 4> shape{y.size(1), groups * w.size(2), 0, 0};
  for (size_t d = 0; d < 2; ++d) {
    shape[2 + d] = extent(y.size(3 + d), step[d], w.size(3 + d), tap[d]);
    // A convolution may leave less than a step of its image: then the part is the whole of it.
    const int64_t left = shift[d] == 0 ? size[d] - shape[2 + d] : 0;
    if (left < (exchanged ? tap[d] : step[d])) shape[2 + d] += left;
  }
  if (!exchanged) {
    const at::Tensor part =
        conv2d_input(images_of(y), weights_of(w), shape, step, kNone, tap, groups);
    return of_images(part, groups);
  }
  shape[0] = w.size(2), shape[1] = groups * y.size(1);
  const at::Tensor images = images_of(w.transpose(1, 2)), weights = weights_of(y.transpose(1, 2));
  const at::Tensor part = conv2d_input(images, weights, shape, tap, kNone, step, groups);
  return of_images(part, groups).transpose(1, 2);
}

at::Tensor part_of(const at::Tensor& image, const at::Tensor& part, const Geometry& geometry) {
  return image.narrow(3, geometry.shift[0], part.size(3)).narrow(4, geometry.shift[1], part.size(4));
}

}  // namespace

void spread(const Arranged& image, const Arranged& g, const Arranged& other, Geometry geometry) {
  at::Tensor target = view(image);
  const at::Tensor part = spread_part(g, other, {target.size(3), target.size(4)}, geometry);
  if (part.defined()) part_of(target, part, geometry).add_(part);
}

at::Tensor spread_out(const Arranged& g, const Arranged& other, at::IntArrayRef sizes,
                      const Order& order, Geometry geometry) {
  const auto size = [&](size_t d) { return order[d] < 0 ? 1 : sizes[order[d]]; };
  const at::Tensor part = spread_part(g, other, {size(3), size(4)}, geometry);
  if (!part.defined()) return zeros(sizes, g.tensor.options());
  if (part.size(3) == size(3) && part.size(4) == size(4)) return restored(part, order);
  const at::Tensor image = zeros(sizes, part.options());
  part_of(view({image, order}), part, geometry).copy_(part);
  return image;
}

}  // namespace loma
