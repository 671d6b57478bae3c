// Additions to elements that data name, in groups of those to one element.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sort.h>

#include <tuple>

#include "gpu.h"

namespace loma::gpu {

// How many sorted cells from a place on are the same, 0 where the one before it is, too.
static Kernel group_lengths("group_lengths", R"loma(
LOMA_KERNEL group_lengths(
    const int64_t* __restrict cells_,
    int64_t* __restrict lengths_,
    LOMA_NUMBER_GIVEN(count_),
    const loma::Grid grid_) {
  LOMA_NUMBER(0, count_);
  loma::statement(grid_, [&](const int64_t p_, const auto&) {
    const int64_t cell_ = cells_[p_];
    int64_t end_ = p_;
    if (p_ == 0 || cells_[p_ - 1] != cell_) {
      int64_t rest_ = count_;
      while (end_ < rest_) {
        const int64_t middle_ = (end_ + rest_) / 2;
        if (cells_[middle_] == cell_) {
          end_ = middle_ + 1;
        } else {
          rest_ = middle_;
        }
      }
    }
    lengths_[p_] = end_ - p_;
  });
}
)loma");

void group(at::Tensor& order, at::Tensor& lengths, const at::Tensor& cells) {
  at::Tensor sorted;
  std::tie(sorted, order) = at::sort(cells.view(-1), /*stable=*/true, /*dim=*/0, /*descending=*/false);
  lengths = at::empty_like(sorted);
  Launch launch(group_lengths, sizeof(float));
  launch.pointer(sorted.const_data_ptr());
  launch.pointer(lengths.mutable_data_ptr());
  launch.number(sorted.numel());
  launch.statement(sorted.numel(), 1, false, 0);
}

}  // namespace loma::gpu
