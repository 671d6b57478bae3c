"""Loop trees as C++: a parallel loop is a function of its own, which runs a stretch of it.

Its parameters are raw pointers, which do not overlap, sizes and scalars.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import assert_never

from loma.backends.cfamily import syntax as c
from loma.backends.cfamily.context import CppContext, data, statement_text
from loma.backends.cfamily.cpp import ELEMENTS, TYPES, Expressions, loaded, scalar_type
from loma.backends.cfamily.names import cpp_name, cpp_string, local_name
from loma.backends.cfamily.writer import Writer
from loma.backends.schedule import ir as schedule
from loma.backends.schedule.ir import (
    Accumulator, Blocks, Check, Compare, Each, Fill, Groups, If, InPlace, Kind, Lanes, Lazy, Let,
    Loop, Narrow, Node, Note, Parallel, Part, Store, StoreLanes, Stretch, Test, Tiles, Total,
    Transpose, UpdateLanes, Variable, dtype_of,
)  # fmt: skip
from loma.core import sizes
from loma.core.ir import (
    FLOAT, INT, POSITIONS, Builtin, Element, Expr, Index, Type, Var,
)  # fmt: skip

_INITIAL = {
    "sum": "{t}(0)",
    "prod": "{t}(1)",
    "max": "loma::lowest<{t}>()",
    "min": "loma::highest<{t}>()",
}
_ASSIGNMENTS = {"sum": "+=", "prod": "*=", "set": "="}


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
        _write_in_place(writer, context, text, inside)
    else:
        counter = text.local(tree.counter)
        with inside.block(f"for (int64_t {counter} = begin_; {counter} < end_; ++{counter})"):
            text.nodes(inside, tree.body)
        _write_call(writer, context, text, inside, tree)
    for check in tree.checks:
        _write_check(writer, context, check)
    if isinstance(tree, Parallel) and tree.total is not None:
        total = context.variable(tree.total)
        writer.line(f"for (const auto part_ : parts_) {total} += part_;")


def _write_in_place(writer: Writer, context: CppContext, text: TreeText, inside: Writer) -> None:
    assert context.looked_up is not None
    context.looked_up |= text.pointers
    for name, (ctype, argument) in text.params.items():
        if name != argument:
            writer.declare(f"const {ctype} {name} = {argument};")
    if text.checks:
        writer.declare("loma::Outside outside_;")
    writer.extend(inside.lines)


def _write_call(
    writer: Writer, context: CppContext, text: TreeText, inside: Writer, tree: Parallel
) -> None:
    name = f"{cpp_name(context.function.name)}__loop{len(context.loops) + 1}"
    writes = {var.name for var in tree.writes}
    given: list[tuple[str, str]] = []  # parameters, arguments
    if tree.total is not None:
        number = scalar_type(tree.total.type, tree.total.span)
        given.append((f"{number}* __restrict parts_", "parts_.data()"))
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
    count = context.ints(tree.count)
    if tree.needs:
        some = c.chain("&&", context.positive(tree.needs))
        count = c.Conditional(some, count, c.number(0))
    if tree.checks:
        writer.declare("loma::Outside outside_;")
    if tree.total is not None:
        many = c.call("std::max<int64_t>", count, c.number(0))
        writer.declare(f"std::vector<{number}> parts_({c.text(many)});")
    run = "parallel(" if context.pointers is None else "inside(nested_, "
    amount = c.list_text((count, context.ints(tree.work)))
    body = "[&](int64_t begin_, int64_t end_)"
    with writer.block(f"loma::{run}{amount}, {body}", ");"):
        writer.line(f"{name}<real>({', '.join(args)});")


def _write_check(writer: Writer, context: CppContext, check: Check) -> None:
    """Says what elements have noted while the tree ran."""
    place, text = cpp_string(context.place(check.line)), cpp_string(check.text)
    if check.size is None:
        writer.line(f"outside_.check_elements({check.number}, {place}, {text});")
        return
    tensor, size = cpp_string(context.named(check.tensor)), c.item_text(context.ints(check.size))
    writer.line(f"outside_.check({check.number}, {place}, {text}, {tensor}, {check.dim}, {size});")


class TreeText(Expressions):
    """The nodes of one tree as lines; ``pointers`` and ``params`` are what they need from outside:
    the tensors' pointers, and for each scalar its type and the argument of the call."""

    context: CppContext

    def __init__(self, context: CppContext, writes: Sequence[Var]) -> None:
        super().__init__(context)
        self.params: dict[str, tuple[str, str]] = {}
        self.pointers: dict[str, tuple[str, Var]] = {}
        self.checks = False
        self._locals: dict[str, str] = {}  # the text of variables that the tree declares
        self._innermost = False
        for tensor in writes:
            self._pointer(tensor)

    # --------------------------------------------------------------------------- expressions

    def in_vectors(self) -> bool:
        alone = self.context.looked_up is not None and not self._innermost
        return super().in_vectors() and not alone

    def local(self, var: Var) -> str:
        """A variable that the tree declares."""
        name = local_name(var.name)
        self._locals[var.name] = name
        return name

    def variable(self, var: Var) -> c.Expression:
        if var.name in self._locals:
            return c.Token(self._locals[var.name])
        name, argument = self.context.parameter(var)
        self.params.setdefault(name, (scalar_type(var.type, var.span), argument))
        return c.Token(name)

    def _pointer(self, tensor: Var) -> str:
        if tensor.name == schedule.PARTS or tensor.name in self._locals:
            return local_name(tensor.name)
        name = f"{self.context.variable(tensor)}_data_"
        self.pointers.setdefault(tensor.name, (name, tensor))
        return name

    def _int(self, expr: Expr) -> c.Expression:
        return self.value(expr, INT)

    def _ints(self, *exprs: Expr) -> str:
        return c.list_text(map(self._int, exprs))

    def index(self, read: Index) -> c.Expression:
        return loaded(self._element(read), read.tensor.type)

    def _element(self, place: Index) -> c.Expression:
        return c.Subscript(c.Token(self._pointer(place.tensor)), self._int(place.subscripts[0]))

    def condition(self, expr: Expr) -> c.Expression:
        match expr:
            case Builtin(schedule.INSIDE, (subscript, size)):
                first, second = (c.call("uint64_t", self._int(arg)) for arg in (subscript, size))
                return c.Binary("<", first, second)
            case Builtin(schedule.TESTED, args):
                self.checks = True
                return c.call("outside_.inside", *map(self._int, args))
            case Builtin(schedule.WHOLE, (Var() as stretch,)):
                return c.Call(c.Member(self.variable(stretch), "whole"))
            case Builtin(schedule.IN_STRETCH, (Var() as stretch,)):
                return c.Call(c.Member(self.variable(stretch), "has"), (c.Token("lane_"),))
            case _:
                return super().condition(expr)

    def _builtin(self, expr: Builtin) -> c.Expression:
        match expr:
            case Builtin(schedule.CLAMPED, args):
                self.checks = True
                return c.call("outside_.clamp", *map(self._int, args))
            case Builtin(schedule.READ_IF, (condition, Index(Var() as base) as read)):
                zero = c.call(TYPES[dtype_of(base)], c.number(0))
                return c.Conditional(self.condition(condition), self.index(read), zero)
            case Builtin(schedule.POSITION, (accumulator,)):
                return c.Member(self.value(accumulator), "position")
            case _:
                return super()._builtin(expr)

    # --------------------------------------------------------------------------------- nodes

    def nodes(self, writer: Writer, nodes: Sequence[Node]) -> None:
        for node in nodes:
            self._node(writer, node)

    def _node(self, writer: Writer, node: Node) -> None:
        match node:
            case Let(var, value):
                type_ = _let_type(var, value)
                text = c.item_text(self.value(value, var.type))
                writer.line(f"const {type_} {self.local(var)} = {text};")
            case Lazy(var, body, value):
                type_ = _scalar(var.type)
                name = self.local(var)
                with writer.block(f"const auto {name} = [&]() -> {type_}", ";"):
                    self.nodes(writer, body)
                    writer.line(f"return {c.text(self.value(value, var.type))};")
                self._locals[var.name] = f"{name}()"
            case Variable(var, value, dtype):
                text = c.item_text(self.value(value, var.type))
                writer.line(f"{TYPES[dtype]} {self.local(var)} = {text};")
            case Accumulator(var, kind, dtype):
                name, number = self.local(var), TYPES[dtype]
                if kind in POSITIONS:
                    writer.line(f"loma::{kind.capitalize()}<{number}> {name};")
                else:
                    writer.line(f"{number} {name} = {_initial(kind, dtype)};")
            case Store():
                writer.line(self._store(node))
            case Note(check):
                self.checks = True
                writer.line(f"outside_.clamp(0, 0, {check});")
            case Narrow(begin, end, low, high, tests):
                since, until = self.local(begin), self.local(end)
                writer.line(f"int64_t {since} = {self._ints(low)}, {until} = {self._ints(high)};")
                for test in tests:
                    writer.line(f"loma::narrow({since}, {until}, {self._test(test)});")
            case If(condition, then, other):
                self._if(writer, c.text(self.condition(condition)), then)
                if other:
                    with writer.block("else"):
                        self.nodes(writer, other)
            case Loop():
                self._loop(writer, node)
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
            case _:
                self._vector_node(writer, node)

    def _vector_node(self, writer: Writer, node: Node) -> None:
        match node:
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
            case Tiles(low, high, dtype, body, length, grouped):
                head = "[&](auto vectors_, const int64_t tile_, const auto count_) LOMA_INLINE"
                self._locals[schedule.TILE] = local_name(schedule.TILE)
                if length is not None:
                    rows = "many_" if grouped else "1"
                    start = f"loma::known_tiles<{TYPES[dtype]}, {rows}, {length}>({head}"
                else:
                    types = f"{TYPES[dtype]}, many_" if grouped else TYPES[dtype]
                    start = f"loma::tiles<{types}>({self._ints(low, high)}, {head}"
                with writer.block(start, ");"):
                    self.nodes(writer, body)
            case Lanes():
                writer.line(self._lanes(node))
            case Fill(Lanes(dtype=dtype) as lanes, kind):
                name, initial = self._locals[lanes.var.name], _initial(kind, dtype)
                writer.line(f"loma::fill<{TYPES[dtype]}>({name}, vectors_, {initial});")
            case Fill(Index(Var() as base) as place, kind):
                writer.line(f"{c.text(self._element(place))} = {_initial(kind, dtype_of(base))};")
            case UpdateLanes(lanes, counter, value, load):
                number, type_ = TYPES[lanes.dtype], INT if lanes.dtype == "int" else FLOAT
                params = f"int lane_, int64_t {self.local(counter)}, {number} sum_"
                where = f"{self._given(lanes)}, vectors_, tile_, count_"
                head = f"loma::update<{number}>({where}, [&]({params}) LOMA_INLINE"
                with writer.block(head, ");"), self._in_innermost():
                    kind, total = "set" if load else lanes.kind, c.Token("sum_")
                    writer.line(_updated(kind, total, self.value(value, type_), number))
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

    def _store(self, store: Store) -> str:
        place, value = store.place, self.value(store.value, store.place.type)
        if store.position is not None:
            take = c.Member(self.value(place), "take")
            return f"{c.text(c.Call(take, (value, self._int(store.position))))};"
        if isinstance(place, Var):
            return _updated(store.kind, self.value(place), value, _scalar(place.type))
        return _updated(store.kind, self._element(place), value, TYPES[dtype_of(place.tensor)])

    def _if(self, writer: Writer, condition: str, then: Sequence[Node]) -> None:
        inside = Writer()
        self.nodes(inside, then)
        if len(inside.lines) == 1:
            writer.line(f"if ({condition}) {inside.lines[0]}")
            return
        with writer.block(f"if ({condition})"):
            writer.extend(inside.lines)

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
        name, start = c.Token(self.local(loop.counter)), self._int(loop.low)
        test = c.Binary("<", name, self._int(loop.high))
        step: c.Expression = c.Unary("++", name)
        if loop.without is not None:
            begin, end = (self.value(var) for var in loop.without)
            following = c.Binary("+", name, c.number(1))
            skip = c.Conditional(c.Binary("==", following, begin), end, following)
            step = c.Binary("=", name, skip)
            start = c.Conditional(c.Binary("==", begin, start), end, start)
        steps = f"int64_t {name.text} = {c.item_text(start)}; {c.text(test)}; {c.text(step)}"
        if loop.role == "vector":
            writer.line("#pragma GCC ivdep")
        with writer.block(f"for ({steps})"), self._in_innermost(loop.role != "serial"):
            self.nodes(writer, loop.body)

    @contextmanager
    def _in_innermost(self, here: bool = True) -> Iterator[None]:
        before, self._innermost = self._innermost, here
        yield
        self._innermost = before

    def _test(self, test: Test) -> str:
        return self._ints(test.step, test.rest, test.size)

    def _lanes(self, lanes: Lanes) -> str:
        name, number, kind = self.local(lanes.var), TYPES[lanes.dtype], lanes.kind
        initial = _initial(kind, lanes.dtype)
        match lanes.form:
            case "row" if kind in POSITIONS:
                return f"loma::Best<{number}, vectors_> {name}({initial});"
            case "row":
                many = "[many_]" if lanes.grouped else ""
                return f"loma::Lanes<{number}> {name}{many}[vectors_];"
            case "sum":
                return f"loma::Accumulators<{number}> {name}({initial});"
            case "best":
                return f"loma::Extreme<{number}> {name}({initial});"
            case "wide" | "narrow":
                where = "int64_t" if lanes.form == "wide" else "int32_t"
                return f"loma::ExtremePosition<{number}, {where}> {name}({initial});"
            case "joint":
                return f"loma::Best<{number}, loma::kTile> {name}({initial});"
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


def _let_type(var: Var, value: Expr) -> str:
    if isinstance(value, Index) and isinstance(value.base, Var):
        return TYPES[dtype_of(value.base)]
    return _scalar(var.type)


def _scalar(type_: Type) -> str:
    return "int64_t" if type_ == INT else "real"


def _updated(kind: Kind, place: c.Expression, value: c.Expression, number: str) -> str:
    """The statement that takes one more value into a running reduction."""
    if kind not in _ASSIGNMENTS:
        value = c.call(f"loma::{kind}<{number}>", place, value)
    return f"{c.text(c.Binary(_ASSIGNMENTS.get(kind, '='), place, value))};"


def _initial(kind: Kind, dtype: Element) -> str:
    return _INITIAL[kind.removeprefix("arg")].format(t=TYPES[dtype])


def _combine(kind: Kind) -> str:
    return f"loma::{kind.removeprefix('arg').capitalize()}()"


def _better(kind: Kind) -> str:
    return f"loma::{kind.capitalize()}Lanes()"
