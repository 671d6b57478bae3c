// line 10: U[b, i, r, o] = sum(W[i, r, o, k] * X[b, r, k] for k in K)
template <typename real>
static __attribute__((noinline)) void predictions__loop1(
    real* __restrict U_data_,
    const real* __restrict X_data_,
    const real* __restrict packed1__data_,
    const int64_t B,
    const int64_t I,
    const int64_t R,
    const int64_t O,
    const int64_t K,
    const int64_t begin_,
    const int64_t end_) {
  for (int64_t p_ = begin_; p_ < end_; ++p_) {
    const int64_t r__in__strips__ = p_ / B;
    const int64_t b = p_ % B;
    for (int64_t i = 0; i < I; ++i) {
      const int64_t rend_ = loma::min<int64_t>(R, (r__in__strips__ + 1) * loma::max<int64_t>(1, loma::floordiv(512, loma::max<int64_t>(1, O))));
      for (int64_t r = r__in__strips__ * loma::max<int64_t>(1, loma::floordiv(512, loma::max<int64_t>(1, O))); r < rend_; ++r) {
        for (int64_t first_ = 0; first_ == 0 || first_ < K; first_ += 64) {
          const int64_t last_ = std::min<int64_t>(K, first_ + 64);
          loma::tiles<real, 1, loma::kAccumulators>(0, O, [&](auto vectors_, const int64_t tile_, const auto count_) LOMA_INLINE {
            loma::Lanes<real> sums_[vectors_];
            if (first_ == 0) loma::fill<real>(sums_, vectors_, real(0));
            if (first_ > 0) {
              const int64_t at1_ = I * O * R * b + O * R * i + O * r;
              loma::update<real>(sums_, vectors_, tile_, count_, [&](int lane_, int64_t o, real sum_) LOMA_INLINE {
                sum_ = U_data_[at1_ + o];
                return sum_;
              });
            }
            for (int64_t k = first_; k < last_; ++k) {
              const int64_t at2_ = K * O * R * i + K * O * r + O * k;
              const int64_t at3_ = K * R * b + K * r + k;
              const real v4_ = X_data_[at3_];
              loma::update<real>(sums_, vectors_, tile_, count_, [&](int lane_, int64_t o, real sum_) LOMA_INLINE {
                sum_ += packed1__data_[at2_ + o] * v4_;
                return sum_;
              });
            }
            const int64_t at5_ = I * O * R * b + O * R * i + O * r;
            loma::store<real>(sums_, vectors_, tile_, count_, [&](int64_t o, real sum_) LOMA_INLINE {
              U_data_[at5_ + o] = sum_;
            });
          });
        }
      }
    }
  }
}

#include "host_begin.h"
// def predictions(W : In[Tensor[I, R, O, K]], X : In[Tensor[B, R, K]]) -> Tensor[B, I, R, O]:
template <typename real>
static loma::Tensor predictions__body(const loma::Tensor& W_in_, const loma::Tensor& X_in_) {
  const loma::Tensor W = loma::dense(W_in_);
  const loma::Tensor X = loma::dense(X_in_);
  [[maybe_unused]] const int64_t I = W.size(0);
  [[maybe_unused]] const int64_t R = W.size(1);
  [[maybe_unused]] const int64_t O = W.size(2);
  [[maybe_unused]] const int64_t K = W.size(3);
  [[maybe_unused]] const int64_t B = X.size(0);
  loma::check_shape(W, {I, R, O, K}, "predictions: argument 'W'");
  loma::check_shape(X, {B, R, K}, "predictions: argument 'X'");
  loma::Tensor U;
  // line 10: U[b, i, r, o] = sum(W[i, r, o, k] * X[b, r, k] for k in K)
  {
    U = loma::empty({B, I, R, O}, loma::options<real>());
    const loma::Tensor packed1_ = loma::permuted(W, {0, 1, 3, 2});
    loma::parallel(B * loma::floordiv(R + loma::max<int64_t>(1, loma::floordiv(512, loma::max<int64_t>(1, O))) - 1, loma::max<int64_t>(1, loma::floordiv(512, loma::max<int64_t>(1, O)))), I * K * O * R, [&](int64_t begin_, int64_t end_) {
      predictions__loop1<real>(U.template mutable_data_ptr<real>(), X.template const_data_ptr<real>(), packed1_.template const_data_ptr<real>(), B, I, R, O, K, begin_, end_);
    });
  }
  return U;
}

template <typename real>
static void predictions__run(const void* given_, [[maybe_unused]] const int64_t* ints,
    [[maybe_unused]] bool in_place, void* made_) {
  [[maybe_unused]] const auto* const tensors = static_cast<const loma::Tensor*>(given_);
  [[maybe_unused]] auto* const results = static_cast<loma::Tensor*>(made_);
  auto result_ = predictions__body<real>(tensors[0], tensors[1]);
  results[0] = result_;
}
#include "host_end.h"
