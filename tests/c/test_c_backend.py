"""C computes what the interpreter does."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sampled import one_in
from c_host import OPTIONS, CProgram, differentiated, merged
from teaching_derivatives import DERIVATIVES
from teaching_programs import PROGRAMS

from loma.backends.c import Options
from loma.backends.interpreter import Interpreter
from loma.core.ir import Module

CORPUS = (*PROGRAMS, *DERIVATIVES)


def close(found: Any, expected: Any, tolerance: float) -> None:
    """Equal up to the tolerance; None is not compared."""
    if expected is None:
        return
    if isinstance(expected, dict):
        assert set(found) == set(expected)
        for name, value in expected.items():
            close(found[name], value, tolerance)
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            close(a, b, tolerance)
    else:
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


# ----------------------------------------------------------------------------- whole programs


@pytest.fixture(scope="module")
def corpus() -> dict[str, Module]:
    return {program.name: differentiated(program.source) for program in CORPUS}


@pytest.mark.parametrize("options", one_in(3, OPTIONS, 1), ids=lambda o: f"{o.real}-{o.arrays}")
def test_values(corpus: dict[str, Module], options: Options) -> None:
    """Every program of the corpus compiles without a warning and computes what it should."""
    numbers = {name: f"p{k}_" for k, name in enumerate(corpus)}
    program = CProgram(merged((numbers[name], made) for name, made in corpus.items()), options)
    for case in CORPUS:
        interpreter = Interpreter(corpus[case.name])
        for call in case.calls:
            args = call.args if call.items is None else (*call.args, call.items)
            found = program.call(numbers[case.name] + call.function, *args)
            if options.real == "double":
                close(found, interpreter.call(call.function, *args), 1e-12)
            else:
                results = len(found) - len(call.outs)
                if call.result is not None:
                    close(found[0], call.result, 1e-4)
                close(found[results:], call.outs, 1e-4)


# ------------------------------------------------------------------------------------------ numbers

NUMBERS = """
def wrap(a : In[int], b : In[int]) -> tuple[int, int, int, int]:
    return a + b, a - b, a * b, -a

def divide(a : In[int], b : In[int]) -> tuple[int, int, int]:
    return a / b, a // b, a % b

def constants(a : In[int]) -> tuple[int, int, int, int, int]:
    return a / 3, a // 3, a % 3, a / (0 - 1), a // (0 - 4)

def float_divide(a : In[float], b : In[float]) -> tuple[float, float, float]:
    return a / b, a // b, a % b

def powers(x : In[float], n : In[int]) -> tuple[float, float, float, float, int]:
    return x ** 2, x ** (0 - 3), x ** 0.5, x ** n, n ** 5

def to_int(x : In[float]) -> tuple[int, int]:
    n : int = x
    n += 0.5
    return float2int(x), n

def extremes(a : In[float], b : In[float]) -> tuple[float, float]:
    return max(a, b), min(a, b)

def int_extremes(a : In[int], b : In[int]) -> tuple[int, int, int]:
    return max(a, b), min(a, b), abs(a)

def mixed(a : In[int], x : In[float]) -> tuple[float, int, float, float]:
    return a / 2 * x, a < x, int2float(a) / 2, int2float(x + a) * 2

def logic(a : In[int], x : In[float]) -> tuple[int, int, int, int]:
    return not x, a and x, (not a) < 1, (a < 3 and x) == 1 or not (a < x) == 1

def functions(x : In[float]) -> float:
    return sin(x) * cos(x) + tan(x) / exp(x) - log(x) * sqrt(x) + pow(x, 1.5) + tanh(x) - floor(x)

def chosen(a : In[int], x : In[float]) -> float:
    return (1 if a > 2 else x) * (a if x > 1.0 else 2) - (3.0 if a else x)

def constant_numbers() -> tuple[float, float, float, int, int]:
    return 1e300, 1e-300, 0.1, -2147483648, 2147483647 + 1
"""
INTS = (0, 1, -1, 2, -7, 7, 100000, 2**31 - 1, -(2**31))
FLOATS = (0.0, -0.0, 0.5, -2.5, 7.0, 1e10, -1e10, math.inf, -math.inf, math.nan)


@pytest.fixture(scope="module")
def numbers() -> tuple[Interpreter, CProgram]:
    made = differentiated(NUMBERS)
    return Interpreter(made), CProgram(made, Options("double"), ("-O2", "-fsanitize=undefined",
        "-fno-sanitize-recover=undefined", "-fsanitize-undefined-trap-on-error"))  # fmt: skip


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("wrap", (INTS, INTS)),
        ("divide", (INTS, tuple(n for n in INTS if n))),
        ("constants", (INTS,)),
        ("float_divide", (FLOATS, FLOATS)),
        ("powers", ((0.0, 0.5, -2.0, 1.5), (0, 1, 3, -2))),
        ("to_int", (FLOATS,)),
        ("extremes", (FLOATS, FLOATS)),
        ("int_extremes", (INTS, INTS)),
        ("mixed", ((0, 3, -5), (0.5, -1.0, 3.0, math.nan))),
        ("logic", ((0, 1, 5), (0.0, 1.0, math.nan))),
        ("functions", ((0.5, 1.0, 2.25),)),
        ("chosen", ((0, 1, 3), (0.5, 2.0))),
        ("constant_numbers", ()),
    ],
)
def test_numbers(
    numbers: tuple[Interpreter, CProgram], name: str, values: tuple[tuple[Any, ...], ...]
) -> None:
    """Arithmetic at its edges, without undefined behaviour."""
    interpreter, program = numbers
    points: list[tuple[Any, ...]] = [()]
    for column in values:
        points = [(*point, value) for point in points for value in column]
    for point in points:
        expected, found = interpreter.call(name, *point), program.call(name, *point)
        np.testing.assert_allclose(found, expected, rtol=1e-14, err_msg=f"{name}{point}")
        assert [np.signbit(v) for v in found] == [np.signbit(v) for v in expected] or any(
            v != v for v in found
        ), (point, found, expected)


MEMBER_OF_A_CALL = """
class Pair:
    numbers : Array[float, 2]
    size : float

def made(x : In[float]) -> Pair:
    pair : Pair
    pair.numbers[0] = x
    pair.numbers[1] = 2.0 * x
    return pair

def f(x : In[float]) -> float:
    numbers : Array[float, 2] = made(x).numbers
    first : float = numbers[0]
    numbers = made(numbers[1]).numbers
    return first + 10.0 * numbers[1]
"""


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: f"{o.real}-{o.arrays}")
@pytest.mark.parametrize("by_value", [4, 256])
def test_an_array_in_the_result_of_a_call_is_copied(options: Options, by_value: int) -> None:
    made = differentiated(MEMBER_OF_A_CALL)
    program = CProgram(made, replace(options, by_value=by_value))
    assert program.call("f", 1.5) == Interpreter(made).call("f", 1.5) == (61.5,)


# -------------------------------------------------------------------------------------------- @simd

SIMD = """
@simd
def scaled(x : In[Array[float]], a : In[float], y : Out[Array[float]]):
    a = a * 2.0
    y[thread_id()] = a * x[thread_id()]

@simd
def count(x : In[Array[int]], total : Out[int], sum : Out[float]):
    atomic_add(total, x[thread_id()])
    atomic_add(sum, 0.5)

def adder(x : In[float], total : Out[float]):
    atomic_add(total, x)

@simd
def through_a_call(total : Out[float]):
    adder(1.0, total)
"""


@pytest.fixture(scope="module")
def simd() -> tuple[Interpreter, CProgram]:
    made = differentiated(SIMD)
    return Interpreter(made), CProgram(made, Options("float"))


def test_simd(simd: tuple[Interpreter, CProgram]) -> None:
    interpreter, program = simd
    for items in (0, 1, 5):
        args = ([1.0, 2.0, 3.0, 4.0, 5.0], 1.5, [0.0] * 5, items)
        assert program.call("scaled", *args) == interpreter.call("scaled", *args)
    many = 100_000
    assert program.call("count", [3] * many, 4, 1.0, many) == (4 + 3 * many, 1.0 + many / 2)
    assert program.call("through_a_call", 0.0, many) == (many,)
    assert interpreter.call("count", [3] * 7, 4, 1.0, 7) == (25, 4.5)
