// The recurrence of the operator `scan` on a GPU: a thread goes along each row of the dimension.
#include "prelude.h"

#include "gpu.h"

namespace loma {

static gpu::Kernel recurrence("recurrence", R"loma(
LOMA_KERNEL recurrence(
    const real* __restrict a_,
    real* __restrict y_,
    LOMA_NUMBER_GIVEN(length_),
    LOMA_NUMBER_GIVEN(inner_),
    const loma::Grid grid_) {
  LOMA_NUMBER(0, length_);
  LOMA_NUMBER(1, inner_);
  loma::statement(grid_, [&](const int64_t p_, const auto&) {
    const int64_t first_ = p_ / inner_ * length_ * inner_ + p_ % inner_;
    real last_ = y_[first_];
    for (int64_t t_ = 1; t_ < length_; ++t_) {
      const int64_t at_ = first_ + t_ * inner_;
      last_ = y_[at_] + a_[at_] * last_;
      y_[at_] = last_;
    }
  });
}
)loma");

at::Tensor scan_on_device(const at::Tensor& a, const at::Tensor& y, int64_t dim, size_t real_bytes) {
  dim = dim < 0 ? dim + y.dim() : dim;
  const int64_t length = y.size(dim);
  gpu::Launch launch(recurrence, real_bytes);
  launch.pointer(a.const_data_ptr());
  launch.pointer(y.mutable_data_ptr());
  launch.number(length);
  launch.number(y.stride(dim));
  launch.statement(y.numel() / length, 1, false, 0);
  return y;
}

}  // namespace loma
