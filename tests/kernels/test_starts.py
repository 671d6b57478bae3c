"""Products of the library that begin with what is added to them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative

from loma import passes
from loma.backends.kernels.starts import with_starts
from loma.backends.registry import CPU
from loma.core.ir import IndexAssign, Module
from loma.core.names import Names, names_of
from loma.core.walk import map_tensor_functions, statements
from loma.frontend import parse

HEAD = """def f(
    x : In[Tensor[B, I]], w : In[Tensor[O, I]], b : In[Tensor[O]], v : In[Tensor[B, O]],
) -> Tensor[B, O]:
    t : Tensor[B, O]
    p : Tensor[B, O]
    y : Tensor[B, O]
"""
PRODUCT = "t[n, o] = sum(x[n, i] * w[o, i] for i in I)"
USE = "y[n, o] = p[n, o] * tanh(p[n, O - 1 - o])"

# name, statements, how many products begin with what is added
CASES: tuple[tuple[str, tuple[str, ...], int], ...] = (
    ("bias", (PRODUCT, "p[n, o] = t[n, o] + b[o]", USE), 1),
    ("bias_first", (PRODUCT, "p[n, o] = b[o] + t[n, o]", USE), 1),
    ("other_indices", (PRODUCT, "p[i, j] = b[j] + t[i, j]", USE), 1),
    ("three_terms", (PRODUCT, "p[n, o] = v[n, o] + t[n, o] + 2.0 * b[o]", USE), 1),
    ("function_beside", (PRODUCT, "p[n, o] = t[n, o] + exp(0.1 * v[n, o])", USE), 1),
    ("declared_between", (PRODUCT, "q : Tensor[B, O]", "q[n, o] = t[n, o] + b[o]",
                          "p[n, o] = q[n, o] * q[n, 0]", USE), 1),
    ("two_products", (PRODUCT, "s : Tensor[B, O]", "s[n, o] = sum(v[n, k] * w[k, i] * x[n, i] "
                      "for i in I for k in O)", "p[n, o] = t[n, o] + s[n, o]", USE), 0),
    ("two_of_the_library", (PRODUCT, "s : Tensor[B, O]",
                            "s[n, o] = sum(x[m, i] * x[n, i] * v[m, o] for m in B for i in I)",
                            "z : Tensor[B, O]", "z[n, o] = sum(x[n, i] * w[o, i] for i in I)",
                            "p[n, o] = t[n, o] + b[o] + z[n, o]",
                            "p[n, o] = p[n, o] + s[n, o]", USE), 2),
    ("in_a_loop", ("for k in range(2):", "    " + PRODUCT, "    p[n, o] = t[n, o] + k * b[o]",
                   "    y[n, o] += p[n, o] * p[n, O - 1 - o]"), 1),
    ("difference", (PRODUCT, "p[n, o] = t[n, o] - b[o]", USE), 0),
    ("scaled", (PRODUCT, "p[n, o] = 2.0 * t[n, o] + b[o]", USE), 0),
    ("read_twice", (PRODUCT, "p[n, o] = t[n, o] + t[n, 0]", USE), 0),
    ("read_later", (PRODUCT, "p[n, o] = t[n, o] + b[o]", "y[n, o] = p[n, o] * t[n, O - 1 - o]"), 0),
    ("another_place", (PRODUCT, "p[n, o] = t[n, O - 1 - o] + b[o]", USE), 0),
    ("changed_between", ("s : Tensor[B, O]", "s[n, o] = v[n, o]", PRODUCT,
                         "s[n, o] = s[n, o] * s[n, 0]", "p[n, o] = t[n, o] + s[n, o]", USE), 0),
    ("used_between", ("p[n, o] = v[n, o]", PRODUCT, "y[n, o] = p[n, O - 1 - o]",
                      "p[n, o] = t[n, o] + b[o]", "y[n, o] += p[n, O - 1 - o]"), 0),
    ("its_own_operand", ("p[n, o] = v[n, o]", "t[n, o] = sum(p[n, k] * p[m, k] * p[m, o] "
                         "for m in B for k in O)", "p[n, o] = t[n, o] + b[o]", USE), 0),
)  # fmt: skip


def text(case: tuple[str, tuple[str, ...], int]) -> str:
    return HEAD + "".join(f"    {line}\n" for line in case[1]) + "    return y\n"


def started(module: Module) -> Module:
    return map_tensor_functions(
        module, lambda f: with_starts(f, CPU.routine_of, Names(names_of(f)))
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_what_begins_with_a_sum(case: tuple[str, tuple[str, ...], int]) -> None:
    body = started(parse(text(case))).function("f").body
    adds = [s for s in statements(body) if isinstance(s, IndexAssign) and s.op == "+="]
    assert sum(CPU.routine_of(stmt) == "product" for stmt in adds) == case[2]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_values_and_derivatives(case: tuple[str, tuple[str, ...], int]) -> None:
    whole = with_derivative(text(case))
    changed = Changed(whole, verified(lambda module: started(passes.optimise(module))))
    for many, inner, outer in ((3, 4, 2), (1, 1, 1), (2, 0, 3), (0, 2, 2)):
        generator = torch.Generator().manual_seed(5)
        shapes = ((many, inner), (outer, inner), (outer,), (many, outer))
        args: Any = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
        compare(Point(f"{case[0]}, {shapes}", whole, "f", tuple(args)), changed)
