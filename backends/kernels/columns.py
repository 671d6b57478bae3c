"""Columns that a mask leaves out of a few rows of a matrix, as of causal attention.

Rows t of ``first <= t < first + count`` go through panels together. Where the columns from
``first + count`` on are worth nothing to any of them, statements need not compute these:

    e[t, j] = exp(s[t, j] - m[t]) if j <= t else 0.0
    y[t, d] += e[t, j] * v[j, d]

But zero times a v that is not finite is NaN, and of a mask that is a large negative number,
``exp(s[t, j] - 1e30 - m[t])``, only the values of s and m say that it is zero. So the host asks
whether all numbers that come from outside are moderate, and takes all columns where they are not.
That the columns are worth exactly zero, if so, is found here: by intervals, of what the first
column holds, what the columns hold that are taken, and what those that are left out would hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loma.backends.kernels.regions import (
    Moderate, Refused, Search, columns_of, reads_of,
)  # fmt: skip
from loma.core import sizes
from loma.core.ir import (
    Axis, Declare, Expr, If, Index, IndexAssign, Reduce, Stmt, TensorType, Var, Zero, replace,
)  # fmt: skip
from loma.core.sizes import IsSize
from loma.core.walk import (
    expressions, free_variables, map_children, map_expressions, reduced_axes, statements, walk,
)  # fmt: skip

# Of wide ranges less can be proved: a mask of -1e30 is far from all scores, one of -1e9 is not.
_RANGES = ((2.0**20, 2**31), (2.0**8, 2**12), (2.0**5, 2**12))


@dataclass(frozen=True, slots=True)
class Narrow:
    """Statements in terms of ``count`` columns, as are the dimensions in ``views`` of tensors that
    come from outside. So many sums up to the diagonal have all columns instead, as products of the
    library, where that is ``exact``."""

    statements: tuple[Stmt, ...]
    declared: tuple[Declare, ...]
    whole: int
    views: tuple[tuple[str, int], ...]
    moderate: Moderate


def narrowed(
    declared: tuple[Declare, ...],
    body: tuple[Stmt, ...],
    rows: tuple[Var, Var],
    extent: Expr,
    count: Var,
    exact: Var,
    is_size: IsSize,
) -> Narrow | None:
    """Statements about ``rows`` (how many, and the first) of so many as there are columns, with
    ``count`` columns instead of ``extent``; None where others may matter. ``declared``: the tensors
    that exist for these rows."""
    dims = {
        stmt.target.name: dim
        for stmt in declared
        if (dim := _column(stmt.target, rows[0], extent)) is not None
    }
    if not dims:
        return None
    try:
        places = _places(body, dims, extent)
        for most, long in _RANGES:
            search = Search(declared, dims, rows, extent, is_size, most, long)
            try:
                search.block(body)
            except Refused:
                continue
            break
        else:
            return None
    except Refused:
        return None
    sized = dims | places

    def own(var: Var) -> Var:
        return _cut(var, sized[var.name], count) if var.name in sized else var

    def cut(expr: Expr) -> Expr:
        if isinstance(expr, Var):
            return own(expr)
        inner = map_children(expr, cut)
        if isinstance(inner, Reduce):
            return replace(inner, axes=_cut_axes(inner.axes, expr, dims, extent, count))
        return inner

    def statement(stmt: Stmt) -> Stmt:
        if isinstance(stmt, If):
            then, other = (tuple(map(statement, block)) for block in (stmt.then, stmt.other))
            return replace(stmt, then=then, other=other)
        if isinstance(stmt, IndexAssign):
            axes = _cut_axes(stmt.axes, stmt, dims, extent, count)
            made = map_expressions(replace(stmt, axes=axes), cut)
            full = search.whole.get(stmt)
            return made if full is None else If(exact, (statement(full),), (made,), stmt.span)
        return map_expressions(stmt, cut)

    return Narrow(
        tuple(map(statement, body)),
        tuple(replace(stmt, target=own(stmt.target)) for stmt in declared),
        len(search.whole),
        tuple(sorted(places.items())),
        search.moderate(),
    )


def _column(var: Var, rows: Var, extent: Expr) -> int | None:
    """The only dimension of a tensor with rows that has so many columns."""
    assert isinstance(var.type, TensorType)
    own = sizes.dims_of(var)
    found = [k for k, dim in enumerate(own) if sizes.equal(dim, extent) is True]
    return found[0] if rows in own and len(found) == 1 and not var.type.integer else None


def _cut(var: Var, dim: int, count: Var) -> Var:
    assert isinstance(var.type, TensorType)
    own = var.type.dims or ()
    return replace(var, type=replace(var.type, dims=(*own[:dim], count, *own[dim + 1 :])))


def _cut_axes(
    axes: tuple[Axis, ...],
    of: Expr | IndexAssign,
    dims: Mapping[str, int],
    extent: Expr,
    count: Var,
) -> tuple[Axis, ...]:
    names = columns_of(of, dims)
    return tuple(
        Axis(axis.name, count)
        if axis.name in names and sizes.equal(axis.extent, extent) is True
        else axis
        for axis in axes
    )


def _places(body: tuple[Stmt, ...], dims: Mapping[str, int], extent: Expr) -> dict[str, int]:
    """The dimensions of other tensors that run along columns, wherever these tensors stand."""
    found: dict[str, int] = {}
    seen: dict[str, set[int | None]] = {}
    for stmt in statements(body):
        match stmt:
            case IndexAssign(target=Index()):
                names = columns_of(stmt, dims)
            case Zero(Var()) | If():
                continue
            case _:
                raise Refused
        axes = (*stmt.axes, *reduced_axes(stmt.value))
        if any(isinstance(node, Index) for axis in axes for node in walk(axis.extent)):
            raise Refused
        bases = 0
        for read in reads_of(stmt):
            if not isinstance(read.base, Var) or not isinstance(read.base.type, TensorType):
                raise Refused
            bases += 1
            own = read.base.type.dims or ()
            at: set[int | None] = set()
            for k, subscript in enumerate(read.subscripts):
                if not free_variables(subscript) & names:
                    continue
                if not isinstance(subscript, Var) or sizes.equal(own[k], extent) is not True:
                    raise Refused
                at.add(k)
            if len(at) > 1:
                raise Refused
            seen.setdefault(read.base.name, set()).update(at or {None})
        whole = sum(
            isinstance(node, Var) and isinstance(node.type, TensorType)
            for root in expressions(stmt)
            for node in walk(root)
        )
        if whole != bases:
            raise Refused  # an operator on a whole tensor
    for name, at in seen.items():
        if name in dims:
            continue
        if len(at) > 1:
            raise Refused
        (dim,) = at
        if dim is not None:
            found[name] = dim
    cleared = {
        s.target.name for s in statements(body) if isinstance(s, Zero) and isinstance(s.target, Var)
    }
    if cleared & found.keys():
        raise Refused  # a part is not all of it
    return found
