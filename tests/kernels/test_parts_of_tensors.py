"""A tensor whose parts are written one after the other: its memory has no zeros before."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import loma

GATES = """
def gates(x : In[Tensor[N, 2 * D]]) -> Tensor[N, D]:
    g : Tensor[N, D]
    y : Tensor[N, D]
    g[n, d] = sigmoid(x[n, D + d])
    y[n, d] = x[n, d + 0] * g[n, d]
    return y

def picked(x : In[Tensor[N, D]], t : In[IntTensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    z : Tensor[N]
    z[n] = sum(exp(x[n, d]) for d in D)
    y[n] = log(z[n]) - x[n, t[n]]
    return y
"""


@pytest.fixture(scope="module")
def module() -> Any:
    return loma.compile(GATES)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("rows", "columns"), [(0, 4), (3, 0), (1, 2), (3, 10), (2, 600)])
def test_halves(module: Any, rows: int, columns: int, dtype: torch.dtype) -> None:
    x = torch.randn(rows, columns, dtype=dtype, requires_grad=True)
    y = module.gates(x)
    expected = torch.nn.functional.glu(x, 1)
    torch.testing.assert_close(y, expected)
    g = torch.randn_like(y)
    (found,) = torch.autograd.grad(y, x, g)
    (right,) = torch.autograd.grad(expected, x, g)
    torch.testing.assert_close(found, right)


@pytest.mark.parametrize(("rows", "columns"), [(0, 4), (1, 1), (3, 10), (300, 40)])
def test_single_elements_after_all(module: Any, rows: int, columns: int) -> None:
    x = torch.randn(rows, columns, requires_grad=True)
    t = torch.randint(columns, (rows,))
    y = module.picked(x, t)
    expected = torch.nn.functional.cross_entropy(x, t, reduction="none")
    torch.testing.assert_close(y, expected)
    g = torch.randn_like(y)
    (found,) = torch.autograd.grad(y, x, g)
    (right,) = torch.autograd.grad(expected, x, g)
    torch.testing.assert_close(found, right)
