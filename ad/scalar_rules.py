"""Rules for scalar functions: the partial derivative with respect to each argument.

They serve the scalar layer and index statements alike, in forward and in reverse mode. A partial
that can be infinite or NaN where the value itself is never used is marked ``Singular``: it is
multiplied by ``mul_no_nan``, so that a zero adjoint passes nothing on (the branch of a ``where``
that was not taken, a tangent that is zero).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from loma.core import builder as b, sizes
from loma.core.ir import FLOAT, INT, BinaryOp, Builtin, Expr, FloatConst, IntConst, Select, Var
from loma.core.walk import substitute


@dataclass(frozen=True, slots=True)
class Singular:
    """A partial derivative that may be infinite or NaN at points where it must not count."""

    partial: Expr


@dataclass(frozen=True, slots=True)
class Blocking:
    """A partial derivative that passes nothing where it is zero, not even NaN or infinity."""

    partial: Expr


Partial: TypeAlias = Expr | Singular | Blocking | None
ScalarRule: TypeAlias = Callable[..., tuple[Partial, ...]]


def _call(name: str, *args: Expr) -> Expr:
    return b.builtin(name, args)


def _div(top: Expr, bottom: Expr) -> Expr:
    return b.binary("/", top, bottom)


def add_rule(x: Expr, y: Expr) -> tuple[Partial, ...]:
    """d(x + y) = dx + dy"""
    return b.flt(1), b.flt(1)


def sub_rule(x: Expr, y: Expr) -> tuple[Partial, ...]:
    """d(x - y) = dx - dy"""
    return b.flt(1), b.flt(-1)


def mul_rule(x: Expr, y: Expr) -> tuple[Partial, ...]:
    """d(x y) = y dx + x dy"""
    return y, x


def quotient_rule(x: Expr, y: Expr) -> tuple[Partial, ...]:
    """d(x / y) = dx / y - x / y / y dy"""
    if isinstance(y, FloatConst | IntConst) and y.value:
        return _div(b.flt(1), y), None
    return Singular(_div(b.flt(1), y)), Singular(b.neg(_div(_div(x, y), y)))


def mod_rule(x: Expr, y: Expr) -> tuple[Partial, ...]:
    """d(x % y) = dx - floor(x / y) dy"""
    return b.flt(1), Singular(b.neg(b.binary("//", x, y)))


def power_rule(x: Expr, y: Expr) -> tuple[Partial, ...]:
    """d(x ** y) = y x ** (y - 1) dx + log(x) x ** y dy; 0 where the factor y or x is 0"""
    if isinstance(y, IntConst | FloatConst):
        if y.value == 0:
            return None, None
        if y.value == 1:
            return b.flt(1), None
        if y.value == 2:
            return b.mul(b.flt(2), x), None
        less = IntConst(y.value - 1) if isinstance(y, IntConst) else b.flt(y.value - 1)
        partial = b.mul(b.flt(y.value), b.binary("**", x, less))
        return (partial if isinstance(y, IntConst) and y.value > 0 else Singular(partial)), None
    if y.type == INT:
        slope = b.mul(y, b.binary("**", x, b.binary("-", y, IntConst(1))))
        return Singular(b.select(b.binary("==", y, IntConst(0)), b.flt(0), slope)), None
    slope = b.mul(y, _call("pow", x, b.binary("-", y, b.flt(1))))
    growth = b.mul(_call("pow", x, y), _call("log", x))
    return (
        Singular(b.select(b.binary("==", y, b.flt(0)), b.flt(0), slope)),
        Singular(b.select(b.binary("==", x, b.flt(0)), b.flt(0), growth)),
    )


def _sum(left: Expr, right: Expr) -> Expr:
    return b.binary("+", left, right)


X = Var(" x", FLOAT)  # no name of a program
_ONE, _ZERO = b.flt(1), b.flt(0)
_SQUARE = b.mul(X, X)
_BELL = b.mul(b.flt(2 / math.sqrt(math.pi)), _call("exp", b.neg(_SQUARE)))  # erf's
_TAN, _TANH, _SIGMOID = _call("tan", X), _call("tanh", X), _call("sigmoid", X)
_ARC = _call("rsqrt", b.binary("-", _ONE, _SQUARE))  # 1 / sqrt(1 - x^2)

# The derivatives of functions of one number, X.
DERIVATIVES: dict[str, Partial] = {
    "int2float": _ONE,
    "abs": b.select(  # sign(x)
        b.binary(">", X, _ZERO), _ONE, b.select(b.binary("<", X, _ZERO), b.flt(-1), _ZERO)
    ),
    "relu": b.select(b.binary("<=", _call("relu", X), _ZERO), _ZERO, _ONE),  # 1 also at NaN
    "sqrt": Singular(  # 1 / (2 sqrt(x)), and 0 at 0
        b.select(b.binary("!=", _call("sqrt", X), _ZERO), _div(b.flt(0.5), _call("sqrt", X)), _ZERO)
    ),
    "rsqrt": Singular(_div(b.mul(b.flt(-0.5), _call("rsqrt", X)), X)),
    "exp": Singular(_call("exp", X)),
    "expm1": Singular(_call("exp", X)),
    "exp2": Singular(b.mul(b.flt(math.log(2)), _call("exp2", X))),
    "log": Singular(_div(_ONE, X)),
    "log1p": Singular(_div(_ONE, _sum(_ONE, X))),
    "log2": Singular(_div(b.flt(1 / math.log(2)), X)),
    "sin": _call("cos", X),
    "cos": b.neg(_call("sin", X)),
    "tan": _sum(_ONE, b.mul(_TAN, _TAN)),
    "asin": Singular(_ARC),
    "acos": Singular(b.neg(_ARC)),
    "atan": _div(_ONE, _sum(_ONE, _SQUARE)),
    "sinh": Singular(_call("cosh", X)),
    "cosh": Singular(_call("sinh", X)),
    "tanh": b.binary("-", _ONE, b.mul(_TANH, _TANH)),
    "sigmoid": b.mul(_SIGMOID, b.binary("-", _ONE, _SIGMOID)),
    "softplus": _SIGMOID,
    "erf": _BELL,
    "erfc": b.neg(_BELL),
    "lgamma": Singular(_call("digamma", X)),
    "digamma": Singular(_call("polygamma", IntConst(1), X)),
}


def rule_of_one(name: str) -> ScalarRule:
    """The rule of a function of one number."""
    partial = DERIVATIVES[name]

    def rule(x: Expr) -> tuple[Partial, ...]:
        if isinstance(partial, Singular):
            return (Singular(substitute(partial.partial, {X.name: x})),)
        assert isinstance(partial, Expr)
        return (substitute(partial, {X.name: x}),)

    return rule


def atan2_rule(y: Expr, x: Expr) -> tuple[Partial, ...]:
    """d atan2(y, x) = (x dy - y dx) / (x^2 + y^2)"""
    square = b.binary("+", b.mul(x, x), b.mul(y, y))
    return Singular(_div(x, square)), Singular(b.neg(_div(y, square)))


def polygamma_rule(n: Expr, x: Expr) -> tuple[Partial, ...]:
    """d polygamma(n, x) = polygamma(n + 1, x) dx"""
    order = sizes.simplify(b.binary("+", n, IntConst(1)))
    return None, Singular(_call("polygamma", order, x))


def _chosen(first: Expr) -> tuple[Partial, ...]:
    return b.select(first, b.flt(1), b.flt(0)), b.select(first, b.flt(0), b.flt(1))


def _first_wins(reached: BinaryOp, missed: BinaryOp, x: Expr, y: Expr) -> Expr:
    """Whether a maximum or minimum is x: where it reaches y, and where it is NaN. Of two operands
    of which one is a constant only the other can be NaN."""
    if isinstance(y, FloatConst | IntConst):
        return b.unary("not", b.binary(missed, x, y))
    wins = b.binary(reached, x, y)
    if isinstance(x, FloatConst | IntConst) or x.type == INT:
        return wins
    return b.binary("or", wins, b.binary("!=", x, x))


def max_rule(x: Expr, y: Expr) -> tuple[Partial, ...]:
    """d max(x, y) = dx where x >= y or x is NaN, else dy"""
    return _chosen(_first_wins(">=", "<", x, y))


def min_rule(x: Expr, y: Expr) -> tuple[Partial, ...]:
    """d min(x, y) = dx where x <= y or x is NaN, else dy"""
    return _chosen(_first_wins("<=", ">", x, y))


def clamp_rule(x: Expr, low: Expr, high: Expr) -> tuple[Partial, ...]:
    """d clamp(x, low, high) = d min(max(x, low), high)"""
    first, second = min_rule(_call("max", x, low), high)
    assert isinstance(first, Expr)
    return *(times(first, partial) for partial in max_rule(x, low)), second


def mul_no_nan_rule(x: Expr, y: Expr) -> tuple[Partial, ...]:
    """d(x y) = y dx + x dy, where a zero adjoint or a zero y passes nothing"""
    return Blocking(y), Singular(x)


def flat_rule(*args: Expr) -> tuple[Partial, ...]:
    """no derivative: ints, floor and its like, truncation"""
    return (None,) * len(args)


def times(g: Expr, partial: Partial) -> Expr:
    """An adjoint or tangent times a partial derivative."""
    match partial:
        case None:
            return b.flt(0)
        case Singular(Select(cond, then, other)) if b.is_const(other, 0):
            return b.select(cond, times(g, Singular(then)), b.flt(0))
        case Singular(Select(cond, then, other)) if b.is_const(then, 0):
            return b.select(cond, b.flt(0), times(g, Singular(other)))
        case Singular(inner):
            return g if b.is_const(inner, 1) else Builtin("mul_no_nan", (inner, g), FLOAT)
        case Blocking(inner):
            return Builtin("mul_no_nan", (g, inner), FLOAT)
        case Select(cond, then, other) if b.is_const(other, 0):
            return b.select(cond, times(g, then), b.flt(0))
        case Select(cond, then, other) if b.is_const(then, 0):
            return b.select(cond, b.flt(0), times(g, other))
        case _:
            return b.mul(g, partial)
