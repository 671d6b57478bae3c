"""Bounds of int expressions: which subscripts need no check."""

from __future__ import annotations

from collections.abc import Mapping

from loma.core.ir import INT, Binary, Builtin, Expr, IntConst, Select, Unary, Var

Bounds = tuple[int, int]
_LARGEST = 2**31 - 1


def constant(expr: Expr) -> int | None:
    """The value of an int expression that is made of constants, as 32 bits hold it."""
    match expr:
        case IntConst(value):
            return value
        case Unary("-", operand):
            value_ = constant(operand)
            return None if value_ is None else _wrapped(-value_)
        case Binary("+" | "-" | "*" as op, left, right) if expr.type == INT:
            a, b = constant(left), constant(right)
            if a is None or b is None:
                return None
            return _wrapped(a + b if op == "+" else a - b if op == "-" else a * b)
        case _:
            return None


def _wrapped(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


def bounds(expr: Expr, ranges: Mapping[str, Bounds]) -> Bounds | None:
    """The smallest and the largest value, or wider; None where nothing is known.

    ``ranges`` are the bounds of variables that nobody assigns to.
    """
    found = _bounds(expr, ranges)
    # a result that 32 bits may not hold wraps around
    return found if found is None or -_LARGEST <= found[0] <= found[1] <= _LARGEST else None


def _bounds(expr: Expr, ranges: Mapping[str, Bounds]) -> Bounds | None:
    match expr:
        case IntConst(value):
            return value, value
        case Var(name):
            return ranges.get(name)
        case Unary("-", operand):
            inner = bounds(operand, ranges)
            return None if inner is None else (-inner[1], -inner[0])
        case Builtin("len", (start, stop, step)):
            a, b, by = bounds(start, ranges), bounds(stop, ranges), constant(step)
            if a is None or b is None or not by:
                return (0, _LARGEST)
            return (0, len(range(a[0], b[1], by) if by > 0 else range(a[1], b[0], by)))
        case Select(_, then, other) if expr.type == INT:
            a, b = bounds(then, ranges), bounds(other, ranges)
            return None if a is None or b is None else (min(a[0], b[0]), max(a[1], b[1]))
        case Binary("%", _, right) if expr.type == INT:
            divisor = constant(right)
            return (0, divisor - 1) if divisor is not None and divisor > 0 else None
        case Binary(op, left, right) if expr.type == INT:
            a, b = bounds(left, ranges), bounds(right, ranges)
            return None if a is None or b is None else _combined(op, a, b)
        case _:
            return None


def _combined(op: str, a: Bounds, b: Bounds) -> Bounds | None:
    match op:
        case "+":
            return a[0] + b[0], a[1] + b[1]
        case "-":
            return a[0] - b[1], a[1] - b[0]
        case "*":
            corners = [x * y for x in a for y in b]
            return min(corners), max(corners)
        case "//" | "/" if b[0] == b[1] > 0 and (op == "//" or a[0] >= 0):
            return a[0] // b[0], a[1] // b[0]
        case _:
            return None
