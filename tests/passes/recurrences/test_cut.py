"""Ranges that min and max cut off are whole ranges under a condition."""

from __future__ import annotations

import pytest
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative

from loma import passes
from loma.core.printer import print_function
from loma.frontend import parse

HEAD = "def f(x : In[Tensor[N, T]], w : In[int]) -> Tensor[N, T]:\n    y : Tensor[N, T]\n"
ROWS = "for n in range(N):\n        for t in range(T):\n            "
NEXT = "\n            "
# name, body, whether no loop and no min is left
CASES: tuple[tuple[str, str, bool], ...] = (
    ("both_ends", ROWS + NEXT.join((
        "s : float = 0.0", "for k in range(max(t - 2, 0), min(t + 3, T)):", "    s += x[n, k]",
        "y[n, t] = s * s",
    )), True),
    ("named_ends", ROWS + NEXT.join((
        "low = max(0, t - 1)", "high = min(t + 2, T)", "for k in range(low, high):",
        "    y[n, t] += x[n, k] * (t - k)",
    )), True),
    ("one_end", ROWS + NEXT.join((
        "for k in range(t, min(T, t + 3)):", "    y[n, t] += x[n, k]",
    )), True),
    ("length_of_an_argument", ROWS + NEXT.join((
        "for k in range(max(t - w, 0), min(t + w + 1, T)):", "    y[n, t] += x[n, k] * x[n, t]",
    )), True),
    ("a_sum",
     "y[n, t] = x[n, t] - sum(x[n, k] for k in range(max(t - 2, 0), min(t + 3, T)))", True),
    ("largest", ROWS + NEXT.join((
        "m : float = -10.0", "for k in range(max(t - 2, 0), min(t + 3, T)):",
        "    m = max(m, x[n, k])", "y[n, t] = m",
    )), False),
    ("begins_at_the_front", ROWS + NEXT.join((
        "for k in range(0, min(t + 1, T)):", "    y[n, t] += x[n, k]",
    )), False),
    ("ends_that_are_read", ROWS + NEXT.join((
        "low = max(0, t - 1)", "for k in range(low, min(t + 2, T)):",
        "    y[n, t] += x[n, k] * low",
    )), True),
)  # fmt: skip


def _text(body: str) -> str:
    return f"{HEAD}    {body}\n    return y\n"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_no_loop_is_left(case: tuple[str, str, bool]) -> None:
    shown = print_function(passes.canonical_form(parse(_text(case[1]))).function("f"))
    inside = shown.split("y : Tensor[N, T]\n", 1)[1]
    assert ("min(" not in inside and "    for " not in inside) == case[2], shown


@pytest.mark.parametrize("columns", [0, 1, 2, 7])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_values_and_derivatives(case: tuple[str, str, bool], columns: int) -> None:
    text = with_derivative(_text(case[1]))
    x = torch.randn(2, columns, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    for change in (passes.canonical.whole_ranges, passes.canonical_form, passes.optimise):
        compare(Point(case[0], text, "f", (x, 1)), Changed(text, verified(change)))


def test_another_value_of_the_end() -> None:
    """An int that is assigned twice, or in another loop, says nothing about a range."""
    twice = ROWS + NEXT.join((
        "low = max(0, t - 1)", "low = low + 0 * n", "for k in range(low, min(t + 2, T)):",
        "    y[n, t] += x[n, k]",
    ))  # fmt: skip
    before = parse(_text(twice))
    assert passes.canonical.whole_ranges(before) == before
