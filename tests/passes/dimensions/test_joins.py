"""Tensors joined with zeros, or with themselves, have the form of those spelled without joining."""

from __future__ import annotations

import pytest
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative

from loma import passes
from loma.core.printer import print_function
from loma.frontend import parse

HEAD = "def f(x : In[Tensor[N, M]]) -> Tensor[{}]:\n"
# name, sizes of the result, body, whether nothing is joined any more
CASES: tuple[tuple[str, str, str, bool], ...] = (
    ("between_zeros", "N, M", """
    z = zeros([N, 1])
    p = cat([z, x, z], 1)
    return p[:, :-2] - p[:, 2:]
""", True),
    ("behind_zeros", "N + 2, M", """
    return sin(cat([zeros([2, M]), x], 0))
""", False),
    ("parts_beside_zeros", "N, 2 * M + 3", """
    p = cat([x, zeros([N, 3]), x], 1)
    return p * p
""", True),
    ("zeros_that_change", "N, M + 1", """
    z = zeros([N, 1])
    z[i, 0] = x[i, 0]
    p = cat([z, x], 1)
    return p * p
""", False),
    ("twice", "N, M, 2", """
    return stack([x, x], 2)
""", True),
    ("three_rows", "3, N, M", """
    y = sin(x)
    return stack([y, y, y], 0)
""", True),
    ("longer", "N, 2 * M", """
    return cat([x, x], 1)
""", False),
    ("two_tensors", "N, M, 2", """
    return stack([x, sin(x)], 2)
""", False),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_what_is_joined(case: tuple[str, str, str, bool]) -> None:
    text = HEAD.format(case[1]) + case[2].strip("\n")
    shown = print_function(passes.optimise(parse(text)).function("f"))
    assert ("cat(" not in shown) == case[3], shown
    points = with_derivative(text + "\n")
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    for change in (passes.canonical.joins, passes.canonical_form, passes.optimise):
        compare(Point(case[0], points, "f", (x,)), Changed(points, verified(change)))
