"""Quotients by what a loop does not change, as products: a division takes as long as ten of these.

``x[i] / c`` is ``x[i] * s * (1 / (c * s))``, whose last factor is computed before the loop. The
power of two ``s``, 1 for most numbers, keeps it among the normal numbers, so that whatever c is (0,
infinite, tiny), only the last bits of a quotient differ. And those only where they do not matter: a
quotient that a statement stores, or that is compared or rounded to an integer, is divided, as
``6 / 3`` has to be 2; within larger arithmetic, which is rounded anyway, it is a product, under a
condition, too. One of two such values is kept as it is.
"""

from __future__ import annotations

import math

from loma import config
from loma.backends.schedule.target import Target
from loma.core import builder as b
from loma.core.builtins import BUILTINS
from loma.core.ir import (
    Binary,
    Builtin,
    Call,
    Expr,
    FloatConst,
    FloatType,
    Index,
    IntType,
    Reduce,
)
from loma.core.sizes import constant
from loma.core.walk import walk

_LARGE = 2.0**64


def are_products(machine: Target) -> bool:
    return machine.reciprocals and "reciprocals" in config.optimisations()


def rounds(expr: Expr) -> bool:
    """Whether what an operation gives is rounded, for nearly all operands."""
    match expr:
        case Binary("+" | "-" | "*" | "/", type=FloatType()) | Builtin("mul_no_nan"):
            return True
        case Builtin(name) if name in BUILTINS:
            return BUILTINS[name].costly and not BUILTINS[name].exact
        case _:
            return False


def matters(expr: Expr) -> bool:
    """Whether the last bit of an operand can change everything."""
    match expr:
        case Call() | Binary(type=IntType()):
            return True
        case Builtin(name) if name in BUILTINS:
            return BUILTINS[name].exact or BUILTINS[name].flat
        case _:
            return False


def is_number(expr: Expr) -> bool:
    """Whether an expression, in which variables stand for kept values, is one number in a loop that
    changes none of its variables."""
    parts = list(walk(expr))
    return not any(isinstance(part, Index | Reduce | Call) for part in parts) and any(
        constant(part) is None for part in parts
    )


def by_constant(value: Expr, by: FloatConst) -> Expr:
    """A quotient by a constant; compilers know powers of two."""
    if 1 / _LARGE < abs(by.value) < _LARGE and abs(math.frexp(by.value)[0]) != 0.5:
        return b.binary("*", value, b.flt(1 / by.value))
    return b.binary("/", value, by)


def scale(by: Expr) -> Expr:
    size = b.builtin("abs", [by])
    small = b.binary("<", size, b.flt(1 / _LARGE))
    return b.select(small, b.flt(_LARGE), b.select(
        b.binary(">", size, b.flt(_LARGE)), b.flt(1 / _LARGE), b.flt(1.0)))  # fmt: skip


def inverse(by: Expr, scaled: Expr) -> Expr:
    return b.binary("/", b.flt(1.0), b.binary("*", by, scaled))
