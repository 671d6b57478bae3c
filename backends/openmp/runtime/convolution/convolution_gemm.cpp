// Convolutions as matrix products, one image at a time: the windows of an image that the kernel
// lies over are the columns of a matrix (im2col), which stays in the cache.
#include "allocate.h"
#include "convolution_forms.h"
#include "parallel.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/mm_ops.h>

#include <algorithm>

namespace loma {
namespace convolution {
namespace {

// One image's windows: [channels / groups * kernel, results], for one group.
int64_t depth(const Problem& p) {
  return p.channels / p.groups * p.axes[0].kernel * p.axes[1].kernel;
}
int64_t results(const Problem& p) { return p.axes[0].out * p.axes[1].out; }

// The results ... end of an axis whose tap `k` lies inside the image, and its place at result 0.
struct Inside {
  int64_t first, begin, end;
  Inside(const Axis& a, int64_t k) : first(k * a.dilation - a.padding) {
    begin = first >= 0 ? 0 : std::min((-first + a.stride - 1) / a.stride, a.out);
    end = first >= a.in ? begin
                        : std::clamp((a.in - first + a.stride - 1) / a.stride, begin, a.out);
  }
};

// body(row of the matrix, channel, inside of rows, inside of columns)
template <class Body>
void each_tap(const Problem& p, Body body) {
  int64_t row = 0;
  for (int64_t c = 0; c < p.channels / p.groups; ++c) {
    for (int64_t i = 0; i < p.axes[0].kernel; ++i) {
      const Inside rows(p.axes[0], i);
      for (int64_t j = 0; j < p.axes[1].kernel; ++j) {
        body(row++, c, rows, Inside(p.axes[1], j));
      }
    }
  }
}

template <class real>
void unfold(const Problem& p, const real* image, real* windows) {
  const Axis &h = p.axes[0], &w = p.axes[1];
  each_tap(p, [&](int64_t row, int64_t c, const Inside& rows, const Inside& columns) {
    for (int64_t i = 0; i < h.out; ++i) {
      real* to = windows + (row * h.out + i) * w.out;
      if (i < rows.begin || i >= rows.end) {
        std::fill(to, to + w.out, real{0});
        continue;
      }
      const real* from = image + (c * h.in + rows.first + i * h.stride) * w.in + columns.first;
      std::fill(to, to + columns.begin, real{0});
      if (w.stride == 1) {
        std::copy(from + columns.begin, from + columns.end, to + columns.begin);
      } else {
        for (int64_t j = columns.begin; j < columns.end; ++j) to[j] = from[j * w.stride];
      }
      std::fill(to + columns.end, to + w.out, real{0});
    }
  });
}

// The adjoint of `unfold`: adds to the image.
template <class real>
void fold(const Problem& p, const real* windows, real* image) {
  const Axis &h = p.axes[0], &w = p.axes[1];
  each_tap(p, [&](int64_t row, int64_t c, const Inside& rows, const Inside& columns) {
    for (int64_t i = rows.begin; i < rows.end; ++i) {
      const real* from = windows + (row * h.out + i) * w.out;
      real* to = image + (c * h.in + rows.first + i * h.stride) * w.in + columns.first;
      for (int64_t j = columns.begin; j < columns.end; ++j) to[j * w.stride] += from[j];
    }
  });
}

// Images are summed in that many parts, each in order, and then the parts: the number must not
// depend on the number of threads, or rounding would.
int64_t parts(const Problem& p) {
  constexpr int64_t kMost = 16;
  const int64_t bytes = p.filters * depth(p) * c10::elementSize(p.dtype);
  return std::min({p.batch, kMost, kWorkspaceBytes / bytes});
}

// body(image, windows) in parallel for all images.
template <class Body>
void each_image(const Problem& p, at::TensorOptions options, Body body) {
  parallel_for(0, p.batch, 1, [&](int64_t begin, int64_t end) {
    const at::AutoDispatchBelowADInplaceOrView plain;
    const at::Tensor windows = empty({depth(p), results(p)}, options);
    for (int64_t b = begin; b < end; ++b) body(b, windows);
  });
}

template <class real>
at::Tensor run(const Problem& p, const at::Tensor& first, const at::Tensor& second) {
  const auto options = first.options();
  const int64_t rows = p.filters / p.groups, channels = p.channels / p.groups;
  const int64_t image = channels * p.axes[0].in * p.axes[1].in;  // elements of one group
  const auto group_of = [&](const at::Tensor& y, int64_t b, int64_t k) {
    return y.select(0, b).view({p.groups, rows, results(p)}).select(0, k);
  };
  const auto weights_of = [&](const at::Tensor& w, int64_t k) {
    return w.view({p.groups, rows, depth(p)}).select(0, k);
  };
  if (p.operation == Operation::Forward) {
    const at::Tensor y = empty(p.result_shape(), options);
    const real* x = first.const_data_ptr<real>();
    each_image(p, options, [&](int64_t b, const at::Tensor& windows) {
      for (int64_t k = 0; k < p.groups; ++k) {
        unfold(p, x + (b * p.groups + k) * image, windows.data_ptr<real>());
        at::Tensor to = group_of(y, b, k);
        multiply(to, weights_of(second, k), windows, false);
      }
      if (p.bias) y.select(0, b).add_(p.bias->view({p.filters, 1, 1}));
    });
    return y;
  }
  if (p.operation == Operation::Input) {
    const at::Tensor dx = zeros(p.image_shape(), options);
    real* to = dx.data_ptr<real>();
    each_image(p, options, [&](int64_t b, const at::Tensor& windows) {
      at::Tensor columns = windows;
      for (int64_t k = 0; k < p.groups; ++k) {
        multiply(columns, weights_of(second, k).t(), group_of(first, b, k), false);
        fold(p, windows.const_data_ptr<real>(), to + (b * p.groups + k) * image);
      }
    });
    return dx;
  }
  const int64_t count = parts(p);
  const at::Tensor sums = zeros({count, p.filters, depth(p)}, options);
  const real* x = second.const_data_ptr<real>();
  parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
    const at::AutoDispatchBelowADInplaceOrView plain;
    const at::Tensor windows = empty({depth(p), results(p)}, options);
    for (int64_t part = begin; part < end; ++part) {
      for (int64_t b = part * p.batch / count; b < (part + 1) * p.batch / count; ++b) {
        for (int64_t k = 0; k < p.groups; ++k) {
          unfold(p, x + (b * p.groups + k) * image, windows.data_ptr<real>());
          at::Tensor to = weights_of(sums.select(0, part), k);
          multiply(to, group_of(first, b, k), windows.t(), true);
        }
      }
    }
  });
  at::Tensor dw = sums.select(0, 0);
  for (int64_t part = 1; part < count; ++part) dw.add_(sums.select(0, part));
  return dw.view(p.weight_shape()).clone();
}

}  // namespace

void multiply(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool accumulate) {
  constexpr int64_t kTerms = 256;
  for (int64_t k = 0; k < a.size(1); k += kTerms) {
    const int64_t count = std::min(kTerms, a.size(1) - k);
    const at::Tensor left = a.narrow(1, k, count), right = b.narrow(0, k, count);
    if (accumulate || k > 0) {
      at::_ops::addmm_out::call(out, left, right, 1, 1, out);
    } else {
      at::_ops::mm_out::call(left, right, out);
    }
  }
}

bool gemm_applies(const Problem& problem) {
  constexpr int64_t kWindows = int64_t{8} << 20;  // bytes, for each thread
  if (depth(problem) * results(problem) * c10::elementSize(problem.dtype) > kWindows) return false;
  if (problem.operation != Operation::Weight) return true;
  // With up to 8 rows MKL's sums depend on whether one thread alone calls it, however short.
  return problem.filters / problem.groups > 8 &&
         parts(problem) >= std::min(problem.batch, int64_t{4});
}

at::Tensor gemm(const Problem& problem, const at::Tensor& first, const at::Tensor& second) {
  const at::Tensor a = first.contiguous(), b = second.contiguous();
  return problem.dtype == at::kDouble ? run<double>(problem, a, b) : run<float>(problem, a, b);
}

}  // namespace convolution
}  // namespace loma
