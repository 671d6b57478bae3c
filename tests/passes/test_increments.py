"""What is added to a place, however it is spelled; and what that, calls inside of expressions and
views of results make of loops over rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative
from test_loops import program

from loma import passes
from loma.core.ir import Module
from loma.core.printer import print_function
from loma.frontend import parse
from loma.passes.canonical.increments import increments

X = "x : In[Tensor[N, M]]"

# name, body, the line that an assignment becomes, or None where it stays
CASES: tuple[tuple[str, str, str | None], ...] = (
    ("scalar", """
for i in range(N):
    s = 0.0
    for j in range(M):
        s = s + x[i, j]
    y[i] = s
""", "s += x[i, j]"),
    ("last_term", """
for i in range(N):
    s = 0.0
    for j in range(M):
        s = x[i, j] * 2.0 + (s + 1.0)
    y[i] = s
""", "s += x[i, j] * 2.0 + 1.0"),
    ("taken_away", """
for i in range(N):
    s = 0.0
    for j in range(M):
        s -= x[i, j] - 1.0
    y[i] = s
""", "s += -(x[i, j] - 1.0)"),
    ("taken_away_from_what_is_added", """
for i in range(N):
    s = 0.0
    for j in range(M):
        s = x[i, j] + s - 2.0 * x[i, 0]
    y[i] = s
""", "s += x[i, j] + -(2.0 * x[i, 0])"),
    ("elements", """
y[i] = y[i] + sum(x[i, j] for j in M)
""", "y[i] += sum(x[i, j] for j in M)"),
    ("twice", """
for i in range(N):
    s = 0.5
    for j in range(M):
        s = s + x[i, j] + s
    y[i] = s
""", None),
    ("of_itself", """
y[i] = sum(x[i, j] for j in M)
y[i] = y[i] + y[i] * y[i]
""", None),
    ("other_elements", """
y[i] = sum(x[i, j] for j in M)
y[i] = y[i] + y[N - 1 - i]
""", None),
    ("a_product", """
for i in range(N):
    s = 1.0
    for j in range(M):
        s = s * x[i, j]
    y[i] = s
""", None),
)  # fmt: skip


def _same(text: str, columns: int, change: Callable[[Module], Module]) -> None:
    x = torch.randn(3, columns, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    for changed in (change, passes.optimise):
        compare(Point("f", text, "f", (x,)), Changed(text, verified(changed)))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_what_adds(case: tuple[str, str, str | None]) -> None:
    _, body, line = case
    module = parse(program(X, "N", body))
    after = increments(module)
    assert increments(after) == after
    printed = print_function(after.function("f"))
    if line is None:
        assert after == module
    else:
        assert line in [text.strip() for text in printed.splitlines()]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
@pytest.mark.parametrize("columns", [0, 1, 4])
def test_values_and_derivatives(case: tuple[str, str, str | None], columns: int) -> None:
    _same(with_derivative(program(X, "N", case[1])), columns, increments)


def test_elements_that_may_be_named_twice_are_assigned() -> None:
    text = """
def f(x : In[Tensor[N]], p : In[IntTensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    y[p[i]] = y[p[i]] + x[i]
    return y
"""
    module = parse(text)
    assert increments(module) == module


ROWS = "for n in range(N):\n    "
HELPER = """
def _centred(r : In[Tensor[D]]) -> Tensor[D]:
    return r - mean(r, [0])


"""

# programs in which no loop remains
LOOPS = (
    program(X, "N", ROWS + "e = x[n] * 0.5\n    y[n] = exp(sum(e * e, [0]))"),
    program(X, "N", ROWS + "y[n] = logsumexp(x[n], [0])"),
    HELPER + program(X, "N, M", ROWS + "y[n] = _centred(x[n]) * 2.0 + 1.0"),
    program(X, "N, M", ROWS + """t = 0.0
    for j in range(M):
        y[n, j] = exp(x[n, j])
        t = t + y[n, j]
    for j in range(M):
        y[n, j] = y[n, j] / t
"""),
    program(X, "N, M", "z = exp(x - reshape(amax(x, [1]), [N, 1]))\n"
                       "y = z * reshape(1.0 / sum(z, [1]), [N, 1])"),
)  # fmt: skip


@pytest.mark.parametrize("text", LOOPS)
def test_rows_are_index_statements(text: str) -> None:
    printed = print_function(passes.canonical_form(parse(text)).function("f"))
    assert "for n in range" not in printed
    assert "reshape" not in printed
    _same(with_derivative(text), 4, passes.canonical_form)
