// Convolutions of stride 1, and their adjoints with respect to images, which are such, as sums of
// shifted images in registers: for few channels in a group, of which the library's blocks and matrix
// products are mostly empty.
//
// An image is copied between zeros, row behind row. Then a shift by a row and a column is one by
// `row * width + column` elements, for all results at once, those between the rows among them, which
// are left out in the end. A tile has a few vectors of results for each of some filters.
#include "allocate.h"
#include "convolution_forms.h"
#include "parallel.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <cstring>

namespace loma {
namespace convolution {
namespace shifted {
namespace {

#if defined(__AVX512F__)
constexpr int kBytes = 64, kVectors = 4;
#elif defined(__AVX__)
constexpr int kBytes = 32, kVectors = 2;
#else
constexpr int kBytes = 16, kVectors = 2;
#endif
constexpr int64_t kFilters = 4;  // in a tile

template <class real>
struct Lanes {
  typedef real type __attribute__((vector_size(kBytes), aligned(alignof(real)), may_alias));
};

template <class real>
constexpr int64_t kLanes = kBytes / static_cast<int64_t>(sizeof(real));

// One group of a convolution of stride 1, whichever of the operations it is.
struct Plane {
  int64_t channels, filters;      // summed over, and of the result
  int64_t in[2], out[2], kernel[2], dilation[2], before[2];  // zeros in front of the image
  bool mirrored;                  // the weights are [channels, filters, ...], the last tap first

  explicit Plane(const Problem& p) {
    mirrored = p.operation == Operation::Input;
    channels = p.channels / p.groups, filters = p.filters / p.groups;
    for (int d = 0; d < 2; ++d) {
      const Axis& axis = p.axes[static_cast<size_t>(d)];
      in[d] = axis.in, out[d] = axis.out;
      kernel[d] = axis.kernel, dilation[d] = axis.dilation, before[d] = axis.padding;
      if (mirrored) {
        std::swap(in[d], out[d]);
        before[d] = axis.extent() - 1 - axis.padding;
      }
    }
    if (mirrored) std::swap(channels, filters);
  }

  int64_t taps() const { return kernel[0] * kernel[1]; }
  int64_t reach(int d) const { return out[d] + (kernel[d] - 1) * dilation[d]; }  // with its zeros
  int64_t width() const { return reach(1); }
  // Results of a filter, with those between the rows.
  int64_t results() const { return (out[0] - 1) * width() + out[1]; }
  template <class real>
  int64_t vectors() const { return (results() + kLanes<real> - 1) / kLanes<real>; }
  // Elements of a channel's copy: the last vector may read behind its end.
  template <class real>
  int64_t copied() const {
    return vectors<real>() * kLanes<real> + (kernel[0] - 1) * dilation[0] * width() +
           (kernel[1] - 1) * dilation[1];
  }
};

template <class real>
void copy(const Plane& p, const real* from, real* to) {
  const int64_t size = p.copied<real>();
  std::memset(to, 0, static_cast<size_t>(p.channels * size) * sizeof(real));
  const int64_t left = std::max<int64_t>(-p.before[1], 0), begin = p.before[1] + left;
  const int64_t count = std::min(p.in[1] - left, p.width() - begin);
  for (int64_t c = 0; c < p.channels; ++c) {
    for (int64_t i = 0; i < p.in[0]; ++i) {
      const int64_t row = p.before[0] + i;
      if (row < 0 || row >= p.reach(0) || count <= 0) continue;
      std::copy_n(from + (c * p.in[0] + i) * p.in[1] + left, count,
                  to + c * size + row * p.width() + begin);
    }
  }
}

// [filters in fours, channels, taps, 4], with zeros for filters that there are not.
template <class real>
void pack(const Plane& p, const real* weights, real* to) {
  const int64_t taps = p.taps();
  for (int64_t first = 0; first < p.filters; first += kFilters) {
    for (int64_t c = 0; c < p.channels; ++c) {
      for (int64_t t = 0; t < taps; ++t) {
        for (int64_t f = first; f < first + kFilters; ++f) {
          const int64_t at = p.mirrored ? (c * p.filters + f) * taps + (taps - 1 - t)
                                        : (f * p.channels + c) * taps + t;
          *to++ = f < p.filters ? weights[at] : real(0);
        }
      }
    }
  }
}

// A tile of results of four filters, `step` elements apart.
template <class real, int vectors>
void tile(const Plane& p, const real* image, const real* weights, real* to, int64_t step) {
  using Vector = typename Lanes<real>::type;
  constexpr int64_t lanes = kLanes<real>;
  Vector sums[kFilters][vectors] = {};
  const int64_t size = p.copied<real>();
  for (int64_t c = 0; c < p.channels; ++c) {
    for (int64_t i = 0; i < p.kernel[0]; ++i) {
      const real* from = image + c * size + i * p.dilation[0] * p.width();
      for (int64_t j = 0; j < p.kernel[1]; ++j, from += p.dilation[1], weights += kFilters) {
        for (int v = 0; v < vectors; ++v) {
          Vector x = *reinterpret_cast<const Vector*>(from + v * lanes);
#if defined(__AVX512F__)
          __asm__("" : "+v"(x));  // read once: it may lie in two lines of the cache
#endif
          for (int64_t f = 0; f < kFilters; ++f) sums[f][v] += weights[f] * x;
        }
      }
    }
  }
  for (int64_t f = 0; f < kFilters; ++f) {
    for (int v = 0; v < vectors; ++v) {
      *reinterpret_cast<Vector*>(to + f * step + v * lanes) = sums[f][v];
    }
  }
}

// All results of four filters.
template <class real, int vectors>
void tiles(const Plane& p, const real* image, const real* weights, real* to, int64_t step,
           int64_t at = 0) {
  constexpr int64_t length = vectors * kLanes<real>;
  for (; at + length <= step; at += length) {
    tile<real, vectors>(p, image + at, weights, to + at, step);
  }
  if constexpr (vectors > 1) tiles<real, vectors - 1>(p, image, weights, to, step, at);
}

// The rows of a filter's results, without what is between them.
template <class real>
void store(const Plane& p, const real* from, real bias, real* to) {
  for (int64_t i = 0; i < p.out[0]; ++i) {
    for (int64_t j = 0; j < p.out[1]; ++j) to[i * p.out[1] + j] = from[i * p.width() + j] + bias;
  }
}

template <class real>
at::Tensor run(const Problem& problem, const at::Tensor& images, const at::Tensor& weights) {
  const Plane p(problem);
  const bool mirrored = p.mirrored;
  const auto options = images.options();
  const at::Tensor result = empty(mirrored ? problem.image_shape() : problem.result_shape(), options);
  const int64_t groups = problem.groups, fours = (p.filters + kFilters - 1) / kFilters;
  const int64_t packed = fours * kFilters * p.channels * p.taps();
  const at::Tensor ordered = empty({groups, packed}, options);
  const at::Tensor bias = problem.bias ? problem.bias->contiguous() : at::Tensor();
  const real* shifts = bias.defined() ? bias.const_data_ptr<real>() : nullptr;
  const real* w = weights.const_data_ptr<real>();
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t count = p.filters * p.channels * p.taps();
    pack(p, w + g * count, ordered.data_ptr<real>() + g * packed);
  }
  const int64_t step = p.vectors<real>() * kLanes<real>;
  const real* x = images.const_data_ptr<real>();
  real* y = result.data_ptr<real>();
  parallel_for(0, problem.batch * groups, 1, [&](int64_t begin, int64_t end) {
    const at::AutoDispatchBelowADInplaceOrView plain;
    const at::Tensor image = empty({p.channels, p.copied<real>()}, options);
    const at::Tensor sums = empty({kFilters, step}, options);
    real *copied = image.data_ptr<real>(), *found = sums.data_ptr<real>();
    for (int64_t n = begin; n < end; ++n) {  // a group of an image
      copy(p, x + n * p.channels * p.in[0] * p.in[1], copied);
      const real* own = ordered.const_data_ptr<real>() + n % groups * packed;
      for (int64_t first = 0; first < p.filters; first += kFilters) {
        const real* four = own + first * p.channels * p.taps();
        tiles<real, kVectors>(p, copied, four, found, step);
        for (int64_t f = first; f < std::min(first + kFilters, p.filters); ++f) {
          const int64_t filter = n % groups * p.filters + f;
          const real shift = shifts == nullptr ? real(0) : shifts[filter];
          store(p, found + (f - first) * step, shift,
                y + (n * p.filters + f) * p.out[0] * p.out[1]);
        }
      }
    }
  });
  return result;
}

}  // namespace
}  // namespace shifted

bool direct_applies(const Problem& problem) {
  if (problem.operation == Operation::Weight) return false;
  for (const Axis& axis : problem.axes) {
    if (axis.stride != 1) return false;
  }
  const shifted::Plane p(problem);
  const int64_t all = p.channels * p.copied<double>() + shifted::kFilters * p.results();
  return all * c10::elementSize(problem.dtype) <= (int64_t{8} << 20);
}

// Where groups have many channels, the library has blocks of these, and is at the processor's limit.
bool direct_promises(const Problem& problem) { return shifted::Plane(problem).channels <= 64; }

at::Tensor direct(const Problem& problem, const at::Tensor& first, const at::Tensor& second) {
  const at::Tensor a = first.contiguous(), b = second.contiguous();
  return problem.dtype == at::kDouble ? shifted::run<double>(problem, a, b) : shifted::run<float>(problem, a, b);
}

}  // namespace convolution
}  // namespace loma
