"""Backward parts of which not all adjoints are wanted."""

from __future__ import annotations

import pytest
import torch
from changed_programs import Changed, Point, compare, with_derivative

COUNTED = """
def f(
    x : In[Tensor[A]], w : In[Tensor[A]], counts : In[IntTensor[A]],
) -> tuple[Tensor[A], Tensor[A]]:
    y : Tensor[A]
    y[i] = x[i]
    for t in range(counts[0] + 1):
        y[i] = exp(y[i] * 0.5)
    v : Tensor[A]
    v[i] = w[i] * w[i]
    return y, v
"""


@pytest.mark.parametrize("count", [-1, 0, 3])
def test_tapes_have_their_size_whatever_is_wanted(count: int) -> None:
    """That of the loop over ``counts[0] + 1`` serves ``x`` alone, and so does its size."""
    generator = torch.Generator().manual_seed(2)
    x, w = (torch.rand(3, generator=generator, dtype=torch.float64) for _ in range(2))
    text = with_derivative(COUNTED)
    point = Point("f", text, "f", (x, w, torch.full((3,), count)))
    compare(point, Changed(text, lambda module: module))
