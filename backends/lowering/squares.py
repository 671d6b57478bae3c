"""Statements that read across memory, as in ``y[j, i] = x[i, j]``.

A square of x at a time is transposed on its way to a small copy, whose rows lie as the target's do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loma import config
from loma.backends.lowering.nest import Nest
from loma.backends.schedule.access import Access, Loop
from loma.backends.schedule.ir import Let, Node, Transpose, dtype_of, element
from loma.backends.schedule.ir import Loop as LoopNode
from loma.backends.schedule.marks import mark_of
from loma.core import builder as b
from loma.core import sizes
from loma.core.ir import INT, Axis, Expr, Index, IntConst, Reduce, TensorType, Var
from loma.core.walk import substitute, walk


def choose(nest: Nest, loops: Sequence[Loop], row: Loop, value: Expr) -> Loop | None:
    """The axis along which elements lie that are read across the rows: of several that of most."""
    machine = nest.context.machine
    if "squares" not in config.optimisations():
        return None
    if not machine.lanes or any(isinstance(node, Reduce) for node in walk(value)):
        return None
    best: Loop | None = None
    for loop in loops:
        extents = [loop.axis.extent, row.axis.extent]
        short = any((sizes.constant(e) or machine.square) < machine.square // 2 for e in extents)
        names = {loop.name, row.name}
        if short or names & nest.bounds.keys() or any(sizes.mentions(e, names) for e in extents):
            continue
        count = len(_across(nest, row.name, loop.name))
        if count > (0 if best is None else len(_across(nest, row.name, best.name))):
            best = loop
    return best


def _across(nest: Nest, row: str, other: str) -> list[tuple[Index, Access]]:
    """The reads of neighbours along another axis than the row, which may be done at any time."""
    return [
        (read, access)
        for (read, padded), access in nest.accesses.items()
        if sizes.constant(access.coefficient(other)) == 1
        and sizes.constant(access.coefficient(row)) not in (0, 1)
        and not (padded or access.loose or access.base.name in nest.writable)
        and all(mark_of(subscript.expr) is None for subscript in access.subscripts)
    ]


def rows(
    nest: Nest, row: Axis, other: Axis, value: Expr, store: Callable[[], list[Node]]
) -> list[Node]:
    """The part of a few rows that a square has."""
    starts: dict[str, Expr] = {}
    ends: dict[str, Var] = {}
    nodes: list[Node] = []
    for axis in (row, other):
        low, high = nest.bounds[axis.name]
        start, ends[axis.name] = (nest.fresh(stem) for stem in ("from", "to"))
        nodes += [Let(start, low), Let(ends[axis.name], high)]
        starts[axis.name] = start
    size = nest.context.machine.square
    row_count, count = (b.binary("-", ends[a.name], starts[a.name]) for a in (row, other))
    at_row, at = (b.binary("-", Var(a.name, INT), starts[a.name]) for a in (row, other))
    offset = b.binary("+", b.binary("*", at, IntConst(size)), at_row)
    for read, access in _across(nest, row.name, other.name):
        begin = substitute(nest.terms(access.coefficients, access.rest, None), starts)
        first = element(read.tensor, begin, read)
        type_ = TensorType((IntConst(size * size),), dtype_of(read.tensor))
        part = Var(nest.fresh("square").name, type_)
        stride = access.coefficient(row.name)
        nodes.append(Transpose(part, first, stride, row_count, count, size))
        nest.squares[read] = element(part, offset, read)
    bounds = starts[row.name], ends[row.name]
    inside = nest.innermost(row, value, store, bounds, independent=True)
    counter = Var(other.name, INT)
    return [*nodes, LoopNode(counter, starts[other.name], ends[other.name], tuple(inside))]
