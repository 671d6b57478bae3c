"""The check of an assignment that no element is named twice, where the subscripts do not prove it.

Before the statement runs, an index statement of its own notes for each point which element it
names, of the dimensions that the proof lacks; the runtime looks whether two are the same.
"""

from __future__ import annotations

from loma.backends.lowering.index_statements import index_statement
from loma.backends.schedule.access import cell
from loma.backends.schedule.context import FunctionContext
from loma.backends.schedule.host import CheckOnce, HostNode
from loma.core.distinct import Part, unproved
from loma.core.ir import INT, Index, IndexAssign, TensorType, Var
from loma.core.printer import print_expr


def once_checks(context: FunctionContext, stmt: IndexAssign) -> list[HostNode]:
    """What has to be checked of a statement before it runs."""
    return [_check(context, stmt, part) for part in unproved(stmt)]


def _check(context: FunctionContext, stmt: IndexAssign, part: Part) -> CheckOnce:
    target = stmt.element
    names = {axis.name for axis in part.axes}
    extents = tuple(axis.extent for axis in part.axes)
    cells = context.temporary_tensor("cells", TensorType(extents, "int"))
    counters = tuple(Var(axis.name, INT) for axis in part.axes)
    dims = context.dims(target.base)
    value = cell([(target.subscripts[d], dims[d]) for d in part.dims])
    noted = IndexAssign(Index(cells, counters, INT), "=", value, part.axes, stmt.span)
    places = tuple(
        (print_expr(subscript), dim if d in part.dims else None)
        for d, (subscript, dim) in enumerate(zip(target.subscripts, dims, strict=True))
    )
    return CheckOnce(
        cells, tuple(index_statement(context, noted, False, stmt)),
        tuple((axis.name, axis.extent) for axis in part.axes), places,
        context.shown(target), context.show(target.tensor), context.line(stmt.span),
        tuple(axis.extent for axis in stmt.axes if axis.name not in names),
    )  # fmt: skip
