"""Iterations that change elements of their own: which they are, and their values, on the shim."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import shim
import torch
from torch import Tensor

from loma import pipeline

pytestmark = pytest.mark.cpu  # the shim takes the place of a GPU

PROGRAM = """
def steps(x : Out[Tensor[N]], y : Out[Tensor[N]], z : In[Tensor[N]], a : In[float]):
    h : Tensor[N]
    h[n] = a * z[n] + (x[n] if a > 0.0 else 1.0)
    y[n] += h[n] * h[n]
    x[n] = h[n] / (1.0 + y[n] * y[n])
    y[n] *= 2.0

def table(x : Out[Tensor[N, M]], y : In[Tensor[N, M]]):
    x[n, m] = x[n, m] * y[n, m] + 1.0

def turned(x : Out[Tensor[N]]):
    x[n] = x[n] + x[N - 1 - n]

def chosen(x : Out[Tensor[N]], p : In[IntTensor[N]], y : In[Tensor[K]]):
    x[n] = x[n] * y[p[n]] if p[n] < K else x[n]

def largest(x : Out[Tensor[N]], y : In[Tensor[N]]):
    x[n] = max(x[n], y[n])

def plain(x : Out[Tensor[N]], y : In[Tensor[N]]):
    x[n] = y[n] * y[n]
"""
SIZES = (0, 1, 2, 31, 255, 256, 257, 1023, 5000)


@pytest.fixture(scope="module")
def module() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch, shim.compiled(PROGRAM) as found:
        patch.setenv("LOMA_CHECK", "sync")
        yield found


def test_which_they_are() -> None:
    """``turned`` reads other elements of what it writes, subscripts of ``chosen`` are checked, and
    ``plain`` changes nothing."""
    names = ("steps", "table", "turned", "chosen", "largest", "plain")
    stage = pipeline.optimised(pipeline.adjoint(pipeline.parsed(PROGRAM)), names)
    texts = [pipeline.device_part(stage, name, "n").files[0][1] for name in names]
    assert ["owned(" in text for text in texts] == [True, True, False, False, True, False]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("a", [0.5, -0.5])
def test_steps(module: Any, size: int, a: float) -> None:
    x, y, z = torch.randn(3, size, dtype=torch.float64)
    h = a * z + (x if a > 0 else 1.0)
    expected_y = y + h * h
    expected = h / (1.0 + expected_y * expected_y), 2.0 * expected_y
    for number in (a, torch.tensor(a, dtype=torch.float64)):
        found = x.clone(), y.clone()
        module.steps(*found, z, number)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("shape", [(3, 5), (100, 64), (1, 1), (0, 4)])
def test_tables(module: Any, shape: tuple[int, int]) -> None:
    x, y = torch.randn(2, *shape)
    expected = x * y + 1.0
    module.table(x, y)
    torch.testing.assert_close(x, expected)


def test_what_is_not_there_is_not_read(module: Any) -> None:
    x, y = torch.randn(600), torch.randn(4)
    p = torch.randint(0, 8, (600,))
    expected = torch.where(p < 4, x * y[p.clamp(max=3)], x)
    module.chosen(x, p, y)
    torch.testing.assert_close(x, expected)


def test_others(module: Any) -> None:
    x, y = torch.randn(2, 600)
    expected: list[Tensor] = [x + x.flip(0), torch.maximum(x, y), y * y]
    found = [x.clone() for _ in range(3)]
    module.turned(found[0])
    module.largest(found[1], y)
    module.plain(found[2], y)
    torch.testing.assert_close(found, expected)
