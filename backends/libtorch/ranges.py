"""Range checks of index statements, made once before a statement runs.

A subscript that is affine in the axes takes values from an interval that follows from the sizes;
it is compared with the dimension unless the sizes prove it inside. An axis that stands alone in
several dimensions must have the same extent in all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from loma.backends.libtorch.access import Access, Subscript
from loma.backends.libtorch.expressions import strip
from loma.backends.libtorch.guards import mark_of
from loma.backends.libtorch.names import cpp_string
from loma.backends.writer import Writer
from loma.core import bounds, sizes
from loma.core.ir import INT, Axis, IndexAssign, Var

if TYPE_CHECKING:
    from loma.backends.libtorch.context import FunctionContext


def provably_inside(subscript: Subscript, axes: Sequence[Axis], context: FunctionContext) -> bool:
    """Whether an affine subscript stays in its dimension for all sizes (when no axis is empty)."""
    if subscript.parts is None:
        return False
    return bounds.stays_inside(
        subscript.expr, subscript.size, context.extents(axes), context.is_size
    )


def write_checks(
    writer: Writer,
    context: FunctionContext,
    stmt: IndexAssign | None,
    found: Sequence[tuple[Access, tuple[Axis, ...]]],
    line: int,
) -> None:
    """Writes the checks of a statement (or of a reduction in a scalar expression, without one).

    ``found`` are its accesses with the axes in scope of each.
    """
    shared = {axis.name for axis in stmt.axes} if stmt is not None else set()
    place = cpp_string(context.place(line))
    written: set[str] = set()
    for access, axes in found:
        if access.padded:
            continue
        for subscript in access.subscripts:
            text = _check(context, access, subscript, axes, shared, place)
            if text is None or text in written:
                continue
            written.add(text)
            guard = _guard(context, stmt.axes if stmt is not None else (), axes, subscript)
            writer.line(f"if ({guard}{text}")


def _check(
    context: FunctionContext,
    access: Access,
    subscript: Subscript,
    axes: tuple[Axis, ...],
    shared: set[str],
    place: str,
) -> str | None:
    size = context.ints(subscript.size)
    tensor = cpp_string(context.show(access.base))
    dim = context.dimension(access.base.name, subscript.dim)
    expr = subscript.expr
    if mark_of(expr) is not None:
        return None  # the element is tested where it is read
    if subscript.parts is None:  # each element is checked, but there must be one to read
        shown = cpp_string(context.shown(expr))
        return (
            f"{size} <= 0) loma::range_error({place}, {shown}, {tensor}, {dim}, "
            f"{strip(size)}, loma::Interval(0));"
        )
    kernel = context.kernel
    if kernel is not None and kernel.index is not None and expr == Var(kernel.index, INT):
        return None  # fusion has proved it
    view = context.views.get(access.base.name)
    if view is not None and subscript.dim in view.whole:
        return None
    if isinstance(expr, Var) and expr.name in shared:
        extent = next(axis.extent for axis in axes if axis.name == expr.name)
        if sizes.equal(extent, subscript.size) is True:
            return None
        text = context.ints(extent)
        return (
            f"{text} != {size}) loma::extent_error({place}, {cpp_string(context.shown(expr))}, "
            f"{strip(text)}, {tensor}, {dim}, {strip(size)});"
        )
    if provably_inside(subscript, axes, context):
        return None
    coefficients, rest = subscript.parts
    interval = f"loma::Interval({strip(context.ints(rest))})"
    for name, coefficient in coefficients.items():
        extent = next(axis.extent for axis in axes if axis.name == name)
        interval += f".over({strip(context.ints(coefficient))}, {strip(context.ints(extent))})"
    return (
        f"!{interval}.inside({strip(size)})) loma::range_error({place}, "
        f"{cpp_string(context.shown(expr))}, {tensor}, {dim}, {strip(size)}, {interval});"
    )


def _guard(
    context: FunctionContext,
    statement_axes: tuple[Axis, ...],
    axes: tuple[Axis, ...],
    subscript: Subscript,
) -> str:
    """The other axes must not be empty either: else nothing is read."""
    expr = subscript.expr
    if isinstance(expr, Var) and expr.name in {axis.name for axis in statement_axes}:
        return ""
    own = subscript.parts[0] if subscript.parts is not None else {}
    names = {axis.name for axis in axes}
    others = [
        f"{context.ints(axis.extent)} > 0 && "
        for axis in axes
        if axis.name not in own and not sizes.mentions(axis.extent, names)
    ]
    return "".join(others)
