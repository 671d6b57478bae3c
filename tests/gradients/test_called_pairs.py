"""A function that another one calls, differentiated itself: what runs, and values."""

from __future__ import annotations

import torch
from torch.profiler import ProfilerActivity, profile

import loma

PROGRAM = """
def inner(x : In[Tensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = exp(x[i] * x[i])
    return y

def outer(x : In[Tensor[N]]) -> Tensor[N]:
    return inner(x) * inner(x)
"""


def test_it_runs_its_own_pair() -> None:
    module = loma.compile(PROGRAM)
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    for _ in range(2):
        with profile(activities=[ProfilerActivity.CPU]) as found:
            y = module.inner(x)
        assert "loma::inner__forward" in {event.key for event in found.key_averages()}
        with profile(activities=[ProfilerActivity.CPU]) as found:
            (gradient,) = torch.autograd.grad(y.sum(), x)
        ran = {event.key for event in found.key_averages()}
        assert "loma::inner__backward" in ran
        assert "loma::inner__forward" not in ran
        torch.testing.assert_close(gradient, 2 * x * torch.exp(x * x))
    assert torch.autograd.gradgradcheck(module.inner, (x,))
    assert torch.autograd.gradcheck(module.outer, (x,))
    with torch.no_grad():
        assert not module.inner(x).requires_grad
