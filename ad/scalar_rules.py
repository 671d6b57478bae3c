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
from loma.core.ir import FLOAT, INT, BinaryOp, Builtin, Expr, FloatConst, IntConst, Select


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
    slope = b.mul(y, _call("pow", x, b.binary("-", y, b.flt(1))))
    growth = b.mul(_call("pow", x, y), _call("log", x))
    return (
        Singular(b.select(b.binary("==", y, b.flt(0)), b.flt(0), slope)),
        Singular(b.select(b.binary("==", x, b.flt(0)), b.flt(0), growth)),
    )


def identity_rule(x: Expr) -> tuple[Partial, ...]:
    """d x = dx"""
    return (b.flt(1),)


def exp_rule(x: Expr) -> tuple[Partial, ...]:
    """d exp(x) = exp(x) dx"""
    return (Singular(_call("exp", x)),)


def expm1_rule(x: Expr) -> tuple[Partial, ...]:
    """d expm1(x) = exp(x) dx"""
    return (Singular(_call("exp", x)),)


def exp2_rule(x: Expr) -> tuple[Partial, ...]:
    """d exp2(x) = log(2) exp2(x) dx"""
    return (Singular(b.mul(b.flt(math.log(2)), _call("exp2", x))),)


def log_rule(x: Expr) -> tuple[Partial, ...]:
    """d log(x) = dx / x"""
    return (Singular(_div(b.flt(1), x)),)


def log1p_rule(x: Expr) -> tuple[Partial, ...]:
    """d log1p(x) = dx / (1 + x)"""
    return (Singular(_div(b.flt(1), b.binary("+", b.flt(1), x))),)


def log2_rule(x: Expr) -> tuple[Partial, ...]:
    """d log2(x) = dx / (log(2) x)"""
    return (Singular(_div(b.flt(1 / math.log(2)), x)),)


def sqrt_rule(x: Expr) -> tuple[Partial, ...]:
    """d sqrt(x) = dx / (2 sqrt(x)), and 0 at 0"""
    slope = _div(b.flt(0.5), _call("sqrt", x))
    return (Singular(b.select(b.binary("!=", x, b.flt(0)), slope, b.flt(0))),)


def rsqrt_rule(x: Expr) -> tuple[Partial, ...]:
    """d rsqrt(x) = -rsqrt(x) dx / (2 x)"""
    return (Singular(_div(b.mul(b.flt(-0.5), _call("rsqrt", x)), x)),)


def sin_rule(x: Expr) -> tuple[Partial, ...]:
    """d sin(x) = cos(x) dx"""
    return (_call("cos", x),)


def cos_rule(x: Expr) -> tuple[Partial, ...]:
    """d cos(x) = -sin(x) dx"""
    return (b.neg(_call("sin", x)),)


def tan_rule(x: Expr) -> tuple[Partial, ...]:
    """d tan(x) = (1 + tan(x)^2) dx"""
    tan = _call("tan", x)
    return (b.binary("+", b.flt(1), b.binary("*", tan, tan)),)


def asin_rule(x: Expr) -> tuple[Partial, ...]:
    """d asin(x) = dx / sqrt(1 - x^2)"""
    return (Singular(_call("rsqrt", b.binary("-", b.flt(1), b.mul(x, x)))),)


def acos_rule(x: Expr) -> tuple[Partial, ...]:
    """d acos(x) = -dx / sqrt(1 - x^2)"""
    return (Singular(b.neg(_call("rsqrt", b.binary("-", b.flt(1), b.mul(x, x))))),)


def atan_rule(x: Expr) -> tuple[Partial, ...]:
    """d atan(x) = dx / (1 + x^2)"""
    return (_div(b.flt(1), b.binary("+", b.flt(1), b.mul(x, x))),)


def atan2_rule(y: Expr, x: Expr) -> tuple[Partial, ...]:
    """d atan2(y, x) = (x dy - y dx) / (x^2 + y^2)"""
    square = b.binary("+", b.mul(x, x), b.mul(y, y))
    return Singular(_div(x, square)), Singular(b.neg(_div(y, square)))


def sinh_rule(x: Expr) -> tuple[Partial, ...]:
    """d sinh(x) = cosh(x) dx"""
    return (Singular(_call("cosh", x)),)


def cosh_rule(x: Expr) -> tuple[Partial, ...]:
    """d cosh(x) = sinh(x) dx"""
    return (Singular(_call("sinh", x)),)


def tanh_rule(x: Expr) -> tuple[Partial, ...]:
    """d tanh(x) = (1 - tanh(x)^2) dx"""
    tanh = _call("tanh", x)
    return (b.binary("-", b.flt(1), b.binary("*", tanh, tanh)),)


def sigmoid_rule(x: Expr) -> tuple[Partial, ...]:
    """d sigmoid(x) = sigmoid(x) (1 - sigmoid(x)) dx"""
    y = _call("sigmoid", x)
    return (b.mul(y, b.binary("-", b.flt(1), y)),)


def softplus_rule(x: Expr) -> tuple[Partial, ...]:
    """d softplus(x) = sigmoid(x) dx"""
    return (_call("sigmoid", x),)


def relu_rule(x: Expr) -> tuple[Partial, ...]:
    """d relu(x) = 0 where relu(x) <= 0, else dx"""
    return (b.select(b.binary("<=", _call("relu", x), b.flt(0)), b.flt(0), b.flt(1)),)


def _bell(x: Expr) -> Expr:
    return b.mul(b.flt(2 / math.sqrt(math.pi)), _call("exp", b.neg(b.mul(x, x))))


def erf_rule(x: Expr) -> tuple[Partial, ...]:
    """d erf(x) = 2 / sqrt(pi) exp(-x^2) dx"""
    return (_bell(x),)


def erfc_rule(x: Expr) -> tuple[Partial, ...]:
    """d erfc(x) = -2 / sqrt(pi) exp(-x^2) dx"""
    return (b.neg(_bell(x)),)


def lgamma_rule(x: Expr) -> tuple[Partial, ...]:
    """d lgamma(x) = digamma(x) dx"""
    return (Singular(_call("digamma", x)),)


def digamma_rule(x: Expr) -> tuple[Partial, ...]:
    """d digamma(x) = polygamma(1, x) dx"""
    return (Singular(_call("polygamma", IntConst(1), x)),)


def polygamma_rule(n: Expr, x: Expr) -> tuple[Partial, ...]:
    """d polygamma(n, x) = polygamma(n + 1, x) dx"""
    order = sizes.simplify(b.binary("+", n, IntConst(1)))
    return None, Singular(_call("polygamma", order, x))


def abs_rule(x: Expr) -> tuple[Partial, ...]:
    """d abs(x) = sign(x) dx, and 0 at 0"""
    below = b.select(b.binary("<", x, b.flt(0)), b.flt(-1), b.flt(0))
    return (b.select(b.binary(">", x, b.flt(0)), b.flt(1), below),)


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
    below, inside = max_rule(x, low), min_rule(_call("max", x, low), high)
    first, second = inside[0], inside[1]
    assert isinstance(first, Expr)
    kept = [times(first, partial) for partial in below]
    return (*kept, second)


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
        case _:
            if isinstance(partial, Select) and b.is_const(partial.other, 0):
                return b.select(partial.cond, times(g, partial.then), b.flt(0))
            if isinstance(partial, Select) and b.is_const(partial.then, 0):
                return b.select(partial.cond, b.flt(0), times(g, partial.other))
            return b.mul(g, partial)
