"""Short sums along memory: each element of a row is the sum of a few neighbours.

In ``y[i] += x[i, r] ** 2`` with four values of ``r``, lanes along ``r`` would be mostly empty, and
would be put together for each element. Written out as four terms, lanes run along ``i``, and
vectors of x are loaded whole and taken apart. So are products, extremes and where these stand, also
of windows that overlap, and all of them over the neighbours of a place that memory says, as in
``y[i] += x[p[i] + r]``: nothing lies in order along ``r`` but a few elements.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from loma import config
from loma.backends.schedule.access import Access, analyse, ragged, reads
from loma.backends.schedule.context import FunctionContext
from loma.backends.schedule.ir import Kind
from loma.core import builder as b
from loma.core import sizes
from loma.core.axes import FEW
from loma.core.bounds import exists
from loma.core.distinct import told_apart
from loma.core.ir import (
    POSITIONS, Axis, BinaryOp, Expr, Index, IndexAssign, IntConst, Reduce, ReduceKind,
    Select,
)  # fmt: skip
from loma.core.walk import certain_reads, free_variables, substitute, walk

_SIDE = 4  # elements of a row beside each other, between which those of other rows are put


def written_out(
    context: FunctionContext, target: Expr, kind: Kind, body: Expr, axes: tuple[Axis, ...]
) -> tuple[tuple[Axis, ...], Kind, Expr]:
    """The axes, the kind and the body of a reduction, without axes of a few values."""
    used = "neighbours" in config.optimisations()
    if not used or kind == "set" or not isinstance(target, Index):
        return axes, kind, body
    summed = [axis for axis in axes if axis.name not in free_variables(target)]
    if any(isinstance(node, Reduce) for node in walk(body)):
        return axes, kind, body
    place = analyse(context, target, axes)
    found = [analyse(context, read, scope, padded) for read, scope, padded in reads(body, axes)]
    rows = [axis.name for axis in axes if sizes.constant(place.coefficient(axis.name)) == 1]
    names = [axis.name for axis in summed]
    long = [name for name in _long(context, axes) if name not in names]
    wanted = [
        axis
        for axis in summed
        if any(_lies_so(place, found, row, axis.name, _count(axis)) for row in rows)
        or (not place.loose and any(_is_near(a, axis.name, long) for a in found))
    ]
    most = context.machine.lanes
    if kind in POSITIONS:  # of all axes together
        most, wanted = FEW, summed if wanted else []
    terms, short = [body], set[str]()
    for axis in wanted:
        if 1 < _count(axis) * len(terms) <= most:
            steps: list[dict[str, Expr]] = [{axis.name: IntConst(k)} for k in range(_count(axis))]
            terms = [substitute(term, step) for term in terms for step in steps]
            short.add(axis.name)
    left = tuple(axis for axis in axes if axis.name not in short)
    if kind in POSITIONS:
        return (left, "sum", _position(kind, terms)) if short == set(names) else (axes, kind, body)
    return left, kind, functools.reduce(functools.partial(b.combined, kind), terms)


def _count(axis: Axis) -> int:
    """Its values, 0 where sizes tell how many."""
    return sizes.constant(axis.extent) or 0


def _position(kind: str, terms: list[Expr]) -> Expr:
    """Where the first of the largest or smallest of some numbers stands, or the first NaN."""
    extreme: ReduceKind = "max" if kind == "argmax" else "min"
    better: BinaryOp = ">=" if kind == "argmax" else "<="
    best: Expr = terms[0]
    at: Expr = IntConst(0)
    for k, term in enumerate(terms[1:], 1):
        stays = b.binary("or", b.binary(better, best, term), b.binary("!=", best, best))
        at = b.select(stays, at, IntConst(k))
        best = b.combined(extreme, best, term)
    return at


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


def interleaved(context: FunctionContext, stmt: IndexAssign) -> list[IndexAssign]:
    """A statement whose elements lie beside each other along an axis of a few values, but not those
    that it reads, or the other way round, as in ``y[i, r] = x[i]``, ``y[i, r] = x[r, i]`` and
    ``y[r, i] = x[i, r]``, as statements for each value, which may run as one: then vectors go along
    the next axis, and those of all values are put together where they are written, or taken apart
    where they are read. So do other axes of a few values, for which a row reads the same, if values
    are chosen by conditions, which all of them have."""
    target = stmt.target
    used = "neighbours" in config.optimisations() and context.machine.lanes > 1
    if not used or context.serial or context.make_tree is not None or not isinstance(target, Index):
        return [stmt]
    if target.tensor.name in free_variables(stmt.value) or ragged(stmt.axes):
        return [stmt]
    if any(isinstance(node, Reduce) for node in walk(stmt.value)):
        return [stmt]
    place = analyse(context, target, stmt.axes)
    own = told_apart(target.subscripts, stmt.axes)
    if place.loose or own != {axis.name for axis in stmt.axes}:
        return [stmt]
    extents = context.extents(stmt.axes)
    certain = set(certain_reads(stmt.value))
    every = (node for node in walk(stmt.value) if isinstance(node, Index))
    if not all(read in certain or exists(read, extents, context.is_size) for read in every):
        return [stmt]
    found = [analyse(context, read, scope) for read, scope, _ in reads(stmt.value, stmt.axes)]
    few = _between(stmt, place, found)
    for read in () if few else found:
        few = _between(stmt, read, [place])[:1]
        if few:
            break
    if not few:
        return [stmt]
    inner = few[0]
    parts = [_at(stmt, inner, k) for k in range(_count(inner))]
    dear = sum(isinstance(node, Select) for node in walk(stmt.value)) > 1
    for axis in few if dear else ():
        if axis is not inner and _count(axis) * len(parts) <= FEW:
            parts = [_at(part, axis, k) for k in range(_count(axis)) for part in parts]
    return parts


def _between(stmt: IndexAssign, one: Access, others: list[Access]) -> list[Axis]:
    """Axes of a few values for which one tensor has elements beside each other, between those of a
    row, and others have none or a row for each: that axis, and others which say nothing of them."""
    steps = {axis.name: sizes.constant(one.coefficient(axis.name)) for axis in stmt.axes}
    few = [axis for axis in stmt.axes if 1 < _count(axis) <= _SIDE]
    inner = [axis for axis in few if steps[axis.name] == 1 and _count(axis) in steps.values()]
    if not inner or one.loose:
        return []
    along = {name for name, step in steps.items() if step == _count(inner[0])}
    few = [axis for axis in few if any(_lies_apart(other, axis, along) for other in others)]
    return [inner[0], *(axis for axis in few if axis is not inner[0])] if inner[0] in few else []


def _lies_apart(access: Access, short: Axis, rows: set[str]) -> bool:
    """Whether a tensor has one element for all values of a short axis, or those for each value in
    a row of their own, as before pixels are shuffled."""
    step = sizes.constant(access.coefficient(short.name))
    if step is not None and abs(step) <= _SIDE:
        return step == 0
    return any(sizes.constant(access.coefficient(row)) == 1 for row in rows)


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
    element behind them, or behind the first of them, and all others have one element for each, at
    most in steps as long, or for all of them."""
    steps = [
        (sizes.constant(access.coefficient(row)), sizes.constant(access.coefficient(short)))
        for access in found
    ]
    loose = any(access.loose or access.padded for access in (place, *found))
    stride = max((step or 0 for step, own in steps if own == 1), default=0)
    simple = all(step in ((stride, 1), (stride, 0), (1, 0), (0, 0), (0, 1)) for step in steps)
    return simple and not loose and 1 < stride <= count
