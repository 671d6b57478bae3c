// line 4: Z[b, h, w] = sum(zero_pad(X[b, h + p - 1, w + q - 1]) * K[p, q, h, w] for p in range(3) for q in range(3))
template <typename real>
static __attribute__((noinline)) void blur__loop1(
    real* __restrict Z_data_,
    const real* __restrict X_data_,
    const real* __restrict K_data_,
    const int64_t B,
    const int64_t H,
    const int64_t W,
    const int64_t begin_,
    const int64_t end_) {
  for (int64_t p_ = begin_; p_ < end_; ++p_) {
    const int64_t h__in__strips__ = p_ / B;
    const int64_t b = p_ % B;
    const int64_t hend_ = loma::min<int64_t>(H, (h__in__strips__ + 1) * loma::max<int64_t>(1, loma::floordiv(512, loma::max<int64_t>(1, W))));
    for (int64_t h = h__in__strips__ * loma::max<int64_t>(1, loma::floordiv(512, loma::max<int64_t>(1, W))); h < hend_; ++h) {
      loma::tiles<real>(0, W, [&](auto vectors_, const int64_t tile_, const auto count_) LOMA_INLINE {
        loma::Lanes<real> sums_[vectors_];
        loma::fill<real>(sums_, vectors_, real(0));
        for (int64_t p = 0; p < 3; ++p) {
          for (int64_t q = 0; q < 3; ++q) {
            const int64_t at1_ = H * W * b + W * h + W * p + q + (-W - 1);
            const int64_t at2_ = 3 * H * W * p + H * W * q + W * h;
            loma::Stretch inside1_(tile_, count_);
            inside1_.narrow(0, h + p - 1, H);
            inside1_.narrow(1, q - 1, W);
            if (inside1_.whole()) {
              loma::update<real>(sums_, vectors_, tile_, count_, [&](int lane_, int64_t w, real sum_) LOMA_INLINE {
                sum_ += X_data_[at1_ + w] * K_data_[at2_ + w];
                return sum_;
              });
            }
            else {
              loma::update<real>(sums_, vectors_, tile_, count_, [&](int lane_, int64_t w, real sum_) LOMA_INLINE {
                sum_ += (inside1_.has(lane_) ? X_data_[at1_ + w] : real(0)) * K_data_[at2_ + w];
                return sum_;
              });
            }
          }
        }
        const int64_t at3_ = H * W * b + W * h;
        loma::store<real>(sums_, vectors_, tile_, count_, [&](int64_t w, real sum_) LOMA_INLINE {
          Z_data_[at3_ + w] = sum_;
        });
      });
    }
  }
}

#include "host_begin.h"
// def blur(X : In[Tensor[B, H, W]], K : In[Tensor[3, 3, H, W]]) -> Tensor[B, H, W]:
template <typename real>
static loma::Tensor blur__body(const loma::Tensor& X_in_, const loma::Tensor& K_in_) {
  const loma::Tensor X = loma::dense(X_in_);
  const loma::Tensor K = loma::dense(K_in_);
  [[maybe_unused]] const int64_t B = X.size(0);
  [[maybe_unused]] const int64_t H = X.size(1);
  [[maybe_unused]] const int64_t W = X.size(2);
  loma::Tensor Z;
  // line 4: Z[b, h, w] = sum(zero_pad(X[b, h + p - 1, w + q - 1]) * K[p, q, h, w] for p in range(3) for q in range(3))
  Z = loma::empty({B, H, W}, loma::options<real>());
  loma::parallel(B * loma::floordiv(H + loma::max<int64_t>(1, loma::floordiv(512, loma::max<int64_t>(1, W))) - 1, loma::max<int64_t>(1, loma::floordiv(512, loma::max<int64_t>(1, W)))), 9 * H * W, [&](int64_t begin_, int64_t end_) {
    blur__loop1<real>(Z.template mutable_data_ptr<real>(), X.template const_data_ptr<real>(), K.template const_data_ptr<real>(), B, H, W, begin_, end_);
  });
  return Z;
}

template <typename real>
static void blur__run(const void* given_, [[maybe_unused]] const int64_t* ints,
    [[maybe_unused]] bool in_place, void* made_) {
  [[maybe_unused]] const auto* const tensors = static_cast<const loma::Tensor*>(given_);
  [[maybe_unused]] auto* const results = static_cast<loma::Tensor*>(made_);
  auto result_ = blur__body<real>(tensors[0], tensors[1]);
  results[0] = result_;
}
#include "host_end.h"
