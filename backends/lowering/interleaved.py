"""Short sums along memory: each element of a row is the sum of a few neighbours.

In ``y[i] += x[i, r] ** 2`` with four values of ``r``, lanes along ``r`` would be mostly empty, and
would be put together for each element. Written out as four terms, lanes run along ``i``, and
vectors of x are loaded whole and taken apart. So are products and extremes, and all of them over
the neighbours of a place that memory says, as in ``y[i] += x[p[i] + r]``: nothing lies in order
along ``r`` but a few elements.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from loma import config
from loma.backends.schedule.access import Access, analyse, reads
from loma.backends.schedule.context import FunctionContext
from loma.backends.schedule.ir import Kind
from loma.core import builder as b
from loma.core import sizes
from loma.core.distinct import told_apart
from loma.core.ir import POSITIONS, Axis, Expr, Index, IndexAssign, IntConst, Reduce
from loma.core.walk import free_variables, substitute, walk


def written_out(
    context: FunctionContext, target: Expr, kind: Kind, body: Expr, axes: tuple[Axis, ...]
) -> tuple[tuple[Axis, ...], Expr]:
    """The axes and the body of a reduction, without those of short ones."""
    used = "neighbours" in config.optimisations()
    if not used or kind == "set" or kind in POSITIONS or not isinstance(target, Index):
        return axes, body
    summed = [axis for axis in axes if axis.name not in free_variables(target)]
    if any(isinstance(node, Reduce) for node in walk(body)):
        return axes, body
    place = analyse(context, target, axes)
    found = [analyse(context, read, scope, padded) for read, scope, padded in reads(body, axes)]
    rows = [axis.name for axis in axes if sizes.constant(place.coefficient(axis.name)) == 1]
    long = [name for name in _long(context, axes) if name not in {a.name for a in summed}]
    terms, short = [body], set[str]()
    for axis in summed:
        count = sizes.constant(axis.extent) or 0
        if not 1 < count * len(terms) <= context.machine.lanes:
            continue
        alone = len(summed) == 1
        in_order = alone and any(_lies_so(place, found, row, axis.name, count) for row in rows)
        if in_order or (not place.loose and any(_is_near(a, axis.name, long) for a in found)):
            terms = [substitute(t, {axis.name: IntConst(k)}) for t in terms for k in range(count)]
            short.add(axis.name)
    total = functools.reduce(functools.partial(b.combined, kind), terms)
    return tuple(axis for axis in axes if axis.name not in short), total


def apart(context: FunctionContext, stmt: IndexAssign, fresh: bool) -> list[IndexAssign]:
    """An addition to the neighbours of places that memory says as one for each neighbour, each of
    which goes through the places in order; elements made of such neighbours, as in
    ``y[i, r] = x[p[i] + r]``, as statements for each of them, which may run as one with others.

    ``fresh``: the target is all zero.
    """
    target = stmt.target
    used = "neighbours" in config.optimisations()
    if not used or not isinstance(target, Index):
        return [stmt]
    if target.tensor.name in free_variables(stmt.value):
        return [stmt]
    place = analyse(context, target, stmt.axes)
    scopes = reads(stmt.value, stmt.axes)
    found = [analyse(context, read, scope, padded) for read, scope, padded in scopes]
    own = told_apart(target.subscripts, stmt.axes) if not place.loose else set()
    parts = [stmt]
    rows = _long(context, stmt.axes)
    for axis in stmt.axes:
        count = sizes.constant(axis.extent) or 0
        near = stmt.op == "+=" and not fresh and _is_near(place, axis.name, rows)
        near = near or (axis.name in own and any(_is_near(a, axis.name, rows) for a in found))
        if near and 1 < count * len(parts) <= context.machine.lanes:
            parts = [_at(part, axis, k) for part in parts for k in range(count)]
    return parts


def _long(context: FunctionContext, axes: tuple[Axis, ...]) -> list[str]:
    """The axes that may have more than a few values."""
    lanes = context.machine.lanes
    return [axis.name for axis in axes if (sizes.constant(axis.extent) or lanes + 1) > lanes]


def _at(stmt: IndexAssign, axis: Axis, value: int) -> IndexAssign:
    """The part of a statement for one value of an axis."""
    known: dict[str, Expr] = {axis.name: IntConst(value)}
    target = substitute(stmt.element, known)
    assert isinstance(target, Index)
    axes = tuple(other for other in stmt.axes if other is not axis)
    return replace(stmt, target=target, value=substitute(stmt.value, known), axes=axes)


def _is_near(access: Access, short: str, rows: list[str]) -> bool:
    """Whether elements lie around a place that memory says for each element of a row, which is the
    same for all values of the short axis."""
    if not access.is_loose_in(short) or not any(access.is_loose_in(row) for row in rows):
        return False
    said = (node for sub in access.loose for node in walk(sub.expr) if isinstance(node, Index))
    return all(short not in free_variables(place) for place in said)


def _lies_so(place: Access, found: list[Access], row: str, short: str, count: int) -> bool:
    """Whether tensors have the terms of a row's element beside each other, and those of the next
    element behind them, and all others have one element for each, at most in steps as long, or for
    all of them."""
    steps = [
        (sizes.constant(access.coefficient(row)), sizes.constant(access.coefficient(short)))
        for access in found
    ]
    simple = all(step in ((count, 1), (count, 0), (1, 0), (0, 0), (0, 1)) for step in steps)
    loose = any(access.loose or access.padded for access in (place, *found))
    return simple and not loose and (count, 1) in steps
