"""Activations that are written out get their names.

``1 / (1 + exp(-x))`` is ``sigmoid(x)``, ``x / (1 + exp(-x))`` is ``x`` times that, ``max(x, 0) +
log1p(exp(-abs(x)))`` is ``softplus(x)``, also with other terms between, and so is ``log(1 +
exp(x))``. ``(exp(x) - exp(-x)) / (exp(x) + exp(-x))`` is ``tanh(x)``, and ``x ** 0.75`` and
``exp(0.75 * log(x))`` are ``pow(x, 0.75)``, which is known to take its time; ``pow(x, 2.0)`` is
``x ** 2``. ``log(cosh(x))`` is ``x + softplus(-2 * x) - log(2)``. What has a name overflows
nowhere, where what is written out may be infinite or NaN, and its derivative is made of the value:
``s * (1 - s)``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from loma.core import builder as b
from loma.core.ir import (
    FLOAT, Binary, Builtin, Expr, FloatConst, FloatType, Function, IntConst, Module, Select, Unary,
    replace,
)  # fmt: skip
from loma.core.walk import map_children, map_expressions, map_tensor_functions


def activations(module: Module) -> Module:
    """The pass on every tensor function of a module."""
    return map_tensor_functions(module, _named)


def _named(function: Function) -> Function:
    return replace(function, body=tuple(map_expressions(stmt, _expr) for stmt in function.body))


def _expr(expr: Expr) -> Expr:
    if _is_total(expr):
        named = _with_softplus(_terms(expr, True))
        return _each_term(expr) if named is None else _expr(named)
    expr = map_children(expr, _expr)
    match expr:
        case Binary("/", top, bottom, FloatType()):
            return _quotient(expr, top, bottom)
        case Binary("**", base, power, FloatType()) if _is_fraction(power):
            return Builtin("pow", (base, power), FLOAT, expr.span)
        case Builtin("pow", (base, power), FloatType()) if (whole := _whole(power)) is not None:
            return Binary("**", base, IntConst(whole), FLOAT, expr.span)
        case Builtin("log", (Builtin("cosh", (x,)),)):
            above = _call("softplus", b.binary("*", FloatConst(-2.0), x))
            return b.binary("+", x, b.binary("-", above, FloatConst(math.log(2.0))))
        case Builtin("exp", (power,)) if (found := _power_of_logarithm(power)) is not None:
            return Builtin("pow", found, FLOAT, expr.span)
        case _ if (under := _log_of_one_and_exp(expr)) is not None:
            return expr if _below_zero(under) is not None else _call("softplus", under)
        case _:
            return expr


def _is_fraction(power: Expr) -> bool:
    """Whether a power is more than products and quotients of what it is a power of."""
    number = b.number(power)
    return power.type == FLOAT and (number is None or not number.is_integer())


def _whole(power: Expr) -> int | None:
    """How many factors a power has, if its exponent says so."""
    number = b.number(power)
    return int(number) if number is not None and number.is_integer() and number >= 0 else None


def _power_of_logarithm(power: Expr) -> tuple[Expr, Expr] | None:
    """x and c of ``c * log(x)``, c being quarters, which powers need no logarithm for."""
    match power:
        case Unary("-", operand):
            found = _power_of_logarithm(operand)
            return None if found is None else (found[0], b.neg(found[1]))
        case Binary("*", factor, Builtin("log", (x,))) | Binary("*", Builtin("log", (x,)), factor):
            number = b.number(factor)
            plain = number is not None and factor.type == FLOAT and (4 * number).is_integer()
            return (x, factor) if plain else None
        case _:
            return None


def _is_total(expr: Expr) -> bool:
    match expr:
        case Binary("+" | "-", type=FloatType()) | Unary("-", type=FloatType()):
            return True
        case _:
            return False


def _each_term(expr: Expr) -> Expr:
    return map_children(expr, _each_term) if _is_total(expr) else _expr(expr)


def _call(name: str, operand: Expr) -> Expr:
    return Builtin(name, (operand,), FLOAT)


def _quotient(expr: Expr, top: Expr, bottom: Expr) -> Expr:
    if (power := _one_and_exp(bottom)) is not None:
        if top == _call("exp", power):
            return _call("sigmoid", power)
        share = _call("sigmoid", b.neg(power))
        return share if b.is_const(top, 1) else Binary("*", top, share, FLOAT)
    match top, bottom:
        case (
            Binary("-", Builtin("exp", (x,)) as up, Builtin("exp", (y,)) as down),
            Binary("+", one, other),
        ) if y == b.neg(x) and {one, other} == {up, down}:
            return _call("tanh", x)
        case _:
            return expr


def _one_and_exp(expr: Expr) -> Expr | None:
    """u of ``1 + exp(u)``."""
    match expr:
        case Binary("+", one, Builtin("exp", (power,))) if b.is_const(one, 1):
            return power
        case Binary("+", Builtin("exp", (power,)), one) if b.is_const(one, 1):
            return power
        case _:
            return None


def _log_of_one_and_exp(expr: Expr) -> Expr | None:
    """u of ``log(1 + exp(u))``."""
    match expr:
        case Builtin("log1p", (Builtin("exp", (power,)),)):
            return power
        case Builtin("log", (total,)):
            return _one_and_exp(total)
        case _:
            return None


def _below_zero(power: Expr) -> Expr | None:
    """x of ``-abs(x)``, of which the exponential is 1 at most."""
    match power:
        case Unary("-", Builtin("abs", (x,))):
            return x
        case _:
            return None


def _with_softplus(terms: list[tuple[bool, Expr]]) -> Expr | None:
    """What is added (True) and taken away, with the softplus that two of them are; None if there is
    none."""
    for k, (sign, term) in enumerate(terms):
        power = _log_of_one_and_exp(term)
        if power is None or (bent := _below_zero(power)) is None:
            continue
        for other, (own, cut) in enumerate(terms):
            x = _cut_off(cut)
            if own == sign and x is not None and bent in (x, b.neg(x)):
                both = (sign, _call("softplus", x))
                left = [both if n == min(k, other) else found for n, found in enumerate(terms)]
                del left[max(k, other)]
                return _with_softplus(left) or added(left)
    return None


def _cut_off(term: Expr) -> Expr | None:
    """x of ``max(x, 0)``, also by a condition, for the other term is NaN where x is."""
    match term:
        case Select(Binary(">" | ">=", x, zero), then, other) if (
            then == x and b.is_const(zero, 0) and b.is_const(other, 0)
        ):
            return x
        case Select(Binary("<" | "<=", x, zero), then, other) if (
            then == b.neg(x) and b.is_const(zero, 0) and b.is_const(other, 0)
        ):
            return then
        case Builtin("relu", (x,)):
            return x
        case Builtin("max", (x, zero)) | Builtin("max", (zero, x)) if b.is_const(zero, 0):
            return x
        case _:
            return None


def _terms(expr: Expr, sign: bool) -> list[tuple[bool, Expr]]:
    match expr:
        case Binary("+" | "-" as op, left, right, FloatType()):
            return _terms(left, sign) + _terms(right, sign == (op == "+"))
        case Unary("-", operand, FloatType()):
            return _terms(operand, not sign)
        case _:
            return [(sign, expr)]


def added(terms: Sequence[tuple[bool, Expr]]) -> Expr:
    """The sum of what is added (True) and taken away."""
    (sign, first), *others = terms
    total = first if sign else b.neg(first)
    for sign, term in others:
        total = b.binary("+" if sign else "-", total, term)
    return total
