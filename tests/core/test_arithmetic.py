"""Scalar arithmetic means the same in every place and on every backend."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from oracle import Program

pytestmark = pytest.mark.filterwarnings("ignore:.*of two ints is a whole number")
NAN, INF = math.nan, math.inf
EXPECTED = math.tanh(0.5) * math.sin(0.25) + math.cos(0.25) * math.exp(0.5) - math.tan(0.5)

ARITHMETIC: list[tuple[str, dict[str, float], float]] = [
    ("a / b", {"a": -7, "b": 2}, -3),
    ("a / b", {"a": 7, "b": -2}, -3),
    ("a / b", {"a": -7, "b": -2}, 3),
    ("a // b", {"a": -7, "b": 2}, -4),
    ("a % b", {"a": -7, "b": 2}, 1),
    ("a % b", {"a": 7, "b": -2}, -1),
    ("a / b", {"a": -7.0, "b": 2}, -3.5),
    ("a ** 3", {"a": -2}, -8),
    ("a ** b", {"a": 2, "b": -1}, 0.5),
    ("a ** 0.5", {"a": 9.0}, 3.0),
    ("a / b", {"a": 1.0, "b": 0.0}, INF),
    ("float2int(a)", {"a": -1.7}, -1),
    ("floor(a)", {"a": -1.2}, -2.0),
    ("a and b", {"a": 2, "b": 0.5}, 1),
    ("a or b", {"a": 0, "b": 0.0}, 0),
    ("not a", {"a": 0.0}, 1),
    ("(a < b) + (a <= b) * 2 + (a == b) * 4", {"a": 1, "b": 1.0}, 6),
    ("1.0 if a else 2.0", {"a": NAN}, 1.0),
    ("max(a, b)", {"a": NAN, "b": 1.0}, NAN),
    ("max(a, b)", {"a": 1.0, "b": NAN}, NAN),
    ("min(a, b)", {"a": 1.0, "b": NAN}, NAN),
    ("max(a, b) + min(a, 4)", {"a": 3, "b": 5}, 8),
    ("1.0 / max(a, b)", {"a": -0.0, "b": 0.0}, -INF),
    ("1.0 / min(a, b)", {"a": 0.0, "b": -0.0}, INF),
    ("mul_no_nan(a, b)", {"a": INF, "b": 0.0}, 0.0),
    ("mul_no_nan(a, b)", {"a": INF, "b": 2.0}, INF),
    ("mul_no_nan(a, b)", {"a": 0.0, "b": INF}, NAN),
    ("sqrt(a) + log(b)", {"a": 4.0, "b": 1.0}, 2.0),
    ("log(a)", {"a": 0.0}, -INF),
    ("sqrt(a)", {"a": -1.0}, NAN),
    ("abs(a) + abs(b)", {"a": -3, "b": -0.5}, 3.5),
    ("pow(a, b)", {"a": 2.0, "b": 10}, 1024.0),
    ("no_diff(a * a)", {"a": 3.0}, 9.0),
    ("a // b", {"a": 7.5, "b": -2.0}, -4.0),
    ("a // b", {"a": 1.0, "b": 0.1}, 9.0),
    ("a % b", {"a": 7.5, "b": -2.0}, -0.5),
    ("a % b", {"a": -7.5, "b": 2.0}, 0.5),
    ("a ** 2 + a ** 0", {"a": -3.0}, 10.0),
    ("abs(a)", {"a": -0.0}, 0.0),
    ("a * b", {"a": 3, "b": 0.5}, 1.5),
    ("-a // b", {"a": 7, "b": 2}, -4),
    ("a if a > b else b", {"a": NAN, "b": 1.0}, 1.0),
    ("tanh(a) * sin(b) + cos(b) * exp(a) - tan(a)", {"a": 0.5, "b": 0.25}, EXPECTED),
    ("float2int(a) / 2", {"a": 7.9}, 3),
    ("int2float(a) / 2", {"a": 7}, 3.5),
    ("floor(a) // 2", {"a": 5.5}, 2.0),
]


def program_text() -> str:
    """All expressions in three places: in scalar functions, on every element of an index statement
    (``grid``), and on the variables of a tensor function (``plain``)."""
    scalars, grid, declared, plain = [], [], [], []
    for number, (expression, values, _) in enumerate(ARITHMETIC):
        formal = ", ".join(f"{name} : In[{kind(v)}]" for name, v in values.items())
        scalars.append(f"def scalar_{number}({formal}) -> float:\n    return {expression}\n")
        places = [
            f"{kind(v)}s[i, {place}]"
            for v, place in zip(values.values(), columns(number), strict=True)
        ]
        grid.append(f"    y[i, {number}] = no_diff(scalar_{number}({', '.join(places)}))")
        for (name, v), place in zip(values.items(), columns(number), strict=True):
            declared.append(f"    {name}_{number} : {kind(v)} = {kind(v)}s[0, {place}]")
        own = re.sub(r"\b([ab])\b", rf"\1_{number}", expression)
        plain.append(f"    y[{number}] = no_diff({own})")
    arguments = "(ints : In[IntTensor[N, P]], floats : In[Tensor[N, Q]])"
    count = len(ARITHMETIC)
    return "\n".join([
        *scalars,
        f"def grid{arguments} -> Tensor[N, {count}]:", f"    y : Tensor[N, {count}]", *grid,
        "    return y\n",
        f"def plain{arguments} -> Tensor[{count}]:", f"    y : Tensor[{count}]", *declared, *plain,
        "    return y\n",
    ])  # fmt: skip


def kind(value: float) -> str:
    return "int" if isinstance(value, int) else "float"


def columns(number: int) -> list[int]:
    """Where the values of an expression stand among all ints and all floats."""
    before = [v for _, values, _ in ARITHMETIC[:number] for v in values.values()]
    count = {name: sum(kind(v) == name for v in before) for name in ("int", "float")}
    out = []
    for value in ARITHMETIC[number][1].values():
        out.append(count[kind(value)])
        count[kind(value)] += 1
    return out


@pytest.fixture(scope="module")
def program() -> Program:
    return Program([program_text()], derivatives=False)


@pytest.fixture(scope="module")
def values(program: Program) -> dict[str, Any]:
    """What both backends compute, by place."""
    every = [v for _, values, _ in ARITHMETIC for v in values.values()]
    ints = torch.tensor([v for v in every if isinstance(v, int)]).expand(5, -1)
    floats = torch.tensor([v for v in every if isinstance(v, float)], dtype=torch.float64)
    args = (ints, floats.expand(5, -1))
    found = {f"{name}, interpreter": program.value(name, args)[0] for name in ("grid", "plain")}
    compiled = {f"{name}, libtorch": program.compiled(name)(*args) for name in ("grid", "plain")}
    return found | compiled


NUMBERS = pytest.mark.parametrize(
    "number", range(len(ARITHMETIC)), ids=[f"{e} {v}" for e, v, _ in ARITHMETIC]
)


@NUMBERS
def test_expression(program: Program, values: dict[str, Any], number: int) -> None:
    _, arguments, expected = ARITHMETIC[number]
    (alone,) = program.value(f"scalar_{number}", list(arguments.values()))
    same(alone, expected, "scalar function, interpreter")
    for place, found in values.items():
        column = np.asarray(found)[..., number]
        same(column, np.full(column.shape, float(expected)), place)


def same(found: Any, expected: Any, place: str) -> None:
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    np.testing.assert_allclose(found, expected, rtol=1e-15, err_msg=place)
    signs = np.signbit(found) == np.signbit(expected)
    assert np.all(signs | np.isnan(expected)), f"{place}: the sign of zero"


DIVISION = """
def quotient(n : In[IntTensor[N]], k : In[int]) -> IntTensor[N]:
    y : IntTensor[N]
    y[i] = k // n[i]
    return y
"""


def test_division_of_an_int_by_zero() -> None:
    program = Program([DIVISION], derivatives=False)
    good, bad = torch.tensor([2, -4]), torch.tensor([1, 0])
    for run in (lambda *args: program.value("quotient", args)[0], program.compiled("quotient")):
        np.testing.assert_array_equal(np.asarray(run(good, 6)), [3, -2])
        with pytest.raises(ValueError, match="division of an int by zero"):
            run(bad, 6)
