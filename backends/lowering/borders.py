"""Reads that are others at the border of their tensor.

``x[i + p] * w[p] if i + p < N else 0.0`` is no ``zero_pad``, as zero times a w that is not finite
is NaN, nor is ``x[i + 1] if i + 1 < N else x[0]``. But the condition holds where the read has an
element, and only there: so its loops are those of a padded read, which need no test but at the
border. Nor do those of ``x[(i + 1) % N]`` divide elsewhere, nor there if they go round once at
most.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from loma.backends.lowering.frames import may_throw
from loma.backends.schedule.marks import EXISTS, HELD, mark_of, unmarked
from loma.core import sizes
from loma.core.bounds import ONE, ZERO, is_never_negative, unsaid_of
from loma.core.ir import (
    FLOAT, INT, Axis, Binary, Builtin, Expr, FloatType, Index, Reduce, Select, Var, ZeroPad,
)  # fmt: skip
from loma.core.sizes import arith
from loma.core.walk import free_variables, map_children, walk

if TYPE_CHECKING:
    from loma.backends.schedule.context import FunctionContext


def at_borders(context: FunctionContext, axes: tuple[Axis, ...], expr: Expr) -> Expr:
    """The value of an index statement, whose subscripts are marked, where such conditions ask
    whether padded reads exist; those in inner reductions stay."""
    match expr:
        case Reduce():
            return expr
        case Select(cond, then, other):
            found = _padded(context, axes, cond, then)
            if found is not None and not any(isinstance(n, Reduce) for n in walk(other)):
                test = Builtin(EXISTS, (found[0],), INT)
                return replace(
                    expr, cond=test, then=found[1], other=at_borders(context, axes, other)
                )
        case Index(type=FloatType()) if (straight := _straight(context, axes, expr)) != expr:
            pad = ZeroPad(straight, expr.span)
            other = _round(context, axes, expr, straight)
            return Select(Builtin(EXISTS, (pad,), INT), pad, other, FLOAT, expr.span)
        case Index():
            return expr
    return map_children(expr, lambda child: at_borders(context, axes, child))


def _straight(context: FunctionContext, axes: tuple[Axis, ...], read: Index) -> Index:
    """The read without remainders by the size of a dimension, which change nothing inside of it."""

    def plain(subscript: Expr, dim: Expr) -> Expr:
        match subscript:
            case Binary("%", place, size) if sizes.equal(size, dim):
                parts = sizes.affine(place, axes)
                return subscript if parts is None or not parts[0] else place
            case _:
                return subscript

    if any(mark_of(subscript) is not None for subscript in read.subscripts):
        return read
    dims = context.dims(read.base)
    return replace(read, subscripts=tuple(map(plain, read.subscripts, dims)))


def _round(context: FunctionContext, axes: tuple[Axis, ...], read: Index, straight: Index) -> Index:
    """The read where the straight one has no element: at a place that a division finds, or that
    lies so far behind the end, or in front of the beginning, as one would go round once."""
    extents, dims = context.extents(axes), context.dims(read.base)
    turned = [k for k, s in enumerate(read.subscripts) if s != straight.subscripts[k]]
    if len(turned) != 1:
        return read
    (position,) = turned
    place, size = straight.subscripts[position], dims[position]

    def lies(low: Expr, high: Expr) -> bool:
        """Whether the place always lies between these, the latter left out."""
        ends = arith("-", place, low), arith("-", arith("-", high, place), ONE)
        some = (arith("-", size, ONE),)  # or nothing is read
        return all(is_never_negative(end, extents, context.is_size, some) for end in ends)

    if lies(ZERO, arith("+", size, size)):
        place = arith("-", place, size)
    elif lies(arith("-", ZERO, size), size):
        place = arith("+", place, size)
    else:
        return read
    new = Builtin(HELD, (place,), INT)
    places = (new if k == position else s for k, s in enumerate(read.subscripts))
    return replace(read, subscripts=tuple(places))


def _padded(
    context: FunctionContext, axes: tuple[Axis, ...], cond: Expr, then: Expr
) -> tuple[ZeroPad, Expr] | None:
    """What stands under a condition with its guarded reads padded, and one of these; None where it
    says something else than that they exist."""
    names = {axis.name for axis in axes}
    if not free_variables(cond) & names or any(isinstance(n, Reduce) for n in walk(then)):
        return None
    if may_throw(cond, context.module) or may_throw(then, context.module):
        return None
    extents, found = context.extents(axes), list[ZeroPad]()

    def is_room(read: Index) -> bool:
        plain = unmarked(read)
        assert isinstance(plain, Index)
        moving = all(
            mark_of(s) is None or not isinstance(unmarked(s), Var) for s in read.subscripts
        )
        left = unsaid_of(plain, cond) if moving else None
        return left is not None and all(
            is_never_negative(end, extents, context.is_size) for end in left
        )

    def visit(expr: Expr) -> Expr:
        if isinstance(expr, Index) and any(mark_of(s) is not None for s in expr.subscripts):
            plain = unmarked(expr)
            if isinstance(plain, Index) and is_room(expr):
                found.append(ZeroPad(plain, expr.span))
                return found[-1]
        return map_children(expr, visit)

    padded = visit(then)
    if not found or any(mark_of(node) is not None for node in walk(padded)):
        return None
    return found[0], padded
