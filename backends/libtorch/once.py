"""The check of an assignment that no element is named twice, where the subscripts do not prove it.

Before the statement runs, an index statement of its own notes for each point which element it
names, of the dimensions that the proof lacks; the runtime looks whether two are the same.
"""

from __future__ import annotations

from loma.backends.libtorch.context import FunctionContext
from loma.backends.libtorch.expressions import strip
from loma.backends.libtorch.loops import write_index_assign
from loma.backends.libtorch.names import cpp_string
from loma.backends.writer import Writer
from loma.core import builder as b
from loma.core.distinct import Part, unproved
from loma.core.ir import INT, Expr, Index, IndexAssign, IntConst, Select, TensorType, Var
from loma.core.printer import print_expr


def write_once_checks(writer: Writer, context: FunctionContext, stmt: IndexAssign) -> None:
    """Writes what has to be checked of a statement before it runs."""
    for part in unproved(stmt):
        assert isinstance(stmt.target, Index)
        names = {axis.name for axis in part.axes}
        others = [context.ints(axis.extent) for axis in stmt.axes if axis.name not in names]
        some = " && ".join(f"{extent} > 0" for extent in others)
        with writer.block(f"if ({some})" if some else ""):
            _write_check(writer, context, stmt, stmt.target, part)


def _write_check(
    writer: Writer, context: FunctionContext, stmt: IndexAssign, target: Index, part: Part
) -> None:
    assert isinstance(target.base, Var)
    extents = tuple(axis.extent for axis in part.axes)
    cells = context.temporary_tensor("cells", TensorType(extents, "int"))
    name = context.variable(cells)
    shape = ", ".join(strip(context.ints(extent)) for extent in extents)
    writer.declare(f"const at::Tensor {name} = loma::cells({{{shape}}});")
    counters = tuple(Var(axis.name, INT) for axis in part.axes)
    dims = context.dims(target.base)
    value = _cell([(target.subscripts[d], dims[d]) for d in part.dims])
    noted = IndexAssign(Index(cells, counters, INT), "=", value, part.axes, stmt.span)
    write_index_assign(writer, context, noted, False)
    axes = [f"{{{cpp_string(a.name)}, {strip(context.ints(a.extent))}}}" for a in part.axes]
    places = [
        f"{{nullptr, {strip(context.ints(dim))}}}" if d in part.dims
        else f"{{{cpp_string(print_expr(subscript))}, 0}}"
        for d, (subscript, dim) in enumerate(zip(target.subscripts, dims, strict=True))
    ]  # fmt: skip
    writer.line(
        f"loma::check_once({cpp_string(context.place(context.line(stmt.span)))}, "
        f"{cpp_string(context.shown(target))}, {cpp_string(context.show(target.base))}, {name}, "
        f"{{{', '.join(axes)}}}, {{{', '.join(places)}}});"
    )


def _cell(subscripts: list[tuple[Expr, Expr]]) -> Expr:
    """The number of an element among those of some dimensions; none of them where a subscript is
    outside, which the statement itself reports."""
    (cell, dim), *rest = subscripts
    if not rest:
        return cell
    inside = _inside(cell, dim)
    for subscript, size in rest:
        cell = b.add(b.mul(cell, size), subscript)
        inside = b.binary("and", inside, _inside(subscript, size))
    return Select(inside, cell, IntConst(-1), INT)


def _inside(subscript: Expr, size: Expr) -> Expr:
    return b.binary("and", b.binary(">=", subscript, IntConst(0)), b.binary("<", subscript, size))
