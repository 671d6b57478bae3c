"""Sums over ranges that another index tells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


import pytest
import torch
from torch import Tensor

import loma
from loma import specialise

PROGRAM = """
def product(e : In[Tensor[B, T, T]], v : In[Tensor[B, T, D]]) -> Tensor[B, T, D]:
    y : Tensor[B, T, D]
    y[b, t, d] = sum(e[b, t, j] * v[b, j, d] for j in range(t + 1))
    return y

def across(x : In[Tensor[T, B]]) -> Tensor[T, B]:
    y : Tensor[T, B]
    y[t, b] = sum(x[t - j, b] * exp(x[j, b]) for j in range(t + 1))
    return y

def falling(x : In[Tensor[T]]) -> Tensor[T, T]:
    y : Tensor[T, T]
    y[s, t] = sum(sin(x[j] * x[s]) for j in range(T - t))
    return y

def beyond(x : In[Tensor[T, T]], n : In[int]) -> Tensor[T]:
    y : Tensor[T]
    y[t] = sum(x[t, j + n] for j in range(t))
    return y

def masked(x : In[Tensor[B, T]]) -> Tensor[B, T]:
    y : Tensor[B, T]
    y[b, t] = sum((1.0 if j <= t else 0.0) * sin(x[b, t]) * x[b, j] for j in T)
    return y

def guarded(x : In[Tensor[B, T]]) -> Tensor[B, T, T]:
    y : Tensor[B, T, T]
    y[b, t, j] = exp(x[b, j] - max(x[b, i] for i in range(t + 1))) if j <= t else 0.0
    return y
"""


def _rows(x: Tensor, row: Callable[[int], Tensor], dim: int) -> Tensor:
    return torch.stack([row(t) for t in range(len(x))], dim)


CASES: dict[str, tuple[Callable[..., Tensor], list[tuple[tuple[int, ...], ...]]]] = {
    "product": (
        lambda e, v: e.tril() @ v,
        [((2, 70, 70), (2, 70, 33)), ((1, 3, 3), (1, 3, 0)), ((0, 5, 5), (0, 5, 2))],
    ),
    "across": (
        lambda x: _rows(x, lambda t: (x[: t + 1].flip(0) * x[: t + 1].exp()).sum(0), 0),
        [((9, 20),), ((1, 1),)],
    ),
    "falling": (
        lambda x: _rows(x, lambda t: torch.sin(x[None, : len(x) - t] * x[:, None]).sum(1), 1),
        [((17,),), ((1,),)],
    ),
    "beyond": (lambda x: _rows(x, lambda t: x[t, :t].sum(), 0), [((17, 17),), ((1, 1),)]),
    "masked": (lambda x: x.cumsum(1) * x.sin(), [((3, 40),), ((2, 0),)]),
    "guarded": (
        lambda x: (x[:, None] - x.cummax(1).values[:, :, None]).exp().tril(),
        [((3, 19),), ((2, 1),)],
    ),
}


@pytest.fixture(scope="module")
def module() -> Any:
    torch.set_default_dtype(torch.float64)
    try:
        return loma.compile(PROGRAM)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("name", CASES)
def test_against_pytorch(module: Any, name: str) -> None:
    reference, shapes = CASES[name]
    torch.manual_seed(0)
    for shape in shapes:
        args = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shape]
        value = getattr(module, name)(*args, *([0] if name == "beyond" else []))
        expected = reference(*args)
        torch.testing.assert_close(value, expected)
        weight = torch.randn_like(value)
        found = torch.autograd.grad(value, args, weight)
        torch.testing.assert_close(found, torch.autograd.grad(expected, args, weight))


def test_what_leaves_the_tensor_is_told(module: Any) -> None:
    x = torch.zeros(4, 4, dtype=torch.float64)
    module.beyond(x, 1)
    with pytest.raises(ValueError, match="outside dimension 1 of size 4"):
        module.beyond(x, 2)


def test_zeros_of_a_mask_stand_for_nothing(module: Any) -> None:
    x = torch.tensor([[1.0, 2.0, float("nan")]], dtype=torch.float64)
    assert module.masked(x).isnan().tolist() == [[False, False, True]]


def test_known_sizes() -> None:
    before = specialise.use(specialise.Thresholds(calls=1, total_ms=0.0))
    try:
        function = loma.compile(PROGRAM.split("\n\n")[0] + "\n").product
        e, v = torch.randn(2, 70, 70), torch.randn(2, 70, 33)
        for _ in range(2):
            torch.testing.assert_close(function(e, v), e.tril() @ v, rtol=1e-4, atol=1e-4)
            specialise.wait()
        torch.testing.assert_close(function(e, v), e.tril() @ v, rtol=1e-4, atol=1e-4)
    finally:
        specialise.use(before)
