"""Dimensions in another order: read where they lie, and copied by loops where a library is slow."""

from __future__ import annotations

import re

import pytest
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative

from loma import passes
from loma.core.printer import print_function
from loma.frontend import parse

# name, type of the result, body, what the optimised form has, what it has not
CASES: tuple[tuple[str, str, str, str, str], ...] = (
    ("returned", "Tensor[M, K, N]", "y = permute(x, [1, 2, 0])", "x[_i2, _i0, _i1]", "perm"),
    ("transposed", "Tensor[K, M, N]", "y = transpose(x, 0, 2)", "x[_i2, _i1, _i0]", "transp"),
    ("in_another_shape", "Tensor[M * K, N]", "y = reshape(permute(x, [1, 2, 0]), [M * K, N])",
     "x[_i2, _i0, _i1]", "permute"),
    ("of_a_product", "Tensor[M, K, N]", "y = permute(x * x, [1, 2, -3])",
     "x[_i2, _i0, _i1] * x[_i2, _i0, _i1]", "permute"),
    ("in_a_sum", "Tensor[M, K, N]", "y = permute(x, [1, 2, 0]) + 1.0",
     "x[_i2, _i0, _i1] + 1.0", "permute"),
    ("read", "Tensor[M, K, N]", "t = permute(x, [1, 2, 0])\ny = t * t",
     "x[_i2, _i0, _i1] * x[_i2, _i0, _i1]", "permute"),
    ("rows_stay", "Tensor[M, N, K]", "y = permute(x, [1, 0, 2])", "permute(x, ", "x["),
    ("of_a_permutation", "Tensor[N, K, M]", "y = transpose(permute(x, [1, 2, 0]), 0, 2)",
     "x[_i0, _i2, _i1]", "permute"),
)  # fmt: skip


def text(type_: str, body: str) -> str:
    lines = "".join(f"    {line}\n" for line in body.split("\n"))
    return f"def f(x : In[Tensor[N, M, K]]) -> {type_}:\n{lines}    return y\n"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_what_becomes_of_it(case: tuple[str, str, str, str, str]) -> None:
    _, type_, body, has, has_not = case
    program = with_derivative(text(type_, body))
    optimised = print_function(passes.optimise(parse(program)).function("f"))
    shown = re.sub(r"(_i\d)_\d", r"\1", optimised)
    assert has in shown
    assert has_not not in shown
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    compare(Point(body, program, "f", (x,)), Changed(program, verified(passes.optimise)))
