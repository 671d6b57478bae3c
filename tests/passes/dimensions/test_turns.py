"""What is written round a dimension, for each of its elements once, is read round it."""

from __future__ import annotations

import pytest
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative

from loma import passes, pipeline
from loma.core.printer import print_module
from loma.frontend import parse
from loma.passes.canonical.dimensions.turns import turns

# statements of y and what becomes of the last one
TURNED = {
    "ahead": ("y[(i + 1) % N, j] = x[i, j] ** 2", "y[i, j] = x[(i - 1) % N, j] ** 2"),
    "back": ("y[(i - k) % N, j] = x[i, j] + i", "y[i, j] = x[(i + k) % N, j] + (i + k) % N"),
    "backwards": ("y[(3 - i) % N, j] += x[i, j]", "y[i, j] += x[(-i + 3) % N, j]"),
    "both": (
        "y[(i + 2) % N, (j - 1) % M] += x[i, j] * i",
        "y[i, j] += x[(i - 2) % N, (j + 1) % M] * ((i - 2) % N)",
    ),
    "back to its place": (
        "y[(i + 1) % N, j] = x[i, j] * x[(i + 1) % N, j]",
        "y[i, j] = x[(i - 1) % N, j] * x[i, j]",
    ),
    "of sums": (
        "y[(i + 1) % N, j] += sum(x[i, q] for q in M) * x[i, j]",
        "y[i, j] += sum(x[(i - 1) % N, q] for q in M) * x[(i - 1) % N, j]",
    ),
    "of itself": ("y[(i + 1) % N, j] = y[i, j] + x[i, j]",
                  "y[i, j] = y[(i - 1) % N, j] + x[(i - 1) % N, j]"),
}  # fmt: skip
STAY = [
    "y[(2 * i + 1) % N, j] += x[i, j]",
    "y[(i + j) % N, j] += x[i, j]",
    "y[(i + 1) % N, i % M] += x[i, 0]",
    "y[(i + 1) % M, j] += x[i, j]",
]


def text(statement: str) -> str:
    return (
        "def f(x : In[Tensor[N, M]], k : In[int]) -> Tensor[N, M]:\n"
        f"    y : Tensor[N, M]\n    {statement}\n    return y\n"
    )


@pytest.mark.parametrize("case", TURNED)
def test_what_becomes_of_it(case: str) -> None:
    before, after = TURNED[case]
    assert print_module(turns(parse(text(before)))) == print_module(parse(text(after)))


@pytest.mark.parametrize("statement", STAY)
def test_what_stays(statement: str) -> None:
    module = parse(text(statement))
    assert turns(module) == module


@pytest.mark.parametrize("shape", [(4, 3), (1, 1), (2, 5), (0, 3)])
@pytest.mark.parametrize("case", TURNED)
def test_values_and_derivatives(case: str, shape: tuple[int, int]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    program = with_derivative(text(TURNED[case][0]))
    point = Point("f", program, "f", (x, 7))
    compare(point, Changed(program, verified(turns)))
    compare(point, Changed(program, verified(passes.optimise)))


def test_the_adjoint_of_a_read_round_a_dimension_is_one_too() -> None:
    program = text("y[i, j] = x[(i + 1) % N, j] + x[i, (j - 1) % M]")
    shown = pipeline.stage_text(program, "kernels", "f__backward")
    assert "_d_x[i, j] = _d_result[(i - 1) % N, j] + _d_result[i, (j + 1) % M]" in shown
