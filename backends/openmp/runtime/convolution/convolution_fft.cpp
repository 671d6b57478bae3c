// Convolutions as products of Fourier transforms, in overlapping tiles.
//
// A stride s splits image and kernel into s phases for each dimension: x_a[i] = x[i s + a] and
// w_a[t] = w[a + s t], and the convolution is the sum over the phases of convolutions with stride
// 1. Each of those is cyclic on tiles of T = step + taps - 1, of which `step` results are right
// (overlap-save). With the spectra X [n, a, c], W [o, a, c] and Y [n, o] of all tiles n = (b, tile),
// for every frequency
//   forward  Y[n, o]    = sum over (a, c) of X[n, a, c] conj(W[o, a, c])
//   weight   W[o, a, c] = sum over n of conj(Y[n, o]) X[n, a, c]
//   input    X[n, a, c] = sum over o of Y[n, o] W[o, a, c]
// which are matrix products. They take 2 T^2 multiplications where the definition takes
// step^2 taps^2: for a kernel of 9 x 9, stride 2 and 6 x 6 results, 0.22 of them.
//
// Rounding errors are relative to the largest values in a tile, not to each result's own terms, and
// of the same size as the direct sum's. One value that is not finite would spread over its tile,
// so a result that has any is computed again by the library (convolution.cpp).
#include "allocate.h"
#include "convolution_forms.h"
#include "dft.h"
#include "parallel.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/complex.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>

namespace loma {
namespace convolution {
namespace {

// How one dimension is cut.
struct Tiling {
  Axis axis;
  int64_t size, taps, step, tiles, phases;

  Tiling(const Axis& a, int64_t size)
      : axis(a),
        size(size),
        taps((a.extent() + a.stride - 1) / a.stride),
        step(size - taps + 1),
        tiles((a.out + step - 1) / step),
        phases(std::min(a.stride, a.extent())) {}

  int64_t taps_of(int64_t phase) const {
    return (axis.extent() - phase + axis.stride - 1) / axis.stride;
  }
  int64_t results(int64_t tile) const { return std::min(step, axis.out - tile * step); }
  // Where element `i` of a tile of that phase is in the image; may be in the padding.
  int64_t position(int64_t tile, int64_t phase, int64_t i) const {
    return (tile * step + i) * axis.stride + phase - axis.padding;
  }
  // The kernel's index of a phase's tap, or -1 where dilation leaves a gap.
  int64_t tap(int64_t phase, int64_t t) const {
    const int64_t offset = phase + t * axis.stride;
    return offset % axis.dilation == 0 ? offset / axis.dilation : -1;
  }
};

std::vector<int64_t> tile_sizes(const Axis& axis) {
  const int64_t taps = (axis.extent() + axis.stride - 1) / axis.stride;
  std::vector<int64_t> sizes;
  for (int64_t size = taps + taps % 2; size <= RealDft<float>::kMaxSize; size += 2) {
    sizes.push_back(size);
    if (size - taps + 1 >= axis.out) break;
  }
  return sizes;
}

struct Plan {
  Tiling rows, columns;
  double cost;              // in multiplications, roughly
  int64_t channels, images; // how many are transformed at once

  int64_t phases() const { return rows.phases * columns.phases; }
  int64_t tiles() const { return rows.tiles * columns.tiles; }
  int64_t elements() const { return rows.size * columns.size; }
};

Plan plan_with(const Problem& problem, const Tiling& rows, const Tiling& columns) {
  Plan plan{rows, columns, 0, problem.channels, problem.batch};
  const double n = static_cast<double>(problem.batch * plan.tiles());
  const double k = static_cast<double>(problem.channels * plan.phases());
  const double o = static_cast<double>(problem.filters);
  // An element of a spectrum costs as much memory traffic as some hundred multiplications.
  plan.cost = static_cast<double>(plan.elements()) * (2 * n * k * o + 150 * (n * k + o * k + n * o));
  const int64_t bytes = plan.elements() * c10::elementSize(problem.dtype);
  const int64_t weights = problem.filters * plan.phases() * bytes;  // of one channel
  const int64_t lanes = 64 / c10::elementSize(problem.dtype);
  const auto image = [&] {
    return plan.tiles() * (plan.phases() * plan.channels + problem.filters) * bytes;
  };
  plan.channels = std::min(problem.channels,
                           std::max(kWorkspaceBytes / 2 / weights / lanes * lanes, lanes));
  plan.images = std::min(problem.batch, std::max(kWorkspaceBytes / 2 / image(), int64_t{1}));
  return plan;
}

std::optional<Plan> best_plan(const Problem& problem) {
  std::optional<Plan> best;
  for (const int64_t rows : tile_sizes(problem.axes[0])) {
    for (const int64_t columns : tile_sizes(problem.axes[1])) {
      const Plan plan = plan_with(problem, {problem.axes[0], rows}, {problem.axes[1], columns});
      if (!best || plan.cost < best->cost) best = plan;
    }
  }
  return best;
}

// For every plane of the transform a matrix [rows, columns], as ImageDft numbers them.
template <class real>
class Spectrum {
 public:
  using complex = c10::complex<real>;

  // Room for matrices of up to rows * columns, which `resize` makes.
  Spectrum(const ImageDft<real>& dft, int64_t rows, int64_t columns, at::TensorOptions options) {
    // Planes that are a multiple of 4 KB apart would compete for the same lines of the cache.
    constexpr int64_t line = Vector<real>::lanes;
    plane_ = (rows * columns + line - 1) / line * line + line;
    real_memory_ = empty({ImageDft<real>::kRealPlanes, plane_}, options);
    complex_memory_ = empty({dft.complex_planes(), plane_},
                                options.dtype(c10::CppTypeToScalarType<complex>::value));
    real_data_ = real_memory_.template data_ptr<real>();
    complex_data_ = complex_memory_.template data_ptr<complex>();
    resize(rows, columns);
  }

  void resize(int64_t rows, int64_t columns) {
    columns_ = columns;
    const auto cut = [&](const at::Tensor& memory) {
      return memory.as_strided({memory.size(0), rows, columns}, {plane_, columns, 1});
    };
    real_ = cut(real_memory_);
    complex_ = cut(complex_memory_);
  }

  int64_t planes() const { return real_.size(0) + complex_.size(0); }

  at::Tensor plane(int64_t p) const {
    constexpr int64_t first = ImageDft<real>::kRealPlanes;
    return p < first ? real_.select(0, p) : complex_.select(0, p - first);
  }

  // What ImageDft calls: `count` lanes from that element on.
  auto sink(int64_t row, int64_t column, int64_t count, bool conjugate) {
    const int64_t offset = row * columns_ + column;
    const real sign = conjugate ? -1 : 1;
    return [this, offset, sign, count](int64_t p, const Lanes<real>& re, const Lanes<real>& im) {
      if (p < ImageDft<real>::kRealPlanes) {
        std::memcpy(real_data_ + p * plane_ + offset, &re, count * sizeof(real));
      } else {
        store_complex<real>(re, im * sign, complex_at(p, offset), count);
      }
    };
  }

  auto source(int64_t row, int64_t column, int64_t count) const {
    const int64_t offset = row * columns_ + column;
    return [this, offset, count](int64_t p, Lanes<real>& re, Lanes<real>& im) {
      if (p < ImageDft<real>::kRealPlanes) {
        re = Lanes<real>{};
        std::memcpy(&re, real_data_ + p * plane_ + offset, count * sizeof(real));
      } else {
        load_complex<real>(complex_at(p, offset), count, re, im);
      }
    };
  }

 private:
  real* complex_at(int64_t p, int64_t offset) const {
    return reinterpret_cast<real*>(complex_data_ + (p - ImageDft<real>::kRealPlanes) * plane_ +
                                   offset);
  }

  int64_t columns_, plane_;
  at::Tensor real_memory_, complex_memory_, real_, complex_;
  real* real_data_;
  complex* complex_data_;
};

template <class real>
class Transformed {
 public:
  Transformed(const Problem& problem, const Plan& plan)
      : problem_(problem),
        plan_(plan),
        dft_(plan.rows.size, plan.columns.size),
        options_(at::TensorOptions().dtype(problem.dtype)) {}

  // Each of these gives an undefined tensor when a value is not finite.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& w) {
    at::Tensor y = empty(problem_.result_shape(), options_);
    auto inputs = input_spectrum(), weights = weight_spectrum(), results = result_spectrum();
    each_batch([&](int64_t b, int64_t images) {
      results.resize(images * plan_.tiles(), problem_.filters);
      each_channels([&](int64_t c, int64_t channels) {
        const int64_t depth = channels * plan_.phases();
        if (b == 0 || channels < problem_.channels) {  // else still those of the last images
          weights.resize(problem_.filters, depth);
          transform_weights(w, c, channels, weights, true);
        }
        inputs.resize(images * plan_.tiles(), depth);
        transform_images(x, b, images, c, channels, inputs);
        multiply(results, inputs, false, weights, true, c > 0);
      });
      restore_results(results, b, images, y);
    });
    return finite_ ? y : at::Tensor();
  }

  at::Tensor weight(const at::Tensor& g, const at::Tensor& x) {
    at::Tensor dw = empty(problem_.weight_shape(), options_);
    auto inputs = input_spectrum(), weights = weight_spectrum(), results = result_spectrum();
    each_channels([&](int64_t c, int64_t channels) {
      const int64_t depth = channels * plan_.phases();
      weights.resize(problem_.filters, depth);
      each_batch([&](int64_t b, int64_t images) {
        if (c == 0 || images < problem_.batch) {
          results.resize(images * plan_.tiles(), problem_.filters);
          transform_results(g, b, images, results, true);
        }
        inputs.resize(images * plan_.tiles(), depth);
        transform_images(x, b, images, c, channels, inputs);
        multiply(weights, results, true, inputs, false, b > 0);
      });
      restore_weights(weights, c, channels, dw);
    });
    return finite_ ? dw : at::Tensor();
  }

  at::Tensor input(const at::Tensor& g, const at::Tensor& w) {
    at::Tensor dx = zeros(problem_.image_shape(), options_);
    auto inputs = input_spectrum(), weights = weight_spectrum(), results = result_spectrum();
    each_channels([&](int64_t c, int64_t channels) {
      const int64_t depth = channels * plan_.phases();
      weights.resize(problem_.filters, depth);
      transform_weights(w, c, channels, weights, false);
      each_batch([&](int64_t b, int64_t images) {
        if (c == 0 || images < problem_.batch) {
          results.resize(images * plan_.tiles(), problem_.filters);
          transform_results(g, b, images, results, false);
        }
        inputs.resize(images * plan_.tiles(), depth);
        multiply(inputs, results, false, weights, false, false);
        restore_images(inputs, b, images, c, channels, dx);
      });
    });
    return finite_ ? dx : at::Tensor();
  }

 private:
  static constexpr int64_t kLanes = Vector<real>::lanes;

  Spectrum<real> input_spectrum() const {
    return {dft_, plan_.images * plan_.tiles(), plan_.channels * plan_.phases(), options_};
  }
  Spectrum<real> weight_spectrum() const {
    return {dft_, problem_.filters, plan_.channels * plan_.phases(), options_};
  }
  Spectrum<real> result_spectrum() const {
    return {dft_, plan_.images * plan_.tiles(), problem_.filters, options_};
  }

  template <class Body>
  void each_batch(Body body) {
    for (int64_t b = 0; b < problem_.batch; b += plan_.images) {
      body(b, std::min(plan_.images, problem_.batch - b));
    }
  }
  template <class Body>
  void each_channels(Body body) {
    for (int64_t c = 0; c < problem_.channels; c += plan_.channels) {
      body(c, std::min(plan_.channels, problem_.channels - c));
    }
  }

  // body(row, first lane, lanes, image, scratch) in parallel, for all rows and groups of lanes.
  template <class Body>
  void each_group(int64_t rows, int64_t columns, Body body) {
    const int64_t groups = (columns + kLanes - 1) / kLanes;
    parallel_for(0, rows * groups, 4, [&](int64_t begin, int64_t end) {
      const std::unique_ptr<Lanes<real>[]> memory(new Lanes<real>[2 * plan_.elements()]);
      for (int64_t item = begin; item < end; ++item) {
        const int64_t first = item % groups * kLanes;
        const int64_t lanes = std::min(kLanes, columns - first);
        body(item / groups, first, lanes, memory.get(), memory.get() + plan_.elements());
      }
    });
  }

  // body(phase, phase of rows, phase of columns)
  template <class Body>
  void each_phase(Body body) const {
    for (int64_t p = 0, r = 0; r < plan_.rows.phases; ++r) {
      for (int64_t c = 0; c < plan_.columns.phases; ++c) body(p++, r, c);
    }
  }
  // body(tile, tile of rows, tile of columns)
  template <class Body>
  void each_tile(Body body) const {
    for (int64_t t = 0, r = 0; r < plan_.rows.tiles; ++r) {
      for (int64_t c = 0; c < plan_.columns.tiles; ++c) body(t++, r, c);
    }
  }

  static void clear(Lanes<real>* image, int64_t count) {
    std::fill(image, image + count, Lanes<real>{});
  }

  // The part of a tile of the input that its results depend on: phases and tiles of one dimension.
  struct Reach {
    int64_t count, begin, end, first;  // elements begin ... end of `count` are inside the image
    Reach(const Tiling& t, int64_t tile, int64_t phase)
        : count(t.results(tile) + t.taps_of(phase) - 1), first(t.position(tile, phase, 0)) {
      const int64_t s = t.axis.stride;
      begin = first >= 0 ? 0 : std::min((-first + s - 1) / s, count);
      end = first >= t.axis.in ? begin
                               : std::max(std::min((t.axis.in - first + s - 1) / s, count), begin);
    }
  };

  void transform_images(const at::Tensor& x, int64_t b, int64_t images, int64_t c,
                        int64_t channels, Spectrum<real>& out) {
    const int64_t height = plan_.rows.axis.in, width = plan_.columns.axis.in;
    const int64_t step_h = plan_.rows.axis.stride, step_w = plan_.columns.axis.stride;
    const real* from = x.const_data_ptr<real>() + (b * problem_.channels + c) * height * width;
    each_group(images, channels, [&](int64_t n, int64_t first, int64_t lanes, Lanes<real>* image,
                                     Lanes<real>* scratch) {
      const real* own = from + (n * problem_.channels + first) * height * width;
      auto* values = reinterpret_cast<real*>(image);
      each_tile([&](int64_t tile, int64_t tile_h, int64_t tile_w) {
        each_phase([&](int64_t phase, int64_t phase_h, int64_t phase_w) {
          const Reach h(plan_.rows, tile_h, phase_h), w(plan_.columns, tile_w, phase_w);
          clear(image, h.count * w.count);
          for (int64_t l = 0; l < lanes; ++l) {
            const real* plane = own + l * height * width;
            for (int64_t i = h.begin; i < h.end; ++i) {
              const real* row = plane + (h.first + i * step_h) * width + w.first;
              for (int64_t j = w.begin; j < w.end; ++j) {
                values[(i * w.count + j) * kLanes + l] = row[j * step_w];
              }
            }
          }
          dft_.forward(image, h.count, w.count, scratch,
                       out.sink(n * plan_.tiles() + tile, phase * channels + first, lanes, false));
        });
      });
    });
  }

  void restore_images(const Spectrum<real>& in, int64_t b, int64_t images, int64_t c,
                      int64_t channels, at::Tensor& dx) {
    const int64_t height = plan_.rows.axis.in, width = plan_.columns.axis.in;
    const int64_t step_h = plan_.rows.axis.stride, step_w = plan_.columns.axis.stride;
    real* to = dx.data_ptr<real>() + (b * problem_.channels + c) * height * width;
    each_group(images, channels, [&](int64_t n, int64_t first, int64_t lanes, Lanes<real>* image,
                                     Lanes<real>* scratch) {
      real* own = to + (n * problem_.channels + first) * height * width;
      const auto* values = reinterpret_cast<const real*>(image);
      each_tile([&](int64_t tile, int64_t tile_h, int64_t tile_w) {
        each_phase([&](int64_t phase, int64_t phase_h, int64_t phase_w) {
          const Reach h(plan_.rows, tile_h, phase_h), w(plan_.columns, tile_w, phase_w);
          dft_.inverse(in.source(n * plan_.tiles() + tile, phase * channels + first, lanes),
                       scratch, image, h.count, w.count);
          check(image, h.count * w.count);
          for (int64_t l = 0; l < lanes; ++l) {
            real* plane = own + l * height * width;
            for (int64_t i = h.begin; i < h.end; ++i) {
              real* row = plane + (h.first + i * step_h) * width + w.first;
              for (int64_t j = w.begin; j < w.end; ++j) {
                row[j * step_w] += values[(i * w.count + j) * kLanes + l];
              }
            }
          }
        });
      });
    });
  }

  void transform_weights(const at::Tensor& w, int64_t c, int64_t channels, Spectrum<real>& out,
                         bool conjugate) {
    each_weight(channels, [&](int64_t o, int64_t first, int64_t lanes, int64_t column,
                              int64_t phase_h, int64_t phase_w, Lanes<real>* image,
                              Lanes<real>* scratch) {
      const int64_t taps_h = plan_.rows.taps_of(phase_h), taps_w = plan_.columns.taps_of(phase_w);
      const real* own = w.const_data_ptr<real>() + weight_offset(o, c + first);
      auto* values = reinterpret_cast<real*>(image);
      clear(image, taps_h * taps_w);
      each_tap(phase_h, phase_w, [&](int64_t at, int64_t of) {
        for (int64_t l = 0; l < lanes; ++l) values[at * kLanes + l] = own[l * kernel() + of];
      });
      dft_.forward(image, taps_h, taps_w, scratch, out.sink(o, column, lanes, conjugate));
    });
  }

  void restore_weights(const Spectrum<real>& in, int64_t c, int64_t channels, at::Tensor& dw) {
    each_weight(channels, [&](int64_t o, int64_t first, int64_t lanes, int64_t column,
                              int64_t phase_h, int64_t phase_w, Lanes<real>* image,
                              Lanes<real>* scratch) {
      const int64_t taps_h = plan_.rows.taps_of(phase_h), taps_w = plan_.columns.taps_of(phase_w);
      real* own = dw.data_ptr<real>() + weight_offset(o, c + first);
      const auto* values = reinterpret_cast<const real*>(image);
      dft_.inverse(in.source(o, column, lanes), scratch, image, taps_h, taps_w);
      check(image, taps_h * taps_w);
      each_tap(phase_h, phase_w, [&](int64_t at, int64_t of) {
        for (int64_t l = 0; l < lanes; ++l) own[l * kernel() + of] = values[at * kLanes + l];
      });
    });
  }

  int64_t kernel() const { return plan_.rows.axis.kernel * plan_.columns.axis.kernel; }
  int64_t weight_offset(int64_t o, int64_t c) const {
    return (o * problem_.channels + c) * kernel();
  }

  template <class Body>
  void each_weight(int64_t channels, Body body) {
    each_group(problem_.filters, channels, [&](int64_t o, int64_t first, int64_t lanes,
                                               Lanes<real>* image, Lanes<real>* scratch) {
      each_phase([&](int64_t phase, int64_t phase_h, int64_t phase_w) {
        body(o, first, lanes, phase * channels + first, phase_h, phase_w, image, scratch);
      });
    });
  }

  // body(element of the phase's taps, element of the kernel)
  template <class Body>
  void each_tap(int64_t phase_h, int64_t phase_w, Body body) const {
    const int64_t taps_h = plan_.rows.taps_of(phase_h), taps_w = plan_.columns.taps_of(phase_w);
    for (int64_t i = 0; i < taps_h; ++i) {
      const int64_t row = plan_.rows.tap(phase_h, i);
      for (int64_t j = 0; j < taps_w && row >= 0; ++j) {
        const int64_t column = plan_.columns.tap(phase_w, j);
        if (column >= 0) body(i * taps_w + j, row * plan_.columns.axis.kernel + column);
      }
    }
  }

  void transform_results(const at::Tensor& g, int64_t b, int64_t images, Spectrum<real>& out,
                         bool conjugate) {
    const real* from = g.const_data_ptr<real>();
    each_result(b, images, [&](int64_t offset, int64_t lanes, int64_t rows, int64_t columns,
                               int64_t row, int64_t first, Lanes<real>* image,
                               Lanes<real>* scratch) {
      auto* values = reinterpret_cast<real*>(image);
      if (lanes < kLanes) clear(image, rows * columns);
      for (int64_t l = 0; l < lanes; ++l) {
        const real* plane = from + offset + l * result_plane();
        for (int64_t i = 0; i < rows; ++i) {
          for (int64_t j = 0; j < columns; ++j) {
            values[(i * columns + j) * kLanes + l] = plane[i * plan_.columns.axis.out + j];
          }
        }
      }
      dft_.forward(image, rows, columns, scratch, out.sink(row, first, lanes, conjugate));
    });
  }

  void restore_results(const Spectrum<real>& in, int64_t b, int64_t images, at::Tensor& y) {
    real* to = y.data_ptr<real>();
    const at::Tensor bias = problem_.bias ? problem_.bias->contiguous() : at::Tensor();
    each_result(b, images, [&](int64_t offset, int64_t lanes, int64_t rows, int64_t columns,
                               int64_t row, int64_t first, Lanes<real>* image,
                               Lanes<real>* scratch) {
      const auto* values = reinterpret_cast<const real*>(image);
      dft_.inverse(in.source(row, first, lanes), scratch, image, rows, columns);
      if (bias.defined()) {
        Lanes<real> added{};
        for (int64_t l = 0; l < lanes; ++l) added[l] = bias.const_data_ptr<real>()[first + l];
        for (int64_t i = 0; i < rows * columns; ++i) image[i] += added;
      }
      check(image, rows * columns);
      for (int64_t l = 0; l < lanes; ++l) {
        real* plane = to + offset + l * result_plane();
        for (int64_t i = 0; i < rows; ++i) {
          for (int64_t j = 0; j < columns; ++j) {
            plane[i * plan_.columns.axis.out + j] = values[(i * columns + j) * kLanes + l];
          }
        }
      }
    });
  }

  int64_t result_plane() const { return plan_.rows.axis.out * plan_.columns.axis.out; }

  // body(offset in y, lanes, rows, columns, row of the spectrum, its column, image, scratch)
  template <class Body>
  void each_result(int64_t b, int64_t images, Body body) {
    each_group(images, problem_.filters, [&](int64_t n, int64_t first, int64_t lanes,
                                             Lanes<real>* image, Lanes<real>* scratch) {
      const int64_t base = ((b + n) * problem_.filters + first) * result_plane();
      each_tile([&](int64_t tile, int64_t tile_h, int64_t tile_w) {
        const int64_t top = tile_h * plan_.rows.step, left = tile_w * plan_.columns.step;
        body(base + top * plan_.columns.axis.out + left, lanes, plan_.rows.results(tile_h),
             plan_.columns.results(tile_w), n * plan_.tiles() + tile, first, image, scratch);
      });
    });
  }

  // The same as the function of that name, plane by plane, transposed as asked for.
  void multiply(Spectrum<real>& out, const Spectrum<real>& a, bool transpose_a,
                const Spectrum<real>& b, bool transpose_b, bool accumulate) {
    parallel_for(0, out.planes(), 1, [&](int64_t begin, int64_t end) {
      const at::AutoDispatchBelowADInplaceOrView plain;
      for (int64_t p = begin; p < end; ++p) {
        at::Tensor to = out.plane(p);
        convolution::multiply(to, transpose_a ? a.plane(p).t() : a.plane(p),
                              transpose_b ? b.plane(p).t() : b.plane(p), accumulate);
      }
    });
  }

  void check(const Lanes<real>* image, int64_t count) {
    Lanes<real> zeros{};  // NaN where a value is not finite
    const real zero = 0;
    for (int64_t i = 0; i < count; ++i) zeros += image[i] * zero;
    real sum = 0;
    for (int64_t l = 0; l < kLanes; ++l) sum += zeros[l];
    if (!(sum == 0)) finite_ = false;
  }

  const Problem& problem_;
  const Plan plan_;
  const ImageDft<real> dft_;
  const at::TensorOptions options_;
  std::atomic<bool> finite_{true};
};

template <class real>
at::Tensor run(const Problem& problem, const Plan& plan, const at::Tensor& first,
               const at::Tensor& second) {
  Transformed<real> transformed(problem, plan);
  switch (problem.operation) {
    case Operation::Forward:
      return transformed.forward(first, second);
    case Operation::Weight:
      return transformed.weight(first, second);
    default:
      return transformed.input(first, second);
  }
}

}  // namespace

bool fft_applies(const Problem& problem) {
  return problem.groups == 1 && best_plan(problem).has_value();
}

bool fft_promises(const Problem& problem) {
  const int64_t lanes = 64 / static_cast<int64_t>(c10::elementSize(problem.dtype));
  return std::min(problem.channels, problem.filters) >= lanes / 2 &&
         best_plan(problem)->cost < problem.operations();
}

at::Tensor fft(const Problem& problem, const at::Tensor& first, const at::Tensor& second) {
  const Plan plan = *best_plan(problem);
  const at::Tensor a = first.contiguous(), b = second.contiguous();
  return problem.dtype == at::kDouble ? run<double>(problem, plan, a, b)
                                      : run<float>(problem, plan, a, b);
}

}  // namespace convolution
}  // namespace loma
