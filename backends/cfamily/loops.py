"""The nodes of loops that every language of the family spells alike."""

from __future__ import annotations

from collections.abc import Sequence

from loma.backends.cfamily import syntax as c
from loma.backends.cfamily.context import CppContext
from loma.backends.cfamily.cpp import TYPES, Expressions, loaded, scalar_type
from loma.backends.cfamily.names import cpp_string, local_name
from loma.backends.cfamily.writer import Writer
from loma.backends.schedule import ir as schedule
from loma.backends.schedule.ir import (
    Accumulator, Check, If, Kind, Lazy, Let, Loop, Narrow, Node, Note, Parallel, Store, Test,
    Variable, dtype_of,
)  # fmt: skip
from loma.core.ir import INT, POSITIONS, Binary, Builtin, Element, Expr, Index, Type, Var

_INITIAL = {
    "sum": "{t}(0)",
    "prod": "{t}(1)",
    "max": "loma::lowest<{t}>()",
    "min": "loma::highest<{t}>()",
}
_ASSIGNMENTS = {"sum": "+=", "prod": "*=", "set": "="}


class LoopText(Expressions):
    """The nodes of one tree as lines; ``pointers`` and ``params`` are what they need from outside:
    the tensors' pointers, and for each scalar its type and the argument of the call."""

    context: CppContext

    def __init__(self, context: CppContext, writes: Sequence[Var]) -> None:
        super().__init__(context)
        self.params: dict[str, tuple[str, str]] = {}
        self.pointers: dict[str, tuple[str, Var]] = {}
        self.checks = False
        self._locals: dict[str, str] = {}  # the text of variables that the tree declares
        for tensor in writes:
            self._pointer(tensor)

    # --------------------------------------------------------------------------- expressions

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
        if tensor.name.startswith(schedule.PARTS.rstrip("_")) or tensor.name in self._locals:
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
                type_ = let_type(var, value)
                text = c.item_text(self.value(value, var.type))
                writer.line(f"const {type_} {self.local(var)} = {text};")
            case Lazy(var, body, value):
                type_ = scalar(var.type)
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
                    writer.line(f"{number} {name} = {initial(kind, dtype)};")
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
            case _:
                self.special(writer, node)

    def special(self, writer: Writer, node: Node) -> None:
        """A node that only some machines have."""
        raise AssertionError(node)

    def _store(self, store: Store) -> str:
        place, value = store.place, self.value(store.value, store.place.type)
        if store.position is not None:
            take = c.Member(self.value(place), "take")
            return f"{c.text(c.Call(take, (value, self._int(store.position))))};"
        if isinstance(place, Var):
            total = Binary("+", place, store.value, place.type)
            if store.kind == "sum" and (fused := self.fused(total)) is not None:
                return f"{c.text(c.Binary('=', self.value(place), fused))};"
            return updated(store.kind, self.value(place), value, scalar(place.type))
        return updated(store.kind, self._element(place), value, TYPES[dtype_of(place.tensor)])

    def _if(self, writer: Writer, condition: str, then: Sequence[Node]) -> None:
        inside = Writer()
        self.nodes(inside, then)
        if len(inside.lines) == 1:
            writer.line(f"if ({condition}) {inside.lines[0]}")
            return
        with writer.block(f"if ({condition})"):
            writer.extend(inside.lines)

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
        with writer.block(f"for ({steps})"):
            self.nodes(writer, loop.body)

    def _test(self, test: Test) -> str:
        return self._ints(test.step, test.rest, test.size)


def let_type(var: Var, value: Expr) -> str:
    if isinstance(value, Index) and isinstance(value.base, Var):
        return TYPES[dtype_of(value.base)]
    return scalar(var.type)


def scalar(type_: Type) -> str:
    return "int64_t" if type_ == INT else "real"


def updated(kind: Kind, place: c.Expression, value: c.Expression, number: str) -> str:
    """The statement that takes one more value into a running reduction."""
    if kind not in _ASSIGNMENTS:
        value = c.call(f"loma::{kind}<{number}>", place, value)
    return f"{c.text(c.Binary(_ASSIGNMENTS.get(kind, '='), place, value))};"


def initial(kind: Kind, dtype: Element) -> str:
    return _INITIAL[kind.removeprefix("arg")].format(t=TYPES[dtype])


def iterations(context: CppContext, tree: Parallel) -> c.Expression:
    """How many there are of a parallel loop."""
    count = context.ints(tree.count)
    if not tree.needs:
        return count
    some = c.chain("&&", context.positive(tree.needs))
    return c.Conditional(some, count, c.number(0))


def write_looked_up(writer: Writer, text: LoopText, lines: Sequence[str], outside: str) -> None:
    """Writes the lines of a tree where it stands, in serial loops, which look up the pointers that
    it uses; ``outside``: how what notes failed checks is declared."""
    context = text.context
    assert context.looked_up is not None
    context.looked_up |= text.pointers
    for name, (ctype, argument) in text.params.items():
        if name != argument:
            writer.declare(f"const {ctype} {name} = {argument};")
    if text.checks:
        writer.declare(f"loma::Outside {outside};")
    writer.extend(lines)


def write_check(writer: Writer, context: CppContext, check: Check) -> None:
    """Says what elements have noted while the tree ran."""
    place, text = cpp_string(context.place(check.line)), cpp_string(check.text)
    if check.size is None:
        writer.line(f"outside_.check_elements({check.number}, {place}, {text});")
        return
    tensor, size = cpp_string(context.named(check.tensor)), c.item_text(context.ints(check.size))
    writer.line(f"outside_.check({check.number}, {place}, {text}, {tensor}, {check.dim}, {size});")
