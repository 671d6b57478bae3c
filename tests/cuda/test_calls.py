"""Calls through the whole runtime with kernels of the device's headers, on the shim."""

from __future__ import annotations

from collections.abc import Iterator

import gpu_stand_in
import pytest
import shim
import torch

import loma

pytestmark = pytest.mark.cpu  # the stand-in takes the place of a GPU

PROGRAM = """
def weighted(x : In[Tensor[N, D]], p : In[IntTensor[N]], a : In[float]) -> Tensor[N]:
    y : Tensor[N]
    y[n] += a * x[p[n], d]
    return y
"""

WEIGHTED = """
loma::gpu::Kernel kernel("weighted__kernel1", R"loma(
LOMA_KERNEL weighted__kernel1(
    real* __restrict y_data_, const real* __restrict x_data_, const int64_t* __restrict p_data_,
    const loma::Number<real> a_data_, LOMA_NUMBER_GIVEN(N), LOMA_NUMBER_GIVEN(D),
    const loma::Grid grid_) {
  LOMA_NUMBER(0, N); LOMA_NUMBER(1, D);
  loma::Outside outside_(grid_);
  loma::statement(grid_, [&](const int64_t n, const auto& part_) {
    const int64_t row = outside_.clamp(p_data_[n], N, 1);
    real sum = 0;
    for (int64_t d = part_.first(0); d < part_.last(D); d += part_.step()) {
      sum += a_data_[0] * x_data_[row * D + d];
    }
    part_.template all_reduce<loma::Sum>(sum);
    if (part_.leads()) y_data_[n] = sum;
  });
  outside_.check(1, "weighted: line 4: ", "p[n]", "x", 0, N);
}
)loma");

template <typename real>
void run(const void* given_, const int64_t*, bool, void* made_) {
  const auto* const tensors = static_cast<const loma::Tensor*>(given_);
  const loma::Tensor x = loma::dense(tensors[0]), p = loma::dense(tensors[1]);
  const int64_t N = x.size(0), D = x.size(1);
  const loma::Tensor y = loma::empty({N}, loma::options<real>());
  loma::gpu::Launch launch_(kernel, sizeof(real));
  launch_.pointer(y.template mutable_data_ptr<real>());
  launch_.pointer(x.template const_data_ptr<real>());
  launch_.pointer(p.template const_data_ptr<int64_t>());
  launch_.element<real>(tensors[2]);
  launch_.number(N);
  launch_.number(D);
  launch_.statement(N, D, false, 1);
  static_cast<loma::Tensor*>(made_)[0] = y;
}
"""


@pytest.fixture(scope="module")
def module() -> Iterator[loma.LomaModule]:
    with shim.compiled(PROGRAM) as found:
        gpu_stand_in.part(found, "weighted", WEIGHTED, "light_prelude.h")
        yield found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("sizes", [(3, 5), (7, 100), (2, 5000)])
def test_sums(module: loma.LomaModule, dtype: torch.dtype, sizes: tuple[int, int]) -> None:
    x = torch.randn(sizes).to(dtype)
    p = torch.randint(sizes[0], (sizes[0],))
    for a in (2.0, torch.tensor(2.0)):
        found = module.weighted(x, p, a)
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), 2 * x.double()[p].sum(1), rtol=1e-2, atol=1e-2)
        assert torch.equal(found, module.weighted(x, p, a))


def test_checks(module: loma.LomaModule) -> None:
    module.weighted(torch.ones(3, 5), torch.tensor([0, 7, 1]), 1.0)
    with pytest.raises(ValueError, match=r"subscript 'p\[n\]' of 'x' is 7, outside dimension 0"):
        loma.check_device()
