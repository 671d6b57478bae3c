"""Conditions on the counters of loops, which the range or the round of a loop decides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeGuard

from loma.core import bounds, sizes
from loma.core.bounds import ONE, ZERO
from loma.core.ir import INT, Binary, Expr, For, IntConst, Unary, Var
from loma.core.sizes import IsSize, arith
from loma.core.walk import map_children, substitute
from loma.passes.fold import folded


def comparisons(cond: Expr, holds: bool = True) -> tuple[Expr, ...] | None:
    """Expressions that are not negative exactly where a condition holds (or does not)."""
    match cond:
        case Unary("not", operand):
            return comparisons(operand, not holds)
        case Binary("and" | "or" as op, left, right) if (op == "and") == holds:
            first, second = comparisons(left, holds), comparisons(right, holds)
            return None if first is None or second is None else first + second
        case Binary("<" | "<=" | ">" | ">=", left, right) if left.type == right.type == INT:
            plain = all(sizes.is_arithmetic(side) for side in (left, right))
            return bounds.facts(cond, holds) if plain else None
        case _:
            return None


def decided(expr: Expr, extents: Mapping[str, Expr], is_size: IsSize) -> Expr:
    """With constants for the comparisons that are decided at every point of those ranges."""
    if isinstance(expr, Binary) and expr.type == INT:
        for holds in (True, False):
            facts = comparisons(expr, holds)
            if facts and all(bounds.is_never_negative(fact, extents, is_size) for fact in facts):
                return IntConst(int(holds))
        if is_equality(expr):
            if sizes.equal(expr.left, expr.right) is True:
                return IntConst(int(expr.op == "=="))
            less, more = (
                arith("-", arith("-", one, other), ONE)
                for one, other in ((expr.left, expr.right), (expr.right, expr.left))
            )
            if any(bounds.is_never_negative(gap, extents, is_size) for gap in (less, more)):
                return IntConst(int(expr.op == "!="))
    return map_children(expr, lambda child: decided(child, extents, is_size))


def is_equality(cond: Expr) -> TypeGuard[Binary]:
    """Whether a condition compares ints, made of indices and sizes, for equality."""
    if not isinstance(cond, Binary) or cond.op not in ("==", "!="):
        return False
    sides = (cond.left, cond.right)
    return all(side.type == INT and sizes.is_arithmetic(side) for side in sides)


def tells_one_round(cond: Expr, loop: For, is_size: IsSize) -> bool:
    """Whether a condition tells the first round of a loop, or the last, from all others."""
    here, last = Var(loop.counter, INT), arith("-", loop.extent, ONE)
    for apart, other in ((ZERO, arith("+", here, ONE)), (last, here)):
        values = (substitute(cond, {here.name: place}) for place in (apart, other))
        known = (folded(decided(value, {here.name: last}, is_size)) for value in values)
        if all(isinstance(value, IntConst) for value in known):
            return True
    return False
