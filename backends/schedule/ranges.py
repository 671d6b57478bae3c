"""Range checks of index statements, made once before a statement runs.

A subscript that is affine in the axes takes values from an interval that follows from the sizes;
it is compared with the dimension unless the sizes prove it inside. An axis that stands alone in
several dimensions must have the same extent in all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from loma.backends.schedule.access import Access, Subscript
from loma.backends.schedule.host import CheckRange
from loma.backends.schedule.marks import mark_of
from loma.core import sizes
from loma.core.ir import Axis, Expr, IndexAssign, Select, Var
from loma.core.walk import free_variables, reads_elements

if TYPE_CHECKING:
    from loma.backends.schedule.context import FunctionContext


def provably_inside(subscript: Subscript, axes: Sequence[Axis], context: FunctionContext) -> bool:
    """Whether a subscript stays in its dimension for all sizes (when no axis is empty): one that is
    affine, or that a condition chooses."""
    if subscript.parts is None and not isinstance(subscript.expr, Select):
        return False
    return context.stays_inside(subscript.expr, subscript.size, axes)


def range_checks(
    context: FunctionContext,
    stmt: IndexAssign,
    found: Sequence[tuple[Access, tuple[Axis, ...]]],
    line: int,
) -> list[CheckRange]:
    """The checks of a statement; ``found`` are its accesses with the axes in scope of each."""
    shared = {axis.name for axis in stmt.axes}
    checks: dict[CheckRange, None] = {}
    for access, axes in found:
        if access.padded:
            continue
        for subscript in access.subscripts:
            check = _check(context, access, subscript, axes, shared, line)
            if check is not None and check not in checks:
                needs = _needs(stmt.axes, axes, subscript)
                rounds = [axis.extent for axis in axes if reads_elements(axis.extent)]
                if subscript.parts is not None or not rounds:
                    checks[replace(check, needs=needs)] = None
                    continue
                told = set().union(*map(free_variables, rounds))
                rows = tuple(axis for axis in stmt.axes if axis.name in told)
                inner = {axis.name for axis in axes} - {axis.name for axis in rows}
                own = tuple(extent for extent in rounds if inner.isdisjoint(free_variables(extent)))
                checks[replace(check, needs=needs, rows=rows, rounds=own)] = None
    return list(checks)


def _check(
    context: FunctionContext,
    access: Access,
    subscript: Subscript,
    axes: tuple[Axis, ...],
    shared: set[str],
    line: int,
) -> CheckRange | None:
    expr = subscript.expr
    if mark_of(expr) is not None:
        return None  # the element is tested where it is read
    dim = context.dimension(access.base.name, subscript.dim)
    check = CheckRange(context.show(access.base), dim, subscript.size, context.shown(expr), line)
    if subscript.parts is None and provably_inside(subscript, axes, context):
        return None
    if subscript.parts is None:  # each element is checked, but there must be one to read
        return check
    kernel = context.kernel
    if kernel is not None and isinstance(expr, Var) and expr.name in kernel.indices:
        return None  # fusion has proved it
    view = context.views.get(access.base.name)
    if view is not None and subscript.dim in view.whole:
        return None
    if isinstance(expr, Var) and expr.name in shared:
        extent = next(axis.extent for axis in axes if axis.name == expr.name)
        if sizes.equal(extent, subscript.size) is True:
            return None
        return replace(check, extent=extent)
    if provably_inside(subscript, axes, context):
        return None
    coefficients, rest = subscript.parts
    extents = {axis.name: axis.extent for axis in axes}
    terms = tuple((coefficient, extents[name]) for name, coefficient in coefficients.items())
    return replace(check, rest=rest, terms=terms)


def _needs(
    statement_axes: tuple[Axis, ...], axes: tuple[Axis, ...], subscript: Subscript
) -> tuple[Expr, ...]:
    """The other axes must not be empty either: else nothing is read."""
    expr = subscript.expr
    if isinstance(expr, Var) and expr.name in {axis.name for axis in statement_axes}:
        return ()
    own = subscript.parts[0] if subscript.parts is not None else {}
    names = {axis.name for axis in axes}
    return tuple(
        axis.extent
        for axis in axes
        if axis.name not in own and not sizes.mentions(axis.extent, names)
    )
