"""Loop trees as text, for those who want to see what lowering has decided.

Expressions are written as in loma. What lowering has named itself begins with ``$``, so that it
cannot be taken for a name of the program: ``$acc1``, the axis ``$b.i`` that joins b and i, the size
``$x.size(0)``. Where a test or the elements of lanes depend on a place, ``_`` stands for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

from loma.backends.schedule.ir import (
    Accumulator, AllReduce, Blocks, Check, Compare, Each, Fill, Groups, If, InPlace, Lanes, Lazy,
    Let, Loop, Narrow, Node, Note, Parallel, Part, Rounds, Scan, Store, StoreLanes, Stretch, Test,
    Tiles, Total, Transpose, UpdateLanes, Variable,
)  # fmt: skip
from loma.core.ir import INT, Binary, Builtin, Expr, IntConst, Var
from loma.core.printer import print_expr, print_type
from loma.core.walk import map_children
from loma.errors.spans import line_in_file

INDENT = "    "
_UPDATE = {"set": "=", "sum": "+=", "prod": "*="}  # others by their names: `max=`
_ROLES = {
    "serial": "for",
    "inner": "inner for",
    "vector": "vector for",
    "shared": "team for",
    "around": "part for",
}


def print_tree(tree: Parallel | InPlace) -> str:
    """The tree, no line end after it."""
    match tree:
        case Parallel():
            head = f"parallel for {name(tree.counter)} in range({text(tree.count)}):"
            facts = [f"{text(tree.work)} steps each"]
            if tree.needs:
                facts.append(f"if all of {', '.join(map(text, tree.needs))} are positive")
            if tree.totals:
                facts.append(f"adds the parts of all to {', '.join(map(name, tree.totals))}")
            if tree.team is not None:
                facts.append(f"a team for {text(tree.team.extent)}" + " across" * tree.team.across)
        case InPlace():
            head, facts = "in place:", []
        case _:
            assert_never(tree)
    if tree.writes:
        facts.append(f"writes {', '.join(map(name, tree.writes))}")
    head += f"  # {'; '.join(facts)}" if facts else ""
    return "\n".join([head, *_block(tree.body), *map(_check, tree.checks)])


def name(var: Var) -> str:
    """A variable's name, with ``$`` if lowering has made it."""
    if " " in var.name:
        tensor, dim = var.name.rsplit(" ", 1)
        return f"${tensor}.size({dim})"
    return _own(var.name)


def _own(own: str) -> str:
    made = own.removeprefix("@")
    if made == own:
        return own
    if made.endswith("__"):
        return f"${made[:-2].replace('__', '.')}"
    return f"${made.removesuffix('_')}"


def text(expr: Expr) -> str:
    """An expression on one line."""
    return print_expr(named(expr))


def named(expr: Expr) -> Expr:
    """The expression with the names that are printed."""
    match expr:
        case Var():
            return replace(expr, name=name(expr))
        case Builtin(own, args):
            return replace(expr, name=_own(own), args=tuple(map(named, args)))
        case Binary("+", left, IntConst(value)) if value < 0:
            return replace(expr, op="-", left=named(left), right=IntConst(-value))
        case _:
            return map_children(expr, named)


def _check(check: Check) -> str:
    what = (
        f"'{check.text}' has elements"
        if check.size is None
        else f"subscript '{check.text}' is inside dimension {check.dim} of '{check.tensor}', "
        f"of size {text(check.size)}"
    )
    place = f"line {line_in_file(check.line)}: " if check.line else ""
    return f"check {check.number}: {place}{what}"


def head(node: Node) -> str:
    """The first line of a node."""
    return _node(node)[0]


def _block(nodes: Sequence[Node]) -> list[str]:
    return indented([line for node in nodes for line in _node(node)] or ["pass"])


def indented(lines: Sequence[str]) -> list[str]:
    return [INDENT + line for line in lines]


def _range(low: Expr, high: Expr) -> str:
    return f"range({text(high)})" if low == IntConst(0) else f"range({text(low)}, {text(high)})"


def _tests(tests: Sequence[Test]) -> str:
    place = Var("_", INT)
    found: list[str] = []
    for test in tests:
        moved = place if test.step == IntConst(1) else Binary("*", test.step, place, INT)
        subscript: Expr = moved
        if test.step == IntConst(0):
            subscript = test.rest
        elif test.rest != IntConst(0):
            subscript = Binary("+", moved, test.rest, INT)
        found.append(f"0 <= {text(subscript)} < {text(test.size)}")
    return " and ".join(found)


def _node(node: Node) -> list[str]:
    match node:
        case Let(var, value):
            return [f"{name(var)} = {text(value)}"]
        case Lazy(var, body, value):
            return [f"lazy {name(var)}:", *_block(body), f"{INDENT}return {text(value)}"]
        case Variable(var, value, dtype):
            return [f"{name(var)} : {dtype} = {text(value)}"]
        case Accumulator(var, kind, dtype):
            return [f"{name(var)} : {kind} of {dtype}"]
        case AllReduce(accumulator, kind):
            return [f"{name(accumulator)} = {kind} of the team's {name(accumulator)}"]
        case Store(place, kind, value, position):
            where = "" if position is None else f" at {text(position)}"
            return [f"{text(place)} {_UPDATE.get(kind, f'{kind}=')} {text(value)}{where}"]
        case Note(check):
            return [f"fail check {check}"]
        case Narrow(begin, end, low, high, tests):
            return [f"{name(begin)}, {name(end)} = {_range(low, high)} where {_tests(tests)}"]
        case If(condition, then, other):
            lines = [f"if {text(condition)}:", *_block(then)]
            return [*lines, "else:", *_block(other)] if other else lines
        case Loop(counter, low, high, body, role, without):
            span = _range(low, high)
            if without is not None:
                span += f" without range({', '.join(map(name, without))})"
            return [f"{_ROLES[role]} {name(counter)} in {span}:", *_block(body)]
        case Rounds(on, test, body, most):
            rounds = f"rounds, at most {most}, while any of {name(on)}:"
            return [rounds, INDENT + "test:", *indented(_block(test)), *_block(body)]
        case Scan(counter, high, kind, _, before, place, value, factor):
            span = f"{name(counter)} in {_range(IntConst(0), high)}"
            if before is not None:
                span += f", from {text(before)}"
            times = "" if factor is None else f", before it times {text(factor)}"
            found = f"{INDENT}{text(place)} = of {text(value)}{times}"
            return [f"running {kind} over {span}:", found]
        case Transpose(var, first, stride, rows, columns):
            part = f"{text(rows)} rows of {text(columns)} at {text(first)}, {text(stride)} apart"
            return [f"{name(var)} = transposed {part}"]
        case Part(var, short):
            return [f"{name(var)} : {print_type(var.type)}{' of 32 bits' if short else ''}"]
        case Blocks(first, last, count, size, body):
            parts = f"range({text(count)}), {text(size)} each"
            return [f"blocks {name(first)} to {name(last)} of {parts}:", *_block(body)]
        case Groups(low, high, many, rest, body):
            left = "" if rest is None else f", {rest} left"
            return [f"groups of {many} in {_range(low, high)}{left}:", *_block(body)]
        case Each(counter, body):
            return [f"each {name(counter)} of the group:", *_block(body)]
        case Tiles(low, high, dtype, body, length, grouped, wide):
            known = "" if length is None else f", length {length}"
            known += ", rows of the group" if grouped else ", wide" if wide else ""
            return [f"tiles of {dtype} in {_range(low, high)}{known}:", *_block(body)]
        case _:
            return [_lanes(node)]


def _lanes(
    node: Lanes | Fill | UpdateLanes | Compare | StoreLanes | Total | Stretch,
) -> str:
    match node:
        case Lanes(var, kind, dtype, form, grouped):
            facts = ([form] if form != "sum" else []) + ["for each of the group"] * grouped
            return ", ".join([f"lanes {name(var)} : {kind} of {dtype}", *facts])
        case Fill(Lanes() as lanes, kind):
            return f"{name(lanes.var)}[:] = initial {kind}"
        case Fill(place, kind):
            assert not isinstance(place, Lanes)
            return f"{text(place)} = initial {kind}"
        case UpdateLanes(lanes, counter, value, load):
            row = f"{name(lanes.var)}{'.next' if lanes.compares else ''}[{name(counter)}]"
            update = "=" if load else _UPDATE.get(lanes.kind, f"{lanes.kind}=")
            return f"{row} {update} {text(value)}"
        case Compare(lanes, position):
            where = "" if position is None else f" at {text(position)}"
            return f"compare {name(lanes.var)}.next{where}"
        case StoreLanes(lanes, counter, place):
            return f"{text(place)} = {name(lanes.var)}[{name(counter)}]"
        case Total(var, lanes):
            return f"{name(var)} = total of {name(lanes.var)}"
        case Stretch(var, tests):
            return f"{name(var)} = lanes where {_tests(tests)}"
        case _:
            assert_never(node)
