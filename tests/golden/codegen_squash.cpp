// line 7: Q[b, n] += S[b, n, d] * S[b, n, d]
template <typename real>
static __attribute__((noinline)) void squash__loop1(
    real* __restrict Q_data_,
    const real* __restrict S_data_,
    const int64_t D,
    const int64_t begin_,
    const int64_t end_) {
  for (int64_t b__n__ = begin_; b__n__ < end_; ++b__n__) {
    real acc1_ = real(0);
    const int64_t at2_ = D * b__n__;
    #pragma omp simd reduction(+ : acc1_)
    for (int64_t d = 0; d < D; ++d) {
      acc1_ += S_data_[at2_ + d] * S_data_[at2_ + d];
    }
    Q_data_[b__n__] = acc1_;
  }
}

// line 8: V[b, n, d] = S[b, n, d] * (sqrt(Q[b, n]) / (1.0 + Q[b, n]))
template <typename real>
static __attribute__((noinline)) void squash__loop2(
    real* __restrict V_data_,
    const real* __restrict S_data_,
    const real* __restrict Q_data_,
    const int64_t D,
    const int64_t begin_,
    const int64_t end_) {
  for (int64_t b__n__ = begin_; b__n__ < end_; ++b__n__) {
    if (0 < D) {
      const int64_t at1_ = D * b__n__;
      const real v2_ = Q_data_[b__n__];
      #pragma GCC ivdep
      for (int64_t d = 0; d < D; ++d) {
        V_data_[at1_ + d] = S_data_[at1_ + d] * (std::sqrt(v2_) / (real(1.0) + v2_));
      }
    }
  }
}

// def squash(S : In[Tensor[B, N, D]]) -> Tensor[B, N, D]:
template <typename real>
static at::Tensor squash__body(const at::Tensor& S_in_) {
  const at::Tensor S = loma::dense(S_in_);
  [[maybe_unused]] const int64_t B = S.size(0);
  [[maybe_unused]] const int64_t N = S.size(1);
  [[maybe_unused]] const int64_t D = S.size(2);
  at::Tensor Q;
  at::Tensor V;
  // line 7: Q[b, n] += S[b, n, d] * S[b, n, d]
  Q = at::empty({B, N}, loma::options<real>());
  loma::parallel(B * N, D, [&](int64_t begin_, int64_t end_) {
    squash__loop1<real>(Q.template mutable_data_ptr<real>(), S.template const_data_ptr<real>(), D, begin_, end_);
  });
  // line 8: V[b, n, d] = S[b, n, d] * (sqrt(Q[b, n]) / (1.0 + Q[b, n]))
  V = at::empty({B, N, D}, loma::options<real>());
  loma::parallel(B * N, 8 * D, [&](int64_t begin_, int64_t end_) {
    squash__loop2<real>(V.template mutable_data_ptr<real>(), S.template const_data_ptr<real>(), Q.template const_data_ptr<real>(), D, begin_, end_);
  });
  return V;
}

template <typename real>
static loma::Tensors squash__run([[maybe_unused]] const loma::Tensors& tensors,
    [[maybe_unused]] const std::vector<int64_t>& ints) {
  auto result_ = squash__body<real>(tensors[0]);
  return {result_};
}

static loma::Tensors squash__kernel(const loma::Tensors& tensors, const std::vector<int64_t>& ints) {
  return loma::is_double(tensors) ? squash__run<double>(tensors, ints) : squash__run<float>(tensors, ints);
}
