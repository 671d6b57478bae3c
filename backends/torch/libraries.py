"""Calls of library routines: matrix products and convolutions of the runtime."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from loma.backends.cfamily import syntax as c
from loma.backends.cfamily.context import CppContext
from loma.backends.cfamily.names import local_name
from loma.backends.cfamily.writer import Writer
from loma.backends.schedule.host import Arranged, Contract, Convolve, GroupedContract, Operand
from loma.core.ir import Expr, IntConst

# What of the runtime is compiled for modules that call it only, with its functions.
_ROUTINES = {
    "product": re.compile(r"\bloma::(product(_into)?\(|Groups\b)"),
    "convolution": re.compile(r"\bloma::(cut|correlate|spread(_out)?|conv2d(_input|_weight)?)\("),
}


def called(text: str) -> tuple[str, ...]:
    """The parts of the runtime whose routines generated code calls."""
    found = [part for part, calls in _ROUTINES.items() if calls.search(text)]
    # a convolution of few windows is a product
    return tuple(_ROUTINES) if "convolution" in found else tuple(found)


def header(call: Contract | GroupedContract | Convolve) -> str:
    """The header that declares the routine."""
    return "convolution_statements.h" if isinstance(call, Convolve) else "product.h"


def write_call(writer: Writer, context: CppContext, call: Contract | Convolve) -> None:
    if isinstance(call, Convolve):
        _write_convolution(writer, context, call)
        return

    left, right, target = (
        _part(context, part, context.variable(part.tensor))
        for part in (call.left, call.right, call.target)
    )
    given = f'"{call.equation}", {left}, {right}'
    if call.assign and not call.into:
        writer.line(f"{target} = loma::product({given});")
    else:
        _write_into(writer, call, target, given)


def _write_into(writer: Writer, call: Contract, target: str, given: str) -> None:
    add = "false" if call.assign else "true"
    writer.line(f"loma::product_into({target}, {given}, {add});")


def _part(context: CppContext, part: Operand, tensor: str) -> str:
    for cut in part.cuts:
        given = (c.text(context.ints(value)) for value in (cut.start, cut.count))
        tensor = f"loma::places({tensor}, {cut.dim}, {', '.join(given)})"
    for dim, place in part.fixed:
        tensor = f"loma::at_place({tensor}, {dim}, {c.text(context.ints(place))})"
    return tensor


def write_groups(
    writer: Writer, context: CppContext, node: GroupedContract, otherwise: Callable[[], None]
) -> None:
    call, groups, part = node.call, context.temporary("groups"), context.temporary("part")
    numbers = [c.text(context.ints(number)) for number in (node.size, node.work)]
    operands = list(zip((call.target, call.left, call.right), node.rows, strict=True))
    with writer.block():
        group = context.variable(node.group)
        data = f"{group}.template const_data_ptr<int64_t>()"
        given = ", ".join([data, f"{group}.size(0)", *numbers])
        writer.line(f"const loma::Groups {groups}({given});")
        with writer.block(f"if ({groups}.pay())"):
            parts = []
            for operand, dim in operands:
                tensor = name = context.variable(operand.tensor)
                if dim is not None:
                    name = context.temporary("rows")
                    is_new = operand is call.target and call.assign
                    made = f"room({groups}, {tensor})"
                    made = made if is_new else f"sorted({groups}, {tensor}, {dim})"
                    writer.line(f"const loma::Tensor {name} = loma::{made};")
                parts.append((name, _part(context, operand, name)))
            (rows, target), (_, left), (_, right) = parts
            with writer.block(f"for (const auto& {part} : {groups})"):
                for var, member in (
                    (node.place, "place"), (node.start, "start"), (node.count, "count"),
                ):  # fmt: skip
                    writer.line(f"const int64_t {local_name(var.name)} = {part}.{member};")
                _write_into(writer, call, target, f'"{call.equation}", {left}, {right}')
            operand, dim = operands[0]
            if dim is not None:
                to = context.variable(operand.tensor)
                writer.line(f"loma::put({groups}, {rows}, {to}, {dim});")
        with writer.block("else"):
            otherwise()


def _write_convolution(writer: Writer, context: CppContext, call: Convolve) -> None:
    def ints(values: Sequence[Expr], missing: int) -> str:
        first = [c.number(missing)] * (2 - len(values))
        return c.text(c.Braces("", (*first, *map(context.ints, values))))

    def cut(part: Arranged) -> str:
        tensor = context.variable(part.tensor)
        for one in part.cuts:
            start, count = (c.text(context.ints(value)) for value in (one.start, one.count))
            padded = ", true" if one.padded else ""
            tensor = f"loma::cut({tensor}, {one.dim}, {start}, {count}{padded})"
        return tensor

    def arranged(part: Arranged) -> str:
        return f"{{{cut(part)}, {{{', '.join(map(str, part.order))}}}}}"

    steps = ints([IntConst(m.step) for m in call.spatial], 1)
    taps = ints([IntConst(m.tap) for m in call.spatial], 1)
    shifts = ints([m.shift for m in call.spatial], 0)
    geometry = f"{{{steps}, {taps}, {shifts}}}"
    image, first, second = map(arranged, (call.image, call.first, call.second))
    result = call.result
    if call.spreads and not call.assign:
        writer.line(f"loma::spread({image}, {first}, {second}, {geometry});")
        return
    operands = f"{first}, {second}" if call.spreads else f"{image}, {second}"
    dims = c.list_text(map(context.ints, call.shape))
    order = ", ".join(map(str, result.order))
    function = "spread_out" if call.spreads else "correlate"
    inside = ", true" if call.inside else ""
    if call.bias is not None:
        inside = f", {'true' if call.inside else 'false'}, &{context.variable(call.bias)}"
    text = f"loma::{function}({operands}, {{{dims}}}, {{{order}}}, {geometry}{inside})"
    if call.assign and not result.cuts:
        writer.line(f"{context.variable(result.tensor)} = {text};")
    else:
        writer.line(f"{cut(result)}.{'copy_' if call.assign else 'add_'}({text});")
