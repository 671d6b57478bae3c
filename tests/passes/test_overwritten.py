"""Views that are overwritten: what is viewed stays as it is."""

from __future__ import annotations

import pytest
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative
from test_loops import program

from loma import passes
from loma.core.printer import print_function
from loma.frontend import parse

X = "x : In[Tensor[N, M]]"

# name, result, body, whether the view is overwritten as a whole, outside of loops
CASES: tuple[tuple[str, str, str, bool], ...] = (
    ("reshaped", "N * M", """
z = reshape(x, [N * M])
z[k] = z[k] * z[k]
y[k] = tanh(z[k]) * z[k]
""", True),
    ("read_again", "N, M", """
z = transpose(x, 0, 1)
z[j, i] = exp(z[j, i])
y[i, j] = x[i, j] * z[j, i] * z[j, i]
""", True),
    ("neighbours", "N * M", """
z = reshape(x, [N * M])
z[k] = z[k] + zero_pad(z[k - 1])
y[k] = z[k] * z[k]
""", True),
    ("expanded", "3, N, M", """
z = expand(x, [3, N, M])
z[k, i, j] = z[k, i, j] * (k + 1)
y[k, i, j] = sin(z[k, i, j]) * z[k, i, j]
""", True),
    ("read_in_a_loop", "N, M", """
z = transpose(x, 0, 1)
z[j, i] = z[j, i] * z[j, i]
for k in range(2):
    y[i, j] += z[j, i] * x[i, j]
    z[j, i] = z[j, i] + y[i, j]
""", True),
    ("in_part", "N, M", """
z = transpose(x, 0, 1)
z[0, i] = 2.0
y[i, j] = z[j, i] * x[i, j]
""", False),
    ("in_a_loop", "N, M", """
z = transpose(x, 0, 1)
for k in range(2):
    z[j, i] = z[j, i] * z[j, i]
y[i, j] = z[j, i] * x[i, j]
""", False),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_whose_tensor_is_written(case: tuple[str, str, str, bool]) -> None:
    _, result, body, whole = case
    module = passes.overwritten(parse(program(X, result, body)))
    assert passes.overwritten(module) == module
    assert ("z_1" in print_function(module.function("f"))) == whole


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_values_and_derivatives(case: tuple[str, str, str, bool]) -> None:
    name, result, body, _ = case
    text = with_derivative(program(X, result, body))
    x = torch.randn(3, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    before = x.clone()
    for change in (passes.overwritten, passes.optimise):
        compare(Point(name, text, "f", (x,)), Changed(text, verified(change)))
    assert torch.equal(x, before)
