"""What is multiplied in a sum is a tensor, so that the sum is a product of two."""

from __future__ import annotations

import pytest
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative

from loma import passes
from loma.core.printer import print_function
from loma.frontend import parse

HEAD = "x : In[Tensor[N, M]], z : In[Tensor[M]], w : In[Tensor[M, K]]"

# name, body, what the canonical form has, what it has not
CASES: tuple[tuple[str, str, str, str], ...] = (
    ("quotient", "y[i, k] = sum(x[i, j] / z[j] * w[j, k] for j in M)",
     "_c[i, j] = x[i, j] / z[j]", "x[i, j] / z[j] *"),
    ("added_up", "y[i, k] += w[j, k] * (x[i, j] / z[j])", "_c[i, j] = x[i, j] / z[j]", "* (x"),
    ("for_one_result", "y[i, k] = w[0, k] * sum(x[i, j] / z[j] for j in M)",
     "x[i, j] / z[j]", "_c"),
    ("of_all_indices", "y[i, k] = sum(x[i, j] / w[j, k] for j in M)", "x[i, j] / w[j, k]", "_c"),
    ("outside", "y[i, k] = w[0, k] * (x[i, 0] / z[0])", "x[i, 0] / z[0]", "_c"),
    ("guarded", "y[i, k] = sum(x[i, j] / z[j] * w[j, k] if x[i, j] > 0.0 else 0.0 for j in M)",
     "x[i, j] / z[j] *", "_c"),
    ("squares", "y[i, k] = sum(x[i, j] ** 2 * w[j, k] ** 2 for j in M)",
     "_c[i, j] * _c_1[j, k]", "x[i, j] ** 2 *"),
    ("square_of_a_product", "y[i, k] += (x[i, j] * w[j, k]) ** 2",
     "_c[i, j] * _c_1[j, k]", "x[i, j] * w"),
    ("of_one_side", "y[i, k] = sum(x[i, j] * w[j, k] * x[i, j] for j in M)",
     "_c[i, j] * w[j, k]", "x[i, j] * w"),
    ("of_vectors", "y[i, k] = w[0, k] * sum(x[i, j] * x[i, j] * z[j] for j in M)",
     "x[i, j] * x[i, j] * z[j]", "_c"),
    ("of_neighbours", "y[i, k] = sum(x[i, j] * x[i, j] * w[(j + 1) % M, k] for j in M)",
     "x[i, j] * x[i, j] *", "_c"),
    ("short", "y[i, k] = sum(x[i, j] ** 2 * w[j, k] ** 2 for j in range(3))",
     "x[i, j] ** 2 * w", "_c"),
    ("view_of_an_operator", "y = sum(reshape(softmax(x, 1), [N, M, 1]) * w, [1])",
     "softmax(x, dim=1)", "reshape"),
    ("view_of_a_name", "s = softmax(x, 1)\ny = sum(reshape(s, [N, M, 1]) * w, [1])",
     "softmax(x, dim=1)", "reshape"),
    ("view_in_a_loop", """
for t in range(2):
    y += sum(reshape(softmax(x, 1), [N, M, 1]) * w, [1])
""", "softmax(x, dim=1)", "reshape"),
)  # fmt: skip


def text(case: tuple[str, str, str, str]) -> str:
    lines = "".join(f"    {line}\n" for line in case[1].strip("\n").split("\n"))
    declared = "    y : Tensor[N, K]\n" if "y =" not in case[1] else ""
    return f"def f({HEAD}) -> Tensor[N, K]:\n{declared}{lines}    return y\n"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_what_is_a_tensor(case: tuple[str, str, str, str]) -> None:
    shown = print_function(passes.canonical_form(parse(text(case))).function("f"))
    assert case[2] in shown
    assert case[3] not in shown


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_values_and_derivatives(case: tuple[str, str, str, str]) -> None:
    whole = with_derivative(text(case))
    generator = torch.Generator().manual_seed(4)
    x, z, w = (torch.rand(s, generator=generator, dtype=torch.float64) + 0.5
               for s in ((3, 4), (4,), (4, 2)))  # fmt: skip
    for change in (passes.canonical_form, passes.optimise):
        compare(Point(case[0], whole, "f", (x, z, w)), Changed(whole, verified(change)))
