"""Checks of index statements before they run."""

from __future__ import annotations

from collections.abc import Sequence

from loma.backends.cfamily import syntax as c
from loma.backends.cfamily.context import CppContext, HostWriter
from loma.backends.cfamily.names import cpp_string
from loma.backends.schedule.host import CheckOnce, CheckRange, CheckSome
from loma.core.ir import INT, Axis, Expr, Var


def write_check(owner: HostWriter, check: CheckRange | CheckSome | CheckOnce) -> None:
    """Writes a check where ``owner`` stands."""
    context, writer = owner.context, owner.writer
    place = cpp_string(context.place(check.line))
    ends = "" if context.captured is None else "return "  # text for devices cannot throw
    match check:
        case CheckRange():
            test, error = _range(context, check, place)
            tests = [*context.positive(check.needs), test]
            if check.rounds:
                tests.append(_some(context, check.rows, check.rounds))
            writer.line(f"if ({c.text(c.chain('&&', tests))}) {ends}{error};")
        case CheckSome(kind, own, reduced):
            empty = c.chain("||", [c.Binary("==", context.ints(e), c.number(0)) for e in reduced])
            test = c.chain("&&", [*context.positive(own), empty])
            error = f"loma::empty_error({place}, {cpp_string(kind)})"
            writer.line(f"if ({c.text(test)}) {ends}{error};")
        case CheckOnce(needs=needs):
            some = context.positive(needs)
            with writer.block(f"if ({c.text(c.chain('&&', some))})" if some else ""):
                _write_once(owner, check, place)


def _range(context: CppContext, check: CheckRange, place: str) -> tuple[c.Expression, str]:
    """When a subscript is outside, and the call that says so."""
    size = context.ints(check.size)
    text, tensor, dim = cpp_string(check.text), cpp_string(check.tensor), check.dim
    if check.extent is not None:
        extent = context.ints(check.extent)
        given = f"{place}, {text}, {c.item_text(extent)}, {tensor}, {dim}, {c.item_text(size)}"
        return c.Binary("!=", extent, size), f"loma::extent_error({given})"
    interval = c.call("loma::Interval", c.number(0))
    test: c.Expression = c.Binary("<=", size, c.number(0))
    if check.rest is not None:
        interval = c.call("loma::Interval", context.ints(check.rest))
        for term in check.terms or ():
            interval = c.Call(c.Member(interval, "over"), tuple(map(context.ints, term)))
        test = c.Unary("!", c.Call(c.Member(interval, "inside"), (size,)))
    given = c.list_text((size, interval))
    return test, f"loma::range_error({place}, {text}, {tensor}, {dim}, {given})"


def _some(context: CppContext, rows: Sequence[Axis], rounds: Sequence[Expr]) -> c.Expression:
    """Whether there is a row in which all these ranges have a round."""
    if not rows:
        return c.chain("&&", context.positive(rounds))
    row = context.variable(Var(rows[0].name, INT))
    test = c.text(_some(context, rows[1:], rounds))
    function = c.Token(f"[&](int64_t {row}) {{ return {test}; }}")
    return c.call("loma::some", context.ints(rows[0].extent), function)


def _ints(context: CppContext, expr: Expr) -> str:
    return c.item_text(context.ints(expr))


def _write_once(owner: HostWriter, check: CheckOnce, place: str) -> None:
    context, writer = owner.context, owner.writer
    name = context.variable(check.cells)
    shape = ", ".join(_ints(context, extent) for _, extent in check.axes)
    writer.declare(f"const loma::Tensor {name} = loma::cells({{{shape}}});")
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
