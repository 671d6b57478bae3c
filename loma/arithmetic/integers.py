"""What operators and built-in functions give for whole numbers, as Python's ints.

:mod:`loma.arithmetic.grids` has the same for all numbers and for grids of them, in NumPy, which the
compiler does without: to import it takes as long as compiling a small kernel.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any


def truncated_quotient(a: int, b: int) -> int:
    """``a / b`` as in C: toward zero."""
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
BINARY: dict[str, Callable[[int, int], int]] = {
    **COMPARISONS,
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": truncated_quotient,
    "//": operator.floordiv,
    "%": operator.mod,
}
FUNCTIONS: dict[str, Callable[..., int]] = {
    "abs": abs,
    "sign": lambda x: (x > 0) - (x < 0),
    "min": min,
    "max": max,
    "clamp": lambda x, low, high: min(max(x, low), high),
}
