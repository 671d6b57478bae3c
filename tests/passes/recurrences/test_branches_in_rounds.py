"""Rows whose rounds branch on what they change are choices of all rows: no row runs by itself."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative

import loma
from loma import passes
from loma.backends.interpreter import Interpreter
from loma.core.printer import print_function
from loma.frontend import parse

# name, body for row n, whether the loop over rows stays
CASES: tuple[tuple[str, str, bool], ...] = (
    ("prefix_maxima", """
m : float = x[n, 0] if T > 0 else 0.0
at : int = 0
for t in range(T):
    if x[n, t] > m:
        m = x[n, t]
        at = t
    y[n, t] = m
    k[n, t] = at
""", False),
    ("largest_two", """
first : float = -1e30
second : float = -1e30
for t in range(T):
    if x[n, t] > first:
        second = first
        first = x[n, t]
    elif x[n, t] > second:
        second = x[n, t]
    y[n, t] = first * second if t > 0 else first
""", False),
    ("an_element_of_the_result", """
for t in range(T):
    if x[n, t] * x[n, t] > z[n]:
        z[n] = x[n, t] * x[n, t]
    else:
        z[n] = 0.5 * z[n] + x[n, t]
    y[n, t] = z[n]
""", False),
    ("swaps", """
for i in range(T):
    y[n, i] = x[n, i]
for a in range(T):
    for c in range(T - 1):
        if y[n, c] > y[n, c + 1]:
            held : float = y[n, c]
            y[n, c] = y[n, c + 1]
            y[n, c + 1] = held
""", False),
    ("largest_beside_others", """
m : float = -2.0
total : float = 0.0
for t in range(T):
    y[n, t] = 2.0 * x[n, t] + 1.0
    m = max(m, y[n, t])
    total += x[n, t]
z[n] = m * total
""", False),
    ("least_of_rows_and_columns", """
z[n] = 3.0
for t in range(T):
    d : float = 0.0
    for i in range(T):
        d += x[n, i] * x[0, t] - x[n, t]
    z[n] = min(z[n], d)
    y[0, t] = max(y[0, t], d)
    k[N - 1, t] = max(k[N - 1, t], 3 if d > 0.0 else n)
""", False),
    ("of_a_round_that_the_row_tells", """
m : float = -1.0
for t in range(T):
    s : float = x[n, t] * x[n, t]
    if t == n + 1:
        m = s
    y[n, t] = s + 1.0
    if n - 1 == t:
        k[n, 0] = t + 7
z[n] = m
""", False),
    ("where_no_element_may_lie", """
at : int = 0
for t in range(T):
    y[n, at] += x[n, t]
    if x[n, t] > 0.0 and at < T:
        k[n, at + 1 if at + 1 < T else 0] = at
        at = at + 1 if at + 1 < T else 0
""", True),
    ("goes_on_in_the_next_row", """
for t in range(T):
    if x[n, t] > z[0]:
        z[0] = x[n, t]
    y[n, t] = z[0]
""", True),
)  # fmt: skip


def _text(body: str) -> str:
    rows = "".join(f"        {line}\n" for line in body.strip("\n").split("\n"))
    return f"""
def f(x : In[Tensor[N, T]]) -> tuple[Tensor[N, T], Tensor[N], IntTensor[N, T]]:
    y : Tensor[N, T]
    z : Tensor[N]
    k : IntTensor[N, T]
    for n in range(N):
{rows}    return y, z, k
"""


def _x(rows: int, columns: int) -> np.ndarray:
    x = np.random.default_rng(9).standard_normal((rows, columns))
    if rows > 2:
        x[1] = x[1, :1]  # all equal
        x[2] = np.round(x[2])
    return x


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_rows_are_together(case: tuple[str, str, bool]) -> None:
    shown = print_function(passes.canonical_form(parse(_text(case[1]))).function("f"))
    branches = re.search(r"^ +if (?!\w > 0:)", shown, re.MULTILINE) is not None
    assert ("for n in range(N)" in shown) == branches == case[2], shown


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_values(case: tuple[str, str, bool]) -> None:
    before = parse(_text(case[1]))
    after = verified(passes.optimise)(before)
    missing = _x(4, 5)
    missing[0, 1] = missing[3, 0] = np.nan
    for x in (_x(4, 5), missing, _x(1, 1), _x(2, 0)):
        right, found = (Interpreter(module).call("f", x) for module in (before, after))
        for got, wanted in zip(found, right, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-12)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_derivatives(case: tuple[str, str, bool]) -> None:
    text = with_derivative(_text(case[1]))
    args = (torch.tensor(_x(4, 5)),)
    for change in (passes.canonical_form, passes.optimise):
        compare(Point(case[0], text, "f", args), Changed(text, verified(change)))


def test_sorting_in_torch() -> None:
    module = loma.compile(_text(CASES[3][1]))
    x = torch.tensor(_x(50, 6), requires_grad=True)
    x.data[1] += torch.arange(6)  # no ties, whose derivatives torch orders in its own way
    x.data[2] += 0.01 * torch.arange(6)
    weight = torch.randn(50, 6, dtype=torch.float64)
    found, right = module.f(x)[0], x.sort(1)[0]
    torch.testing.assert_close(found, right)
    pair = [torch.autograd.grad(y, x, weight)[0] for y in (found, right)]
    torch.testing.assert_close(*pair)
