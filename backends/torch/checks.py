"""Checks of index statements before they run."""

from __future__ import annotations


from loma.backends.cfamily.context import CppContext, HostWriter
from loma.backends.cfamily.cpp import strip
from loma.backends.cfamily.names import cpp_string
from loma.backends.schedule.host import CheckOnce, CheckRange, CheckSome
from loma.core.ir import Expr


def write_check(owner: HostWriter, check: CheckRange | CheckSome | CheckOnce) -> None:
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


def _range(context: CppContext, check: CheckRange, place: str) -> str:
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


def _ints(context: CppContext, expr: Expr) -> str:
    return strip(context.ints(expr))


def _write_once(owner: HostWriter, check: CheckOnce, place: str) -> None:
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
