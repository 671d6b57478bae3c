"""Loops along rows in strips: what they read and write lies together, and means the same."""

from __future__ import annotations

import pytest
from sampled import diagonals, name_of
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative

from loma import passes
from loma.core.ir import Module
from loma.core.printer import print_function
from loma.core.walk import map_tensor_functions
from loma.frontend import parse
from loma.passes.strips import in_strips

HEAD = "def f(x : In[Tensor[N, T]], c : In[Tensor[N]]) -> Tensor[N, T]:\n    y : Tensor[N, T]\n"

# name, body, tensors that have strips
CASES: tuple[tuple[str, str, str], ...] = (
    ("reads", "h = zeros([N])\nfor t in range(T):\n    h = c / (2.0 + h + x[:, t])\ny[n, t] = h[n]",
     "x"),
    ("writes", "h = zeros([N])\nfor t in range(T):\n    h = tanh(c * h + x[:, t])\n    y[:, t] = h",
     "x y"),
    ("backwards", "for t in reversed(range(T - 1)):\n    y[n, t] = tanh(y[n, t + 1] + x[n, t])",
     "x y"),
    ("two_rounds_before",
     "for t in range(2, T):\n    y[n, t] = x[n, t] / (2.0 + y[n, t - 1] + c[n] * y[n, t - 2])",
     "x y"),
    ("adds", "y[n, t] = x[n, t]\nfor t in range(1, T):\n    y[n, t] += tanh(y[n, t - 1])", "y"),
    ("of_the_row_itself", "y[n, t] = x[n, t]\nfor t in range(1, T):\n"
     "    y[n, t] = y[n, t] * exp(-y[n, t - 1] * y[n, t])", "y"),
    ("next_element", "y[n, t] = x[n, t]\nfor t in range(T - 1):\n"
     "    y[n, t] = tanh(y[n, t + 1]) * x[n, t]", ""),
    ("same_element", "for t in range(1, T):\n    y[n, t] = tanh(y[n, t - 1] + y[n, 0])", ""),
    ("no_wait", "for t in range(1, T):\n    y[n, t] = 0.5 * y[n, t - 1] + x[n, t]", ""),
)  # fmt: skip


def text(case: tuple[str, str, str]) -> str:
    return HEAD + "".join(f"    {line}\n" for line in case[1].split("\n")) + "    return y\n"


def strips(module: Module) -> Module:
    return map_tensor_functions(passes.optimise(module), lambda f: in_strips(f, 4))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_what_has_strips(case: tuple[str, str, str]) -> None:
    shown = print_function(strips(parse(text(case))).function("f"))
    assert {name for name in "xy" if f"{name}_strip[" in shown} == set(case[2].split()), shown


@pytest.mark.parametrize(
    ("case", "sizes"), diagonals(3, CASES, [(2, 9), (1, 3), (3, 8), (2, 13)]), ids=name_of
)
def test_values_and_derivatives(case: tuple[str, str, str], sizes: tuple[int, int]) -> None:
    whole = with_derivative(text(case))
    generator = torch.Generator().manual_seed(6)
    x, c = (torch.rand(s, generator=generator, dtype=torch.float64) for s in (sizes, sizes[:1]))
    compare(Point(case[0], whole, "f", (x, c)), Changed(whole, verified(strips)))
