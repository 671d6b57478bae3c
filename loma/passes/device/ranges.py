"""Sums over ranges that data say, whose places are looked at before the loop, not one by one.

    sum(x[start[b] + l, d] for l in range(start[b + 1] - start[b]))

All places are inside if the first and the last one are. That is a condition which no round of the
loop changes: where it holds, reads need no test.

    sum(x[start[b] + l, d] if 0 <= start[b] and start[b + 1] <= L else x[start[b] + l, d] for ...)
"""

from __future__ import annotations

from loma.core import builder as b, sizes
from loma.core.ir import (
    INT, Axis, Binary, Expr, Function, Index, IndexAssign, IntConst, Reduce, Select, Stmt,
    TensorType, Var, replace,
)  # fmt: skip
from loma.core.walk import map_blocks, map_children, reads_elements, walk

_ZERO = IntConst(0)


def looked_at_before(function: Function) -> Function:
    """The function with such conditions in its sums."""
    return replace(function, body=tuple(map(_statement, function.body)))


def _statement(stmt: Stmt) -> Stmt:
    if isinstance(stmt, IndexAssign):
        return replace(stmt, value=_with_conditions(stmt.value))
    return map_blocks(stmt, lambda block: tuple(map(_statement, block)))


def _with_conditions(expr: Expr) -> Expr:
    match expr:
        case Reduce("sum", body, (axis,)) if reads_elements(axis.extent):
            found = dict.fromkeys(fact for node in walk(body) for fact in _facts(node, axis))
            if not found or any(isinstance(node, Reduce) for node in walk(body)):
                return expr
            inside, zero = b.every(list(found)), b.zero(body)
            beyond = Axis(axis.name, Select(inside, _ZERO, axis.extent, INT))
            known = replace(expr, body=Select(inside, body, zero, body.type))
            some = Binary(">", axis.extent, _ZERO, INT)
            told = replace(expr, body=Select(some, body, zero, body.type), axes=(beyond,))
            return b.binary("+", known, told)
        case _:
            return map_children(expr, _with_conditions)


def _facts(node: Expr, axis: Axis) -> tuple[Expr, ...]:
    """That the places of an element for all values of an axis are inside."""
    if not isinstance(node, Index) or not isinstance(node.base.type, TensorType):
        return ()
    found: list[Expr] = []
    for place, size in zip(node.subscripts, sizes.dims_of(node.base), strict=True):
        first = sizes.arith("-", place, Var(axis.name, INT))
        if sizes.mentions(place, {axis.name}) and not sizes.mentions(first, {axis.name}):
            end = sizes.arith("+", first, axis.extent)
            found += [Binary("<=", _ZERO, first, INT), Binary("<=", end, size, INT)]
    return tuple(found)
