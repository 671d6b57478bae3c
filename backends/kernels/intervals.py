"""Intervals of what floats are, whatever the rounding: of float32, as of anything wider.

A value that may be NaN, infinite or larger than any number of float32 has none.
"""

from __future__ import annotations

import math
from typing import TypeAlias

Interval: TypeAlias = tuple[float, float]
Known: TypeAlias = Interval | None  # None: anything, NaN among it

NOTHING: Interval = (0.0, 0.0)
_HUGE = 1e37  # beyond it float32 may overflow
_EXP_IS_ZERO, _EXP_IS_LARGE = -800.0, 80.0


def clamped(low: float, high: float) -> Known:
    """With room for rounding; None where float32 may have no number for it."""
    if math.isnan(low) or math.isnan(high):
        return None
    low, high = (low * 1.01 if low < 0 else low / 1.01), (high * 1.01 if high > 0 else high / 1.01)
    return None if max(-low, high) > _HUGE else (low, high)


def hull(one: Known, two: Known) -> Known:
    return None if one is None or two is None else (min(one[0], two[0]), max(one[1], two[1]))


def total(one: Known, two: Known) -> Known:
    return None if one is None or two is None else clamped(one[0] + two[0], one[1] + two[1])


def times(one: Known, two: Known) -> Known:
    if one is None or two is None:
        return None
    ends = [x * y for x in one for y in two]
    return clamped(min(ends), max(ends))


def combined(op: str, one: Known, two: Known) -> Known:
    if one is None or two is None:
        return None
    match op:
        case "+":
            return total(one, two)
        case "-":
            return total(one, (-two[1], -two[0]))
        case "*":
            return times(one, two)
        case "/" if two[0] > 0:
            return times(one, (1.0 / two[1], 1.0 / two[0]))
        case _:
            return None


def called(name: str, args: list[Known]) -> Known:
    known = [arg for arg in args if arg is not None]
    if name == "mul_no_nan" and args[1] == NOTHING:
        return NOTHING
    if len(known) < len(args) or not args:
        return None
    low, high = known[0]
    match name:
        case "exp" if high < _EXP_IS_ZERO:
            return NOTHING
        case "exp" if high < _EXP_IS_LARGE:
            return clamped(0.0, math.exp(high))
        case "int2float":
            return low, high
        case "sqrt" if low > 0:
            return clamped(math.sqrt(low), math.sqrt(high))
        case "rsqrt" if low > 0:
            return clamped(1 / math.sqrt(high), 1 / math.sqrt(low))
        case "abs":
            return (0.0, max(-low, high)) if low < 0 else (low, high)
        case "mul_no_nan":
            return times(known[0], known[1])
        case "max" if len(known) == 2:
            return max(low, known[1][0]), max(high, known[1][1])
        case "min" if len(known) == 2:
            return min(low, known[1][0]), min(high, known[1][1])
        case "tanh" | "sin" | "cos" | "erf":
            return -1.0, 1.0
        case "sigmoid":
            return 0.0, 1.0
        case _:
            return None
