"""Reductions of a few neighbours, written out.

``y[n, t] = sum(zero_pad(x[n, t + k - 1]) for k in range(3)) / 3.0`` is three rounds inside a loop
over t. Written out it is an expression like any other: one statement, whose vectors run along t. So
are the largest of 2 by 2 pixels, ``max(x[n, 2 * h + p, 2 * w + q] ...)``. Sums of products, which
are convolutions, stay; so do elements side by side that no index of the result moves.
"""

from __future__ import annotations

from functools import partial, reduce

from loma.core import builder as b, sizes
from loma.core.axes import terms_of
from loma.core.ir import (
    FLOAT, Binary, Expr, FloatConst, Index, IndexAssign, IntConst, Module, Reduce, Select, Stmt,
    Unary, Var, ZeroPad, replace,
)  # fmt: skip
from loma.core.walk import (
    free_variables, map_blocks, map_children, map_tensor_functions, walk,
)  # fmt: skip

_FACTORS = 4  # of a product: the derivative by one is the product of the others
_SIDE = 4  # that lie side by side; more are a row to a vector
_PLAIN = (Binary, FloatConst, Index, IntConst, Select, Unary, Var, ZeroPad)


def short(module: Module, extremes: bool) -> Module:
    """The pass on every tensor function of a module; ``extremes``: of maxima and minima, too, whose
    adjoints know where the value was (:mod:`loma.passes.canonical.recurrences.windows`)."""

    def block(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return tuple(statement(map_blocks(stmt, block)) for stmt in body)

    def statement(stmt: Stmt) -> Stmt:
        if not isinstance(stmt, IndexAssign) or not isinstance(stmt.target, Index):
            return stmt
        match stmt.target.subscripts[-1:]:
            case (Var(last),):
                return replace(stmt, value=_written_out(stmt.value, stmt, last, extremes))
            case _:
                return stmt

    return map_tensor_functions(module, lambda f: replace(f, body=block(f.body)))


def _written_out(expr: Expr, stmt: IndexAssign, last: str, extremes: bool) -> Expr:
    """With what is written out in statements whose elements lie side by side along an index."""
    expr = map_children(expr, lambda child: _written_out(child, stmt, last, extremes))
    if not isinstance(expr, Reduce) or expr.type != FLOAT:
        return expr
    if expr.kind != "sum" and not (extremes and expr.kind in ("max", "min")):
        factors = terms_of(expr, stmt.axes) if expr.kind == "prod" else []
        few = 0 < len(factors) <= _FACTORS
        return reduce(partial(b.combined, expr.kind), factors) if few else expr
    terms = terms_of(expr, stmt.axes)
    if not terms or not of_neighbours(expr, last):
        return expr
    return reduce(partial(b.combined, expr.kind), terms)


def of_neighbours(expr: Reduce, last: str) -> bool:
    """Whether a reduction has one element each of a tensor's rows, moved along an index."""
    parts = list(walk(expr.body))
    reads = [node for node in parts if isinstance(node, Index)]
    if len(reads) != 1 or not all(isinstance(node, _PLAIN) for node in parts):
        return False
    subscripts = reads[0].subscripts
    plain = all(isinstance(n, Binary | IntConst | Var) for s in subscripts for n in walk(s))
    own = {axis.name: sizes.constant(axis.extent) or 0 for axis in expr.axes}
    inner = 1
    for subscript in reversed(subscripts):
        names = free_variables(subscript)
        if last in names:
            return plain and inner <= _SIDE and (inner > 1 or bool(own.keys() & names))
        if not (isinstance(subscript, Var) and subscript.name in own):
            return False
        inner *= own[subscript.name]
    return False
