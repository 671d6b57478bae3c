"""Additions to quotients are sums of those that have one."""

from __future__ import annotations

import pytest
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative

from loma import passes
from loma.core.printer import print_function
from loma.frontend import parse

HEAD = "def f(x : In[Tensor[N, 6 * M]]) -> Tensor[{}]:\n    y : Tensor[{}]\n    {}\n    return y\n"
# name, sizes of the result, body, whether no quotient is left
CASES: tuple[tuple[str, str, str, bool], ...] = (
    ("sum", "N, 2 * M", "y[n, m // 3] += x[n, m] * x[n, m]", True),
    ("numbers", "N, 2 * M", "y[n, m // 3] += x[n, m] * (m + m % 3 + m // 3)", True),
    ("of_a_sum", "2 * M", "y[m // 3] += sum(x[n, m] for n in N)", True),
    ("and_other_indices", "2 * M", "y[m // 3] += x[n, m]", True),
    ("another_divisor", "N, 2 * M", "y[n, m // 3] += x[n, m] * (m % 2)", True),
    ("some_elements", "N, M", "y[n, m // 7] += x[n, m]", False),
    ("beside_its_remainder", "2 * M, 3", "y[m // 3, m % 3] += x[n, m]", False),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_sums(case: tuple[str, str, str, bool]) -> None:
    text = HEAD.format(case[1], case[1], case[2])
    after = print_function(passes.canonical.quotients(parse(text)).function("f"))
    assert ("+= sum(" in after) == case[3], after
    points = with_derivative(text)
    for columns in (0, 1, 3):
        x = torch.randn(2, 6 * columns, dtype=torch.float64)
        for change in (passes.canonical.quotients, passes.optimise):
            compare(Point(case[0], points, "f", (x,)), Changed(points, verified(change)))


def test_the_adjoint_of_a_repeated_element() -> None:
    text = with_derivative("""
def f(x : In[Tensor[N, M]]) -> Tensor[2 * N, 3 * M]:
    y : Tensor[2 * N, 3 * M]
    y[i, j] = x[i // 2, j // 3]
    return y
""")
    shown = print_function(
        passes.optimise(Changed(text, lambda m: m).interpreter.module).function("d_f")
    )
    assert "//" not in shown.split("_d_x[", 1)[1]
