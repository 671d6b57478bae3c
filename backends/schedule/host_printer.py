"""The tree of a whole function as text: what the host does, with the loops in between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

from loma.backends.kernels.pairs import Pairs
from loma.backends.schedule.host import (
    Allocate, Arranged, Branch, Bytes, Carry, CheckOnce, CheckRange, CheckSome, Clear, Contract,
    Convolve, Count, Drop, Either, Group, GroupedContract, HostNode, Lanes, Later, Launch, Meeting,
    Operand, PairsPass, Pass, Permute, Piece, Question, Repeat, Reserve, Run, Serial, Spread,
    Stream, Unit,
)  # fmt: skip
from loma.backends.schedule.ir import InPlace, Parallel
from loma.backends.schedule.printer import INDENT, indented, name, named, print_tree, text
from loma.core import sizes
from loma.core.ir import INT, Declare, Expr, Function, IntConst, Stmt, Var
from loma.core.printer import print_head, print_stmt, print_type
from loma.core.walk import map_expressions
from loma.errors.spans import line_in_file


def print_lowered(function: Function, nodes: Sequence[HostNode]) -> str:
    """A function with its tree."""
    return "\n".join([*print_head(function), *_block(nodes)]) + "\n"


def head(node: HostNode) -> str:
    """The first line of a node."""
    return next(iter(_node(node)), "")


def _block(nodes: Sequence[HostNode]) -> list[str]:
    return indented([line for node in nodes for line in _node(node)] or ["pass"])


def _operand(part: Operand) -> str:
    cuts = (f".narrow({cut.dim}, {text(cut.start)}, {text(cut.count)})" for cut in part.cuts)
    places = (f".select({dim}, {text(place)})" for dim, place in part.fixed)
    return "".join((name(part.tensor), *cuts, *places))


def _node(node: HostNode) -> list[str]:
    match node:
        case Reserve(var):
            return [f"reserve {_declared(var)}"]
        case Allocate():
            return [_allocate(node)]
        case Clear(var, if_allocated):
            return [f"clear {name(var)}{', if it has memory' if if_allocated else ''}"]
        case Drop(var, wanted):
            return [f"drop {name(var)}, if not {name(wanted)}"]
        case Permute(var, operand, order):
            return [f"{name(var)} = permute({name(operand)}, {list(order)})"]
        case Later(var, body, value):
            return [f"lazy {name(var)}:", *_block(body), f"{INDENT}return {text(value)}"]
        case CheckRange() | CheckSome() | CheckOnce():
            return _check(node)
        case GroupedContract():
            group, size, work = name(node.group), text(node.size), text(node.work)
            head = f"if {group} has groups from 0 to {size}, and {work} is much work:"
            each = ", ".join(name(var) for var in (node.place, node.start, node.count))
            inside = [f"for {each}:", *_block((node.call,))]
            return [head, *indented(inside), "otherwise:", *_block(node.otherwise)]
        case Contract(target, left, right, equation, assign, into):
            product = f'product("{equation}", {_operand(left)}, {_operand(right)})'
            place = f"{_operand(target)}[...]" if into else _operand(target)
            return [f"{place} {'=' if assign else '+='} {product}"]
        case Convolve():
            return [_convolve(node)]
        case Run(stmt):
            return _statement(stmt)
        case Unit(source, body, more=more):
            if body == (Run(source),):
                return _statement(source)
            lines = [line for inner in body for line in _node(inner)]
            if not body or isinstance(source, Declare):
                return lines
            return [*map(_comment, (source, *more)), *lines]
        case Branch(_, condition, then, other):
            lines = [f"if {text(condition)}:", *_block(then)]
            return [*lines, "else:", *_block(other)] if other else lines
        case Count(source, extent, body):
            span = f"range({text(extent)})"
            span = f"reversed({span})" if source.backwards else span
            return [f"for {source.counter} in {span}:", *_block(body)]
        case Repeat(source, condition, body):
            head = f"while ({text(condition)}, max_iter := {source.max_iter}):"
            return [head, *_block(body)]
        case Serial(_, body, writes):
            return [f"on one thread:  # writes {', '.join(sorted(writes))}", *_block(body)]
        case Launch(within=None):
            return _launch(node)
        case Launch(within=within):
            assert within is not None
            loops = "; ".join(map(_worth_it, within.loops))
            plain = replace(node, within=None)
            return [f"if {loops}:", *_block((within,)), "otherwise:", *_block((plain,))]
        case Lanes(inner, body):
            own = (*inner.private, *inner.rows, *(each.own for each in inner.sums))
            head = f"inner {inner.axis.name} in range({text(inner.axis.extent)}):"
            facts = f"  # lanes share {text(inner.lanes)} elements"
            lines = [
                head + facts,
                *indented([f"own {_declared(var)}" for var in own]),
                *_block(body),
            ]
            return [*lines, *(f"join {each.own.name} in {each.parts.name}" for each in inner.sums)]
        case Group():
            made = ", ".join(map(_declared, (node.cells, node.order, node.lengths)))
            head = f"if {text(node.count)} additions are many:  # {made}"
            inside = [*_block(node.noted), *indented(["sort"]), *_block(node.together)]
            return [head, *inside, "otherwise:", *_block(node.otherwise)]
        case Spread(launch, iterations, work, launches, otherwise):
            many = f"{text(iterations)} iterations of {text(work)} steps"
            head = f"if {many} fill the device, not {text(launches)} launches:"
            return [head, *_block((launch,)), "otherwise:", *_block(otherwise)]
        case Carry():
            many = f"{text(node.rows)} rows of {text(node.width)} keep {node.teams.name} teams busy"
            where = " and ".join([*map(text, node.wanted), many])
            return [f"if {where}:", *_block(node.then), "otherwise:", *_block(node.otherwise)]
        case Stream():
            return _stream(node)
        case Pass():
            return _pass(node)
        case PairsPass(pairs):
            return _pairs(pairs)
        case Either(chain, then, otherwise):
            units = "the device has matrix units for it"
            where = " and ".join([units, *map(text, chain.conditions)])
            return [f"if {where}:", *_block(then), "otherwise:", *_block(otherwise)]
        case Parallel() | InPlace():
            return print_tree(node).split("\n")
        case _:
            assert_never(node)


def _declared(var: Var) -> str:
    return f"{name(var)} : {print_type(var.type)}"


def _statement(stmt: Stmt) -> list[str]:
    return print_stmt(map_expressions(stmt, named)).split("\n")


def _comment(source: Stmt) -> str:
    first, *rest = print_stmt(source).split("\n")
    line = f"line {line_in_file(source.span.line)}: " if source.span.line else ""
    return f"# {line}{first}{' ...' if rest else ''}"


def _allocate(node: Allocate) -> str:
    facts = ["zeros"] if node.zeros else []
    facts += ["if it has no memory"] if node.unless else []
    facts += [f"if {name(node.wanted)}"] if node.wanted is not None else []
    what = _declared(node.var) if node.declares else name(node.var)
    return f"allocate {', '.join([what, *facts])}"


# ----------------------------------------------------------------------- checks and routines


def _check(node: CheckRange | CheckSome | CheckOnce) -> list[str]:
    match node:
        case CheckRange(tensor, dim, _, subscript, line):
            remark = f"subscript '{subscript}' of '{tensor}', dimension {dim}"
            remark = _where(remark, line, node.needs)
            if node.rounds:
                rows = "".join(f" for some {a.name} in range({text(a.extent)})" for a in node.rows)
                remark += f"; if {', '.join(map(text, node.rounds))} > 0{rows}"
            return [f"check {_range(node)}  # {remark}"]
        case CheckSome(kind, own, reduced, line):
            some = " and ".join(f"{text(extent)} > 0" for extent in reduced)
            remark = _where(f"'{kind}' has elements", line, own)
            return [f"check {some}  # {remark}"]
        case CheckOnce(cells, noted, axes, _, target, _, line, needs):
            spans = " ".join(f"for {axis} in range({text(extent)})" for axis, extent in axes)
            remark = _where(f"'{target}' names no element twice", line, needs)
            return [f"check once {_declared(cells)} {spans}:  # {remark}", *_block(noted)]
        case _:
            assert_never(node)


def _range(node: CheckRange) -> str:
    if node.extent is not None:
        return f"{text(node.extent)} == {text(node.size)}"
    if node.rest is None:
        return f"0 < {text(node.size)}"
    terms = [f"{text(step)} * range({text(extent)})" for step, extent in node.terms or ()]
    return f"0 <= {' + '.join([text(node.rest), *terms])} < {text(node.size)}"


def _where(remark: str, line: int, needs: Sequence[Expr]) -> str:
    place = f", line {line_in_file(line)}" if line else ""
    some = f"; if {', '.join(map(text, needs))} > 0" if needs else ""
    return remark + place + some


def _convolve(node: Convolve) -> str:
    def part(arranged: Arranged) -> str:
        cuts = {
            cut.dim: f"{text(cut.start)} : {text(sizes.total((cut.start, cut.count)))} of "
            f"{'padded ' if cut.padded else ''}"
            for cut in arranged.cuts
        }
        own = [f"{cuts.get(k, '')}{k}" for k in arranged.order]
        return f"{name(arranged.tensor)}[{', '.join(own)}]"

    def place(meeting: Meeting) -> str:
        u, v = Var(meeting.u, INT), Var(meeting.v, INT)
        moved = (
            sizes.product((IntConst(meeting.step), u)),
            sizes.product((IntConst(meeting.tap), v)),
        )
        return text(sizes.total((*moved, meeting.shift)))

    image, first, second = map(part, (node.image, node.first, node.second))
    call = f"spread({first}, {second}" if node.spreads else f"correlate({image}, {second}"
    own = part(node.result)
    update = "=" if node.assign else "+="
    inside = ", inside" if node.inside else ""
    inside += "" if node.bias is None else f", plus {name(node.bias)}"
    return f"{own} {update} {call}, at {' and '.join(map(place, node.spatial))}{inside})"


# ------------------------------------------------------------------------- kernels and panels


def _bytes(parts: Sequence[Bytes]) -> str:
    return " + ".join(f"{text(count)} of {dtype}" for dtype, count in parts)


def _pieces(pieces: Sequence[Piece]) -> list[str]:
    if not pieces:
        return []
    parts = (f"{name(piece.tensor)} in dimension {piece.dim}" for piece in pieces)
    return [f"# parts of {', '.join(parts)}"]


def _worth_it(node: Lanes) -> str:
    inner, few = node.inner, ", ".join(map(text, node.few))
    many = f"{text(inner.axis.extent)} values of {text(inner.lanes)} are many"
    return " and ".join([*map(text, inner.under), many, f"{few} few"])


def _launch(node: Launch) -> list[str]:
    kernel = node.kernel
    span = ", ".join(f"range({text(axis.extent)})" for axis in kernel.axes)
    head = f"kernel for {', '.join(axis.name for axis in kernel.axes)} in {span}:"
    facts = [f"{text(node.work)} steps each"]
    if kernel.count is not None:
        head = f"kernel for blocks of {kernel.count.name} values of {kernel.axis.name} in {span}:"
        if node.bytes:
            facts.append(f"a value takes {_bytes(node.bytes)}")
    shared = node.writes - {buffer.var.name for buffer in node.buffers}
    if shared:
        facts.append(f"writes {', '.join(sorted(shared))}")
    carried = kernel.carried
    sums = () if carried is None else carried.sums
    private = [
        f"private {_declared(buffer.var)}  # statements {buffer.first} to {buffer.last}"
        for buffer in node.buffers
        if buffer.var not in sums
    ]
    if carried is not None:
        head = f"{carried.teams.name} teams, a {head}"
        private += [f"carried {_declared(var)}" for var in sums]
    private += [f"private {_declared(var)}" for var in node.scalars]
    inside = indented([*_pieces(node.pieces), *private])
    lines = [f"{head}  # {'; '.join(facts)}", *inside, *_block(node.body)]
    if carried is not None:
        lines += indented(["behind the last one of a team:", *_block(node.end)])
    return lines


def _stream(node: Stream) -> list[str]:
    panels = node.panels
    if panels.until is not None:
        end, whole = text(panels.until.end), text(panels.axis.extent)
        count = f"{panels.count.name} = {end} if {panels.until.exact.name} else {whole}"
        return [f"columns up to {count}:", *indented(_pieces(node.pieces)), *_block(node.body)]
    span = f"range({text(panels.axis.extent)})"
    facts = [f"a value takes {_bytes(node.bytes)}"] if node.bytes else []
    facts += [f"{_bytes(node.operands)} are read for each panel"] if node.operands else []
    facts.append(f"at least {node.least}")
    kind = "parallel panels" if node.apart else "panels"
    head = f"{kind} of {panels.count.name} values of {panels.axis.name} in {span}:"
    head += f"  # {'; '.join(facts)}" if facts else ""
    before = [line for inner in node.before for line in _node(inner)]
    if node.question is not None:
        before.append(_question(node.question))
    return [*before, head, *indented(_pieces(node.pieces)), *_block(node.body)]


def _question(question: Question) -> str:
    asked, name = question.until.moderate, question.until.exact.name
    if not question.possible:
        return f"{name} = 0"
    most = f"{asked.most:g}"
    facts = [f"1 <= {text(size)} <= {asked.long}" for size in asked.sizes]
    facts += [f"all of {n.tensor.name} in {1 / asked.most:g} to {most}, but for signs"
              for n in question.numbers[: len(asked.divisors)]]  # fmt: skip
    names = [n.tensor.name for n in question.numbers[len(asked.divisors) :]]
    names += [var.name for var in asked.scalars]
    facts += [f"{', '.join(names)} at most {most}"] if names else []
    return f"{name} = {'; '.join(facts)}"


def _pass(node: Pass) -> list[str]:
    found, scores = node.sweep.found, node.sweep.found.scores
    conditions = [text(condition) for condition in found.conditions]
    where = " and ".join(["the device has matrix units for it", *conditions])
    high = text(scores.high)
    total = [] if found.total is None else [f"{text(found.total)} = sum of {text(found.term)}"]
    inside = [
        f"{text(scores.product)} = sum of {text(scores.query)} * {text(scores.key)}",
        f"{text(found.largest)} = max of {text(scores.score)}",
        f"{text(found.share)} = exp of {text(scores.score)} - {text(found.largest)}",
        *total,
        f"{text(found.summed)} = sum of {text(found.weight)} * {text(found.values)}",
        f"{text(found.result)} = {text(found.written)}",
    ]
    before = [line for inner in node.before for line in _node(inner)]
    sweep = [f"sweep over {scores.column.name} in range({high}):", *indented(inside)]
    rest = ["otherwise:", *_block(node.otherwise)]
    return [f"if {where}:", *indented([*before, *sweep]), *rest]


def _pairs(pairs: Pairs) -> list[str]:
    lines = []
    for stream in pairs.streams:
        if stream.product is not None and stream.own is not None:
            factors = f"{text(stream.own)} * {text(stream.matrix)}"
            lines.append(f"{text(stream.product)} = sum of {factors}")
    for output in pairs.outputs:
        factors = f"{text(output.weight)} * {text(pairs.streams[output.stream].matrix)}"
        lines.append(f"{text(output.target)} = sum of {factors}")
    head = f"pass over {pairs.column.name} in range({text(pairs.column.extent)}):"
    return [head, *indented(lines)]
