"""The round of a loop that stands apart: the text, and values and derivatives."""

from __future__ import annotations

import pytest
from sampled import diagonals, name_of
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative
from test_loops import program

import loma
from loma import passes, pipeline
from loma.core.ir import Module
from loma.core.printer import print_function
from loma.core.walk import map_tensor_functions
from loma.frontend import parse
from loma.passes.peeling import peeled

# name, body, what it becomes
CASES: tuple[tuple[str, str, list[str]], ...] = (
    ("before", """
for t in range(M):
    y[i, t] = x[i, t] + (y[i, t - 1] if t > 0 else 0.0)
""", [
        "for t in range(min(M, 1)):", "y[i, 0] = x[i, 0] + 0.0",
        "for t in range(M - 1):", "y[i, t + 1] = x[i, t + 1] + y[i, t]",
    ]),
    ("behind", """
for t in reversed(range(M)):
    y[i, t] = x[i, t] * (y[i, t + 1] if t + 1 < M else 1.0)
""", [
        "for t in range(min(M, 1)):", "y[i, M - 1] = x[i, M - 1] * 1.0",
        "for t in reversed(range(M - 1)):", "y[i, t] = x[i, t] * y[i, t + 1]",
    ]),
    ("first_is_last", """
for t in reversed(range(M)):
    y[i, t] += x[i, t] + (0.0 if t < 1 else x[i, t - 1])
""", [
        "for t in reversed(range(M - 1)):", "y[i, t + 1] += x[i, t + 1] + x[i, t]",
        "for t in range(min(M, 1)):", "y[i, 0] += x[i, 0] + 0.0",
    ]),
    ("branch", """
for t in range(M):
    if t >= 1 and n > 0:
        y[i, t] = y[i, t - 1] * x[i, t]
    else:
        y[i, t] = x[i, t]
""", [
        "for t in range(min(M, 1)):", "y[i, 0] = x[i, 0]",
        "for t in range(M - 1):", "if 1 and n > 0:",
        "y[i, t + 1] = y[i, t] * x[i, t + 1]", "else:", "y[i, t + 1] = x[i, t + 1]",
    ]),
    ("first", """
for t in range(M):
    if t == 0:
        y[i, t] = x[i, t]
    else:
        y[i, t] = y[i, t - 1] * x[i, t]
""", [
        "for t in range(min(M, 1)):", "y[i, 0] = x[i, 0]",
        "for t in range(M - 1):", "y[i, t + 1] = y[i, t] * x[i, t + 1]",
    ]),
    ("not_last", """
for t in range(M):
    y[i, t] = x[i, t + 1] if t != M - 1 else 0.0
""", [
        "for t in range(M - 1):", "y[i, t] = x[i, t + 1]",
        "for t in range(min(M, 1)):", "y[i, M - 1] = 0.0",
    ]),
    ("data_decide_more", """
for t in range(M):
    y[i, t] = x[i, t] + (y[i, t - 1] if t > 0 and x[i, t] > 0.0 else 0.0)
""", [
        "for t in range(min(M, 1)):", "y[i, 0] = x[i, 0] + 0.0",
        "for t in range(M - 1):",
        "y[i, t + 1] = x[i, t + 1] + (y[i, t] if 1 and x[i, t + 1] > 0.0 else 0.0)",
    ]),
)  # fmt: skip


def test_an_index_that_is_left_alone_fills_no_dimension() -> None:
    text = (
        "def f(x : In[Tensor[N, 2 * C]], w : In[Tensor[C]]) -> Tensor[N, 2 * C]:\n"
        "    y : Tensor[N, 2 * C]\n    for t in range(2):\n"
        "        y[i, C * t + j] = x[i, C * t + j] * (w[j] if t > 0 else 1.0)\n    return y\n"
    )
    assert left(text) == [
        "for t in range(min(2, 1)):",
        "for j in range(C):",
        "y[i, j + 0] = x[i, j + 0] * 1.0",
        "for t in range(1):",
        "y[i, C * t + C + j] = x[i, C * t + C + j] * w[j]",
    ]


STAY: tuple[tuple[str, str], ...] = (
    ("in_the_middle", """
for t in range(M):
    y[i, t] = x[i, t] + (y[i, t - 2] if t > 1 else 0.0)
"""),
    ("of_loops_around", """
for s in range(2):
    for t in range(M):
        y[i, t] = x[i, t] + (y[i, t - 1] if t > s else 0.0)
"""),
    ("nothing_to_decide", """
for t in range(M):
    y[i, t] = y[i, t] * x[i, t]
"""),
    ("second", """
for t in range(M):
    y[i, t] = x[i, t] if t == 1 else 0.0
"""),
    ("parity", """
for t in range(M):
    y[i, t] = x[i, t] if t % 2 == 0 else 0.0
"""),
)  # fmt: skip

X = "x : In[Tensor[N, M]], n : In[int]"


def apart(module: Module) -> Module:
    return map_tensor_functions(module, peeled)


def left(text: str) -> list[str]:
    printed = print_function(apart(parse(text)).function("f")).strip().split("\n")[1:-1]
    return [line.strip() for line in printed if " : " not in line]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_rounds_apart(case: tuple[str, str, list[str]]) -> None:
    _, body, expected = case
    assert left(program(X, "N, M", body)) == expected


@pytest.mark.parametrize("case", STAY, ids=lambda case: case[0])
def test_loops_that_stay(case: tuple[str, str]) -> None:
    text = program(X, "N, M", case[1])
    assert apart(parse(text)) == parse(text)


@pytest.mark.parametrize("name", ["before", "behind", "first"])
def test_what_both_loops_fill_is_not_set_to_zero(name: str) -> None:
    body = next(case[1] for case in CASES if case[0] == name)
    shown = pipeline.stage_text(program(X, "N, M", body), "schedule", "f")
    assert "range(min(M, 1))" in shown
    assert "zeros" not in shown


def test_a_first_round_that_is_behind_the_others_finds_zeros() -> None:
    """Others have read them by then."""
    body = """
for t in range(M - 1):
    y[i, t + 1] = x[i, t + 1] + y[i, t]
for t in range(min(M, 1)):
    y[i, 0] = x[i, 0]
"""
    text = program(X, "N, M", body)
    assert "zeros" in pipeline.stage_text(text, "schedule", "f")
    x = torch.ones(2, 4, dtype=torch.float64)
    assert loma.compile(text).f(x, 1)[0].tolist() == [1.0, 1.0, 2.0, 3.0]


def test_what_only_one_of_them_fills_is_set_to_zero() -> None:
    body = """
for t in range(M):
    if t == 0:
        y[i, t] = x[i, t]
    elif n > 0:
        y[i, t] = y[i, t - 1] * x[i, t]
"""
    assert "zeros" in pipeline.stage_text(program(X, "N, M", body), "schedule", "f")


@pytest.mark.parametrize(
    ("case", "count"), diagonals(3, [*CASES, *STAY], [0, 1, 2, 5]), ids=name_of
)
def test_values_and_derivatives(case: tuple[object, ...], count: int) -> None:
    name, body, *_ = case
    text = with_derivative(program(X, "N, M", str(body)))
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(3, count, generator=generator, dtype=torch.float64)
    for number in (1, -1):
        point = Point(str(name), text, "f", (x, number))
        compare(point, Changed(text, verified(lambda module: apart(passes.optimise(module)))))
