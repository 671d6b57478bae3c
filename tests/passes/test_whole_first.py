"""What first adds to all of a fresh tensor, or to parts that make it up, is an assignment."""

from __future__ import annotations

import pytest
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative

from loma import passes
from loma.core.printer import print_function
from loma.frontend import parse

HEAD = """def f(x : In[Tensor[N, 2 * D]], w : In[Tensor[D]]) -> Tensor[N, 2 * D]:
    y : Tensor[N, 2 * D]
"""

LEFT = "y[n, d + 0] += x[n, D + d] * w[d]\n"
RIGHT = "y[n, D + d] += w[d] * sin(x[n, d + 0])\n"

# name, body, how many of its additions assign then
CASES: tuple[tuple[str, str, int], ...] = (
    ("an_element_first", "y[0, 0] += x[0, 1]\ny[n, d] += x[n, d] * x[n, d]", 1),
    ("a_column_first", "y[n, 1] += x[n, 0]\ny[n, d] += x[n, d] * x[n, d]", 1),
    ("read_between", "y[n, 1] += x[n, 0]\nz : Tensor[N]\nz[n] = y[n, 1]\n"
     "y[n, d] += x[n, d] * z[n]", 0),
    ("changed_between", "z : Tensor[N]\nz[n] = x[n, 0]\ny[n, 1] += z[n]\nz[n] = z[n] * x[n, 1]\n"
     "y[n, d] += x[n, d] * z[n]", 0),
    ("halves", LEFT + RIGHT, 2),
    ("halves_and_more", LEFT + RIGHT + "y[n, d + 0] += x[n, d + 0] * w[d]", 2),
    ("one_half", "y[n, d + 0] += x[n, D + d] * w[d]", 0),
    ("a_half_twice", LEFT + "y[n, d + 0] += w[d] * sin(x[n, D + d])", 0),
    ("the_other_half_first", RIGHT + LEFT, 2),
    ("only_the_other_half", RIGHT, 0),
    ("the_other_half_twice", RIGHT + "y[n, D + d] += w[d]\n" + LEFT, 0),
    ("a_half_reads", LEFT + "y[n, D + d] += y[n, d + 0] * w[d]", 0),
    ("a_half_sums", LEFT + "y[n, D + d] += w[d] * x[m, d + 0]", 0),
)  # fmt: skip


def text(case: tuple[str, str, int]) -> str:
    return HEAD + "".join(f"    {line}\n" for line in case[1].splitlines()) + "    return y\n"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_what_is_assigned(case: tuple[str, str, int]) -> None:
    after = print_function(passes.first_write(parse(text(case))).function("f"))
    assert sum(line.lstrip().startswith("y[") and " += " not in line
               for line in after.splitlines()) == case[2]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_values_and_derivatives(case: tuple[str, str, int]) -> None:
    whole = with_derivative(text(case))
    for rows in (1, 3):
        generator = torch.Generator().manual_seed(5)
        x = torch.randn(rows, 4, generator=generator, dtype=torch.float64)
        w = torch.randn(2, generator=generator, dtype=torch.float64)
        for change in (passes.first_write, passes.optimise):
            compare(Point(case[0], whole, "f", (x, w)), Changed(whole, verified(change)))
