"""Matrix products that are no usual ones: a summed dimension lies between others (products of a
batch, with the same other operand, where those are worth it), or one is short (loops)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import loma
from loma import pipeline

PROGRAM = """
def between(x : In[Tensor[A, N, D]], w : In[Tensor[E, N]]) -> Tensor[A, E, D]:
    y : Tensor[A, E, D]
    y[a, e, d] += x[a, n, d] * w[e, n]
    return y

def added(x : In[Tensor[A, B, N, D]], w : In[Tensor[E, N]], y : Out[Tensor[A, B, E, D]]):
    y[a, b, e, d] += x[a, b, n, d] * w[e, n]

def rows(x : In[Tensor[N, D]], w : In[Tensor[A, N, E]]) -> Tensor[A, E, D]:
    y : Tensor[A, E, D]
    y[a, e, d] += w[a, n, e] * x[n, d]
    return y
"""


@pytest.fixture(scope="module")
def module() -> Any:
    return loma.compile(PROGRAM)


def numbers(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(len(shape) + sum(shape))
    return torch.randn(shape, dtype=torch.float64, generator=generator, requires_grad=True)


SIZES = [(3, 16, 20, 24), (3, 2, 2, 2), (1, 16, 20, 24), (3, 16, 1, 300), (0, 16, 20, 24),
         (3, 0, 20, 24), (3, 16, 20, 0)]  # fmt: skip


@pytest.mark.parametrize("sizes", SIZES)
def test_a_summed_dimension_between_others(module: Any, sizes: tuple[int, ...]) -> None:
    a, n, e, d = sizes
    _compare(module.between, "and,en->aed", numbers(a, n, d), numbers(e, n))
    _compare(module.rows, "nd,ane->aed", numbers(n, d), numbers(a, n, e))


@pytest.mark.parametrize("sizes", SIZES)
def test_what_is_added_to_a_part(module: Any, sizes: tuple[int, ...]) -> None:
    a, n, e, d = sizes
    with torch.no_grad():
        x, w, y = numbers(a, 2, n, d), numbers(e, n), numbers(a, 2, e, d)
        expected = y + torch.einsum("abnd,en->abed", x, w)
        module.added(x, w, y)
        torch.testing.assert_close(y, expected)
        # and where operands are no dense tensors
        x = numbers(a, 2, d, n).mT
        module.added(x, w, y)
        torch.testing.assert_close(y, expected + torch.einsum("abnd,en->abed", x, w))


def _compare(found: Any, equation: str, *args: Tensor) -> None:
    y, right = found(*args), torch.einsum(equation, *args)
    torch.testing.assert_close(y, right)
    weight = torch.randn(right.shape, dtype=right.dtype)
    wanted = torch.autograd.grad(right, args, weight)
    for mine, other in zip(torch.autograd.grad(y, args, weight), wanted, strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize(
    ("rows", "terms", "columns", "in_loops"),
    [
        ("M", "K", "16", True),
        ("M", "K", "17", False),
        ("M", "8", "N", True),
        ("M", "9", "N", False),
        ("3", "K", "N", False),  # each row of the result is as long as those of the operands
    ],
)
def test_few_columns_or_terms(rows: str, terms: str, columns: str, in_loops: bool) -> None:
    source = (
        f"def f(x : In[Tensor[{rows}, {terms}]], w : In[Tensor[{columns}, {terms}]]) "
        f"-> Tensor[{rows}, {columns}]:\n    return x @ transpose(w, 0, 1)\n"
    )
    assert ("product(" not in pipeline.stage_text(source, "schedule", "f")) is in_loops
    if in_loops:
        known = {"M": 5, "K": 7, "N": 21}
        m, k, n = (known.get(size) or int(size) for size in (rows, terms, columns))
        x, w = numbers(m, k), numbers(n, k)
        _compare(loma.compile(source).f, "mk,nk->mn", x, w)
