"""Backward parts of which not all adjoints are wanted."""

from __future__ import annotations

import pytest
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative

from loma import passes, pipeline

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


SHARED = """
def f(p : In[Tensor[N, M]], q : In[Tensor[N, M]], h : In[Tensor[M]]) -> Tensor[N, M]:
    y : Tensor[N, M]
    y[i, j] = sigmoid(p[i, j] + q[i, j]) * tanh(p[i, j] * h[j])
    return y
"""


def test_what_several_adjoints_need_is_computed_once() -> None:
    text = pipeline.stage_text(SHARED, "optimised", "f__backward")
    assert text.count("tanh(") == 1
    assert text.count("sigmoid(") == 1


@pytest.mark.parametrize("sizes", [(3, 2), (1, 1), (0, 4)], ids=str)
def test_values_of_what_is_shared(sizes: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(3)
    shapes = (sizes, sizes, sizes[1:])
    args = tuple(torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
    text = with_derivative(SHARED)
    for change in (lambda module: module, passes.optimise):
        compare(Point("f", text, "f", args), Changed(text, verified(change)))
