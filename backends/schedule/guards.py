"""Reads under a condition: where it does not hold, the element need not exist.

A subscript that stays inside its dimension only where the conditions around it hold is marked. The
element is then read in place, where the condition has been tested, and is tested itself unless the
conditions prove it inside.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from loma.backends.schedule.marks import CHECKED, HELD
from loma.core import sizes
from loma.core.bounds import facts, stays_inside
from loma.core.ir import INT, Axis, Builtin, Expr, Index, IntConst, Reduce, TensorType, Var, ZeroPad
from loma.core.walk import map_children, map_guarded

if TYPE_CHECKING:
    from loma.backends.schedule.context import FunctionContext


def marked(root: Expr, axes: tuple[Axis, ...], context: FunctionContext) -> Expr:
    """An index statement's value or target with its subscripts marked; ``axes`` are the
    statement's."""
    shared = context.kernel.indices if context.kernel is not None else frozenset()
    count = None if context.kernel is None else context.kernel.count
    runs_over = {axis.name for axis in axes} | shared

    def mark(subscript: Expr, dim: Expr, guards: tuple[Expr, ...], scope: tuple[Axis, ...]) -> Expr:
        if isinstance(subscript, Var):
            # A sum over a block of the kernel's rows goes over parts of tensors with as many.
            rows = {axis.name for axis in scope if count is not None and axis.extent == count}
            if subscript.name in runs_over | rows:
                return subscript
        extents = context.extents(scope)
        if stays_inside(subscript, dim, extents, context.is_size):
            return subscript
        known = tuple(fact for guard in guards for fact in facts(guard))
        # None of the axes is empty where anything is read.
        known += tuple(sizes.arith("-", axis.extent, IntConst(1)) for axis in scope)
        name = HELD if stays_inside(subscript, dim, extents, context.is_size, known) else CHECKED
        return Builtin(name, (subscript,), INT, subscript.span)

    certain = _certain(root, axes)

    def visit(expr: Expr, guards: tuple[Expr, ...], scope: tuple[Axis, ...]) -> Expr:
        match expr:
            case Reduce(_, _, own):
                return map_children(expr, lambda child: visit(child, guards, scope + own))
            case ZeroPad(read):
                inner = tuple(visit(s, guards, scope) for s in read.subscripts)
                return replace(expr, read=replace(read, subscripts=inner))
            case Index(base, subscripts) if isinstance(base.type, TensorType):
                inner = tuple(visit(s, guards, scope) for s in subscripts)
                if guards:
                    dims = enumerate(context.dims(base))
                    inner = tuple(
                        s if (base, k, s) in certain else mark(s, dim, guards, scope)
                        for s, (k, dim) in zip(inner, dims, strict=True)
                    )
                return replace(expr, subscripts=inner)
            case _:
                return map_guarded(
                    expr,
                    lambda child, guard: visit(
                        child, guards if guard is None else (*guards, guard), scope
                    ),
                )

    return visit(root, (), axes)


def _certain(root: Expr, axes: tuple[Axis, ...]) -> set[tuple[Expr, int, Expr]]:
    """The tensor, dimension and subscript of what is read at every point of the axes: the check of
    its range covers reads under a condition."""
    found: set[tuple[Expr, int, Expr]] = set()

    def visit(expr: Expr, guard: Expr | None = None) -> Expr:
        if guard is not None or isinstance(expr, Reduce | ZeroPad):
            return expr
        if isinstance(expr, Index):
            places = enumerate(expr.subscripts)
            found.update((expr.base, k, s) for k, s in places if sizes.affine(s, axes))
        return map_guarded(expr, visit)

    visit(root)
    return found
