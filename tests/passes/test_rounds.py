"""What only the next round of a loop reads is not computed in the last one."""

from __future__ import annotations

import pytest
from sampled import diagonals, name_of
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative
from test_loops import program

from loma import passes
from loma.core.printer import print_function
from loma.frontend import parse

X = "x : In[Tensor[N, M]], n : In[int]"
HEAD = """
l : Tensor[M]
"""

# name, body, the condition under which its last statement runs
CASES: tuple[tuple[str, str, str | None], ...] = (
    ("forwards", """
for t in range(n):
    y[i] = sum(x[i, j] * exp(l[j]) for j in M)
    l[j] += x[i, j] * y[i]
""", "t + 1 < n"),
    ("backwards", """
for t in reversed(range(n)):
    y[i] = sum(x[i, j] * exp(l[j]) for j in M)
    l[j] += x[i, j] * y[i]
""", "t > 0"),
    ("several", """
for t in range(n):
    y[i] = sum(x[i, j] * exp(l[j]) for j in M)
    k : Tensor[M]
    k[j] = sum(x[i, j] * y[i] for i in N)
    l[j] = l[j] + k[j]
""", "t + 1 < n"),
    ("nested", """
for s in range(2):
    for t in range(n):
        y[i] = y[i] + sum(x[i, j] * exp(l[j]) for j in M)
        l[j] += x[i, j] * y[i]
    l[j] = 0.0
""", "t + 1 < n"),
    ("before_what_stays", """
k : Tensor[N]
for t in range(n):
    k[i] = sum(x[i, j] * exp(l[j]) for j in M)
    l[j] += x[i, j] * k[i]
    y[i] = y[i] + k[i]
""", "t + 1 < n"),
    ("before_what_it_changes", """
k : Tensor[N]
for t in range(n):
    k[i] = sum(x[i, j] * exp(l[j]) for j in M)
    l[j] += x[i, j] * k[i]
    y[i] = y[i] + k[i] * l[0]
""", None),
    ("before_what_changes_its_operand", """
k : Tensor[N]
for t in range(n):
    k[i] = sum(x[i, j] * exp(l[j]) for j in M)
    l[j] += x[i, j] * k[i]
    k[i] = k[i] * k[i]
    y[i] = y[i] + k[i]
""", None),
    ("in_a_branch", """
if n > 1:
    for t in range(n):
        y[i] = sum(x[i, j] * exp(l[j]) for j in M)
        l[j] += x[i, j] * y[i]
""", "t + 1 < n"),
    ("in_a_loop_that_goes_on", """
for s in range(2):
    for t in range(n):
        y[i] = y[i] + sum(x[i, j] * exp(l[j]) for j in M)
        l[j] += x[i, j] * y[i]
""", None),
    ("read_behind", """
for t in range(n):
    y[i] = sum(x[i, j] * exp(l[j]) for j in M)
    l[j] += x[i, j] * y[i]
y[i] = y[i] + l[0]
""", None),
    ("with_a_condition", """
for t in range(n):
    y[i] = sum(x[i, j] * exp(l[j]) for j in M)
    if t < n - 1:
        l[j] += x[i, j] * y[i]
""", None),
    ("cheap", """
for t in range(n):
    y[i] = sum(x[i, j] * exp(l[j]) for j in M)
    l[j] = l[j] * 0.5
""", None),
    ("the_result", """
for t in range(n):
    y[i] = y[i] + sum(x[i, j] for j in M)
""", None),
    ("begins_a_round", """
for t in range(n):
    if t > 0:
        l[j] += x[i, j] * y[i]
    y[i] = sum(x[i, j] * exp(l[j]) for j in M)
""", "t + 1 < n"),
    ("begins_the_first_round_too", """
y[i] = 1.0
for t in range(n):
    l[j] += x[i, j] * y[i]
    y[i] = sum(x[i, j] * exp(l[j]) for j in M)
""", "t + 1 < n"),
    ("begins_a_round_that_counts", """
for t in range(n):
    l[j] += x[i, j] * y[i] * t
    y[i] = sum(x[i, j] * exp(l[j]) for j in M)
""", None),
    ("as_much_is_handed_on", """
for t in range(n):
    l[j] += x[i, j] * y[i]
    y[i] = y[i] + sum(x[i, j] * exp(l[j]) for j in M)
""", None),
    ("that_may_fail", """
for t in range(n):
    y[i] = sum(x[i, j] * exp(l[j]) for j in M)
    l[j] = sum(x[i, j] * y[i] for i in N) + x[N - 3 + t, j]
""", None),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_what_the_last_round_leaves_out(case: tuple[str, str, str | None]) -> None:
    _, body, condition = case
    module = parse(program(X, "N", HEAD + body))
    new = passes.canonical.rounds(module)
    assert (new == module) == (condition is None)
    assert passes.canonical.rounds(new) == new
    if condition is not None:
        assert print_function(new.function("f")).count(f"if {condition}:") == 1


@pytest.mark.parametrize(("n", "case"), diagonals(6, [3, 0, 1], CASES), ids=name_of)
def test_values_and_derivatives(case: tuple[str, str, str | None], n: int) -> None:
    name, body, _ = case
    text = with_derivative(program(X, "N", HEAD + body))
    rows = 5 if name == "that_may_fail" else 3
    generator = torch.Generator().manual_seed(2)
    x = 0.3 * torch.randn(rows, 2, generator=generator, dtype=torch.float64)
    for change in (passes.canonical.rounds, passes.canonical_form, passes.optimise):
        compare(Point(f"{name} {n}", text, "f", (x, n)), Changed(text, verified(change)))
