"""The largest of a few neighbours, put together for its derivative.

    y[h, w] = max(max(x[2 * h, 2 * w], x[2 * h, 2 * w + 1]), max(x[2 * h + 1, 2 * w], ...))

is ``max(x[2 * h + p, 2 * w + q] for p in range(2) for q in range(2))``, of which one statement is
the adjoint: the first element that is the largest gets it. Only windows without common elements,
of other tensors, are put together, which :mod:`loma.passes.canonical.short` writes out again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from loma.core import builder as b, sizes
from loma.core.axes import FEW, terms_of
from loma.core.distinct import told_apart
from loma.core.ir import (
    FLOAT, INT, Axis, Builtin, Expr, FloatType, Function, Index, IndexAssign, IntConst, Module,
    Reduce, Stmt, Var, replace,
)  # fmt: skip
from loma.core.names import Names, names_of
from loma.core.walk import map_blocks, map_children, map_tensor_functions, substitute, walk
from loma.passes.canonical.short import of_neighbours


def windows(module: Module) -> Module:
    """The pass on every tensor function of a module."""
    return map_tensor_functions(module, _function)


def _function(function: Function) -> Function:
    names = Names(names_of(function))
    empty = frozenset[Expr]()

    def block(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return tuple(statement(map_blocks(stmt, block)) for stmt in body)

    def statement(stmt: Stmt) -> Stmt:
        return (
            replace(stmt, value=visit(stmt.value, stmt)) if isinstance(stmt, IndexAssign) else stmt
        )

    def visit(expr: Expr, stmt: IndexAssign, others: frozenset[Expr] = empty) -> Expr:
        """``others``: what is read of the same extreme elsewhere, which has no part of a window."""
        match expr:
            case Reduce():
                return expr
            case Builtin("max" | "min" as kind, (left, right), type=FloatType()):
                found = _put_together(expr, stmt, names)
                if found is not None and not _bases(found) & others:
                    return found
                beside = (others | _bases(right), others | _bases(left))
                args = (
                    visit(
                        arg, stmt, more if isinstance(arg, Builtin) and arg.name == kind else empty
                    )
                    for arg, more in zip((left, right), beside, strict=True)
                )
                return replace(expr, args=tuple(args))
            case _:
                return map_children(expr, lambda child: visit(child, stmt))

    return replace(function, body=block(function.body))


def _put_together(expr: Builtin, stmt: IndexAssign, names: Names) -> Reduce | None:
    """The reduction that an extreme of extremes is."""
    terms = list(_terms(expr, expr.name))
    place = stmt.target.subscripts[-1:] if isinstance(stmt.target, Index) else ()
    if not 1 < len(terms) <= FEW or not place or not isinstance(place[0], Var):
        return None
    steps = [_steps(terms[0], term) for term in terms]
    if not all(steps):
        return None
    first = terms[0]
    assert isinstance(first, Index)
    if isinstance(stmt.target, Index) and first.base == stmt.target.base:
        return None  # a window of what the statement writes would be copied first
    for extents in _grids(len(terms)):
        inner = [math.prod(extents[k + 1 :]) for k in range(len(extents))]
        axes = [Axis(f"@{k}", IntConst(extent)) for k, extent in enumerate(extents)]
        subscripts = list(first.subscripts)
        for axis, stride in zip(axes, inner, strict=True):
            for k, step in enumerate(steps[stride]):
                moved = b.binary("*", Var(axis.name, INT), IntConst(step))
                subscripts[k] = b.binary("+", subscripts[k], moved) if step else subscripts[k]
        own = tuple(sizes.simplify(s) if s is not t else s
                    for s, t in zip(subscripts, first.subscripts, strict=True))  # fmt: skip
        read = replace(first, subscripts=own)
        found = Reduce("max" if expr.name == "max" else "min", read, tuple(axes), FLOAT, expr.span)
        every = (*stmt.axes, *axes)
        apart = told_apart(own, every) == {axis.name for axis in every}
        same = all(any(_steps(a, c)) is False for a, c in zip(terms_of(found), terms, strict=True))
        if apart and same and of_neighbours(found, place[0].name):
            return _named(found, names)
    return None


def _bases(expr: Expr) -> frozenset[Expr]:
    return frozenset(node.base for node in walk(expr) if isinstance(node, Index))


def _terms(expr: Expr, kind: str) -> Iterator[Expr]:
    """What an extreme is of, in order: of equals the first has the derivative."""
    if isinstance(expr, Builtin) and expr.name == kind:
        for arg in expr.args:
            yield from _terms(arg, kind)
    else:
        yield sizes.simple_subscripts(expr)


def _steps(first: Expr, other: Expr) -> tuple[int, ...]:
    """How far an element is from another one in each dimension; nothing if that varies."""
    if not isinstance(first, Index) or not isinstance(other, Index) or first.base != other.base:
        return ()
    pairs = zip(first.subscripts, other.subscripts, strict=True)
    found = [sizes.constant(b.binary("-", two, one)) for one, two in pairs]
    return tuple(step for step in found if step is not None) if None not in found else ()


def _grids(count: int) -> Iterator[tuple[int, ...]]:
    """The ways to number things by several indices, each of more than one value, fewest first."""
    yield (count,)
    for outer in range(2, count):
        if count % outer == 0:
            for inner in _grids(count // outer):
                yield (outer, *inner)


def _named(found: Reduce, names: Names) -> Reduce:
    """The reduction with indices that have names of their own."""
    axes = tuple(replace(axis, name=names.fresh("_k")) for axis in found.axes)
    pairs = zip(found.axes, axes, strict=True)
    body = substitute(found.body, {old.name: Var(new.name, INT) for old, new in pairs})
    return replace(found, body=body, axes=axes)
