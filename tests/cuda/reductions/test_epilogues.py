"""Sums with what becomes of them in one statement: which these are, and their values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import shim
import torch

from loma import pipeline

PROGRAM = """
def distances(a : In[Tensor[N, D]], b : In[Tensor[M, D]]) -> Tensor[N, M]:
    s : Tensor[N, M]
    s[i, j] += (a[i, d] - b[j, d]) ** 2
    y : Tensor[N, M]
    y[i, j] = sqrt(s[i, j])
    return y

def gaussian(a : In[Tensor[N, D]], b : In[Tensor[M, D]], c : In[Tensor[M]]) -> Tensor[M, N]:
    y : Tensor[M, N]
    y[j, i] = exp(-0.5 * sum((a[i, d] - b[j, d]) ** 2 for d in D)) * c[j]
    return y

def product(a : In[Tensor[N, D]], b : In[Tensor[M, D]]) -> Tensor[N, M]:
    y : Tensor[N, M]
    y[i, j] = exp(sum(a[i, d] * b[j, d] for d in D))
    return y

def lengths(a : In[Tensor[N, M, D]]) -> Tensor[N, M]:
    y : Tensor[N, M]
    y[i, j] = sqrt(sum(a[i, j, d] * a[i, j, d] for d in D))
    return y

def twice(a : In[Tensor[N, D]], b : In[Tensor[M, D]]) -> tuple[Tensor[N, M], Tensor[N, M]]:
    s : Tensor[N, M]
    y : Tensor[N, M]
    s[i, j] += (a[i, d] - b[j, d]) ** 2
    y[i, j] = sqrt(s[i, j])
    return y, s
"""
SIZES = ((1, 1, 1), (7, 5, 3), (16, 32, 8), (64, 48, 33), (512, 384, 2), (0, 4, 2), (4, 0, 2))


@pytest.fixture(scope="module")
def module(request: pytest.FixtureRequest) -> Iterator[Any]:
    with shim.on_gpu(PROGRAM, request) as found:
        yield found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_values(module: Any, size: tuple[int, int, int], dtype: torch.dtype) -> None:
    n, m, d = size
    generator = torch.Generator().manual_seed(n)
    a = torch.randn(n, d, dtype=dtype, generator=generator)
    b = torch.randn(m, d, dtype=dtype, generator=generator)
    c = torch.randn(m, dtype=dtype, generator=generator)
    apart = a[:, None] - b[None]
    torch.testing.assert_close(module.distances(a, b), apart.norm(dim=2))
    weights = torch.exp(-0.5 * apart.square().sum(2)) * c
    torch.testing.assert_close(module.gaussian(a, b, c), weights.T)
    torch.testing.assert_close(module.twice(a, b)[0], apart.norm(dim=2))


def test_which_they_are() -> None:
    """Products are the library's; ``lengths`` reads all that there is once; ``twice`` returns the
    sum, too."""
    found = []
    for name in ("distances", "gaussian", "product", "lengths", "twice"):
        text = pipeline.stage_text(PROGRAM, "kernels", name, device="cuda")
        if "sqrt(sum(" in text or "exp(-0.5 * sum(" in text:
            found.append(name)
    assert found == ["distances", "gaussian"]
    text = pipeline.stage_text(PROGRAM, "schedule", "gaussian", device="cuda")
    assert "$several(" in text
