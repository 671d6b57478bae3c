"""What adds to numbers that were just written is an assignment."""

from __future__ import annotations

import pytest
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative
from test_loops import program

from loma import passes, pipeline
from loma.core.printer import print_function
from loma.frontend import parse

X = "x : In[Tensor[N, M]]"
SUM = "sum(x[i, j] for j in M)"

# name, body, what it has then, or None where it stays as it is
CASES: tuple[tuple[str, str, str | None], ...] = (
    ("zero", "y[i] = 0.0\ny[i] += x[i, j]", f"y[i] = {SUM}"),
    ("another_number", "y[i] = 0.5\ny[i] += x[i, j]", f"y[i] = 0.5 + {SUM}"),
    ("twice", "y[i] = 0.0\ny[i] += x[i, j]\ny[i] += x[i, 0]", f"y[i] = {SUM}"),
    ("in_a_loop", "for t in range(2):\n    y[i] = 0.0\n    y[i] += x[i, j]", f"y[i] = {SUM}"),
    (
        "a_choice",
        "y[i] = x[i, 0] if x[i, 0] > 0.0 else y[i]",
        "y[i] = x[i, 0] if x[i, 0] > 0.0 else 0.0",
    ),
    ("a_choice_later", "y[0] = 1.0\ny[i] = x[i, 0] if x[i, 0] > 0.0 else y[i]", None),
    ("of_a_part", "y[0] = 0.0\ny[i] += x[i, j]", None),
    ("to_a_part", "y[i] = 0.0\ny[0] += x[0, j]", None),
    ("read_between", "y[i] = 0.0\nz : Tensor[N]\nz[i] = y[i]\ny[i] += x[i, j] + z[i]", None),
    ("in_a_branch", "y[i] = 0.0\nif N > 2:\n    y[i] += x[i, j]", None),
    ("in_rounds", "y[i] = 0.0\nfor t in range(2):\n    y[i] += x[i, j]", None),
    ("a_part_first", "y[0] += x[0, 0]\ny[i] += x[i, j]", f"y[i] = {SUM}"),
    (
        "a_part_before_a_change",
        "z : Tensor[N]\nz[i] = x[i, 0]\ny[0] += z[0]\nz[i] = 2.0 * z[i]\ny[i] += z[i]",
        None,
    ),
    ("a_part_between_reads", "z : Tensor[N]\ny[0] += x[0, 0]\nz[i] = y[i]\ny[i] += z[i]", None),
    ("of_itself", "y[i] = 1.0\ny[i] += x[i, 0] * y[i]", None),
    ("in_a_loop", "for t in range(N):\n    y[t] += x[t, 0]", "y[t] = x[t, 0]"),
    (
        "in_a_loop_that_looks_back",
        "for t in range(N):\n    y[t] += x[t, 0] * (y[t - 1] if t > 0 else 1.0)",
        "y[t] = x[t, 0] * (y[t - 1] if t > 0 else 1.0)",
    ),
    (
        "in_a_loop_that_looks_ahead",
        "for t in range(N):\n    y[t] += x[t, 0] * (1.0 + (y[t + 1] if t + 1 < N else 0.0))",
        None,
    ),
    (
        "in_a_loop_that_reads_another_place",
        "for t in range(N):\n    y[t] += x[t, 0] * (1.0 + y[0])",
        None,
    ),
    ("in_a_loop_over_a_part", "for t in range(N - 1):\n    y[t] += x[t, 0]", None),
    ("in_a_loop_several_times", "for t in range(2 * N):\n    y[t // 2] += x[t // 2, 0]", None),
    ("in_a_loop_twice", "for t in range(N):\n    y[t] += x[t, 0]\n    y[0] += x[t, 0]", None),
    (
        "in_a_loop_at_a_place_that_changes",
        "j : int = 0\nfor t in range(N):\n    j = t // 2\n    y[j] += x[t, 0]",
        None,
    ),
)


def text(case: tuple[str, str, str | None]) -> str:
    return program(X, "N", case[1])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_what_is_assigned(case: tuple[str, str, str | None]) -> None:
    before = parse(text(case)).function("f")
    after = passes.first_write(parse(text(case))).function("f")
    assert (after == before) == (case[2] is None)
    assert case[2] is None or case[2] in print_function(after)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_values_and_derivatives(case: tuple[str, str, str | None]) -> None:
    whole = with_derivative(text(case))
    for rows in (1, 3):
        x = torch.randn(rows, 2, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
        for change in (passes.first_write, passes.optimise):
            compare(Point(case[0], whole, "f", (x,)), Changed(whole, verified(change)))


@pytest.mark.parametrize(
    ("count", "written", "zeros"),
    [
        ("M", "y[i, t] = s[i]", False),
        ("M", "y[i, t] += s[i]", False),
        ("M", "y[i, M - 1 - t] = s[i]", False),
        ("M - 1", "y[i, t] = s[i]", True),
        ("M", "y[i, t // 2] = s[i]", True),
        ("M", "y[i, t] = s[i] + (y[i, t + 1] if t + 1 < M else 0.0)", True),
        ("M", "y[i, t] = s[i]\n    s[i] += y[i, 0]", True),
    ],
)
def test_what_a_loop_fills_needs_no_zeros(count: str, written: str, zeros: bool) -> None:
    body = f"s : Tensor[N]\nfor t in range({count}):\n    s[i] += x[i, t]\n    {written}"
    shown = pipeline.stage_text(program(X, "N, M", body), "schedule", "f")
    assert "allocate y" in shown
    assert ("allocate y, zeros" in shown) == zeros, shown
