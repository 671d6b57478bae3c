"""Statements of loops over segments with one more axis: over all segments, or all elements."""

from __future__ import annotations

from loma.core import sizes
from loma.core.axes import shifted_places
from loma.core.ir import INT, Axis, Expr, Index, IndexAssign, Var, replace
from loma.core.walk import map_children, subscripts, walk


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


def exchanged(expr: Expr, place: Expr, along: str, element: Var) -> Expr:
    """With the element for its place."""
    if expr.type == INT and sizes.mentions(expr, {along}) and sizes.equal(expr, place):
        return element
    return map_children(expr, lambda child: exchanged(child, place, along, element))
