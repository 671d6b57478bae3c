// The discrete Fourier transform of small real images, for as many images at once as a vector has
// elements ("lanes").
//
// The sizes are those of tiles, at most 32, so a transform is a product with a matrix, halved by
// the symmetry of sine and cosine. Sizes are even. The spectrum of a real image is Hermitian: of
// rows * columns complex numbers, 4 are real, and half of the others say everything. These are the
// "planes": first the 4 real ones, then rows * columns / 2 - 2 complex ones.
#ifndef LOMA_DFT_H
#define LOMA_DFT_H

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace loma::convolution {

template <class real>
struct Vector {
  typedef real Type __attribute__((vector_size(64)));
  static constexpr int64_t lanes = 64 / sizeof(real);
};
template <class real>
using Lanes = typename Vector<real>::Type;

// Complex numbers in memory, the real part of each before its imaginary part: `count` of them.
template <class real>
void store_complex(const Lanes<real>& re, const Lanes<real>& im, real* to, int64_t count) {
#if defined(__clang__) || __GNUC__ >= 12
  if (count == Vector<real>::lanes) {
    Lanes<real> low, high;
    if constexpr (Vector<real>::lanes == 16) {
      low = __builtin_shufflevector(re, im, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      high = __builtin_shufflevector(re, im, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30,
                                     15, 31);
    } else {
      low = __builtin_shufflevector(re, im, 0, 8, 1, 9, 2, 10, 3, 11);
      high = __builtin_shufflevector(re, im, 4, 12, 5, 13, 6, 14, 7, 15);
    }
    std::memcpy(to, &low, sizeof low);
    std::memcpy(to + Vector<real>::lanes, &high, sizeof high);
    return;
  }
#endif
  for (int64_t l = 0; l < count; ++l) {
    to[2 * l] = re[l];
    to[2 * l + 1] = im[l];
  }
}

// The lanes from `count` on become zero.
template <class real>
void load_complex(const real* from, int64_t count, Lanes<real>& re, Lanes<real>& im) {
#if defined(__clang__) || __GNUC__ >= 12
  if (count == Vector<real>::lanes) {
    Lanes<real> low, high;
    std::memcpy(&low, from, sizeof low);
    std::memcpy(&high, from + Vector<real>::lanes, sizeof high);
    if constexpr (Vector<real>::lanes == 16) {
      re = __builtin_shufflevector(low, high, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28,
                                   30);
      im = __builtin_shufflevector(low, high, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29,
                                   31);
    } else {
      re = __builtin_shufflevector(low, high, 0, 2, 4, 6, 8, 10, 12, 14);
      im = __builtin_shufflevector(low, high, 1, 3, 5, 7, 9, 11, 13, 15);
    }
    return;
  }
#endif
  re = im = Lanes<real>{};
  for (int64_t l = 0; l < count; ++l) {
    re[l] = from[2 * l];
    im[l] = from[2 * l + 1];
  }
}

// The transform of `size` real numbers, which is even. A spectrum is stored as the real parts of the
// coefficients 0 ... size / 2, then the imaginary parts of 1 ... size / 2 - 1. Both directions are
// compiled once: their loops, unrolled in each caller, took 23 of this unit's 41 seconds and gained
// nothing.
template <class real>
class RealDft {
 public:
  explicit RealDft(int64_t size)
      : size_(size), half_(size / 2), cos_(half_ * half_), sin_(half_ * half_) {
    for (int64_t k = 0; k < half_; ++k) {
      for (int64_t t = 0; t < half_; ++t) {
        const double angle = 2.0 * M_PI * static_cast<double>(k * t % size) / size;
        cos_[k * half_ + t] = static_cast<real>(std::cos(angle));
        sin_[k * half_ + t] = static_cast<real>(std::sin(angle));
      }
    }
  }

  int64_t size() const { return size_; }

  // X[k] = sum over t < count of x[t] exp(-2 pi i k t / size); `x` is zero from `count` on.
  __attribute__((noinline)) void forward(const Lanes<real>* x, int64_t x_step, int64_t count,
                                         Lanes<real>* spectrum, int64_t step) const {
    Lanes<real> sum[kMaxHalf], difference[kMaxHalf];
    const auto at = [&](int64_t t) { return t < count ? x[t * x_step] : Lanes<real>{}; };
    for (int64_t t = 1; t < half_; ++t) {
      sum[t] = at(t) + at(size_ - t);
      difference[t] = at(t) - at(size_ - t);
    }
    const int64_t end = count < half_ ? count : half_;  // the others are zero
    const Lanes<real> even = at(0) + at(half_), odd = at(0) - at(half_);
    for (int64_t k = 0; k < half_; ++k) {
      Lanes<real> re = k % 2 == 0 ? even : odd, im{};
      const real* cos = &cos_[k * half_];
      const real* sin = &sin_[k * half_];
      for (int64_t t = 1; t < end; ++t) {
        re += cos[t] * sum[t];
        im -= sin[t] * difference[t];
      }
      spectrum[k * step] = re;
      if (k > 0) spectrum[(half_ + k) * step] = im;
    }
    Lanes<real> last = half_ % 2 == 0 ? even : odd;  // alternating signs
    for (int64_t t = 1; t < end; ++t) {
      last = t % 2 == 0 ? last + sum[t] : last - sum[t];
    }
    spectrum[half_ * step] = last;
  }

  // x[t] * size for the t < count; the scaling is left to the caller.
  __attribute__((noinline)) void inverse(const Lanes<real>* spectrum, int64_t step, Lanes<real>* x,
                                         int64_t x_step, int64_t count) const {
    Lanes<real> re[kMaxHalf], im[kMaxHalf];
    for (int64_t k = 1; k < half_; ++k) {
      re[k] = spectrum[k * step] + spectrum[k * step];
      im[k] = spectrum[(half_ + k) * step] + spectrum[(half_ + k) * step];
    }
    const Lanes<real> first = spectrum[0], last = spectrum[half_ * step];
    const Lanes<real> even = first + last, odd = first - last;
    const int64_t end = count < half_ ? count : half_;
    for (int64_t t = 0; t < end; ++t) {
      Lanes<real> c = t % 2 == 0 ? even : odd, s{};
      const real* cos = &cos_[t * half_];  // symmetric in k and t
      const real* sin = &sin_[t * half_];
      for (int64_t k = 1; k < half_; ++k) {
        c += cos[k] * re[k];
        s -= sin[k] * im[k];
      }
      x[t * x_step] = c + s;
      if (t > 0 && size_ - t < count) x[(size_ - t) * x_step] = c - s;
    }
    if (half_ < count) {
      Lanes<real> c = half_ % 2 == 0 ? even : odd;
      for (int64_t k = 1; k < half_; ++k) {
        c = k % 2 == 0 ? c + re[k] : c - re[k];
      }
      x[half_ * x_step] = c;
    }
  }

  static constexpr int64_t kMaxSize = 32;

 private:
  static constexpr int64_t kMaxHalf = kMaxSize / 2;
  int64_t size_, half_;
  std::vector<real> cos_, sin_;
};

// The transform of images of rows * columns. `forward` calls sink(plane, re, im), `inverse` calls
// source(plane, re, im), where the imaginary part of the planes 0 ... 3 means nothing.
template <class real>
class ImageDft {
 public:
  ImageDft(int64_t rows, int64_t columns)
      : vertical_(rows), horizontal_(columns), scale_(static_cast<real>(1.0 / (rows * columns))) {}

  static constexpr int64_t kRealPlanes = 4;
  int64_t complex_planes() const { return vertical_.size() * horizontal_.size() / 2 - 2; }
  int64_t elements() const { return vertical_.size() * horizontal_.size(); }

  // `image` has `height` rows of `width`, one after the other; around it is zero.
  template <class Sink>
  void forward(const Lanes<real>* image, int64_t height, int64_t width, Lanes<real>* scratch,
               Sink sink) const {
    const int64_t rows = vertical_.size(), columns = horizontal_.size(), half = columns / 2;
    for (int64_t i = 0; i < height; ++i) {
      horizontal_.forward(image + i * width, 1, width, scratch + i * columns, 1);
    }
    Lanes<real> a[RealDft<real>::kMaxSize], b[RealDft<real>::kMaxSize];
    int64_t plane = kRealPlanes;
    for (int64_t side = 0; side < 2; ++side) {  // the columns of real coefficients
      vertical_.forward(scratch + side * half, columns, height, a, 1);
      sink(2 * side, a[0], a[0]);
      sink(2 * side + 1, a[rows / 2], a[rows / 2]);
      for (int64_t j = 1; j < rows / 2; ++j) {
        sink(plane++, a[j], a[rows / 2 + j]);
      }
    }
    for (int64_t k = 1; k < half; ++k) {
      vertical_.forward(scratch + k, columns, height, a, 1);
      vertical_.forward(scratch + half + k, columns, height, b, 1);
      sink(plane++, a[0], b[0]);
      sink(plane++, a[rows / 2], b[rows / 2]);
      for (int64_t j = 1; j < rows / 2; ++j) {  // a + i b at j and at -j
        const auto a_im = a[rows / 2 + j], b_im = b[rows / 2 + j];
        sink(plane++, a[j] - b_im, a_im + b[j]);
        sink(plane++, a[j] + b_im, b[j] - a_im);
      }
    }
  }

  // The first `height` rows and `width` columns of the image.
  template <class Source>
  void inverse(Source source, Lanes<real>* scratch, Lanes<real>* image, int64_t height,
               int64_t width) const {
    const int64_t rows = vertical_.size(), columns = horizontal_.size(), half = columns / 2;
    Lanes<real> a[RealDft<real>::kMaxSize], b[RealDft<real>::kMaxSize], ignored;
    int64_t plane = kRealPlanes;
    for (int64_t side = 0; side < 2; ++side) {
      source(2 * side, a[0], ignored);
      source(2 * side + 1, a[rows / 2], ignored);
      for (int64_t j = 1; j < rows / 2; ++j) {
        source(plane++, a[j], a[rows / 2 + j]);
      }
      vertical_.inverse(a, 1, scratch + side * half, columns, height);
    }
    const real one_half = 0.5;
    for (int64_t k = 1; k < half; ++k) {
      source(plane++, a[0], b[0]);
      source(plane++, a[rows / 2], b[rows / 2]);
      for (int64_t j = 1; j < rows / 2; ++j) {
        Lanes<real> re, im, re_minus, im_minus;
        source(plane++, re, im);
        source(plane++, re_minus, im_minus);
        a[j] = one_half * (re + re_minus);
        a[rows / 2 + j] = one_half * (im - im_minus);
        b[j] = one_half * (im + im_minus);
        b[rows / 2 + j] = one_half * (re_minus - re);
      }
      vertical_.inverse(a, 1, scratch + k, columns, height);
      vertical_.inverse(b, 1, scratch + half + k, columns, height);
    }
    for (int64_t i = 0; i < height; ++i) {
      horizontal_.inverse(scratch + i * columns, 1, image + i * width, 1, width);
      for (int64_t j = 0; j < width; ++j) {
        image[i * width + j] *= scale_;
      }
    }
  }

 private:
  RealDft<real> vertical_, horizontal_;
  real scale_;
};

}  // namespace loma::convolution

#endif  // LOMA_DFT_H
