// line 4: Z[b, h, w] += zero_pad(X[b, h + p - 1, w + q - 1]) * K[p, q, h, w]
template <typename real>
static __attribute__((noinline)) void blur__loop1(
    real* __restrict Z_data_,
    const real* __restrict X_data_,
    const real* __restrict K_data_,
    const int64_t H,
    const int64_t W,
    const int64_t begin_,
    const int64_t end_) {
  for (int64_t p_ = begin_; p_ < end_; ++p_) {
    const int64_t b = p_ / (H), h = p_ % (H);
    const int64_t at1_ = (H * W) * b + W * h;
    for (int64_t w = 0; w < W; ++w) {
      Z_data_[at1_ + w] = real(0);
    }
    for (int64_t p = 0; p < 3; ++p) {
      for (int64_t q = 0; q < 3; ++q) {
        const int64_t at2_ = (H * W) * b + W * h + W * p + q + (-W) - 1;
        const int64_t at3_ = ((3 * H) * W) * p + (H * W) * q + W * h;
        const int64_t at4_ = (H * W) * b + W * h;
        int64_t begin5_ = 0, end6_ = W;
        loma::narrow(begin5_, end6_, 0, h + p - 1, H);
        loma::narrow(begin5_, end6_, 1, q - 1, W);
        #pragma GCC ivdep
        for (int64_t w = begin5_; w < end6_; ++w) {
          Z_data_[at4_ + w] += X_data_[at2_ + w] * K_data_[at3_ + w];
        }
        for (int64_t w = begin5_ == 0 ? end6_ : 0; w < W; w = w + 1 == begin5_ ? end6_ : w + 1) {
          Z_data_[at4_ + w] += (uint64_t((h + p) - 1) < uint64_t(H) && uint64_t((w + q) - 1) < uint64_t(W) ? X_data_[at2_ + w] : real(0)) * K_data_[at3_ + w];
        }
      }
    }
  }
}

// def blur(X : In[Tensor[B, H, W]], K : In[Tensor[3, 3, H, W]]) -> Tensor[B, H, W]:
template <typename real>
static at::Tensor blur__body(const at::Tensor& X_in_, const at::Tensor& K_in_) {
  const at::Tensor X = loma::dense(X_in_);
  const at::Tensor K = loma::dense(K_in_);
  [[maybe_unused]] const int64_t B = X.size(0);
  [[maybe_unused]] const int64_t H = X.size(1);
  [[maybe_unused]] const int64_t W = X.size(2);
  at::Tensor Z;
  // line 4: Z[b, h, w] += zero_pad(X[b, h + p - 1, w + q - 1]) * K[p, q, h, w]
  Z = at::empty({B, H, W}, loma::options<real>());
  loma::parallel(B * H, 9 * W, [&](int64_t begin_, int64_t end_) {
    blur__loop1<real>(Z.template mutable_data_ptr<real>(), X.template const_data_ptr<real>(), K.template const_data_ptr<real>(), H, W, begin_, end_);
  });
  return Z;
}

template <typename real>
static loma::Tensors blur__run([[maybe_unused]] const loma::Tensors& tensors,
    [[maybe_unused]] const std::vector<int64_t>& ints) {
  auto result_ = blur__body<real>(tensors[0], tensors[1]);
  return {result_};
}

static loma::Tensors blur__kernel(const loma::Tensors& tensors, const std::vector<int64_t>& ints) {
  return loma::is_double(tensors) ? blur__run<double>(tensors, ints) : blur__run<float>(tensors, ints);
}
