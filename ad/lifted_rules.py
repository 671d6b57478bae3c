"""Rules of operators that work element by element: those of the scalar functions, on whole tensors.

The partial derivatives of :mod:`loma.ad.scalar_rules` are written in placeholders for the elements;
with tensors in their place, arithmetic becomes operators. Where a partial derivative has the
function's own value, the rule reads the operator's, which is there.
"""

from __future__ import annotations

from collections.abc import Sequence

from loma.ad.operator_rules import OpAdjoint, op, unbroadcast
from loma.ad.scalar_rules import ScalarRule, times
from loma.core import builder as b
from loma.core.ir import (
    FLOAT, INT, Binary, Builtin, Expr, FloatConst, IntConst, Select, TensorType, Unary, Var,
)  # fmt: skip

_G = Var(" g", FLOAT)  # an adjoint or a tangent; no name of a program, nor are the others


def lifted(call: OpAdjoint, rule: ScalarRule) -> tuple[Expr | None, ...]:
    """The adjoint of each argument of an operator by the rule of the scalar function."""
    places, values = _placeholders(call.name, call.args, call.y)
    values[_G] = call.g
    return tuple(
        None
        if partial is None or place.type == INT or isinstance(place, FloatConst)
        else unbroadcast(_lift(times(_G, partial), values), arg)
        for place, partial, arg in zip(places, rule(*places), call.args, strict=True)
    )


def lifted_tangents(
    args: Sequence[Expr], y: Expr, name: str, rule: ScalarRule, tangents: Sequence[Expr | None]
) -> list[Expr]:
    """What each argument's tangent adds to that of the result ``y``."""
    places, values = _placeholders(name, args, y)
    return [
        _lift(times(_G, partial), values | {_G: tangent})
        for place, partial, tangent in zip(places, rule(*places), tangents, strict=True)
        if tangent is not None and partial is not None and not isinstance(place, FloatConst)
    ]


def _placeholders(
    name: str, args: Sequence[Expr], y: Expr
) -> tuple[tuple[Expr, ...], dict[Expr, Expr]]:
    """What stands for the elements of the arguments, and what it and the function's value are."""
    places = tuple(_element(arg, f" {k}") for k, arg in enumerate(args))
    values: dict[Expr, Expr] = dict(zip(places, args, strict=True))
    return places, values | {Builtin(name, places, FLOAT): y}


def _element(arg: Expr, name: str) -> Expr:
    """What stands for an element of an argument; constants stand for themselves."""
    if isinstance(arg, FloatConst | IntConst):
        return arg
    is_int = arg.type == INT or (isinstance(arg.type, TensorType) and arg.type.integer)
    return Var(name, INT if is_int else FLOAT)


def _lift(expr: Expr, values: dict[Expr, Expr]) -> Expr:
    """A scalar expression with operators on tensors where its placeholders are tensors."""
    if expr in values:
        return values[expr]
    match expr:
        case Binary(name, left, right):
            return b.binary(name, _lift(left, values), _lift(right, values))
        case Unary(name, operand):
            return b.unary(name, _lift(operand, values))
        case Builtin(name, args):
            parts = tuple(_lift(arg, values) for arg in args)
            return op(name, *parts) if _has_tensor(parts) else b.builtin(name, parts)
        case Select(cond, then, other):
            test, first, second = (_lift(part, values) for part in (cond, then, other))
            if _has_tensor((test, first, second)):
                return op("where", test, first, second)
            return b.select(test, first, second)
        case _:
            return expr


def _has_tensor(parts: tuple[Expr, ...]) -> bool:
    return any(isinstance(part.type, TensorType) for part in parts)
