"""Where the indices of an index statement get their ranges from.

An index ranges over the dimension where it stands alone as a subscript: the target is looked at
first, then the reads from left to right. The frontend infers ranges with this rule; AD uses it to
write statements that read back as what they are.
"""

from __future__ import annotations

from collections.abc import Iterator

from loma import sizes
from loma.ir import (
    Assign, Axis, Binary, Expr, For, Index, IndexAssign, Reduce, Select, Stmt, TensorType, Var,
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
