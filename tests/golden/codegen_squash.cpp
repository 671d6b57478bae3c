// line 7: Q[n] = sum(S[b, n, d] * S[b, n, d] for d in D)
template <typename real>
static __attribute__((noinline)) void squash__loop1(
    real* __restrict Q_data_,
    const real* __restrict S_data_,
    const int64_t D,
    const int64_t N,
    const int64_t b,
    const int64_t begin_,
    const int64_t end_) {
  for (int64_t n = begin_; n < end_; ++n) {
    loma::Accumulators<real> acc1_in_(real(0));
    const int64_t at2_ = D * n + D * N * b;
    loma::tiles<real>(0, D, [&](auto vectors_, const int64_t tile_, const auto count_) LOMA_INLINE {
      loma::update<real>(acc1_in_.lanes, vectors_, tile_, count_, [&](int lane_, int64_t d, real sum_) LOMA_INLINE {
        sum_ += S_data_[at2_ + d] * S_data_[at2_ + d];
        return sum_;
      });
    });
    const real acc1_ = loma::total<real>(acc1_in_.lanes, loma::Sum());
    Q_data_[n] = acc1_;
  }
}

// line 8: V[b, n, d] = S[b, n, d] * (sqrt(Q[n]) / (1.0 + Q[n]))
template <typename real>
static __attribute__((noinline)) void squash__loop2(
    real* __restrict V_data_,
    real* __restrict Q_data_,
    const real* __restrict S_data_,
    const int64_t D,
    const int64_t N,
    const int64_t b,
    const int64_t begin_,
    const int64_t end_) {
  for (int64_t n = begin_; n < end_; ++n) {
    if (0 < D) {
      const int64_t at1_ = D * n + D * N * b;
      const real v2_ = Q_data_[n];
      const real quotient3_ = std::sqrt(v2_) / (real(1.0) + v2_);
      #pragma GCC ivdep
      for (int64_t d = 0; d < D; ++d) {
        V_data_[at1_ + d] = S_data_[at1_ + d] * quotient3_;
      }
    }
  }
}

#include "host_begin.h"
// def squash(S : In[Tensor[B, N, D]]) -> Tensor[B, N, D]:
template <typename real>
static loma::Tensor squash__body(const loma::Tensor& S_in_) {
  const loma::Tensor S = loma::dense(S_in_);
  [[maybe_unused]] const int64_t B = S.size(0);
  [[maybe_unused]] const int64_t N = S.size(1);
  [[maybe_unused]] const int64_t D = S.size(2);
  loma::Tensor V;
  V = loma::empty({B, N, D}, loma::options<real>());
  // kernel over b, lines 7 to 8
  {
    loma::WorkspacePlan workspace_;
    workspace_.add(1, 2, N * sizeof(real));  // Q
    workspace_.place();
    const real* const S_data_ = S.template const_data_ptr<real>();
    real* const V_data_ = V.template mutable_data_ptr<real>();
    loma::kernel("loma::squash, lines 7 to 8", B, 16 * D * N, workspace_, [&](std::byte* memory_, bool nested_, int64_t begin_, int64_t end_) {
      real* const Q = reinterpret_cast<real*>(memory_ + workspace_.offset(0));
      for (int64_t b = begin_; b < end_; ++b) {
        // line 7: Q[n] = sum(S[b, n, d] * S[b, n, d] for d in D)
        loma::inside(nested_, N, D, [&](int64_t begin_, int64_t end_) {
          squash__loop1<real>(Q, S_data_, D, N, b, begin_, end_);
        });
        // line 8: V[b, n, d] = S[b, n, d] * (sqrt(Q[n]) / (1.0 + Q[n]))
        loma::inside(nested_, N, 8 * D, [&](int64_t begin_, int64_t end_) {
          squash__loop2<real>(V_data_, Q, S_data_, D, N, b, begin_, end_);
        });
      }
    });
  }
  return V;
}

template <typename real>
static void squash__run(const void* given_, [[maybe_unused]] const int64_t* ints,
    [[maybe_unused]] bool in_place, void* made_) {
  [[maybe_unused]] const auto* const tensors = static_cast<const loma::Tensor*>(given_);
  [[maybe_unused]] auto* const results = static_cast<loma::Tensor*>(made_);
  auto result_ = squash__body<real>(tensors[0]);
  results[0] = result_;
}
#include "host_end.h"
