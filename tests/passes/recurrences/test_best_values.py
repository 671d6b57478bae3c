"""Where only the value at the position of an extreme is wanted, nothing is looked up."""

from __future__ import annotations

import math

import numpy as np
import pytest

from loma import passes
from loma.backends.interpreter import Interpreter
from loma.core.printer import print_function
from loma.frontend import parse

# name, statements of y : Tensor[N] from x : Tensor[N, 4], whether a position is left
CASES: tuple[tuple[str, str, bool], ...] = (
    ("loop", """
for n in range(N):
    m : float = x[n, 0]
    for k in range(4):
        if x[n, k] > m:
            m = x[n, k]
    y[n] = m
""", False),
    ("window", """
for n in range(N):
    m : float = x[n, 0]
    for p in range(2):
        for q in range(2):
            if x[n, 2 * p + q] < m:
                m = x[n, 2 * p + q]
    y[n] = m
""", False),
    ("from_a_number", """
for n in range(N):
    m : float = -1e30
    for k in range(4):
        if x[n, k] > m:
            m = x[n, k]
    y[n] = m
""", False),
    ("of_what_is_computed", """
for n in range(N):
    m : float = 1e30
    for k in range(4):
        d : float = (x[n, k] - x[0, k]) * x[n, 0]
        if d < m:
            m = d
    y[n] = m
""", False),
    ("read_elsewhere", """
for n in range(N):
    m : float = 1e30
    which : int = 0
    for k in range(4):
        if x[n, k] * x[0, k] < m:
            m = x[n, k] * x[0, k]
            which = k
    y[n] = m + which
""", True),
    ("position", "y[n] = x[n, argmax(x[n, k] for k in range(4))]", False),
    ("of_squares", "y[n] = x[n, argmin(x[n, k] ** 2 for k in range(4))]", True),
    ("another_element", "y[n] = x[n, (argmax(x[n, k] for k in range(4)) + 1) % 4]", True),
    ("of_another_row", "y[n] = x[0, argmax(x[n, k] for k in range(4))]", True),
    ("smaller_of_larger", """
p : IntTensor[N]
p[n] = argmax(x[n, k] if x[n, k] < x[n, 0] else x[n, 0] for k in range(4))
y[n] = x[n, p[n]]
""", True),
    ("both", """
p : IntTensor[N]
p[n] = argmax(x[n, k] for k in range(4))
y[n] = x[n, p[n]] + p[n]
""", True),
    ("changed_between", """
z : Tensor[N, 4]
p : IntTensor[N]
z[n, k] = x[n, k]
p[n] = argmax(z[n, k] for k in range(4))
z[n, 1] = 7.0
y[n] = z[n, p[n]]
""", True),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_values(case: tuple[str, str, bool]) -> None:
    _, body, looked_up = case
    lines = "".join(f"    {line}\n" for line in body.strip("\n").split("\n"))
    before = parse(
        f"def f(x : In[Tensor[N, 4]]) -> Tensor[N]:\n    y : Tensor[N]\n{lines}    return y\n"
    )
    after = passes.optimise(passes.canonical_form(before))
    assert ("arg" in print_function(after.function("f"))) == looked_up
    inf, nan = math.inf, math.nan
    rows = [
        [1.0, 2.0, 2.0, 0.0], [nan, 1.0, 2.0, -1.0], [1.0, nan, -2.0, 3.0], [-inf] * 4,
        [-inf, inf, nan, 1.0], [nan] * 4, [0.0, -0.0, 0.0, -0.0], [3.0, 2.0, 1.0, 0.0],
    ]  # fmt: skip
    for x in (np.array(rows), np.random.default_rng(2).normal(size=(6, 4)), np.zeros((0, 4))):
        if "x[0" in body and len(x) == 0:
            continue
        (right,), (found,) = (Interpreter(module).call("f", x) for module in (before, after))
        np.testing.assert_array_equal(found, right)


def test_the_best_of_a_window_is_written_out() -> None:
    """So elements of a row lie in lanes, where a reduction of a few values would stand alone."""
    before = parse(
        "def f(x : In[Tensor[N, 2 * M]]) -> Tensor[N, M]:\n    y : Tensor[N, M]\n"
        "    for n in range(N):\n        for k in range(M):\n            m : float = x[n, 2 * k]\n"
        "            for q in range(2):\n                if x[n, 2 * k + q] > m:\n"
        "                    m = x[n, 2 * k + q]\n            y[n, k] = m\n    return y\n"
    )
    shown = print_function(passes.optimise(passes.canonical_form(before)).function("f"))
    assert " for q" not in shown
    assert shown.count("max(") == 1
