"""Where the indices of an index statement get their ranges from.

An index ranges over the dimension where it stands alone as a subscript: the target is looked at
first, then the reads from left to right. The frontend infers ranges with this rule; AD uses it to
write statements that read back as what they are.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise, product

from loma.core import sizes
from loma.core.ir import (
    INT, Assign, Axis, Binary, Expr, For, If, Index, IndexAssign, IntConst, Reduce, Select, Stmt,
    TensorType, Var, ZeroPad, replace,
)  # fmt: skip
from loma.core.sizes import IsSize
from loma.core.walk import children, free_variables, map_children, substitute, walk

FEW = 9  # values of indices that are written out, as of 3 by 3 pixels


def _in_text_order(expr: Expr) -> Iterator[Expr]:
    """The expression's nodes in the order in which they are written."""
    yield expr
    match expr:
        case Select(cond, then, other):
            parts: tuple[Expr, ...] = (then, cond, other)
        case Reduce(_, body, axes):
            parts = (body, *(axis.extent for axis in axes))
        case _:
            parts = children(expr)
    for part in parts:
        yield from _in_text_order(part)


def standalone(expr: Expr) -> Iterator[tuple[str, Expr, bool]]:
    """(name, size of the dimension, whether inside ``zero_pad``) for each bare name, in order."""
    for above, node in pairwise((None, *_in_text_order(expr))):  # a ZeroPad stands before its read
        if isinstance(node, Index) and isinstance(node.base.type, TensorType):
            dims = node.base.type.dims
            for position, subscript in enumerate(node.subscripts):
                if isinstance(subscript, Var) and dims is not None:
                    yield subscript.name, dims[position], isinstance(above, ZeroPad)


def runs_over(subscript: Expr, dim: Expr, axes: Mapping[str, Axis]) -> bool:
    """Whether a subscript is one of the axes and surely takes every value of its dimension."""
    axis = axes.get(subscript.name) if isinstance(subscript, Var) else None
    return axis is not None and sizes.equal(axis.extent, dim) is True


def unsaid(stmt: IndexAssign) -> tuple[Axis, ...]:
    """The axes that stand alone nowhere in a dimension which they run over: the language writes
    loops over those."""
    extents = {axis.name: axis.extent for axis in stmt.axes}
    said = {
        name
        for part in (stmt.target, stmt.value)
        for name, size, _ in standalone(part)
        if name in extents and sizes.equal(size, extents[name]) is not False
    }
    return tuple(axis for axis in stmt.axes if axis.name not in said)


def _order(expr: Expr, names: set[str]) -> list[str]:
    """Those of ``names`` that occur in the expression, in order of first appearance."""
    every = (node.name for node in _in_text_order(expr) if isinstance(node, Var))
    return list(dict.fromkeys(name for name in every if name in names))


def ranged(
    target: Index | Var,
    op: str,
    value: Expr,
    axes: tuple[Axis, ...],
    own: Collection[str] = (),
    is_size: IsSize = lambda name: False,
) -> tuple[IndexAssign, tuple[Axis, ...]]:
    """An index statement with its axes in canonical order, and the axes that stand alone nowhere in
    it and so need a loop around it. Outer loops come first.

    ``axes`` give every index of the statement with its extent; those that stand alone somewhere in
    a dimension of that size need no loop. An axis in ``own`` has a range of its own: it need not
    fill the other dimensions where it stands alone, and is written ``i + 0`` there. Summing over an
    index that occurs neither there nor in another one's range multiplies by its extent; what is no
    size may be negative.
    """
    every = {axis.name for axis in axes}
    telling = {name for axis in axes for name in free_variables(axis.extent) & every}
    occurring = telling | {name for part in (target, value) for name in _order(part, every)}
    unused = tuple(sizes.count(a.extent, is_size) for a in axes if a.name not in occurring)
    if unused and op == "+=":
        value = Binary("*", value, sizes.product(unused), value.type)
    extents = {axis.name: axis.extent for axis in axes}
    natural: dict[str, Expr] = {}
    padded: dict[str, Expr] = {}
    loose: set[str] = set()
    for part in (target, value):
        for name, size, is_padded in standalone(part):
            if name not in extents:
                continue
            if is_padded:
                padded.setdefault(name, size)
            elif name in own and not sizes.equal(size, extents[name]):
                loose.add(name)
            else:
                natural.setdefault(name, size)
    for name in padded.keys() - natural.keys():
        if sizes.equal(padded[name], extents[name]):
            natural[name] = padded[name]
    names = list(dict.fromkeys(n for part in (target, value) for n in _order(part, set(extents))))
    names += [axis.name for axis in axes if axis.name in telling and axis.name not in names]
    inner = {a.name for node in walk(value) if isinstance(node, Reduce) for a in node.axes}
    whole = set(natural)
    # what a range depends on must be a counter around it
    depends = {n: free_variables(extents[n]) & set(extents) for n in names if n not in whole}
    whole -= set().union(*depends.values())
    shifted = {n: extents[n] for n in loose & whole}
    if shifted:
        moved = shifted_places(target, shifted)
        assert isinstance(moved, Index | Var)
        target, value = moved, shifted_places(value, shifted)
    kept = tuple(Axis(n, natural[n]) for n in names if n in whole and n not in inner)
    outer = [n for n in names if n not in whole and n not in inner]
    outer.sort(key=lambda n: _depth(n, depends))
    loops = tuple(Axis(n, extents[n]) for n in outer)
    assert op in ("=", "+=")
    return IndexAssign(target, "=" if op == "=" else "+=", value, kept), loops


def _depth(name: str, depends: Mapping[str, Collection[str]]) -> int:
    """How many loops at least are around the one over an index, by what ranges depend on."""
    return max((1 + _depth(other, depends) for other in depends.get(name, ())), default=0)


def shifted_places(expr: Expr, extents: Mapping[str, Expr]) -> Expr:
    """With ``i + 0`` for each index that stands alone in a dimension of another size."""
    if isinstance(expr, Index) and isinstance(expr.base.type, TensorType):
        dims = expr.base.type.dims or ()
        subscripts = tuple(
            Binary("+", s, IntConst(0), INT, s.span)
            if isinstance(s, Var) and s.name in extents and not sizes.equal(dim, extents[s.name])
            else shifted_places(s, extents)
            for s, dim in zip(expr.subscripts, dims, strict=True)
        )
        return replace(expr, subscripts=subscripts)
    return map_children(expr, lambda child: shifted_places(child, extents))


def index_statement(
    target: Index | Var,
    op: str,
    value: Expr,
    axes: tuple[Axis, ...],
    own: Collection[str] = (),
    is_size: IsSize = lambda name: False,
) -> Stmt:
    """The statement in ``for`` loops over axes that have no range of their own: :func:`ranged`."""
    names = {axis.name for axis in axes}
    if op == "+=":  # without the axis there is nothing else that keeps an empty sum from reading
        used = free_variables(target) | free_variables(value)
        used = used.union(*(free_variables(axis.extent) for axis in axes))
        for axis in axes:
            count = sizes.count(axis.extent, is_size)
            if axis.name in used or count == axis.extent or free_variables(count) & names:
                continue
            rest = tuple(other for other in axes if other is not axis)
            times = Binary("*", value, count, value.type)
            some = Binary(">", count, IntConst(0), INT)
            return If(some, (index_statement(target, op, times, rest, own, is_size),), ())
    stmt, loops = ranged(target, op, value, axes, own, is_size)
    result: Stmt = stmt
    if isinstance(target, Var) and not stmt.axes:
        result = Assign(target, stmt.op, stmt.value)
    for axis in reversed(loops):
        result = For(axis.name, axis.extent, (result,))
    return result


def target_axes(stmt: IndexAssign) -> tuple[Axis, ...]:
    """The axes that the target mentions, not those that are summed over."""
    own = free_variables(stmt.target)
    return tuple(axis for axis in stmt.axes if axis.name in own)


def without_idle_axes(stmt: Stmt) -> Stmt:
    """Axes that are summed over and that the value has no more, as where a condition was decided,
    stand in a sum of their own: each axis of a statement is one of a subscript."""
    if not isinstance(stmt, IndexAssign):
        return stmt
    mentioned = (stmt.target, stmt.value, *(axis.extent for axis in stmt.axes))
    used = {name for expr in mentioned for name in free_variables(expr)}
    idle = tuple(axis for axis in stmt.axes if axis.name not in used)
    if not idle:
        return stmt
    value = Reduce("sum", stmt.value, idle, stmt.value.type, stmt.value.span)
    return replace(stmt, value=value, axes=tuple(a for a in stmt.axes if a not in idle))


def terms_of(expr: Reduce, axes: Collection[Axis] = ()) -> list[Expr]:
    """What a reduction runs through, in order, if that are few; else nothing. ``axes``: those of
    its statement, which may stand alone where they run over the whole dimension."""
    extents = [sizes.constant(axis.extent) or 0 for axis in expr.axes]
    if not 1 < math.prod(extents) <= FEW:
        return []
    known = {axis.name: axis for axis in axes}
    terms: list[Expr] = []
    for place in product(*map(range, extents)):
        values: dict[str, Expr] = {
            axis.name: IntConst(value) for axis, value in zip(expr.axes, place, strict=True)
        }
        terms.append(_with_places(substitute(expr.body, values), known))
    return terms


def _with_places(expr: Expr, axes: Mapping[str, Axis]) -> Expr:
    expr = map_children(expr, lambda child: _with_places(child, axes))
    dims = sizes.dims_in(expr.base.type) if isinstance(expr, Index) else ()
    if not isinstance(expr, Index) or not dims:
        return expr
    places = zip(expr.subscripts, dims, strict=True)
    return replace(expr, subscripts=tuple(_place(s, dim, axes) for s, dim in places))


def _place(subscript: Expr, dim: Expr, axes: Mapping[str, Axis]) -> Expr:
    """The subscript; another index alone would run over the whole dimension."""
    made = sizes.simplify(subscript)
    alone = isinstance(made, Var) and not isinstance(subscript, Var)
    return Binary("+", made, IntConst(0), INT) if alone and not runs_over(made, dim, axes) else made
