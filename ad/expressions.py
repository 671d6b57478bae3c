"""Reverse mode on one scalar expression: which reads it adds what to.

The adjoint ``g`` of the expression's value goes down the tree; at every read of an active variable
the product of ``g`` with the partial derivatives on the way is a contribution. What stands in a
branch of a conditional expression contributes only where that branch is taken: the condition guards
the whole product, so that not even a NaN gets through.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from loma import builder as b
from loma.ad.rules import SCALAR_RULES
from loma.ad.scalar_rules import times
from loma.ir import (
    FLOAT, Binary, Builtin, Call, Expr, FloatConst, FloatType, Index, IntConst, IntType, MakeStruct,
    Member, NoDiff, Op, Place, Reduce, Select, Unary, Var, ZeroPad,
)  # fmt: skip
from loma.walk import root


@dataclass(frozen=True, slots=True)
class Contribution:
    """``value`` is to be added to the adjoint of ``place``; ``padded`` when the read was inside
    ``zero_pad``, so that what falls outside the tensor is dropped."""

    place: Place
    padded: bool
    value: Expr


PartialName = Callable[[str, int], str]


def contributions(
    expr: Expr,
    g: Expr,
    active: Callable[[str], bool],
    partial_name: PartialName,
    where: Expr | None = None,
) -> list[Contribution]:
    """The contributions of ``expr`` with adjoint ``g``, one for each place that it reads; they
    count only where the condition ``where`` holds.

    ``partial_name(function, k)`` names the function that computes a scalar function's partial
    derivative with respect to its argument k.
    """
    found: dict[tuple[Place, bool], Expr] = {}

    def emit(place: Place, padded: bool, value: Expr, guards: tuple[Expr, ...]) -> None:
        for guard in reversed(guards):
            value = b.select(guard, value, b.flt(0))
        key = (place, padded)
        found[key] = b.add(found[key], value) if key in found else value

    def visit(expr: Expr, g: Expr, guards: tuple[Expr, ...]) -> None:
        if isinstance(expr.type, IntType):
            return
        match expr:
            case IntConst() | FloatConst() | NoDiff():
                pass
            case Var() | Index() | Member():
                if active(root(expr)):
                    emit(expr, False, g, guards)
            case ZeroPad(read):
                assert isinstance(read.base, Var)
                if active(read.base.name):
                    emit(read, True, g, guards)
            case Unary("-", operand):
                visit(operand, b.neg(g), guards)
            case Unary():
                pass
            case Binary(op, left, right):
                apply(op, (left, right), g, guards)
            case Builtin(name, args):
                apply(name, args, g, guards)
            case Select(cond, then, other):
                visit(then, g, (*guards, cond))
                visit(other, g, (*guards, negation(cond)))
            case Call(function, args):
                for k, arg in enumerate(args):
                    if isinstance(arg.type, FloatType) and _reaches(arg, active):
                        slope = Call(partial_name(function, k), args, FLOAT)
                        visit(arg, Builtin("mul_no_nan", (slope, g), FLOAT), guards)
            case Reduce() | Op() | MakeStruct():
                raise AssertionError(f"not in normal form: {type(expr).__name__}")
            case _:
                assert_never(expr)

    def apply(name: str, args: tuple[Expr, ...], g: Expr, guards: tuple[Expr, ...]) -> None:
        if not any(_reaches(arg, active) for arg in args):
            return
        for arg, partial in zip(args, SCALAR_RULES[name](*args), strict=True):
            if partial is not None and _reaches(arg, active):
                visit(arg, times(g, partial), guards)

    visit(expr, g, () if where is None else (where,))
    return [Contribution(place, padded, value) for (place, padded), value in found.items()]


def negation(cond: Expr) -> Expr:
    """The opposite condition. Not ``<`` turned into ``>=``: NaN makes both false."""
    return b.unary("not", cond)


def _reaches(expr: Expr, active: Callable[[str], bool]) -> bool:
    from loma.ad.activity import differentiable_reads

    return any(active(name) for name in differentiable_reads(expr))
