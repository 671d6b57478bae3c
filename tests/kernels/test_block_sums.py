"""Sums over a kernel's index: parts of blocks of rows, added up behind it."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import numpy as np
import pytest
from sampled import diagonals, one_in
from tree_runs import arguments, lowered
from unfused import Order, Seen, unfused_module

from loma import pipeline
from loma.backends import registry
from loma.backends.interpreter import Interpreter
from loma.backends.kernels.fuse import fuse
from loma.backends.kernels.ir import Kernel
from loma.core.ir import IndexAssign

HEAD = "x : In[Tensor[N, D]], g : In[Tensor[N, D]], w : In[Tensor[D]]"
MADE = ["a : Tensor[D]", "b : Tensor[D]", "r : Tensor[N]", "y : Tensor[N, D]", "q : Tensor[D, D]"]
ROW = "r[n] = sum(x[n, d] * w[d] for d in D)"
USE = "y[n, d] = g[n, d] * r[n]"
SUM = "a[d] = sum(x[n, d] * g[n, d] for n in N)"


def text(*lines: str) -> str:
    body = "".join(f"    {line}\n" for line in [*MADE, *lines, "return a, b, r, y, q"])
    results = "tuple[Tensor[D], Tensor[D], Tensor[N], Tensor[N, D], Tensor[D, D]]"
    return f"def f({HEAD}) -> {results}:\n{body}"


# The names of sums with parts, in the order of their statements.
CASES = {
    "behind the rows": ([ROW, USE, SUM], ["a"]),
    "before the rows": ([SUM, ROW, USE], ["a"]),
    "between them": ([ROW, SUM, USE], ["a"]),
    "two": ([ROW, USE, SUM, "b[d] = sum(g[n, d] for n in N)"], ["a", "b"]),
    "of what the kernel writes": ([ROW, USE, "a[d] = sum(y[n, d] for n in N)"], ["a"]),
    "before that is written again": (
        [ROW, USE, "a[d] = sum(y[n, d] * x[n, d] for n in N)", "y[n, d] += x[n, d] * r[n]"],
        ["a"],
    ),
    "added to what is there": (["a[d] = w[d]", ROW, USE, "a[d] += x[n, d] * g[n, d]"], ["a"]),
    "twice to the same": ([ROW, USE, SUM, "a[d] += x[n, d]"], ["a", "a_1"]),
    "read afterwards": ([ROW, USE, SUM, "b[d] = 2.0 * a[d]"], ["a"]),
    "read before": ([ROW, USE, "y[n, d] += a[d]", "a[d] += x[n, d] * g[n, d]"], []),
    "by no element of its own": ([ROW, USE, "a[d] = sum(r[n] * w[d] for n in N)"], []),
    "larger than what it reads": (
        [ROW, USE, "q[d, e] = sum(max(x[n, d], g[n, e]) for n in N)"], [],
    ),
    "without rows": ([SUM, "b[d] = sum(g[n, d] for n in N)"], []),
    "of something else": ([ROW, "y[n, d] = r[n] * w[d]", "a[d] = sum(g[n, d] for n in N)"], []),
}  # fmt: skip


def kernels(lines: list[str], elements: int) -> list[Kernel]:
    module = pipeline.program(text(*lines), "parts").module
    steps = fuse(module.function("f"), registry.CPU.routine_of, elements)
    return [step for step in steps if isinstance(step, Kernel)]


@pytest.mark.parametrize("case", one_in(2, CASES))
def test_which_sums_have_parts(case: str) -> None:
    lines, names = CASES[case]
    found = [var.name for kernel in kernels(lines, 100) for var in kernel.parts]
    assert found == [re.sub("(.)(.*)", r"\1_parts\2", name) for name in names]
    assert not [kernel for kernel in kernels(lines, 0) if kernel.parts or kernel.blocks]


def test_parts_come_last_where_they_can() -> None:
    def targets(case: str) -> list[str]:
        (kernel,) = kernels(CASES[case][0], 100)
        return [s.element.tensor.name for s in kernel.body if isinstance(s, IndexAssign)]

    assert targets("before the rows") == ["r", "y", "a_parts"]
    assert targets("before that is written again") == ["r", "y", "a_parts", "y"]


@pytest.mark.parametrize(("case", "elements"), diagonals(4, CASES, [1, 12]))
def test_values(case: str, elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As trees and as plain statements, whatever blocks have, for all sizes from 0."""
    machine = replace(registry.CPU.machine, rows=elements)
    monkeypatch.setattr(registry, "CPU", replace(registry.CPU, machine=machine))
    module = pipeline.program(text(*CASES[case][0]), "parts").module
    function, rng = module.function("f"), random.Random(case)
    numbers = np.random.default_rng(0)
    seen = Seen()
    plain = unfused_module(module, registry.CPU.routine_of, Order(), seen)
    for n, d in ((0, 3), (1, 1), (7, 2), (3, 0)):
        given = arguments(function, {"x": numbers.normal(size=(n, d))}, rng)
        wanted = Interpreter(module).call("f", *given)
        for found in (lowered(module).call("f", *given), Interpreter(plain).call("f", *given)):
            for got, right in zip(found, wanted, strict=True):
                np.testing.assert_allclose(got, right, rtol=1e-9, atol=1e-9)
    assert (seen.sums > 0) == bool(CASES[case][1])
