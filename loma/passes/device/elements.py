"""Statements of loops over segments with one more axis: over all segments, or all elements."""

from __future__ import annotations

from collections.abc import Callable

from loma.core import builder as b, sizes
from loma.core.axes import shifted_places
from loma.core.ir import INT, Axis, Expr, Index, IndexAssign, Var, replace
from loma.core.walk import map_children, subscripts, substitute, walk


def statement(stmt: IndexAssign, target: Index, value: Expr, axis: Axis) -> IndexAssign:
    """A statement with another value, and one more axis."""
    axes = (axis, *stmt.axes)
    ranges = {each.name: each.extent for each in axes}
    placed, value = shifted_places(target, ranges), shifted_places(value, ranges)
    assert isinstance(placed, Index)
    return in_order(replace(stmt, target=placed, value=value, axes=axes))


def in_order(stmt: IndexAssign) -> IndexAssign:
    """The statement with the axes of its target in the order in which they appear there."""
    axes = {axis.name: axis for axis in stmt.axes}
    names = [n.name for s in subscripts(stmt.target) for n in walk(s) if isinstance(n, Var)]
    named = (axes[name] for name in names if name in axes)
    return replace(stmt, axes=tuple(dict.fromkeys((*named, *stmt.axes))))


def of_element(
    own: str, number: Expr, along: str, first: Expr, element: Var
) -> Callable[[Expr], Expr]:
    """What turns an expression of the segment ``own`` and its element ``along``, which is counted
    from where the segment begins, ``first``, into that of the segment of that ``number`` and an
    element of all."""
    values: dict[str, Expr] = {own: number}
    values[along] = b.binary("-", element, substitute(first, values))
    place = b.binary("+", first, Var(along, INT))

    def counted(expr: Expr) -> Expr:
        if expr.type == INT and sizes.mentions(expr, {along}) and sizes.equal(expr, place):
            return element
        return map_children(expr, counted)

    return lambda expr: substitute(counted(expr), values)
