"""Scalar arithmetic of the language on NumPy values, one number or a whole grid of them.

Ints are Python ints or int64 arrays, floats are float64. Nothing here raises floating-point
warnings: the interpreter runs under ``np.errstate(all="ignore")``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from loma.arithmetic import special

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


def is_true(value: Value) -> Value:
    """Not zero; NaN is true."""
    return value != 0


def _as_int(value: Value) -> Value:
    return value.astype(np.int64) if isinstance(value, np.ndarray) else int(value)


def truncated_quotient(a: Value, b: Value) -> Value:
    """``a / b`` of ints as in C: toward zero."""
    quotient = abs(a) // abs(b)
    return choose((a < 0) == (b < 0), quotient, -quotient)


FLOAT_BINARY: dict[str, Callable[[Value, Value], Value]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": np.power,
}
INT_BINARY = FLOAT_BINARY | {"/": truncated_quotient, "**": operator.pow}
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


def sign(x: Value) -> Value:
    """-1, 0 or 1; 0 for NaN."""
    value = _as_int(x > 0) - _as_int(x < 0)
    return value if _is_int(x) else to_float(value)


def _is_int(x: Value) -> bool:
    return isinstance(x, int) or (isinstance(x, np.ndarray) and x.dtype == np.int64)


def sigmoid(x: Value) -> Value:
    # exp of a negative number only, so that it never overflows
    small = np.exp(-np.abs(x))
    return choose(x >= 0, 1.0 / (1.0 + small), small / (1.0 + small))


def range_length(start: Value, stop: Value, step: Value) -> Value:
    """``len(range(start, stop, step))`` for steps that are not 0."""
    if all(isinstance(value, int) for value in (start, stop, step)):
        return max(-((start - stop) // step), 0)
    return np.maximum(-((start - stop) // step), 0)


_OF_NUMPY = (
    "sin", "cos", "tan", "sinh", "cosh", "tanh", "exp", "expm1", "exp2", "log", "log1p", "log2",
    "sqrt", "floor", "ceil",
)  # fmt: skip
BUILTIN_FUNCTIONS: dict[str, Callable[..., Value]] = {
    **{name: getattr(np, name) for name in _OF_NUMPY},
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "round": np.rint,
    "pow": np.power,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "erf": special.erf,
    "erfc": special.erfc,
    "lgamma": special.lgamma,
    "digamma": special.digamma,
    "polygamma": special.polygamma,
    "abs": abs,
    "sign": sign,
    "min": smaller,
    "max": larger,
    "clamp": lambda x, low, high: smaller(larger(x, low), high),
    "isnan": lambda x: _as_int(np.isnan(x)),
    "isfinite": lambda x: _as_int(np.isfinite(x)),
    "sigmoid": sigmoid,
    "relu": lambda x: choose(x <= 0, np.float64(0.0), x),
    "softplus": lambda x: np.logaddexp(x, 0.0),
    "int2float": to_float,
    "float2int": to_int,
    "mul_no_nan": mul_no_nan,
    "len": range_length,
}
