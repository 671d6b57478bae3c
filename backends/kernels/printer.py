"""Functions with kernels and panels as text: loma, with the loops that fusion made around it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from loma.backends.kernels.ir import (
    Carrying, Chain, Kernel, Nested, Panels, Step, Sweep, as_statement, temporaries,
)  # fmt: skip
from loma.backends.kernels.lifetimes import lifetimes
from loma.backends.kernels.pairs import Pairs
from loma.backends.kernels.sharing import mentions
from loma.core import sizes
from loma.core.ir import (
    Declare, Expr, For, Function, If, IntConst, Stmt, TensorType, Var, While, replace,
)  # fmt: skip
from loma.core.printer import print_expr, print_head, print_stmt, print_type
from loma.core.walk import blocks, substitute
from loma.passes.old_values import PREFIX

_INDENT = "    "
_COPY = re.compile(rf"\s*{PREFIX}\w+\[.*\] = (\w+)\[")


def print_steps(function: Function, steps: tuple[Step, ...], remark: Callable[[Stmt], str]) -> str:
    """The function with its steps: what runs in which loop, and where temporaries live.

    ``remark`` says how a statement runs that is no part of a kernel, "" for those that need no
    word; one with blocks inside it that has a remark runs as a whole. Private tensors are marked
    with the bytes of float32 that an iteration needs.
    """
    lines = _Printer(remark, temporaries(steps)).steps(steps, _INDENT)
    return "\n".join([*print_head(function), *map(_with_reason, lines)]) + "\n"


def _with_reason(line: str) -> str:
    """A line that copies old values of a tensor says why."""
    found = _COPY.match(line)
    if found is None:
        return line
    sign = ";" if "  # " in line else "  #"
    return f"{line}{sign} a copy: the next statement reads '{found[1]}' where it may write"


@dataclass(slots=True)
class _Printer:
    remark: Callable[[Stmt], str]
    private: set[str]

    def steps(self, steps: tuple[Step, ...], indent: str) -> list[str]:
        return [line for step in steps for line in self._step(step, indent)]

    def _step(self, step: Step, indent: str) -> list[str]:
        match step:
            case Kernel():
                return self._kernel(step, indent)
            case Panels():
                return self._panels(step, indent)
            case Nested():
                return self._nested(step, indent)
            case Sweep():
                return self._sweep(step, indent)
            case Chain():
                return self._either(step.conditions, "tensor cores can", step, indent)
            case Pairs():
                return self._pairs(step, indent)
            case Carrying():
                return self._either(step.wanted, "it is less to read", step, indent)
            case Declare(target, None) if target.name in self.private:
                return []
            case If() | For() | While() if not self.remark(step):
                return self._nested(Nested(step, blocks(step)), indent)
            case _:
                return self._plain(step, indent)

    def _plain(self, step: Stmt, indent: str) -> list[str]:
        lines = _lines(step, indent)
        if remark := self.remark(step):
            lines[0] += f"  # {remark}"
        return lines

    def _kernel(self, kernel: Kernel, indent: str) -> list[str]:
        inner = indent + _INDENT
        over = ", ".join(axis.name for axis in kernel.axes)
        spans = ", ".join(f"range({print_expr(axis.extent)})" for axis in kernel.axes)
        lines = [f"{indent}parallel {over} in {spans}{_from(kernel)}:"]
        alive = lifetimes(kernel)
        for var in sorted(kernel.private, key=lambda var: (alive[var.name][0], var.name)):
            first, last = alive[var.name]
            note = f"{_bytes(var)}, statements {first} to {last}"
            zero = ", starts at zero" if var.name in kernel.zeroed else ""
            if kernel.carried is not None and var in kernel.carried.sums:
                zero = f", carried by one of {kernel.carried.teams.name}"
            type_ = print_type(var.type)
            lines.append(f"{inner}private {var.name} : {type_}  # {note}{zero}")
        for stmt in kernel.body:
            lines += _lines(stmt, inner)
        if kernel.carried is not None:
            lines.append(f"{inner}behind the last one of a team:")
            lines += [line for s in kernel.carried.end for line in _lines(s, inner + _INDENT)]
        return lines

    def _panels(self, panels: Panels, indent: str) -> list[str]:
        inner = indent + _INDENT
        extent = print_expr(panels.axis.extent)
        head = f"panels of {panels.count.name} values of {panels.axis.name} in range({extent})"
        if panels.until is not None:
            end = print_expr(panels.until.end)
            head = f"the first {panels.count.name} of {extent} columns, {end} if that is exact"
        lines = [f"{indent}{head}{_from(panels)}:"]
        lines += [
            f"{inner}temporary {var.name} : {print_type(var.type)}  # {_bytes(var)}"
            for var in panels.temporaries
        ]
        lines += [f"{inner}sum {name}" for name in panels.sums]
        if panels.streamed:
            names = ", ".join(var.name for var in panels.streamed)
            lines.append(f"{inner}# read once for every panel: {names}")
        return lines + self.steps(panels.body, inner)

    def _sweep(self, step: Sweep, indent: str) -> list[str]:
        inner, scores = indent + _INDENT, step.found.scores
        over = ", ".join(axis.name for axis in (*scores.outer, scores.row))
        head = f"{indent}sweep over {scores.column.name} for all {over}, on tensor cores:"
        lines = [head, *(line for stmt in step.source for line in _lines(stmt, inner))]
        return [*lines, f"{indent}otherwise:", *self.steps(step.otherwise, inner)]

    def _either(
        self, conditions: tuple[Expr, ...], last: str, step: Chain | Carrying, indent: str
    ) -> list[str]:
        inner = indent + _INDENT
        where = " and ".join([*map(print_expr, conditions), last])
        head = f"{indent}if {where}:"
        rest = [f"{indent}otherwise:", *self.steps(step.otherwise, inner)]
        return [head, *self.steps(step.items, inner), *rest]

    def _pairs(self, pairs: Pairs, indent: str) -> list[str]:
        over = ", ".join(axis.name for axis in (*pairs.outer, pairs.row))
        lines = [f"{indent}pass over {pairs.column.name} for all {over}, on tensor cores:"]
        inner = indent + _INDENT
        for stream in pairs.streams:
            if stream.own is not None and stream.product is not None:
                product = f"{print_expr(stream.own)} * {print_expr(stream.matrix)}"
                over = f"for {stream.inner.name} in {print_expr(stream.inner.extent)}"
                lines.append(f"{inner}{stream.product.name} = sum({product} {over})")
        for output in pairs.outputs:
            matrix = pairs.streams[output.stream]
            last = {matrix.inner.name: output.target.subscripts[-1]}
            value = print_expr(substitute(matrix.matrix, last))
            weight = f"({print_expr(output.weight)}) * {value}"
            over = f"for {pairs.column.name} in {print_expr(pairs.column.extent)}"
            lines.append(f"{inner}{print_expr(output.target)} = sum({weight} {over})")
        return lines

    def _nested(self, step: Nested, indent: str) -> list[str]:
        inner = indent + _INDENT
        match step.stmt:
            case For() | While():
                head = _lines(replace(step.stmt, body=()), indent)[0]
                return [head, *self._block(step.blocks[0], inner)]
            case If(cond):
                then, other = step.blocks
                lines = [f"{indent}if {print_expr(cond)}:", *self._block(then, inner)]
                match other:
                    case ():
                        return lines
                    case (If() | Nested(If()) as only,):
                        head, *rest = self._step(only, indent)
                        return [*lines, f"{indent}el{head.removeprefix(indent)}", *rest]
                    case _:
                        return [*lines, f"{indent}else:", *self._block(other, inner)]

    def _block(self, steps: tuple[Step, ...], indent: str) -> list[str]:
        return self.steps(steps, indent) or [f"{indent}pass"]


def _lines(stmt: Stmt, indent: str) -> list[str]:
    return print_stmt(stmt, len(indent) // len(_INDENT)).split("\n")


def _from(part: Kernel | Panels) -> str:
    """What the first value of a block or panel is called, where statements compute with it."""
    first = part.first
    body = tuple(map(as_statement, part.body))
    return f", from {first.name}" if first is not None and first.name in mentions(body) else ""


def _bytes(var: Var) -> str:
    assert isinstance(var.type, TensorType)
    width = {"int": 8, "bool": 1}.get(var.type.element, 4)
    return f"{print_expr(sizes.product((IntConst(width), *(var.type.dims or ()))))} bytes"
