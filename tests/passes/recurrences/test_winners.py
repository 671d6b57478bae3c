"""Loops that keep the best of what they see, and where it was, are positions of extremes."""

from __future__ import annotations

import numpy as np
import pytest
from sampled import one_in
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative

import loma
from loma import passes
from loma.backends.interpreter import Interpreter
from loma.core.printer import print_function
from loma.frontend import parse

HEAD = """
def f(x : In[Tensor[N, K]], c : In[Tensor[K, D]]) -> tuple[Tensor[N], IntTensor[N], Tensor[N]]:
    y : Tensor[N]
    which : IntTensor[N]
    z : Tensor[N]
    for n in range(N):
"""
DISTANCE = """
for k in range(K):
    dist : float = 0.0
    for d in range(D):
        diff : float = x[n, k] - c[k, d]
        dist += diff * diff
"""
# name, body for row n, whether a loop of rounds is left
CASES: tuple[tuple[str, str, bool], ...] = (
    ("smallest", "best : float = 1e30\nat : int = 0" + DISTANCE + """
    if dist < best:
        best = dist
        at = k
y[n] = best
which[n] = at
z[n] = c[at, 0] * best if K > 0 and D > 0 else 0.0
""", False),
    ("elements", "y[n] = 1e30" + DISTANCE + """
    if dist < y[n]:
        y[n] = dist
        which[n] = k
        z[n] = x[n, k]
""", False),
    ("largest_the_other_way_round", """
best : float = -0.25
for k in range(K):
    if best < x[n, k] * x[n, k]:
        best = x[n, k] * x[n, k]
        which[n] = k + 1
y[n] = best
""", False),
    ("choices", """
best : float = 0.5
at : int = -1
for k in range(K):
    v : float = x[n, k]
    at = k if v < best else at
    best = v if v < best else best
y[n] = best
which[n] = at
""", False),
    ("last_of_equals", """
best : float = 1e30
for k in range(K):
    if x[n, k] <= best:
        best = x[n, k]
        which[n] = k
y[n] = best
""", False),
    ("last_of_the_largest", """
best : float = -2
for k in range(K):
    if x[n, k] >= best:
        best = x[n, k]
        which[n] = k
        z[n] = 2.0 * x[n, k]
y[n] = best
""", False),
    ("from_the_first", """
if K > 0:
    best : float = x[n, 0]
    at : int = 0
    for k in range(1, K):
        if x[n, k] > best:
            best = x[n, k]
            at = k
    y[n] = best
    which[n] = at
""", False),
    ("of_some", """
best : float = 1e30
for k in range(K):
    if x[n, k] > 0.0:
        if x[n, k] < best:
            best = x[n, k]
            which[n] = k
y[n] = best
""", False),
    ("without_a_number", """
y[n] = 0.5 * x[n, 0] if K > 0 else 0.0
for k in range(K):
    if x[n, k] < y[n]:
        y[n] = x[n, k]
        which[n] = k
""", False),
    ("of_two_loops", """
best : float = 0.0
for k in range(K):
    for d in range(D):
        v : float = x[n, k] - c[k, d]
        if v > best:
            best = v
            which[n] = k
            z[n] = c[k, d]
y[n] = best
""", False),
    ("both_ends", """
low : float = 1e30
high : float = -1e30
for k in range(K):
    if x[n, k] < low:
        low = x[n, k]
    if x[n, k] > high:
        high = x[n, k]
        which[n] = k
y[n] = low
z[n] = high
""", False),
    ("only_the_best", "best : float = 1e30" + DISTANCE + """
    best = min(best, dist)
y[n] = best
""", False),
    ("extreme_beside_it", "best : float = 0.75\nat : int = 0" + DISTANCE + """
    if dist < best:
        at = k
    best = min(best, dist)
y[n] = best
which[n] = at
""", False),
    ("extreme_from_the_first", """
if K > 0:
    best : float = x[n, 0]
    for k in range(1, K):
        which[n] = k if best < x[n, k] else which[n]
        best = max(best, x[n, k])
    y[n] = best
""", False),
    ("second_best", """
best : float = 1e30
second : float = 1e30
for k in range(K):
    if x[n, k] < best:
        second = best
        best = x[n, k]
y[n] = best
z[n] = second
""", True),
    ("runs_on", """
best : float = 1e30
total : float = 0.0
for k in range(K):
    total += x[n, k]
    if total < best:
        best = total
        which[n] = k
y[n] = best
""", True),
    ("read_in_between", """
best : float = 1e30
for k in range(K):
    if x[n, k] < best:
        best = x[n, k]
        which[n] = k
    z[n] += best
y[n] = best
""", True),
    ("something_else", """
best : float = 1e30
for k in range(K):
    if x[n, k] < best:
        best = x[n, k] + 1.0
        which[n] = k
y[n] = best
""", True),
    ("last_of_a_value", """
y[n] = 0.5 * x[n, 0] if K > 0 else 0.0
for k in range(K):
    if x[n, k] <= y[n]:
        y[n] = x[n, k]
        which[n] = k
""", True),
)  # fmt: skip


def _text(body: str) -> str:
    rows = "".join(f"        {line}\n" for line in body.strip("\n").split("\n"))
    return f"{HEAD}{rows}    return y, which, z\n"


def _points() -> list[tuple[np.ndarray, np.ndarray]]:
    numbers = np.random.default_rng(3)
    rows = numbers.standard_normal((6, 4))
    rows[1] = 0.5  # all equal
    rows[2, 1] = rows[2, 3] = rows[2].min()
    rows[3, 0] = rows[4, 2] = np.nan
    rows[5] = np.nan
    other = numbers.standard_normal((4, 3))
    sizes = ((1, 4, 1), (2, 1, 3), (2, 4, 0), (2, 0, 3), (0, 4, 3))
    small = [(rows[:n, :k], other[:k, :d]) for n, k, d in sizes]
    return [(rows, other), (np.round(rows), np.round(other)), *small]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_no_rounds_are_left(case: tuple[str, str, bool]) -> None:
    shown = print_function(passes.canonical_form(parse(_text(case[1]))).function("f"))
    assert ("    for " in shown) == case[2], shown


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_values(case: tuple[str, str, bool]) -> None:
    before = parse(_text(case[1]))
    for args in _points():
        right = Interpreter(before).call("f", *args)
        for change in (passes.canonical.winners, passes.optimise):
            found = Interpreter(verified(change)(before)).call("f", *args)
            for got, wanted in zip(found, right, strict=True):
                np.testing.assert_allclose(got, wanted, rtol=1e-12)


@pytest.mark.parametrize("case", one_in(2, CASES), ids=lambda case: case[0])
def test_derivatives(case: tuple[str, str, bool]) -> None:
    text = with_derivative(_text(case[1]))
    for x, c in _points()[:3]:
        args = tuple(torch.tensor(np.nan_to_num(part, nan=3.0)) for part in (x, c))
        compare(Point(case[0], text, "f", args), Changed(text, verified(passes.optimise)))
        canonical = verified(passes.canonical_form)
        compare(Point(case[0], text, "f", args), Changed(text, canonical))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_nearest_in_torch(dtype: torch.dtype) -> None:
    nearest = loma.compile(_text(CASES[0][1])).f
    numbers = torch.Generator().manual_seed(5)
    x, c = (torch.randn(*s, generator=numbers, dtype=dtype) for s in ((40, 9), (9, 3)))
    leaves = [part.requires_grad_() for part in (x, c)]
    best, which, value = nearest(x, c)
    apart = (x[:, :, None] - c).square().sum(2)
    least, place = apart.min(1)
    weight = torch.randn(2, 40, generator=numbers, dtype=dtype)
    right = torch.autograd.grad((weight[0] * least + weight[1] * c[place, 0] * least).sum(), leaves)
    found = torch.autograd.grad((weight[0] * best + weight[1] * value).sum(), leaves)
    assert torch.equal(which, place)
    for got, wanted in zip((best, *found), (least, *right), strict=True):
        torch.testing.assert_close(got, wanted)
