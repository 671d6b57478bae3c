"""Scalar arithmetic of the language on NumPy values, one number or a whole grid of them.

Ints are Python ints or int64 arrays, floats are float64. Nothing here raises floating-point
warnings: the interpreter runs under ``np.errstate(all="ignore")``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from loma.ir import ArrayType, FloatType, IntType, Struct, StructType, TensorType, TupleType, Type

Value = Any


def to_int(value: Value) -> Value:
    """Truncation toward zero."""
    if isinstance(value, np.ndarray) and value.ndim:
        return value if value.dtype == np.int64 else np.trunc(value).astype(np.int64)
    return int(value)


def to_float(value: Value) -> Value:
    if isinstance(value, np.ndarray) and value.ndim:
        return value.astype(np.float64, copy=False)
    return np.float64(value)


def convert(value: Value, type_: Type) -> Value:
    """The value as one of that type; arrays, structs and tensors are copied."""
    match type_:
        case IntType():
            return to_int(value)
        case FloatType():
            return to_float(value)
        case TensorType(_, element):
            return np.array(value, dtype=np.int64 if element == "int" else np.float64)
        case ArrayType(element, _):
            return [convert(item, element) for item in value]
        case StructType():
            return {name: copied(item) for name, item in value.items()}
        case TupleType(items):
            return tuple(convert(v, t) for v, t in zip(value, items, strict=True))


def copied(value: Value) -> Value:
    if isinstance(value, dict):
        return {name: copied(item) for name, item in value.items()}
    if isinstance(value, list):
        return [copied(item) for item in value]
    return value.copy() if isinstance(value, np.ndarray) else value


def zero(type_: Type, shape: tuple[int, ...], structs: dict[str, Struct]) -> Value:
    """The all-zero value of a type; ``shape`` is that of a tensor."""
    match type_:
        case IntType():
            return 0
        case FloatType():
            return np.float64(0.0)
        case TensorType(_, element):
            return np.zeros(shape, dtype=np.int64 if element == "int" else np.float64)
        case ArrayType(element, size):
            return [zero(element, (), structs) for _ in range(size or 0)]
        case StructType(name):
            return {member: zero(t, (), structs) for member, t in structs[name].members}
        case TupleType():
            raise AssertionError("no variable has the type of several results")


def zero_like(value: Value) -> Value:
    if isinstance(value, dict):
        return {name: zero_like(item) for name, item in value.items()}
    if isinstance(value, list):
        return [zero_like(item) for item in value]
    return np.zeros_like(value) if isinstance(value, np.ndarray) else type(value)(0)


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
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "//": np.floor_divide,
    "%": np.mod,
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
    return choose(np.greater_equal(a, b) | np.not_equal(a, a), a, b)


def smaller(a: Value, b: Value) -> Value:
    return choose(np.less_equal(a, b) | np.not_equal(a, a), a, b)


def mul_no_nan(x: Value, y: Value) -> Value:
    return choose(np.equal(y, 0), np.float64(0.0), np.multiply(x, y))


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
}
# Of these the arguments stay ints when the result is an int.
KEEP_INTS = frozenset({"abs", "min", "max"})
