"""Checks of index statements before they run, and of their elements after."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loma.backends.schedule.context import FunctionContext
from loma.backends.cfamily.cpp import strip
from loma.backends.cfamily.names import cpp_string
from loma.backends.schedule.host import CheckOnce, CheckRange, CheckSome
from loma.backends.schedule.ir import Check
from loma.backends.cfamily.writer import Writer
from loma.core.ir import Expr

if TYPE_CHECKING:
    from loma.backends.torch.statements import Statements


def write_check(owner: Statements, check: CheckRange | CheckSome | CheckOnce) -> None:
    """Writes a check where ``owner`` stands."""
    context, writer = owner.context, owner.writer
    place = cpp_string(context.place(check.line))
    match check:
        case CheckRange():
            some = "".join(f"{context.ints(extent)} > 0 && " for extent in check.needs)
            writer.line(f"if ({some}{_range(context, check, place)};")
        case CheckSome(kind, own, reduced):
            tests = "".join(f"{context.ints(extent)} > 0 && " for extent in own)
            empty = " || ".join(f"{context.ints(extent)} == 0" for extent in reduced)
            empty = f"({empty})" if tests and len(reduced) > 1 else empty
            writer.line(f"if ({tests}{empty}) loma::empty_error({place}, {cpp_string(kind)});")
        case CheckOnce(needs=needs):
            some = " && ".join(f"{context.ints(extent)} > 0" for extent in needs)
            with writer.block(f"if ({some})" if some else ""):
                _write_once(owner, check, place)


def _range(context: FunctionContext, check: CheckRange, place: str) -> str:
    size = context.ints(check.size)
    text, tensor, dim = cpp_string(check.text), cpp_string(check.tensor), check.dim
    if check.extent is not None:
        extent = context.ints(check.extent)
        return (
            f"{extent} != {size}) loma::extent_error({place}, {text}, {strip(extent)}, {tensor}, "
            f"{dim}, {strip(size)})"
        )
    interval, test = "loma::Interval(0)", f"{size} <= 0"
    if check.rest is not None:
        interval = f"loma::Interval({strip(context.ints(check.rest))})"
        for coefficient, extent_ in check.terms or ():
            interval += f".over({_ints(context, coefficient)}, {_ints(context, extent_)})"
        test = f"!{interval}.inside({strip(size)})"
    return f"{test}) loma::range_error({place}, {text}, {tensor}, {dim}, {strip(size)}, {interval})"


def _ints(context: FunctionContext, expr: Expr) -> str:
    return strip(context.ints(expr))


def _write_once(owner: Statements, check: CheckOnce, place: str) -> None:
    context, writer = owner.context, owner.writer
    name = context.variable(check.cells)
    shape = ", ".join(_ints(context, extent) for _, extent in check.axes)
    writer.declare(f"const at::Tensor {name} = loma::cells({{{shape}}});")
    owner.nodes(check.noted)
    axes = [f"{{{cpp_string(axis)}, {_ints(context, extent)}}}" for axis, extent in check.axes]
    places = [
        f"{{{cpp_string(text)}, 0}}" if size is None else f"{{nullptr, {_ints(context, size)}}}"
        for text, size in check.places
    ]
    writer.line(
        f"loma::check_once({place}, {cpp_string(check.target)}, {cpp_string(check.tensor)}, "
        f"{name}, {{{', '.join(axes)}}}, {{{', '.join(places)}}});"
    )


def write_element_check(writer: Writer, context: FunctionContext, check: Check) -> None:
    """Says what elements have noted while a tree ran."""
    place, text = cpp_string(context.place(check.line)), cpp_string(check.text)
    if check.size is None:
        writer.line(f"outside_.check_elements({check.number}, {place}, {text});")
        return
    tensor, size = cpp_string(context.named(check.tensor)), _ints(context, check.size)
    writer.line(f"outside_.check({check.number}, {place}, {text}, {tensor}, {check.dim}, {size});")
