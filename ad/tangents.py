"""Forward mode on one scalar expression: the tangent of its value from those of what it reads.

What is not evaluated has no part in the tangent: a read in a branch of a conditional expression has
its tangent read in the same branch only, so that a guard also guards the tangent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import assert_never

from loma.ad.contributions import PartialName
from loma.ad.rules import SCALAR_RULES
from loma.ad.scalar_rules import times
from loma.core import builder as b
from loma.core.ir import (
    FLOAT, Binary, Builtin, Call, Expr, FloatConst, FloatType, Index, IntConst, IntType, MakeStruct,
    Member, NoDiff, Op, Place, Reduce, Select, Unary, Var, ZeroPad,
)  # fmt: skip

ZERO = b.flt(0)


def is_zero(tangent: Expr) -> bool:
    """Whether a tangent is zero everywhere, so that nothing has to be computed."""
    return b.is_const(tangent, 0)


@dataclass(frozen=True, slots=True)
class Tangents:
    """``place`` gives the place that holds the tangent of a place, None where it has none;
    ``partial_name(function, k)`` names the function that computes a scalar function's partial
    derivative with respect to its argument k."""

    place: Callable[[Place], Place | None]
    partial_name: PartialName

    def of(self, expr: Expr) -> Expr:
        """The tangent of an expression without reductions."""
        if isinstance(expr.type, IntType):
            return ZERO
        match expr:
            case Var() | Index() | Member():
                return self.place(expr) or ZERO
            case ZeroPad(read):
                tangent = self.place(read)
                return ZERO if tangent is None else ZeroPad(tangent, expr.span)  # type: ignore[arg-type]
            case Unary("-", operand):
                inner = self.of(operand)
                return ZERO if is_zero(inner) else b.neg(inner)
            case Binary(op, left, right):
                return self._apply(op, (left, right))
            case Builtin(name, args):
                return self._apply(name, args)
            case Select(cond, then, other):
                taken, missed = self.of(then), self.of(other)
                constant = is_zero(taken) and is_zero(missed)
                return ZERO if constant else b.select(cond, taken, missed)
            case Call(function, args):
                return self._call(function, args)
            case IntConst() | FloatConst() | NoDiff() | Unary():
                return ZERO
            case Reduce() | Op() | MakeStruct():
                raise AssertionError(f"not in normal form: {type(expr).__name__}")
            case _:
                assert_never(expr)

    def _apply(self, name: str, args: tuple[Expr, ...]) -> Expr:
        return slope(name, args, [self.of(arg) for arg in args])

    def _call(self, function: str, args: tuple[Expr, ...]) -> Expr:
        total: Expr = ZERO
        for k, arg in enumerate(args):
            inner = self.of(arg) if isinstance(arg.type, FloatType) else ZERO
            if not is_zero(inner):
                slope = Call(self.partial_name(function, k), args, FLOAT)
                total = b.add(total, Builtin("mul_no_nan", (slope, inner), FLOAT))
        return total


def slope(name: str, values: Sequence[Expr], tangents: Sequence[Expr]) -> Expr:
    """The tangent of an operation's value."""
    if all(map(is_zero, tangents)):
        return ZERO
    total: Expr = ZERO
    for tangent, partial in zip(tangents, SCALAR_RULES[name](*values), strict=True):
        if partial is not None and not is_zero(tangent):
            total = _sum_of(total, times(tangent, partial))
    return total


def _sum_of(left: Expr, right: Expr) -> Expr:
    """The sum of two terms: written as one choice when they exclude each other, and with a minus
    when the second is negative."""
    match left, right:
        case Select(cond, then, other), Select(again, zero, last) if cond == again:
            if b.is_const(other, 0) and b.is_const(zero, 0):
                return b.select(cond, then, last)
        case _, Unary("-", operand) if not b.is_const(left, 0):
            return b.binary("-", left, operand)
        case _:
            pass
    return b.add(left, right)
