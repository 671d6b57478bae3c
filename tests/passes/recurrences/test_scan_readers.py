"""What reads running sums stands in the loops that make them, where nothing else needs them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative
from sampled import name_of, one_in

from loma import passes
from loma.core.ir import For, Function, IndexAssign, Module
from loma.core.walk import map_tensor_functions, statements
from loma.frontend import parse
from loma.passes import canonical

HEAD = """def f(a : In[Tensor[B, T]], x : In[Tensor[B, T, D]]) -> Tensor[B, T, D]:
    r : Tensor[B, T, D]
    y : Tensor[B, T, D]
"""
SUMS = "r[b, t, d] = sum(x[b, q, d] for q in range(t + 1))"

# name, statements, how many of them share the loop with the sum, and if only those are to do so
# that reduce nothing
CASES: tuple[tuple[str, tuple[str, ...], int, int], ...] = (
    ("product", (SUMS, "y[b, t, d] = a[b, t] * r[b, t, d]"), 1, 1),
    ("function", (SUMS, "y[b, t, d] = sin(a[b, t] * r[b, t, d]) + x[b, t, d]"), 1, 1),
    ("two_readers", ("z : Tensor[B, T, D]", SUMS, "z[b, t, d] = sin(r[b, t, d])",
                     "y[b, t, d] = a[b, t] * r[b, t, d]",
                     "y[b, t, d] = y[b, t, d] * z[b, t, d]"), 2, 2),
    ("declared_between", (SUMS, "z : Tensor[B, T, D]", "z[b, t, d] = a[b, t] * r[b, t, d]",
                          "y[b, t, d] = z[b, t, d] * x[b, 0, d]"), 1, 1),
    ("other_names", (SUMS, "y[m, s, e] = a[m, s] * r[m, s, e]"), 1, 1),
    ("mirrored", (SUMS, "y[b, T - 1 - t, d] = a[b, t] * r[b, t, d]"), 1, 1),
    ("exclusive", ("r[b, t, d] = sum(x[b, q, d] for q in t)",
                   "y[b, t, d] = a[b, t] * r[b, t, d]"), 1, 1),
    ("backwards", ("r[b, t, d] = sum(x[b, q, d] for q in range(t, T))",
                   "y[b, t, d] = a[b, t] * r[b, t, d]"), 1, 1),
    ("reduced", ("z : Tensor[B, T]", SUMS, "z[b, t] = sum(a[b, t] * r[b, t, d] for d in D)",
                 "y[b, t, d] = z[b, t] * x[b, t, d]"), 1, 0),
    ("added", ("y[b, t, d] = x[b, t, d]", SUMS, "y[b, t, d] += a[b, t] * r[b, t, d]"), 1, 0),
    ("inside", ("y[b, t, d] = a[b, t] * sum(sin(x[b, q, d]) for q in range(t + 1)) + a[b, t]",),
     1, 1),
    ("last_dimension", ("z : Tensor[B, T]", "z[b, t] = sum(a[b, q] for q in range(t + 1))",
                        "y[b, t, d] = z[b, t] * x[b, t, d]"), 1, 0),
    ("in_a_branch", ("if B > 1:", "    " + SUMS, "    y[b, t, d] = a[b, t] * r[b, t, d]"), 1, 1),
    # Statements that need all of the sums, or that the loop would disturb:
    ("another_place", (SUMS, "y[b, t, d] = a[b, t] * r[b, T - 1 - t, d]"), 0, 0),
    ("two_places", (SUMS, "y[b, t, d] = r[b, t, d] * r[b, 0, d]"), 0, 0),
    ("read_later", (SUMS, "y[b, t, d] = a[b, t] * r[b, t, d]",
                    "y[b, t, d] = y[b, t, d] + r[b, T - 1 - t, d]"), 0, 0),
    ("each_reads_the_other", ("z : Tensor[B, T, D]", SUMS, "z[b, t, d] = sin(r[b, t, d])",
                              "y[b, t, d] = r[b, t, d] * z[b, T - 1 - t, d]"), 0, 0),
    ("sums_of_it", ("z : Tensor[B, T, D]", "z[b, t, d] = x[b, t, d]",
                    "r[b, t, d] = sum(z[b, q, d] for q in range(t + 1))",
                    "z[b, T - 1 - t, d] = r[b, t, d] * a[b, t]", "y = z"), 0, 0),
    ("summed_again", (SUMS, "y[b, t, d] = sum(r[b, q, d] for q in range(t + 1))"), 0, 0),
    ("costly_in_the_last_dimension", (
        "z : Tensor[B, T]", "z[b, t] = exp(0.1 * sum(a[b, q] for q in range(t + 1)))",
        "y[b, t, d] = z[b, t] * x[b, t, d]"), 0, 0),
)  # fmt: skip


def text(case: tuple[str, tuple[str, ...], int, int]) -> str:
    return HEAD + "".join(f"    {line}\n" for line in case[1]) + "    return y\n"


def in_loops(module: Module, elementwise: bool) -> Module:
    return map_tensor_functions(module, lambda f: canonical.scans(f, ("sum",), elementwise))


def _optimised_in_loops(module: Module, elementwise: bool) -> Module:
    return in_loops(passes.optimise(module), elementwise)


def in_one_loop(function: Function) -> int:
    """How many statements follow what adds up in a loop."""
    loops = [stmt for stmt in statements(function.body) if isinstance(stmt, For)]
    return sum(isinstance(stmt, IndexAssign) for loop in loops for stmt in loop.body[1:])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_what_stands_in_the_loop(case: tuple[str, tuple[str, ...], int, int]) -> None:
    module = parse(text(case))
    found = [in_one_loop(in_loops(module, few).function("f")) for few in (False, True)]
    assert found == [case[2], case[3]]


@pytest.mark.parametrize("case", one_in(3, CASES), ids=name_of)
def test_values_and_derivatives(case: tuple[str, tuple[str, ...], int, int]) -> None:
    whole = with_derivative(text(case))
    for t in (4, 1, 0):
        generator = torch.Generator().manual_seed(5)
        shapes: tuple[tuple[int, ...], ...] = ((2, t), (2, t, 3))
        args: Any = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
        for few in (False, True):
            change = partial(_optimised_in_loops, elementwise=few)
            changed = Changed(whole, verified(change))
            compare(Point(f"{case[0]}, {t} steps", whole, "f", tuple(args)), changed)
