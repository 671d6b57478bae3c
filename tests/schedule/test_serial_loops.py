"""Loops that stay serial: what they write, what they look at, and what they do not copy."""

from __future__ import annotations

import pytest
import torch

import loma
from loma import pipeline

# Keeps the smallest three: few elements beside single ones, at places that a round works out.
SMALLEST = """
def f(x : In[Tensor[N, M]]) -> Tensor[N, 3]:
    y : Tensor[N, 3]
    for n in range(N):
        best : Tensor[3]
        best[k] = 1e9
        for j in range(M):
            p : int = 3
            while (p > 0 and x[n, j] < best[p - 1], max_iter := 3):
                p = p - 1
                if p < 2:
                    best[p + 1] = best[p]
                best[p] = x[n, j]
        y[n, k] = best[k]
    return y
"""


def test_few_elements_stand_in_the_loop() -> None:
    tree = pipeline.stage_text(SMALLEST, "schedule", "f")
    assert tree.count("on one thread") == 1
    assert tree.index("on one thread") < tree.index("for n in range(N)")
    code = pipeline.stage_text(SMALLEST, "cpp", "f")
    assert "loma::element_of<real>(best_data_" in code
    x = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    y = loma.compile(SMALLEST).f(x)
    wanted = x.sort(1).values[:, :3]
    assert torch.equal(y, wanted)
    weight = torch.randn(5, 3, dtype=torch.float64)
    (grad,) = torch.autograd.grad((y * weight).sum(), x)
    (right,) = torch.autograd.grad((wanted * weight).sum(), x)
    assert torch.equal(grad, right)


def test_rows_of_many_elements_run_beside_each_other() -> None:
    text = SMALLEST.replace("Tensor[N, 3]", "Tensor[N, 64]").replace("Tensor[3]", "Tensor[64]")
    assert "parallel for" in pipeline.stage_text(text, "schedule", "f")


def test_few_elements_whose_places_data_say_are_looked_at_before() -> None:
    text = """
def f(x : In[Tensor[N]], p : In[IntTensor[3]], n : In[int]) -> Tensor[N]:
    y : Tensor[N]
    s : float = 1.0
    for t in range(n):
        s = sin(s + y[t])
        y[p[v]] = s * x[v + 1]
        y[t] += s
    return y
"""
    assert "check once $cells1" in pipeline.stage_text(text, "schedule", "f")


def test_a_place_outside_is_told() -> None:
    text = """
def f(x : In[Tensor[N]], k : In[int]) -> float:
    p : int = k
    y : Tensor[1]
    while (x[p] > 0.0, max_iter := 9):
        y[0] += x[p]
        p = p + 1
    return y[0]
"""
    f = loma.compile(text).f
    assert float(f(torch.tensor([1.0, 2.0, -1.0]), 0)) == 3.0
    for start, place in ((0, 2), (-1, -1)):
        with pytest.raises(ValueError, match=f"subscript {place} of 'x' is outside .* of size 2"):
            f(torch.ones(2), start)


def test_what_a_round_reads_once_is_not_copied() -> None:
    text = """
def f(h : In[Tensor[D, S]], c : In[Tensor[T, S]]) -> Tensor[T, D]:
    y : Tensor[T, D]
    g : Tensor[D, S]
    for t in range(T):
        g[d, s] = 0.5 * g[d, s] + h[d, s]
        y[t, d] += c[t, s] * g[d, s]
    return y
"""
    assert "permute(g" not in pipeline.stage_text(text, "schedule", "f")
