"""Choices of which both values are computed, and that nothing is read that is not there."""

from __future__ import annotations

import pytest
import torch

import loma
from loma import pipeline

PROGRAM = """
def f(x : In[Tensor[N, M]], n : In[Tensor[N]], k : In[int]) -> Tensor[N, M]:
    y : Tensor[N, M]
    y[i, j] = {value}
    return y
"""
CASES = {
    "a_row": ("x[i, j] / n[i] if n[i] > 0.0 else 0.0", 1),
    "nested": ("x[i, j] if n[i] > 1.0 else -x[i, j] if n[i] < 0.0 else 2.0 * x[i, j]", 2),
    "an_index": ("x[i, j] if j <= i else 0.0", 0),
    "an_int": ("x[i, j] if k > 0 else 0.0", 0),
    "may_be_outside": ("x[i, j + k] if n[i] > 0.0 else 0.0", 0),
    "outside_at_the_end": ("x[i, j + 1] if n[i] > 0.0 and j + 1 < M else 0.0", 0),
    "in_vectors": ("exp(x[i, j]) if n[i] > 0.0 else x[i, j]", 1),
    "takes_long": ("lgamma(x[i, j]) if n[i] > 0.0 else x[i, j]", 0),
    "divides_ints": ("x[i, j] * (6 // k) if n[i] > 0.0 else 0.0", 0),
}


@pytest.mark.parametrize("name", CASES)
def test_which_are_eager(name: str) -> None:
    value, count = CASES[name]
    assert pipeline.stage_text(PROGRAM.format(value=value), "cpp", "f").count("choose") == count


@pytest.mark.parametrize("name", CASES)
def test_nothing_outside_is_read(name: str) -> None:
    """With no row for which the condition holds, any shift and divisor is one."""
    x = torch.randn(3, 40, dtype=torch.float64, requires_grad=True)
    n = torch.full((3,), -1.0, dtype=torch.float64)
    far = 10**9 if name == "may_be_outside" else 0
    result = loma.compile(PROGRAM.format(value=CASES[name][0])).f(x, n, far)
    (found,) = torch.autograd.grad(result.sum(), x)
    slopes = {"nested": -1.0, "in_vectors": 1.0, "takes_long": 1.0}
    below = torch.ones(3, 40, dtype=torch.float64).tril()
    expected = below if name == "an_index" else torch.full_like(x, slopes.get(name, 0.0))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(result, expected * x)


def test_numbers_that_are_not_finite_stay_where_they_are_not_taken() -> None:
    x = torch.tensor([[torch.nan, torch.inf], [1.0, 2.0]], dtype=torch.float64, requires_grad=True)
    n = torch.tensor([0.0, 2.0], dtype=torch.float64, requires_grad=True)
    result = loma.compile(PROGRAM.format(value=CASES["a_row"][0])).f(x, n, 0)
    assert result.tolist() == [[0.0, 0.0], [0.5, 1.0]]
    of_x, of_n = torch.autograd.grad(result.sum(), (x, n))
    assert of_x.tolist() == [[0.0, 0.0], [0.5, 0.5]]
    assert of_n.tolist() == [0.0, -0.75]
