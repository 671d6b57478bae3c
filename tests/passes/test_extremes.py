"""Loops that keep the largest value are reductions."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative
from index_cases import Case
from oracle import Program, check, entry
from test_loops import program

from loma import passes
from loma.ad import split_pairs
from loma.backends.interpreter import Interpreter
from loma.core.printer import print_function, print_module
from loma.frontend import parse

X = "x : In[Tensor[N, M]]"
ROWS = "for i in range(N):\n"

# name, body, the line that the loop becomes, or None where it stays
CASES: tuple[tuple[str, str, str | None], ...] = (
    ("scalar", ROWS + """
    m = x[i, 0]
    for j in range(M):
        m = max(m, x[i, j])
    y[i] = m
""", "m = max(x[i, j_1] for j_1 in M)"),
    ("behind_the_first", ROWS + """
    m = x[i, 0] * x[i, 0]
    for j in range(1, M):
        m = max(m, x[i, j] * x[i, j])
    y[i] = m
""", "m = max(x[i, _j_1] * x[i, _j_1] for _j_1 in M)"),
    ("smallest_of_elements", ROWS + """
    y[i] = x[i, 0]
    for j in range(M):
        y[i] = min(y[i], x[i, j])
""", "y[i] = min(x[i, j_1] for j_1 in M)"),
    ("statement", """
y[i] = x[i, 0]
for j in range(1, M):
    y[i] = max(y[i], x[i, j])
""", "y[i] = max(x[i, _j_1] for _j_1 in M)"),
    ("a_number_first", ROWS + """
    m = 0.25
    for j in range(M):
        m = max(m, x[i, j])
    y[i] = m
""", "m = max(m, max(x[i, j_1] for j_1 in M))"),
    ("a_part", ROWS + """
    m = x[i, 0]
    for j in range(M // 2):
        m = max(m, x[i, j])
    y[i] = m
""", "m = max(m, max(x[i, j_1] for j_1 in range(M // 2)))"),
    ("another_beginning", ROWS + """
    m = x[i, 1]
    for j in range(M):
        m = max(m, x[i, j])
    y[i] = m
""", "m = max(m, max(x[i, j_1] for j_1 in M))"),
    ("the_later_of_equals", ROWS + """
    m = x[i, 0]
    for j in range(M):
        m = max(x[i, j], m)
    y[i] = m
""", "m = max(x[i, M - j_1 - 1] for j_1 in M)"),
    ("the_later_of_two", ROWS + """
    m = x[i, 0]
    for j in range(1, M):
        m = max(x[i, j], m)
    y[i] = m
""", "m = max(x[i, M - _j_1 - 1] for _j_1 in M)"),
    ("backwards", ROWS + """
    m = x[i, 0]
    for j in reversed(range(M)):
        m = max(m, x[i, j])
    y[i] = m
""", "m = max(m, max(x[i, M - j_1 - 1] for j_1 in M))"),
    ("loops_in_each_other", """
m = 0.5
for i in range(N):
    for j in range(M - 1):
        m = max(x[i, j], m)
y[k] = m
""", "m = max(max(x[N - i_1 - 1, M - j_1 - 2] for i_1 in N for j_1 in range(M - 1)), m)"),
    ("of_itself", ROWS + """
    m = x[i, 0]
    for j in range(M):
        m = max(m, x[i, j] * m)
    y[i] = m
""", None),
    ("running", ROWS + """
    m = x[i, 0]
    for j in range(M):
        m = max(m, x[i, j])
        y[i] += m
""", None),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_what_is_a_reduction(case: tuple[str, str, str | None]) -> None:
    before = parse(program(X, "N", case[1]))
    after = passes.canonical.extremes(before)
    assert (after == before) == (case[2] is None)
    assert case[2] is None or case[2] in print_function(after.function("f"))


@pytest.mark.parametrize("columns", [2, 5])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_values_and_derivatives(case: tuple[str, str, str | None], columns: int) -> None:
    text = with_derivative(program(X, "N", case[1]))
    x = torch.randn(3, columns, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    x[0] = 1.0  # all equal: the first has the derivative
    for change in (passes.canonical.extremes, passes.optimise):
        compare(Point(case[0], text, "f", (x,)), Changed(text, verified(change)))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_what_is_not_a_number(case: tuple[str, str, str | None]) -> None:
    before = parse(program(X, "N", case[1]))
    x = np.array([[np.nan, 1.0, 2.0], [0.5, np.nan, 2.0], [np.inf, 1.0, -np.inf]])
    for args in (x, np.zeros((0, 3)), np.zeros((0, 0))):
        (right,) = Interpreter(before).call("f", args)
        for change in (passes.canonical.extremes, passes.optimise):
            (found,) = Interpreter(change(before)).call("f", args)
            np.testing.assert_allclose(found, right)


PICKED = (
    Case("of_both_sides", """
def of_both_sides(a : In[Tensor[N, K]], b : In[Tensor[M, K]]) -> tuple[Tensor[N], Tensor[M]]:
    r : Tensor[M, N]
    p : Tensor[N]
    q : Tensor[M]
    r[m, n] = sum((a[n, k] - b[m, k]) ** 2 for k in K)
    p[n] = min(r[m, n] for m in M)
    if N > 0:
        q[m] = max(r[m, n] for n in N)
    return p, q
""", lambda a, b: (
        (r := (a[:, None] - b).square().sum(2)).amin(1), r.amax(0),
    ), ((3, 2), (5, 2))),
    Case("of_two_indices", """
def of_two_indices(a : In[Tensor[N]], b : In[Tensor[M]], c : In[Tensor[K]]) -> Tensor[N]:
    y : Tensor[N]
    for t in range(2):
        y[n] = y[n] * a[n] + min(sin(a[n] + t) - b[m] * c[k] for m in M for k in K)
    return y
""", lambda a, b, c: (
        a * (a.sin() - (b[:, None] * c).amax()) + (a + 1).sin() - (b[:, None] * c).amax()
    ), ((3,), (4,), (2,))),
)  # fmt: skip


@pytest.mark.parametrize("case", PICKED, ids=lambda case: case.name)
def test_adjoints_of_what_was_picked(case: Case) -> None:
    """No tensor has an adjoint with all indices, and derivatives are right."""
    halves = print_module(split_pairs(passes.canonical_form(parse(case.text)))[0])
    assert "_at[" in halves
    assert re.search(r"_d_\w+ : Tensor\[[NM], [NM]", halves) is None
    check(Program([case.text]), entry(case.text), case.arguments(), case.reference, libtorch=False)


def test_nothing_to_reduce() -> None:
    number = next(body for name, body, _ in CASES if name == "a_number_first")
    module = passes.optimise(parse(program(X, "N", number)))
    (found,) = Interpreter(module).call("f", np.zeros((2, 0)))
    assert found.tolist() == [0.25, 0.25]
