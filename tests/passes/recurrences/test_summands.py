"""What a running sum adds up has a tensor, so that derivatives are running sums, too."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative

from loma import passes, pipeline
from loma.backends.interpreter import Interpreter
from loma.core.printer import print_function
from loma.frontend import parse
from loma.passes.canonical import summands

HEAD = "def f(x : In[Tensor[N, T]], c : In[Tensor[T]]) -> Tensor[N, T]:\n    y : Tensor[N, T]\n"
# name, statements, whether there is such a tensor
CASES: tuple[tuple[str, tuple[str, ...], bool], ...] = (
    ("choice", ("y[n, t] = sum(x[n, q] * c[q] if x[n, q] > 0.1 else c[q] for q in range(t + 1))",),
     True),
    ("greater", ("y[n, t] = 0.5 * sum(max(x[n, q], c[q]) for q in range(t)) * c[t]",), True),
    ("square", ("y[n, t] = sum(x[n, q] * x[n, q] for q in range(t + 1))",), True),
    ("of_columns", ("y[n, t] = x[n, t] * sum(abs(c[q]) for q in range(t + 1))",), True),
    ("in_a_loop", ("for k in range(2):",
                   "    y[n, t] += sum(sin(x[n, q] + k) for q in range(t + 1))"), True),
    ("backwards", ("y[n, t] = sum(max(x[n, q], 0.1) for q in range(T - t))",), True),
    ("product", ("y[n, t] = sum(x[n, q] * c[q] for q in range(t + 1))",), False),
    ("of_both", ("y[n, t] = sum(max(x[n, q], c[t]) for q in range(t + 1))",), False),
    ("whole", ("y[n, t] = c[t] * sum(max(x[n, q], 0.5) for q in T)",), False),
)  # fmt: skip


def _text(body: tuple[str, ...]) -> str:
    return HEAD + "".join(f"    {line}\n" for line in body) + "    return y\n"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_summands(case: tuple[str, tuple[str, ...], bool]) -> None:
    text = _text(case[1])
    before = parse(text)
    assert ("_summand" in print_function(summands(before).function("f"))) == case[2]
    numbers = np.random.default_rng(2)
    for rows, columns in ((3, 5), (1, 1), (2, 0), (0, 4), (2, 20)):
        args = numbers.normal(size=(rows, columns)), numbers.normal(size=columns)
        (right,) = Interpreter(before).call("f", *args)
        for change in (summands, passes.optimise):
            (found,) = Interpreter(verified(change)(before)).call("f", *args)
            np.testing.assert_allclose(found, right, rtol=1e-12, atol=1e-14)
    args = numbers.normal(size=(3, 5)), numbers.normal(size=5)
    point = Point(case[0], with_derivative(text), "f", tuple(map(torch.tensor, args)))
    for derived in (passes.canonical_form, passes.optimise):
        compare(point, Changed(point.text, verified(derived)))


@pytest.mark.parametrize("case", CASES[:5], ids=lambda case: case[0])
def test_derivatives_take_a_step_for_each_element(
    case: tuple[str, tuple[str, ...], bool],
) -> None:
    shown = pipeline.stage_text(_text(case[1]), "schedule", "f__backward")
    assert not re.search(r"^ *(tiles|for|parallel for|vector for|blocks).*range\(.*(T - q|q \+ 1)",
                         shown, re.M), shown  # fmt: skip
