// Additions to elements that data name, in groups of those to one element.
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/sort.h>

#include <tuple>

#include "gpu.h"

namespace loma::gpu {

void group(at::Tensor& order, at::Tensor& lengths, const at::Tensor& cells) {
  at::Tensor sorted;
  std::tie(sorted, order) = at::sort(cells.view(-1), /*stable=*/true, /*dim=*/0, /*descending=*/false);
  const at::Tensor begin = at::searchsorted(sorted, sorted, /*out_int32=*/false, /*right=*/false);
  const at::Tensor end = at::searchsorted(sorted, sorted, /*out_int32=*/false, /*right=*/true);
  const at::Tensor first = begin.eq(at::arange(sorted.numel(), sorted.options()));
  lengths = end.sub(begin).mul(first);
}

}  // namespace loma::gpu
