"""Sums over the same elements run in one loop, where they do not depend on each other."""

from __future__ import annotations

import random

import numpy as np
import pytest
from tree_runs import arguments, lowered

from loma import pipeline
from loma.backends.interpreter import Interpreter
from loma.backends.kernels.beside import alike, beside
from loma.core.ir import Function, IndexAssign, Module
from loma.frontend import parse

HEAD = "x : In[Tensor[N, D]], g : In[Tensor[N, D]], w : In[Tensor[D]]"
SUM, MATE = "a[d] = sum(x[n, d] for n in N)", "b[d] = sum(g[n, d] * x[n, d] for n in N)"
ROWS = "r[n] = sum(x[n, d] * w[d] for d in D)", "s[n] = sum(x[n, k] * g[n, k] for k in D)"


def text(*lines: str) -> str:
    made = ["a : Tensor[D]", "b : Tensor[D]", "r : Tensor[N]", "s : Tensor[N]", "y : Tensor[N, D]"]
    body = "".join(f"    {line}\n" for line in [*made, *lines, "return a, b, r, s, y"])
    results = "tuple[Tensor[D], Tensor[D], Tensor[N], Tensor[N], Tensor[N, D]]"
    return f"def f({HEAD}) -> {results}:\n{body}"


def compare(module: Module, rng: random.Random) -> None:
    """The loops of ``f`` with the interpreter."""
    trees, interpreter = lowered(module), Interpreter(module)
    for _ in range(6):
        args = arguments(module.function("f"), {}, rng)
        expected = interpreter.call("f", *args)
        for value, right in zip(trees.call("f", *args), expected, strict=True):
            np.testing.assert_allclose(value, right, 1e-9, 1e-12)


def statements(function: Function) -> list[IndexAssign]:
    return [stmt for stmt in function.body if isinstance(stmt, IndexAssign)]


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (MATE, True),
        ("b[e] += x[m, e]", True),
        (ROWS[0], False),  # along the other axis
        ("b[d] = sum(g[n, d] for n in N)", False),  # it reads nothing of the same
        ("b[d] = sum(x[n, d] for n in range(2))", False),
        ("b[d] = max(x[n, d] for n in N)", False),
        ("y[n, d] = x[n, d]", False),
    ],
)
def test_which_sums_are_alike(other: str, same: bool) -> None:
    first, second = statements(parse(text(SUM, other)).function("f"))
    assert alike(first, second) is same


@pytest.mark.parametrize(
    ("between", "moves"),
    [
        ("y[n, d] = x[n, d] * a[d]", True),
        ("b[d] = w[d]", False),
        ("y[n, d] = b[d]", False),
    ],
)
def test_a_later_sum_moves_beside_the_first(between: str, moves: bool) -> None:
    before = parse(text(SUM, between, MATE)).function("f")
    first, middle, last = statements(before)
    expected = [first, last, middle] if moves else [first, middle, last]
    assert statements(beside(before)) == expected


def test_what_reads_what_is_written_between_stays() -> None:
    later = "b[d] = sum(x[n, d] * y[n, d] for n in N)"
    function = parse(text(SUM, "y[n, d] = x[n, d] * a[d]", later)).function("f")
    assert statements(beside(function)) == statements(function)


CASES = {
    "columns": ([SUM, MATE], 1),
    "rows": ([*ROWS], 1),
    "in a kernel": ([*ROWS, "y[n, d] = x[n, d] * r[n] + s[n]"], 1),
    "after another": ([SUM, "y[n, d] = x[n, d] * a[d]", MATE], 1),
    "one reads the other": ([SUM, "b[d] = sum(x[n, d] * a[d] for n in N)"], 0),
    "into one tensor": ([SUM, "a[d] += x[n, d] * g[n, d]"], 0),
    "as many as there are registers for": (
        [SUM, *(f"a{k}[d] = sum(x[n, d] * {k}.0 * g[n, d] for n in N)" for k in range(5)),
         "b[d] = a0[d] + a1[d] + a2[d] + a3[d] + a4[d]"], 4),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_values(case: str) -> None:
    lines, together = CASES[case]
    made = [f"a{k} : Tensor[D]" for k in range(5) if f"a{k}[d]" in " ".join(lines)]
    module = pipeline.program(text(*made, *lines), "together").module
    shown = pipeline.stage_text(text(*made, *lines), "schedule", "f")
    assert shown.count("_in_2 : sum") + shown.count("sums_2 : sum") == (together > 0), shown
    assert shown.count("$sums_5") == shown.count("$acc1_in_5") == 0
    compare(module, random.Random(case))


@pytest.mark.parametrize(
    ("second", "together"),
    [
        ("q += g[n, d] * x[n, d]", "p, q"),
        ("p += g[n, d] * x[n, d]", "p, p"),
        ("q += p * x[n, d]", "p, _r"),  # p is no part of the sum
        ("q += (p + x[n, d]) * x[n, d]", ""),
    ],
)
def test_sums_of_everything(second: str, together: str) -> None:
    source = (
        f"def f({HEAD}) -> tuple[float, float]:\n    p : float\n    q : float\n"
        f"    p += x[n, d] * x[n, d]\n    {second}\n    return p, q\n"
    )
    shown = pipeline.stage_text(source, "schedule", "f")
    assert (f"adds the parts of all to {together}\n" in shown) is bool(together)
    assert shown.count("parallel for") == (1 if together else 2)
    compare(pipeline.program(source, "totals").module, random.Random(second))


NUMBERS = {
    "declared between": (("p += x[n, d]", "q : float", "q += x[n, d] * g[n, d]"), 1),
    "read between": (("q : float", "p += x[n, d]", "r += p * p", "q += x[n, d] * g[n, d]"), 1),
    "into another number": (("q : float", "p += x[n, d]", "k : float = p", "q += x[n, d] * k"), 1),
    "what is read between": (("q : float", "p += x[n, d]", "q = p", "q += x[n, d] * g[n, d]"), 2),
}


@pytest.mark.parametrize("case", NUMBERS)
def test_sums_into_numbers(case: str) -> None:
    lines, loops = NUMBERS[case]
    body = "".join(f"    {s}\n" for s in ("r : float", "p : float", *lines, "return p, q + r"))
    source = f"def f({HEAD}) -> tuple[float, float]:\n{body}"
    shown = pipeline.stage_text(source, "schedule", "f")
    assert shown.count("parallel for") == loops, shown
    compare(pipeline.program(source, "numbers").module, random.Random(case))


def test_a_number_that_is_read_between_is_declared_behind_the_sum() -> None:
    lines = (
        "y[n] = sum(x[n, d] for d in D)", "p += y[n]", "h : float = 2.0 * p",
        "z[n, d] = y[n] * x[n, d]", "q += z[n, d]", "return h, q, z",
    )  # fmt: skip
    made = ("p : float", "q : float", "y : Tensor[N]", "z : Tensor[N, D]")
    body = "".join(f"    {line}\n" for line in (*made, *lines))
    source = f"def f({HEAD}) -> tuple[float, float, Tensor[N, D]]:\n{body}"
    compare(pipeline.program(source, "numbers").module, random.Random(0))


@pytest.mark.parametrize("first", [True, False])
def test_axes_that_one_of_them_needs_apart(first: bool) -> None:
    """Alone, the second one would go through ``c`` and ``j`` as one."""
    own, mate = "r[n] = sum(x[n, c, j] * w[c] for c in C for j in J)", "s[n] += x[n, k, i]"
    lines = [own, mate] if first else [mate, own]
    source = (
        "def f(x : In[Tensor[N, C, J]], w : In[Tensor[C]]) -> tuple[Tensor[N], Tensor[N]]:\n"
        "    r : Tensor[N]\n    s : Tensor[N]\n"
        + "".join(f"    {line}\n" for line in lines)
        + "    return r, s\n"
    )
    shown = pipeline.stage_text(source, "schedule", "f")
    assert shown.count("parallel for") == 1, shown
    module = pipeline.program(source, "together").module
    compare(module, random.Random(0))


ROW = """
def f(x : In[Tensor[N, D]], g : In[Tensor[N, D]]) -> tuple[Tensor[N, D], Tensor[N, 2 * D]]:
    t : Tensor[N, D]
    y : Tensor[N, D]
    h : Tensor[N, 2 * D]
    t[n, d] = exp(x[n, d])
    {}
    return y, h
"""
ELEMENTS = {
    "of one place": (["y[n, d] = t[n, d] * g[n, d]", "h[n, d + 0] = t[n, d] * y[n, d]"], 1),
    "parts of a tensor": (["h[n, D + d] = t[n, d]", "h[n, d + 0] = t[n, d] + x[n, d]"], 1),
    "added to": (["y[n, d] = t[n, d]", "y[n, d] += t[n, d] * g[n, d]"], 1),
    "of another place": (["y[n, d] = t[n, D - 1 - d] * t[n, d]"], 2),
    "parts that overlap": (["h[n, d + 1] = t[n, d]", "h[n, d + 0] = t[n, d] + x[n, d]"], 3),
    "overwritten behind": (["y[n, d] = t[n, D - 1 - d] * t[n, d]",
                            "t[n, d] = g[n, d] * y[n, d]", "h[n, d + 0] = t[n, d]"], 2),
}  # fmt: skip


@pytest.mark.parametrize("case", ELEMENTS)
def test_elements_of_rows(case: str) -> None:
    """Statements of a row's elements, each of which reads of what others write the one at hand."""
    lines, loops = ELEMENTS[case]
    source = ROW.format("\n    ".join(lines))
    module = pipeline.program(source, "together").module
    shown = pipeline.stage_text(source, "schedule", "f")
    assert shown.count("vector for") == loops, shown
    compare(module, random.Random(case))
