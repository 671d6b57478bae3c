// line 5: U[b, i, r, o] += W[i, r, o, k] * X[b, r, k]
template <typename real>
static __attribute__((noinline)) void predictions__loop1(
    real* __restrict U_data_,
    const real* __restrict packed1__data_,
    const real* __restrict X_data_,
    const int64_t I,
    const int64_t R,
    const int64_t O,
    const int64_t K,
    const int64_t begin_,
    const int64_t end_) {
  for (int64_t p_ = begin_; p_ < end_; ++p_) {
    const int64_t b = p_ / (I), i = p_ % (I);
    for (int64_t r = 0; r < R; ++r) {
      for (int64_t first_ = 0; first_ == 0 || first_ < K; first_ += 64) {
        const int64_t last_ = std::min<int64_t>(K, first_ + 64);
        int64_t tile_ = 0;
        for (; tile_ + 16 <= O; tile_ += 16) {
          real sums_[16];
          const int64_t at1_ = ((I * O) * R) * b + (O * R) * i + O * r;
          #pragma omp simd
          for (int64_t lane_ = 0; lane_ < 16; ++lane_) {
            const int64_t o = tile_ + lane_;
            sums_[lane_] = first_ == 0 ? real(0) : U_data_[at1_ + o];
          }
          for (int64_t k = first_; k < last_; ++k) {
            const int64_t at2_ = ((K * O) * R) * i + (K * O) * r + O * k;
            const int64_t at3_ = (K * R) * b + K * r + k;
            const real v4_ = X_data_[at3_];
            #pragma omp simd
            for (int64_t lane_ = 0; lane_ < 16; ++lane_) {
              const int64_t o = tile_ + lane_;
              sums_[lane_] += packed1__data_[at2_ + o] * v4_;
            }
          }
          const int64_t at5_ = ((I * O) * R) * b + (O * R) * i + O * r;
          #pragma omp simd
          for (int64_t lane_ = 0; lane_ < 16; ++lane_) {
            const int64_t o = tile_ + lane_;
            U_data_[at5_ + o] = sums_[lane_];
          }
        }
        for (; tile_ + 8 <= O; tile_ += 8) {
          real sums_[8];
          const int64_t at6_ = ((I * O) * R) * b + (O * R) * i + O * r;
          #pragma omp simd
          for (int64_t lane_ = 0; lane_ < 8; ++lane_) {
            const int64_t o = tile_ + lane_;
            sums_[lane_] = first_ == 0 ? real(0) : U_data_[at6_ + o];
          }
          for (int64_t k = first_; k < last_; ++k) {
            const int64_t at7_ = ((K * O) * R) * i + (K * O) * r + O * k;
            const int64_t at8_ = (K * R) * b + K * r + k;
            const real v9_ = X_data_[at8_];
            #pragma omp simd
            for (int64_t lane_ = 0; lane_ < 8; ++lane_) {
              const int64_t o = tile_ + lane_;
              sums_[lane_] += packed1__data_[at7_ + o] * v9_;
            }
          }
          const int64_t at10_ = ((I * O) * R) * b + (O * R) * i + O * r;
          #pragma omp simd
          for (int64_t lane_ = 0; lane_ < 8; ++lane_) {
            const int64_t o = tile_ + lane_;
            U_data_[at10_ + o] = sums_[lane_];
          }
        }
        for (int64_t o = tile_; o < O; ++o) {
          real sum_ = first_ == 0 ? real(0) : U_data_[((I * O) * R) * b + (O * R) * i + O * r + o];
          for (int64_t k = first_; k < last_; ++k) {
            sum_ += packed1__data_[((K * O) * R) * i + (K * O) * r + O * k + o] * X_data_[(K * R) * b + K * r + k];
          }
          U_data_[((I * O) * R) * b + (O * R) * i + O * r + o] = sum_;
        }
      }
    }
  }
}

// def predictions(W : In[Tensor[I, R, O, K]], X : In[Tensor[B, R, K]]) -> Tensor[B, I, R, O]:
template <typename real>
static at::Tensor predictions__body(const at::Tensor& W_in_, const at::Tensor& X_in_) {
  const at::Tensor W = loma::dense(W_in_);
  const at::Tensor X = loma::dense(X_in_);
  [[maybe_unused]] const int64_t I = W.size(0);
  [[maybe_unused]] const int64_t R = W.size(1);
  [[maybe_unused]] const int64_t O = W.size(2);
  [[maybe_unused]] const int64_t K = W.size(3);
  [[maybe_unused]] const int64_t B = X.size(0);
  at::Tensor U;
  // line 5: U[b, i, r, o] += W[i, r, o, k] * X[b, r, k]
  U = at::empty({B, I, R, O}, loma::options<real>());
  {
    const at::Tensor packed1_ = W.permute({0, 1, 3, 2}).contiguous();
    loma::parallel(B * I, (K * O) * R, [&](int64_t begin_, int64_t end_) {
      predictions__loop1<real>(U.template mutable_data_ptr<real>(), packed1_.template const_data_ptr<real>(), X.template const_data_ptr<real>(), I, R, O, K, begin_, end_);
    });
  }
  return U;
}

template <typename real>
static loma::Tensors predictions__run([[maybe_unused]] const loma::Tensors& tensors,
    [[maybe_unused]] const std::vector<int64_t>& ints) {
  auto result_ = predictions__body<real>(tensors[0], tensors[1]);
  return {result_};
}

static loma::Tensors predictions__kernel(const loma::Tensors& tensors, const std::vector<int64_t>& ints) {
  return loma::is_double(tensors) ? predictions__run<double>(tensors, ints) : predictions__run<float>(tensors, ints);
}
