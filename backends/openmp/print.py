"""Loop trees as C++: a parallel loop is a function of its own, which runs a stretch of it.

Its parameters are raw pointers, which do not overlap, sizes and scalars.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import assert_never

from loma.backends.cfamily import syntax as c
from loma.backends.cfamily.context import CppContext, data, statement_text
from loma.backends.cfamily.cpp import ELEMENTS, TYPES, scalar_type
from loma.backends.cfamily.loops import (
    LoopText, initial, iterations, scalar, updated, write_check, write_looked_up,
)  # fmt: skip
from loma.backends.cfamily.names import cpp_name, cpp_string, local_name
from loma.backends.cfamily.writer import Writer
from loma.backends.schedule import ir as schedule
from loma.backends.schedule.ir import (
    Blocks, Compare, Each, Fill, Groups, InPlace, Kind, Lanes, Loop, Node, Parallel, Part,
    Rounds, Scan, StoreLanes, Stretch, Tiles, Total, Transpose, UpdateLanes, dtype_of,
)  # fmt: skip
from loma.core import sizes
from loma.core.builtins import BUILTINS
from loma.core.ir import FLOAT, INT, POSITIONS, Builtin, Expr, Index, Select, Var
from loma.core.walk import walk
from loma.errors.spans import line_in_file


def write_tree(writer: Writer, context: CppContext, tree: Parallel | InPlace) -> None:
    """Writes the tree's function to the context, and its call, or the nodes where they stand, in
    a block of their own if they declare something."""
    own = Writer()
    _write_tree(own, context, tree)
    if own.declares:
        with writer.block():
            writer.extend(own.lines)
    else:
        writer.extend(own.lines)


def _write_tree(writer: Writer, context: CppContext, tree: Parallel | InPlace) -> None:
    text = TreeText(context, tree.writes)
    inside = Writer(0 if isinstance(tree, InPlace) else 1)
    if isinstance(tree, InPlace):
        text.nodes(inside, tree.body)
        write_looked_up(writer, text, inside.lines, "outside_")
    else:
        counter = text.local(tree.counter)
        with inside.block(f"for (int64_t {counter} = begin_; {counter} < end_; ++{counter})"):
            text.nodes(inside, tree.body)
        _write_call(writer, context, text, inside, tree)
    for check in tree.checks:
        write_check(writer, context, check)
    for parts, total in tree.parts.items() if isinstance(tree, Parallel) else ():
        added = f"{context.variable(total)} += part_;"
        writer.line(f"for (const auto part_ : {local_name(parts)}) {added}")


def _write_call(
    writer: Writer, context: CppContext, text: TreeText, inside: Writer, tree: Parallel
) -> None:
    name = f"{cpp_name(context.function.name)}__loop{len(context.loops) + 1}"
    writes = {var.name for var in tree.writes}
    given: list[tuple[str, str]] = []  # parameters, arguments
    for parts, total in tree.parts.items():
        own, number = local_name(parts), scalar_type(total.type, total.span)
        given.append((f"{number}* __restrict {own}", f"{own}.data()"))
    for base, (pointer, tensor) in text.pointers.items():
        type_, argument = data(context, tensor, base in writes)
        given.append((f"{type_} __restrict {pointer}", argument))
    given += [(f"const {type_} {param}", arg) for param, (type_, arg) in text.params.items()]
    if tree.checks:
        given.append(("loma::Outside& outside_", "outside_"))
    given += [("const int64_t begin_", "begin_"), ("const int64_t end_", "end_")]
    params, args = zip(*given, strict=True)
    function = Writer()
    function.comment("\n".join(map(statement_text, tree.source)))
    function.line("template <typename real>")
    function.line(f"static __attribute__((noinline)) void {name}(")
    function.line("    " + ",\n    ".join(params) + ") {")
    function.extend(inside.lines)
    function.line("}")
    context.loops.append(function.text())
    count = iterations(context, tree)
    if tree.checks:
        writer.declare("loma::Outside outside_;")
    many = c.call("std::max<int64_t>", count, c.number(0))
    for parts, total in tree.parts.items():
        number = scalar_type(total.type, total.span)
        writer.declare(f"std::vector<{number}> {local_name(parts)}({c.text(many)});")
    run = "parallel(" if context.pointers is None else "inside(nested_, "
    amount = c.list_text((count, context.ints(tree.work)))
    body = "[&](int64_t begin_, int64_t end_)"
    with writer.block(f"loma::{run}{amount}, {body}", ");"):
        writer.line(f"{name}<real>({', '.join(args)});")


class TreeText(LoopText):
    """The nodes of one tree as lines, those of lanes among them."""

    def __init__(self, context: CppContext, writes: Sequence[Var]) -> None:
        super().__init__(context, writes)
        self._innermost = False

    def in_vectors(self) -> bool:
        alone = self.context.looked_up is not None and not self._innermost
        return super().in_vectors() and not alone

    def condition(self, expr: Expr) -> c.Expression:
        match expr:
            case Builtin(schedule.WHOLE, (Var() as stretch,)):
                return c.Call(c.Member(self.variable(stretch), "whole"))
            case Builtin(schedule.IN_STRETCH, (Var() as stretch,)):
                return c.Call(c.Member(self.variable(stretch), "has"), (c.Token("lane_"),))
            case _:
                return super().condition(expr)

    def _builtin(self, expr: Builtin) -> c.Expression:
        match expr:
            case Builtin(schedule.PICK, (holds, then, other)):
                numbers = (self.value(then), self.value(other))
                return c.call(f"loma::pick<{scalar(expr.type)}>", self.condition(holds), *numbers)
            case _:
                return super()._builtin(expr)

    def special(self, writer: Writer, node: Node) -> None:
        match node:
            case Blocks():
                self._blocks(writer, node)
            case Transpose(var, first, stride, rows, columns, size):
                part, numbers = self.local(var), self._ints(stride, rows, columns)
                writer.line(f"{TYPES[dtype_of(var)]} {part}[{size * size}];")
                start = c.text(self._element(first))
                writer.line(f"loma::transpose<{size}>({part}, &{start}, {numbers});")
            case Part(var, short):
                count = sizes.constant(sizes.product(sizes.dims_of(var)))
                element = "int32_t" if short else ELEMENTS[dtype_of(var)]
                writer.line(f"{element} {self.local(var)}[{count}];")
            case Rounds():
                self._rounds(writer, node)
            case Scan():
                self._scan(writer, node)
            case Groups(low, high, many, rest, body):
                numbers = f"{many}" if rest is None else f"{many}, {rest}"
                head = "[&](auto values_, const int64_t group_) LOMA_INLINE"
                with writer.block(f"loma::groups<{numbers}>({self._ints(low, high)}, {head}", ");"):
                    writer.line("constexpr int many_ = values_;")
                    self.nodes(writer, body)
            case Each(counter, body):
                with writer.block("loma::each<many_>([&](const int value_) LOMA_INLINE", ");"):
                    writer.line(f"const int64_t {self.local(counter)} = group_ + value_;")
                    self.nodes(writer, body)
            case Tiles(low, high, dtype, body, length, grouped, wide):
                head = "[&](auto vectors_, const int64_t tile_, const auto count_) LOMA_INLINE"
                self._locals[schedule.TILE] = local_name(schedule.TILE)
                if length is not None:
                    across = "many_" if grouped else "1"
                    most = ", loma::kAccumulators" if wide else ""
                    types = f"{TYPES[dtype]}, {across}, {length}{most}"
                    call = f"loma::known_tiles<{types}>({head}"
                else:
                    types = f"{TYPES[dtype]}, many_" if grouped else TYPES[dtype]
                    types += ", 1, loma::kAccumulators" if wide else ""
                    call = f"loma::tiles<{types}>({self._ints(low, high)}, {head}"
                with writer.block(call, ");"):
                    self.nodes(writer, body)
            case Lanes():
                writer.line(self._lanes(node))
            case Fill(Lanes(dtype=dtype) as lanes, kind):
                name, start = self._locals[lanes.var.name], initial(kind, dtype)
                writer.line(f"loma::fill<{TYPES[dtype]}>({name}, vectors_, {start});")
            case Fill(Index(Var() as base) as place, kind):
                writer.line(f"{c.text(self._element(place))} = {initial(kind, dtype_of(base))};")
            case UpdateLanes(lanes, counter, value, load):
                number, type_ = TYPES[lanes.dtype], INT if lanes.dtype == "int" else FLOAT
                params = f"int lane_, int64_t {self.local(counter)}, {number} sum_"
                where = f"{self._given(lanes)}, vectors_, tile_, count_"
                apart = load or lanes.kind == "sum"
                apart = apart and any(map(_is_long, walk(value)))
                how = (
                    f"update_apart<{number}, {str(not load).lower()}>"
                    if apart
                    else f"update<{number}>"
                )
                head = f"loma::{how}({where}, [&]({params}) LOMA_INLINE"
                with writer.block(head, ");"), self._in_innermost():
                    kind, total = "set" if load else lanes.kind, c.Token("sum_")
                    writer.line(updated(kind, total, self.value(value, type_), number))
                    writer.line("return sum_;")
            case Compare(lanes, position):
                name, how = self._locals[lanes.var.name], _combine(lanes.kind)
                where = "" if position is None else f"{self._ints(position)}, "
                if lanes.form == "row":
                    writer.line(f"{name}.take({where}{_better(lanes.kind)});")
                elif lanes.form == "joint":
                    writer.line(f"{name}.take_row(vectors_, {where}{_better(lanes.kind)});")
                else:
                    writer.line(f"{name}.take(vectors_, {where}{how});")
            case StoreLanes(lanes, counter, place):
                found, stored = self._given(lanes), TYPES[lanes.dtype]
                if lanes.kind in POSITIONS:
                    found, stored = f"{self._locals[lanes.var.name]}.positions", "int64_t"
                params = f"int64_t {self.local(counter)}, {stored} sum_"
                head = f"loma::store<{TYPES[lanes.dtype]}>({found}, vectors_, tile_, count_, "
                with writer.block(f"{head}[&]({params}) LOMA_INLINE", ");"):
                    writer.line(f"{c.text(self._element(place))} = sum_;")
            case Total(var, lanes):
                number = "int64_t" if lanes.kind in POSITIONS else TYPES[lanes.dtype]
                name, how = self._locals[lanes.var.name], _combine(lanes.kind)
                if lanes.form == "joint":
                    text = f"{name}.total({_better(lanes.kind)})"
                elif lanes.compares:
                    text = f"{name}.all({how})"
                else:
                    text = f"loma::total<{number}>({name}.lanes, {how})"
                writer.line(f"const {number} {self.local(var)} = {text};")
            case Stretch(var, tests):
                name = self.local(var)
                writer.line(f"loma::Stretch {name}(tile_, count_);")
                writer.extend([f"{name}.narrow({self._test(test)});" for test in tests])
            case _:
                raise AssertionError(node)

    def _rounds(self, writer: Writer, rounds: Rounds) -> None:
        count = self.context.temporary("count")
        place = cpp_string(self.context.function_at(rounds.line)), line_in_file(rounds.line)
        with writer.block(f"for (int64_t {count} = 0;; ++{count})"):
            self.nodes(writer, rounds.test)
            writer.line(f"if (!loma::any({self._locals[rounds.on.name]})) break;")
            error = f"loma::while_error({place[0]}, {place[1]}, {rounds.most});"
            writer.line(f"if ({count} == {rounds.most}) {error}")
            self.nodes(writer, rounds.body)

    def _scan(self, writer: Writer, scan: Scan) -> None:
        number, type_ = TYPES[scan.dtype], INT if scan.dtype == "int" else FLOAT
        assert scan.before is not None
        start = f"{self._ints(scan.high)}, &{c.text(self._element(scan.before))}"
        counter = f"const int64_t {self.local(scan.counter)}"
        start += f", {initial(scan.kind, scan.dtype)}, {_combine(scan.kind)}"
        head = f"loma::running<{number}>({start}, [&]({counter}) LOMA_INLINE"
        with writer.block(head, ","), self._in_innermost():
            writer.line(f"return {c.text(self.value(scan.value, type_))};")
        with writer.block(f"[&]({counter}, const {number} found_) LOMA_INLINE", ");"):
            writer.line(f"{c.text(self._element(scan.place))} = found_;")

    def _blocks(self, writer: Writer, blocks: Blocks) -> None:
        since, until = c.Token(self.local(blocks.first)), self.local(blocks.last)
        extent, step = self._int(blocks.count), self._int(blocks.size)
        is_first = c.Binary("==", since, c.number(0))
        test = c.text(c.Binary("||", is_first, c.Binary("<", since, extent)))
        rise = c.text(c.Binary("+=", since, step))
        with writer.block(f"for (int64_t {since.text} = 0; {test}; {rise})"):
            end = c.call("std::min<int64_t>", extent, c.Binary("+", since, step))
            writer.line(f"const int64_t {until} = {c.item_text(end)};")
            self.nodes(writer, blocks.body)

    def _loop(self, writer: Writer, loop: Loop) -> None:
        if loop.role == "vector":
            writer.line("#pragma GCC ivdep")
        with self._in_innermost(loop.role != "serial"):
            super()._loop(writer, loop)

    @contextmanager
    def _in_innermost(self, here: bool = True) -> Iterator[None]:
        before, self._innermost = self._innermost, here
        yield
        self._innermost = before

    def _lanes(self, lanes: Lanes) -> str:
        name, number, kind = self.local(lanes.var), TYPES[lanes.dtype], lanes.kind
        start = initial(kind, lanes.dtype)
        match lanes.form:
            case "row" if kind in POSITIONS:
                return f"loma::Best<{number}, vectors_> {name}({start});"
            case "row":
                many = "[many_]" if lanes.grouped else ""
                return f"loma::Lanes<{number}> {name}{many}[vectors_];"
            case "sum":
                return f"loma::Accumulators<{number}> {name}({start});"
            case "best":
                return f"loma::Extreme<{number}> {name}({start});"
            case "wide" | "narrow":
                where = "int64_t" if lanes.form == "wide" else "int32_t"
                return f"loma::ExtremePosition<{number}, {where}> {name}({start});"
            case "joint":
                return f"loma::Best<{number}, loma::kTile> {name}({start});"
            case _:
                assert_never(lanes.form)

    def _given(self, lanes: Lanes) -> str:
        """What an update writes."""
        name = self._locals[lanes.var.name]
        if lanes.compares:
            return f"{name}.next"
        if lanes.form == "row":
            return f"{name}[value_]" if lanes.grouped else name
        return f"{name}.lanes"


def _combine(kind: Kind) -> str:
    return f"loma::{kind.removeprefix('arg').capitalize()}()"


def _better(kind: Kind) -> str:
    return f"loma::{kind.capitalize()}Lanes()"


def _is_long(expr: Expr) -> bool:
    """Whether a node takes many instructions, or a condition, which may be of narrower elements."""
    match expr:
        case Select() | Builtin(schedule.PICK):
            return True
        case Builtin(name) if name in BUILTINS:
            return BUILTINS[name].costly
        case _:
            return False
