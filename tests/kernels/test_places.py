"""Loops whose places in memory are changed: squares transposed in registers, indices that are
divided, short sums written out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import loma
from loma import pipeline

TEXT = """
def transposed(x : In[Tensor[N, M]], z : In[Tensor[M, N]]) -> Tensor[M, N]:
    y : Tensor[M, N]
    y[j, i] = (x[i, j] if x[i, j] > 0.0 else 2.0 * x[i, j]) + z[j, i] * x[i, j]
    return y

def channels_last(x : In[Tensor[B, C, H, W]]) -> Tensor[B, H, W, C]:
    y : Tensor[B, H, W, C]
    y[b, h, w, c] = x[b, c, h, w]
    return y

def numbers(x : In[IntTensor[N, M]]) -> IntTensor[M, N]:
    y : IntTensor[M, N]
    y[j, i] = x[i, j] + j
    return y

def windows(x : In[Tensor[B, N]]) -> Tensor[B, (N + 3) // 4]:
    y : Tensor[B, (N + 3) // 4]
    y[b, i // 4] += x[b, i] ** 2
    return y

def whole_windows(x : In[Tensor[B, N]]) -> Tensor[B, N // 4]:
    y : Tensor[B, N // 4]
    y[b, i // 4] += x[b, i]
    return y

def folded(x : In[Tensor[N]]) -> tuple[Tensor[3], Tensor[(N + 5) // 6, 2, 3]]:
    y : Tensor[3]
    y[i % 3] += x[i] * (i // 3)
    z : Tensor[(N + 5) // 6, 2, 3]
    z[i // 6, i // 3 % 2, i % 3] = x[i] * x[i]
    return y, z

def repeated(x : In[Tensor[N]], n : In[int]) -> Tensor[n]:
    y : Tensor[n]
    y[i] = x[i // 5] if i < 5 * N else 0.0 - i
    return y

def short(x : In[Tensor[N, 3]], w : In[Tensor[3]]) -> tuple[Tensor[N], Tensor[N]]:
    y : Tensor[N]
    y[i] = sum(x[i, r] * w[r] for r in range(3))
    z : Tensor[N]
    z[i] = 1.0
    z[i] += x[i, 2 - r] * x[i, r]
    return y, z

def joined(x : In[Tensor[N, 3]]) -> tuple[Tensor[N], Tensor[N], Tensor[N]]:
    p : Tensor[N]
    largest : Tensor[N]
    smallest : Tensor[N]
    p[i] = prod(x[i, r] for r in range(3))
    largest[i] = max(x[i, r] for r in range(3))
    smallest[i] = min(x[i, r] for r in range(3))
    return p, largest, smallest

def near(x : In[Tensor[K]], at : In[IntTensor[N]]) -> tuple[Tensor[N], Tensor[N]]:
    p : Tensor[N]
    largest : Tensor[N]
    p[i] = prod(x[at[i] + r] for r in range(3))
    largest[i] = max(x[at[i] + r] for r in range(3))
    return p, largest

def limited(x : In[Tensor[N]], low : In[Tensor[N]], high : In[Tensor[N]]
            ) -> tuple[Tensor[N], Tensor[N]]:
    y : Tensor[N]
    z : Tensor[N]
    y[i] = min(max(x[i], low[i]), high[i])
    z[i] = clamp(x[i], low[i], high[i])
    return y, z
"""

SIDES = (0, 1, 7, 16, 33)


@pytest.fixture(scope="module")
def program() -> Any:
    return loma.compile(TEXT)


def _transposed(x: Tensor, z: Tensor) -> Tensor:
    return torch.where(x > 0, x, 2 * x).t() + z * x.t()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_squares(program: Any, dtype: torch.dtype) -> None:
    for rows in SIDES:
        for columns in SIDES:
            x, z = torch.randn(rows, columns).to(dtype), torch.randn(columns, rows).to(dtype)
            expected = _transposed(x.double(), z.double()).to(dtype)
            torch.testing.assert_close(program.transposed(x, z), expected)
        x = torch.randn(2, rows, 3, 7).to(dtype)
        assert torch.equal(program.channels_last(x), x.permute(0, 2, 3, 1))
        x = torch.randint(99, (rows, 20))
        assert torch.equal(program.numbers(x), x.t() + torch.arange(20)[:, None])


@pytest.mark.full
def test_gradients_through_squares(program: Any) -> None:
    x, z = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((18, 33), (33, 18)))
    assert torch.autograd.gradcheck(program.transposed, (x, z), fast_mode=True)
    assert torch.autograd.gradgradcheck(program.transposed, (x, z), fast_mode=True)


def _windows(x: Tensor) -> Tensor:
    whole = torch.cat([x**2, x.new_zeros(x.shape[0], -x.shape[1] % 4)], 1)
    return whole.reshape(x.shape[0], -1, 4).sum(2)


@pytest.mark.parametrize("count", [1, 3, 4, 12, 23])
def test_divided_indices(program: Any, count: int) -> None:
    x = torch.randn(3, count, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(program.windows(x), _windows(x))
    assert torch.autograd.gradcheck(program.windows, (x,), fast_mode=True)
    y, z = program.folded(x[0])
    places = torch.arange(count)
    expected = torch.zeros(3, dtype=torch.float64).index_add(0, places % 3, x[0] * (places // 3))
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(z.flatten()[:count], x[0] ** 2)
    assert not z.flatten()[count:].any()
    assert torch.autograd.gradcheck(lambda x: program.folded(x), (x[0],), fast_mode=True)
    n = 5 * count + 3
    places = torch.arange(n, dtype=torch.float64)
    repeated = torch.cat([x[0].repeat_interleave(5), -places[5 * count :]])
    torch.testing.assert_close(program.repeated(x[0], n), repeated)


def test_no_elements(program: Any) -> None:
    assert program.windows(torch.zeros(3, 0)).shape == (3, 0)
    assert program.windows(torch.zeros(0, 5)).shape == (0, 2)


def test_what_is_left_has_its_message(program: Any) -> None:
    x = torch.ones(2, 8)
    assert torch.equal(program.whole_windows(x), 4 * torch.ones(2, 2))
    with pytest.raises(ValueError, match="'i // 4' of 'y'"):
        program.whole_windows(torch.ones(2, 9))


def test_short_sums(program: Any) -> None:
    x = torch.randn(21, 3, dtype=torch.float64, requires_grad=True)
    w = torch.randn(3, dtype=torch.float64, requires_grad=True)
    y, z = program.short(x, w)
    torch.testing.assert_close(y, x @ w)
    torch.testing.assert_close(z, 1.0 + (x * x.flip(1)).sum(1))
    assert torch.autograd.gradcheck(program.short, (x, w), fast_mode=True)


def test_short_products_and_extremes_written_out(program: Any) -> None:
    for count in (0, 1, 40):
        x = torch.randn(count, 3, dtype=torch.float64, requires_grad=True)
        p, largest, smallest = program.joined(x)
        torch.testing.assert_close(p, x.prod(1))
        assert torch.equal(largest, x.amax(1))
        assert torch.equal(smallest, x.amin(1))
    assert torch.autograd.gradcheck(program.joined, (x,), fast_mode=True)
    x, at = torch.randn(50), torch.randint(48, (40,))
    p, largest = program.near(x, at)
    torch.testing.assert_close(p, x.unfold(0, 3, 1)[at].prod(1))
    assert torch.equal(largest, x.unfold(0, 3, 1)[at].amax(1))
    tree = pipeline.stage_text(TEXT, "schedule", "joined")
    assert "vector for" in tree
    assert "lanes" not in tree


def test_extremes_beside_nan_and_zeros(program: Any) -> None:
    special = torch.tensor([0.0, -0.0, 1.0, -1.0, torch.inf, -torch.inf, torch.nan])
    x = torch.cartesian_prod(special, special, special)
    _, largest, smallest = program.joined(x)
    torch.testing.assert_close(largest, x.amax(1), equal_nan=True, rtol=0, atol=0)
    torch.testing.assert_close(smallest, x.amin(1), equal_nan=True, rtol=0, atol=0)
    zeros = x[(x == 0).all(1)]  # the first of equals
    _, largest, smallest = program.joined(zeros)
    assert torch.equal(largest.signbit(), zeros[:, 0].signbit())
    assert torch.equal(smallest.signbit(), zeros[:, 0].signbit())
    for y in program.limited(*x.t().contiguous()):
        expected = torch.minimum(torch.maximum(x[:, 0], x[:, 1]), x[:, 2])
        torch.testing.assert_close(y, expected, equal_nan=True, rtol=0, atol=0)
