"""What a forward part keeps for the backward part of a call in bfloat16 or float16: in float32."""

from __future__ import annotations

import pytest
import torch

import loma

PROGRAM = """
def weighted(x : In[Tensor[N, M]], v : In[Tensor[M]]) -> Tensor[N]:
    m : Tensor[N]
    e : Tensor[N, M]
    y : Tensor[N]
    m[i] = max(x[i, j] for j in M)
    e[i, j] = exp(x[i, j] - m[i])
    y[i] = sum(e[i, j] * v[j] for j in M) / sum(e[i, j] for j in M)
    return y
"""


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_maxima_are_not_rounded(dtype: torch.dtype) -> None:
    """Next to 100 there are steps of 1/2 in bfloat16: weights would be wrong by a quarter."""
    module = loma.compile(PROGRAM)
    x = (100 + torch.randn(5, 40)).to(dtype).requires_grad_()
    v = torch.randn(40).to(dtype).requires_grad_()
    wide_x, wide_v = (t.detach().double().requires_grad_() for t in (x, v))
    (module.weighted(wide_x, wide_v) * 3).sum().backward()
    scaled = torch.compile(module.weighted, backend="aot_eager", fullgraph=True)
    for call in (module.weighted, scaled):
        x.grad = v.grad = None
        y = call(x, v)
        assert y.dtype == dtype
        (y * 3).sum().backward()
        for own, wide in ((x, wide_x), (v, wide_v)):
            assert own.grad is not None
            assert wide.grad is not None
            assert own.grad.dtype == dtype
            error = (own.grad.double() - wide.grad).norm() / wide.grad.norm()
            assert error < 2e-2


@pytest.mark.full
def test_derivative_of_the_derivative() -> None:
    module = loma.compile(PROGRAM)
    x = torch.randn(3, 8).bfloat16().requires_grad_()
    v = torch.randn(8).bfloat16()
    (first,) = torch.autograd.grad(module.weighted(x, v).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad((first**2).sum(), x)
    wide = x.detach().double().requires_grad_()
    (first,) = torch.autograd.grad(module.weighted(wide, v.double()).sum(), wide, create_graph=True)
    (expected,) = torch.autograd.grad((first**2).sum(), wide)
    assert second.dtype == torch.bfloat16
    assert (second.double() - expected).norm() / expected.norm() < 5e-2
