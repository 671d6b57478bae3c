"""Loops over an index whose range is no dimension, as ``for c in range(I + l)`` around a statement
for ``y[c]``, or ``for p in range(2)`` around one for ``y[2 * h + p]``: the counter is an axis of
the statement, for its values meet nowhere.

The language infers the range of an index from what it reads, so that no program says this itself.
"""

from __future__ import annotations

from collections.abc import Collection

from loma.core import sizes
from loma.core.axes import FEW
from loma.core.distinct import told_apart
from loma.core.ir import (
    INT, Axis, Binary, Expr, For, Function, Index, IndexAssign, IntConst, Stmt, TensorType,
    Var, replace,
)  # fmt: skip
from loma.core.effects import counters
from loma.core.sizes import size_variables
from loma.core.walk import free_variables, map_blocks, reduced_axes, substitute, walk


def counted(function: Function, few: bool = False) -> Function:
    """The function without such loops around one statement; ``few``: without those of a few rounds,
    which vectors can be taken apart by."""
    positive = {*size_variables(function), *counters(function.body)}

    def visit(stmt: Stmt) -> Stmt:
        stmt = map_blocks(stmt, lambda block: tuple(map(visit, block)))
        match stmt:
            case For(counter, extent, (IndexAssign() as inner,)) if not few or (
                inner.axes and (sizes.constant(extent) or FEW + 1) <= FEW
            ):
                return _with_axis(inner, counter, extent, positive) or stmt
            case _:
                return stmt

    return replace(function, body=tuple(map(visit, function.body)))


def _with_axis(
    stmt: IndexAssign, counter: str, extent: Expr, positive: Collection[str]
) -> IndexAssign | None:
    """The statement for all values of a counter, if these have elements of their own."""
    target = stmt.target
    if not isinstance(target, Index) or not isinstance(target.base, Var):
        return None
    reads = [node for node in walk(stmt.value) if isinstance(node, Index)]
    if any(node.base == target.base for node in reads):
        return None
    axes = (*stmt.axes, *reduced_axes(stmt.value))
    names = {axis.name for axis in axes}
    ragged = any(counter in free_variables(axis.extent) for axis in axes)
    data = any(isinstance(node.type, TensorType) for node in walk(extent))
    if counter in names or ragged or data or sizes.mentions(extent, names):
        return None
    extent = sizes.count(extent, lambda name: name in positive)
    own = (*(a for a in stmt.axes if a.name in free_variables(target)), Axis(counter, extent))
    if counter not in told_apart(target.subscripts, own):
        return None
    # An index by itself would have to run over the whole dimension.
    place = Binary("+", Var(counter, INT), IntConst(0), INT)
    there: dict[str, Expr] = {counter: place}
    moved = substitute(target, there)
    assert isinstance(moved, Index)
    return replace(
        stmt, target=moved, value=substitute(stmt.value, there),
        axes=_in_order(target, (*stmt.axes, Axis(counter, extent))),
    )  # fmt: skip


def _in_order(target: Index, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """Those of the target as they appear there, then the others."""
    found = [
        axis for sub in target.subscripts for node in walk(sub) if isinstance(node, Var)
        for axis in axes if axis.name == node.name
    ]  # fmt: skip
    return tuple(dict.fromkeys((*found, *axes)))
