"""Additions to elements that data name: on a GPU those to one element are added up by one thread,
in their order, if there are many."""

from __future__ import annotations

from typing import Any

import oracle
import pytest
import torch
from torch import Tensor

import loma
from loma import pipeline

PROGRAM = """
def rows(p : In[IntTensor[B, L]], x : In[Tensor[B, D]], w : In[Tensor[L]], E : In[int]
         ) -> Tensor[E, D]:
    y : Tensor[E, D]
    y[p[b, l], d] += x[b, d] * w[l]
    return y

def places(p : In[IntTensor[N]], q : In[IntTensor[N]], x : In[Tensor[N, K]], y : Out[Tensor[E, F]]):
    y[p[n], q[n]] += x[n, k] * zero_pad(x[n - 1, k])

def products(p : In[IntTensor[M]], x : In[Tensor[M, K]], g : In[Tensor[M, N]], E : In[int]
             ) -> Tensor[E, K, N]:
    y : Tensor[E, K, N]
    y[p[m], k, n] += x[m, k] * g[m, n]
    return y

def counted(p : In[IntTensor[N]], E : In[int]) -> IntTensor[E]:
    y : IntTensor[E]
    y[p[n]] += n + 1
    return y
"""


@pytest.fixture(scope="module")
def module() -> Any:
    return oracle.compiled(PROGRAM)


def numbers(*shape: int) -> Tensor:
    seed = torch.Generator().manual_seed(11)
    return torch.randn(shape, dtype=torch.float64, generator=seed)


def named(most: int, *shape: int) -> Tensor:
    return torch.randint(most, shape, generator=torch.Generator().manual_seed(13))


@pytest.mark.parametrize(
    "sizes",
    [(20, 7, 5, 9), (20, 7, 5, 1), (2, 3, 4, 5), (30, 3, 0, 4), (0, 3, 4, 5), (70, 1, 1, 200)],
)
def test_rows(module: Any, sizes: tuple[int, ...]) -> None:
    many, length, wide, rows = sizes
    p = named(rows, many, length)
    x, w = numbers(many, wide).requires_grad_(), numbers(length).requires_grad_()
    y = module.rows(p, x, w, rows)
    values = x[:, None] * w[:, None]
    expected = torch.zeros(rows, wide, dtype=x.dtype)
    expected = expected.index_add(0, p.flatten(), values.flatten(0, 1))
    torch.testing.assert_close(y, expected)
    assert torch.equal(y, module.rows(p, x, w, rows))
    weight = numbers(rows, wide)
    found = torch.autograd.grad(y, (x, w), weight)
    for mine, other in zip(found, torch.autograd.grad(expected, (x, w), weight), strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("many", [1, 40, 150])
def test_elements_that_two_numbers_name(module: Any, many: int) -> None:
    p, q, x, y = named(4, many), named(3, many).flip(0), numbers(many, 3), numbers(4, 3)
    expected = y.clone()
    before = torch.cat([torch.zeros_like(x[:1]), x[:-1]])
    expected.index_put_((p, q), (x * before).sum(1), accumulate=True)
    module.places(p, q, x, y)
    torch.testing.assert_close(y, expected)


@pytest.mark.parametrize("many", [3, 90])
def test_products_of_which_a_thread_may_have_several(module: Any, many: int) -> None:
    p, x, g = named(5, many), numbers(many, 4), numbers(many, 6)
    expected = numbers(5, 4, 6).zero_().index_add(0, p, x[:, :, None] * g[:, None])
    torch.testing.assert_close(module.products(p, x, g, 5), expected)


def test_ints(module: Any) -> None:
    p = named(6, 100)
    expected = torch.zeros(6, dtype=torch.int64).index_add(0, p, torch.arange(1, 101))
    assert torch.equal(module.counted(p, 6), expected)


@pytest.mark.parametrize("wrong", [-1, 6])
def test_what_is_outside_is_told(module: Any, wrong: int) -> None:
    p = named(6, 100)
    p[50] = wrong

    def call() -> None:
        module.counted(p, 6)
        loma.check_device()

    with pytest.raises(ValueError, match=r"p\[n\]"):
        call()


def test_the_order_is_that_of_the_statement() -> None:
    shown = pipeline.stage_text(PROGRAM, "schedule", "places", device="cuda")
    assert "if N additions are many:" in shown
    assert "sort" in shown
