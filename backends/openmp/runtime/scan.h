// The recurrence of the operator `scan`.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels.h"
#include "parallel.h"
#include "sanitize.h"

namespace loma {

// y[t] = a[t] * y[t - 1] + b[t] along ``dim``, y[0] = b[0].
template <typename real>
at::Tensor scan(const at::Tensor& a, const at::Tensor& b, int64_t dim, const char* place) {
  if (a.sizes() != b.sizes()) shape_error(place, a.sizes(), b.sizes());
  at::Tensor y = b.clone(at::MemoryFormat::Contiguous);
  if (y.is_meta() || y.numel() == 0) return y;
  const at::Tensor factors = dense(a);
  if (!y.is_cpu()) return scan_on_device(factors, y, dim, sizeof(real));
  dim = dim < 0 ? dim + y.dim() : dim;
  const int64_t length = y.size(dim), inner = y.stride(dim), columns = y.numel() / length;
  const real* factor = factors.const_data_ptr<real>();
  real* value = y.mutable_data_ptr<real>();
  parallel_for(0, columns, kGrain / (4 * length), [=](int64_t begin, int64_t end) {
    for (int64_t column = begin; column < end;) {  // those side by side at once
      const int64_t row = column / inner, first = column % inner;
      const int64_t count = std::min(inner - first, end - column);
      for (int64_t t = 1; t < length; ++t) {
        const int64_t here = (row * length + t) * inner + first;
        for (int64_t i = here; i < here + count; ++i) value[i] += factor[i] * value[i - inner];
      }
      column += count;
    }
  });
  return y;
}

}  // namespace loma
