"""Scalar arithmetic of the language on NumPy values, one number or a whole grid of them.

Ints are Python ints or int64 arrays, floats are float64. Nothing here raises floating-point
warnings: the interpreter runs under ``np.errstate(all="ignore")``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

Value = Any


def to_int(value: Value, bits: int = 64) -> Value:
    """Truncation toward zero. A float that no int can hold gives the nearest int, NaN gives 0."""
    if isinstance(value, np.ndarray) and value.ndim:
        return value if value.dtype == np.int64 else np.trunc(value).astype(np.int64)
    if not isinstance(value, float):
        return int(value)
    if value != value:
        return 0
    limit = 1 << bits - 1
    return limit - 1 if value >= limit else -limit if value <= -limit else int(value)


def wrapped(value: int, bits: int) -> int:
    """What is left of a whole number in an int of so many bits."""
    limit = 1 << bits - 1
    return value if -limit <= value < limit else (value + limit) % (2 * limit) - limit


def to_float(value: Value) -> Value:
    if type(value) is np.float64:
        return value
    if isinstance(value, np.ndarray) and value.ndim:
        return value.astype(np.float64, copy=False)
    return np.float64(value)


# ------------------------------------------------------------------------------------- operations


def is_true(value: Value) -> Value:
    """Not zero; NaN is true."""
    return value != 0


def _as_int(value: Value) -> Value:
    return value.astype(np.int64) if isinstance(value, np.ndarray) else int(value)


def truncated_quotient(a: Value, b: Value) -> Value:
    """``a / b`` of ints as in C: toward zero."""
    quotient = abs(a) // abs(b)
    return choose((a < 0) == (b < 0), quotient, -quotient)


INT_BINARY: dict[str, Callable[[Value, Value], Value]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": truncated_quotient,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "**": lambda a, b: a**b,
}
FLOAT_BINARY: dict[str, Callable[[Value, Value], Value]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": np.power,
}
COMPARISONS: dict[str, Callable[[Value, Value], Value]] = {
    "<": lambda a, b: _as_int(a < b),
    "<=": lambda a, b: _as_int(a <= b),
    ">": lambda a, b: _as_int(a > b),
    ">=": lambda a, b: _as_int(a >= b),
    "==": lambda a, b: _as_int(a == b),
    "!=": lambda a, b: _as_int(a != b),
}


def choose(cond: Value, then: Value, other: Value) -> Value:
    """``then`` where ``cond`` holds, else ``other``, on numbers and grids."""
    if isinstance(cond, np.ndarray) and cond.ndim:
        return np.where(cond, then, other)
    return then if cond else other


def larger(a: Value, b: Value) -> Value:
    """The larger; the first of equals; NaN if either is."""
    return choose((a >= b) | (a != a), a, b)


def smaller(a: Value, b: Value) -> Value:
    return choose((a <= b) | (a != a), a, b)


def mul_no_nan(x: Value, y: Value) -> Value:
    return choose(y == 0, np.float64(0.0), x * y)


def range_length(start: Value, stop: Value, step: Value) -> Value:
    """``len(range(start, stop, step))`` for steps that are not 0."""
    if all(isinstance(value, int) for value in (start, stop, step)):
        return max(-((start - stop) // step), 0)
    return np.maximum(-((start - stop) // step), 0)


BUILTIN_FUNCTIONS: dict[str, Callable[..., Value]] = {
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "tanh": np.tanh,
    "pow": np.power,
    "abs": abs,
    "min": smaller,
    "max": larger,
    "floor": np.floor,
    "int2float": to_float,
    "float2int": to_int,
    "mul_no_nan": mul_no_nan,
    "len": range_length,
}
# Of these the arguments stay ints when the result is an int.
KEEP_INTS = frozenset({"abs", "min", "max", "len"})
