"""Where the indices of an index statement get their ranges from, and what its target tells of them.

An index ranges over the dimension where it stands alone as a subscript: the target is looked at
first, then the reads from left to right. The frontend infers ranges with this rule; AD uses it to
write statements that read back as what they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from loma import sizes
from loma.ir import (
    INT, Assign, Axis, Binary, Expr, For, Index, IndexAssign, IntConst, Reduce, Select, Stmt,
    TensorType, Var,
)  # fmt: skip
from loma.walk import children, free_variables, walk


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


def standalone(expr: Expr) -> Iterator[tuple[str, Expr, Index]]:
    """(name, size of the dimension, where) for each subscript that is a bare name, in order."""
    for node in _in_text_order(expr):
        if isinstance(node, Index) and isinstance(node.base.type, TensorType):
            dims = node.base.type.dims
            for position, subscript in enumerate(node.subscripts):
                if isinstance(subscript, Var) and dims is not None:
                    yield subscript.name, dims[position], node


def runs_over(subscript: Expr, dim: Expr, axes: Mapping[str, Axis]) -> bool:
    """Whether a subscript is one of the axes and surely takes every value of its dimension."""
    axis = axes.get(subscript.name) if isinstance(subscript, Var) else None
    return axis is not None and sizes.equal(axis.extent, dim) is True


def _order(expr: Expr, names: set[str]) -> list[str]:
    """Those of ``names`` that occur in the expression, in order of first appearance."""
    found: dict[str, None] = {}
    for node in _in_text_order(expr):
        if isinstance(node, Var) and node.name in names:
            found[node.name] = None
    return list(found)


def ranged(
    target: Index | Var, op: str, value: Expr, axes: tuple[Axis, ...]
) -> tuple[IndexAssign, tuple[Axis, ...]]:
    """An index statement with its axes in canonical order, and the axes that stand alone nowhere in
    it and so need a loop around it. Outer loops come first.

    ``axes`` give every index of the statement with its extent; those that stand alone somewhere in
    a dimension of that size need no loop. Summing over an index that does not occur multiplies by
    its extent.
    """
    occurring = {name for part in (target, value) for name in _order(part, {a.name for a in axes})}
    unused = tuple(axis.extent for axis in axes if axis.name not in occurring)
    if unused and op == "+=":
        value = Binary("*", value, sizes.product(unused), value.type)
    extents = {axis.name: axis.extent for axis in axes}
    natural: dict[str, Expr] = {}
    for part in (target, value):
        for name, size, _ in standalone(part):
            if name in extents:
                natural.setdefault(name, size)
    names = _order(target, set(extents))
    names += [name for name in _order(value, set(extents)) if name not in names]
    own = {a.name for node in walk(value) if isinstance(node, Reduce) for a in node.axes}
    # an explicit range may be shorter than the dimension where its index stands alone
    whole = {n for n in natural if sizes.equal(natural[n], extents[n])}
    # what a range depends on must be a counter around it
    depends = {n: free_variables(extents[n]) & set(extents) for n in names if n not in whole}
    whole -= set().union(*depends.values())
    kept = tuple(Axis(n, natural[n]) for n in names if n in whole and n not in own)
    outer = [n for n in names if n not in whole and n not in own]
    outer.sort(key=lambda n: len(depends.get(n, ())))
    loops = tuple(Axis(n, extents[n]) for n in outer)
    assert op in ("=", "+=")
    return IndexAssign(target, "=" if op == "=" else "+=", value, kept), loops


def index_statement(target: Index | Var, op: str, value: Expr, axes: tuple[Axis, ...]) -> Stmt:
    """The index statement, inside ``for`` loops over the axes that have no range of their own."""
    stmt, loops = ranged(target, op, value, axes)
    result: Stmt = stmt
    if isinstance(target, Var) and not stmt.axes:
        result = Assign(target, stmt.op, stmt.value)
    for axis in reversed(loops):
        result = For(axis.name, axis.extent, (result,))
    return result


def told_apart(subscripts: tuple[Expr, ...], axes: tuple[Axis, ...]) -> set[str]:
    """Axes whose values the subscripts determine: where these differ, so do the subscripts, for any
    values of the other axes.

    One that stands alone is told apart by its own subscript. What is left must be affine in mixed
    radix, as in ``i * P + p`` with ``p`` below ``P``.
    """
    names = {axis.name for axis in axes}
    told = {s.name for s in subscripts if isinstance(s, Var) and s.name in names}
    for subscript in subscripts:
        rest = tuple(axis for axis in axes if axis.name not in told)
        if rest and not isinstance(subscript, Var):
            told |= _mixed_radix(subscript, rest)
    return told


def _mixed_radix(subscript: Expr, axes: tuple[Axis, ...]) -> set[str]:
    """The axes of an affine subscript that its value determines: all of them, if that can be
    proved."""
    parts = sizes.affine(subscript, axes)
    if parts is None:
        return set()
    extents = {axis.name: axis.extent for axis in axes}
    terms = {name: _magnitude(c) for name, c in parts[0].items()}
    radix: Expr = IntConst(1)
    found: set[str] = set()
    while terms:
        fitting = [
            (excess, name)
            for name, coefficient in terms.items()
            if (excess := sizes.constant(Binary("-", coefficient, radix, INT))) is not None
            and excess >= 0
        ]
        if not fitting:
            return set()
        _, name = min(fitting)
        last = Binary("-", extents[name], IntConst(1), INT)
        radix = sizes.total((radix, Binary("*", terms.pop(name), last, INT)))
        found.add(name)
    return found


def _magnitude(coefficient: Expr) -> Expr:
    value = sizes.constant(coefficient)
    return coefficient if value is None else IntConst(abs(value))


def fills(place: Index, axes: tuple[Axis, ...]) -> bool:
    """Whether each element of a tensor is the place for one point of the axes: different points
    have different places, and there are as many as elements. No place is outside the tensor."""
    assert isinstance(place.base.type, TensorType)
    own = free_variables(place)
    kept = tuple(axis for axis in axes if axis.name in own)
    dims = place.base.type.dims
    if dims is None or told_apart(place.subscripts, kept) < {axis.name for axis in kept}:
        return False
    points = sizes.product(tuple(axis.extent for axis in kept))
    return sizes.equal(points, sizes.product(dims)) is True
