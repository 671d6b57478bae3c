"""A function's tree as C++: what the host does, around the loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import assert_never

from loma import errors
from loma.backends.cfamily import syntax as c
from loma.backends.cfamily.context import CppContext, statement_text
from loma.backends.cfamily.cpp import scalar_type
from loma.backends.cfamily.device import Device
from loma.backends.cfamily.names import cpp_name, cpp_string
from loma.backends.cfamily.writer import Writer
from loma.backends.schedule.host import (
    Allocate, Branch, Carry, CheckOnce, CheckRange, CheckSome, Clear, Contract, Convolve, Count,
    Drop, Either, Group, GroupedContract, HostNode, Lanes, Later, Launch, PairsPass, Pass, Permute,
    Repeat, Reserve, Run, Serial, Spread, Stream, Unit,
)  # fmt: skip
from loma.backends.schedule.ir import InPlace, Parallel
from loma.backends.torch import checks, libraries
from loma.backends.torch.tensors import Host
from loma.backends.torch.timing import Probe, timed
from loma.core import sizes
from loma.core.effects import is_blank
from loma.core.ir import (
    INT, Assign, CallStmt, Declare, Expr, For, If, Index, IntConst, Member, Return, Stmt,
    TensorType, Type, Unpack, Var, While, Zero,
)  # fmt: skip
from loma.core.printer import print_type
from loma.errors.spans import line_in_file


class Statements:
    """Writes the statements of one function. ``probes``: where the timers of statements are listed,
    None to write none. ``device`` runs the loops; scalar functions have none."""

    def __init__(
        self,
        context: CppContext,
        host: Host,
        writer: Writer,
        device: Device | None = None,
        probes: list[Probe] | None = None,
    ) -> None:
        self.context = context
        self.host = host
        self.writer = writer
        self._device = device
        self._probes = probes
        self.declared: set[str] = {param.name for param in context.function.params}

    @property
    def device(self) -> Device:
        assert self._device is not None
        return self._device

    def nodes(self, nodes: Sequence[HostNode]) -> None:
        for node in nodes:
            self._node(node)

    def _node(self, node: HostNode) -> None:
        writer, context = self.writer, self.context
        match node:
            case Unit(source, body, fresh, more):
                self._unit((source, *more), body, fresh)
            case Run(stmt):
                self._run(stmt)
            case Reserve(var):
                self.declared.add(var.name)
                writer.line(f"loma::Tensor {context.variable(var)};")
            case Allocate():
                self._allocate(node)
            case Clear():
                self._clear(node)
            case Drop(var, wanted):
                name = context.variable(var)
                writer.line(f"if ({cpp_name(wanted.name)} == 0) {name} = loma::Tensor();")
            case Permute(var, operand, order):
                numbers = ", ".join(map(str, order))
                copy = f"loma::permuted({context.variable(operand)}, {{{numbers}}})"
                writer.declare(f"const loma::Tensor {context.variable(var)} = {copy};")
            case Later(var, body, value):
                name, type_ = context.variable(var), scalar_type(var.type, value.span)
                with writer.block(f"const auto {name} = [&]() -> {type_}", ";"):
                    self.nodes(body)
                    writer.line(f"return {c.text(self.host.value(value))};")
                self.host.later.add(var.name)
            case CheckRange() | CheckSome() | CheckOnce():
                checks.write_check(self, node)
            case Contract() | Convolve():
                libraries.write_call(writer, context, node)
            case GroupedContract(otherwise=otherwise):
                libraries.write_groups(writer, context, node, lambda: self.nodes(otherwise))
            case Parallel() | InPlace():
                self.device.write(self, node)
            case Branch(source, condition, then, other):
                self._stand_at(source)
                rest = (lambda: self.nodes(other)) if other else None
                self.branch(condition, lambda: self.nodes(then), rest)
            case Count(source, extent, body):
                self._stand_at(source)
                self.count(source, extent, lambda: self.nodes(body))
            case Repeat(source, condition, body):
                self._stand_at(source)
                self.repeat(source, condition, lambda: self.nodes(body))
            case Serial(source):
                with self._timed([source]):
                    self.device.write(self, node)
            case Launch(kernel=kernel):  # one unit, which moves nothing of its private tensors
                private = frozenset({*kernel.gone, *(var.name for var in kernel.private)})
                title = f"kernel over {', '.join(axis.name for axis in kernel.axes)}"
                with self._timed(kernel.source, private=private, title=title):
                    self.device.write(self, node)
            case Stream(panels=panels):  # the steps are timed one by one
                title = f"panels of {panels.axis.name}: what surrounds the steps"
                one_by_one = self._probes is not None  # so that no two times count the same second
                node = replace(node, apart=node.apart and not one_by_one)
                with self._timed((), title=title):
                    self.device.write(self, node)
            case Group() | Spread() | Carry() | Pass() | PairsPass() | Either() | Lanes():
                self.device.write(self, node)
            case _:
                assert_never(node)

    def _unit(self, source: Sequence[Stmt], body: tuple[HostNode, ...], fresh: bool) -> None:
        self._stand_at(source[0])
        for stmt in source:
            self.comment(stmt)
        if not body:
            return
        with self._timed(source, fresh, title="one loop" if len(source) > 1 else ""):
            inner = Writer()
            before, self.writer = self.writer, inner
            self.nodes(body)
            self.writer = before
            serial = self.context.looked_up is not None and len(inner.lines) > 1
            if inner.declares or serial:
                with self.writer.block():
                    self.writer.extend(inner.lines)
            else:
                self.writer.extend(inner.lines)

    def _timed(
        self,
        block: Sequence[Stmt],
        fresh: bool = False,
        private: frozenset[str] = frozenset(),
        title: str = "",
    ) -> AbstractContextManager[None]:
        return timed(self._probes, self.context, self.writer, block, fresh, private, title)

    def _stand_at(self, stmt: Stmt) -> None:
        if stmt.span.line:
            self.context.current = stmt.span

    def comment(self, stmt: Stmt) -> None:
        if not isinstance(stmt, If | For | While | Return) and not is_blank(stmt):
            self.writer.comment(statement_text(stmt))

    # -------------------------------------------------------------------------------- memory

    def _allocate(self, node: Allocate) -> None:
        var, writer = node.var, self.writer
        assert isinstance(var.type, TensorType)
        name = self.context.variable(var)
        made = self.host.allocate(var.type, "zeros" if node.zeros else "empty")
        if node.declares:
            self.declared.add(var.name)
            writer.line(f"loma::Tensor {name} = {made};")
            return
        tests = [f"!{name}.defined()"] if node.unless else []
        if node.wanted is not None:
            tests.insert(0, f"{cpp_name(node.wanted.name)} != 0")
        guard = f"if ({' && '.join(tests)}) " if tests else ""
        writer.line(f"{guard}{name} = {made};")

    def _clear(self, node: Clear) -> None:
        context, name = self.context, self.context.variable(node.var)
        if node.var.name in (context.pointers or ()) or context.looked_up is not None:
            self.device.write(self, node)
        elif node.if_allocated:
            self.writer.line(f"if ({name}.defined()) {name}.zero_();")
        else:
            self.writer.line(f"{name}.zero_();")

    # ----------------------------------------------------------------------- loops and branches

    def branch(
        self, condition: Expr, then: Callable[[], None], other: Callable[[], None] | None
    ) -> None:
        with self.writer.block(f"if ({c.text(self.host.condition(condition))})"):
            then()
        if other is not None:
            with self.writer.block("else"):
                other()

    def count(self, stmt: For, extent: Expr, body: Callable[[], None]) -> None:
        name = cpp_name(stmt.counter)
        value = self.host.value(extent, INT)
        is_size = isinstance(extent, Var) and extent.name in self.context.sizes
        if not is_size and not isinstance(extent, IntConst):
            count = self.context.temporary("count")
            self.writer.line(f"const int64_t {count} = {c.item_text(value)};")
            value = c.Token(count)
        if stmt.backwards:
            last = c.text(c.Binary("-", value, c.number(1)))
            head = f"int64_t {name} = {last}; {name} >= 0; --{name}"
        else:
            head = f"int64_t {name} = 0; {name} < {c.text(value)}; ++{name}"
        with self.writer.block(f"for ({head})"):
            body()

    def repeat(self, stmt: While, condition: Expr, body: Callable[[], None]) -> None:
        count = self.context.temporary("count")
        line = self.context.line(stmt.span)
        name = cpp_string(self.context.function_at(line))
        self.writer.line(f"int64_t {count} = 0;")
        with self.writer.block(f"while ({c.text(self.host.condition(condition))})"):
            error = f"loma::while_error({name}, {line_in_file(line)}, {stmt.max_iter});"
            if self.context.machine.teams:  # text for devices cannot throw
                error = f"{{ {error} break; }}"
            self.writer.line(f"if ({count}++ == {stmt.max_iter}) {error}")
            body()

    # ---------------------------------------------------------------------------- statements

    def _run(self, stmt: Stmt) -> None:
        match stmt:
            case Declare():
                self._declare(stmt)
            case Assign():
                self._assign(stmt)
            case Unpack():
                self._unpack(stmt)
            case Zero(Var() as target):
                self.writer.line(f"{self.context.variable(target)} = 0;")
            case CallStmt(call):
                self.writer.line(f"{c.text(self.host.value(call))};")
            case Return(values):
                self._return(values)
            case _:
                raise AssertionError(stmt)

    def _declare(self, stmt: Declare) -> None:
        target, value = stmt.target, stmt.value
        name = self.context.variable(target)
        self.declared.add(target.name)
        if isinstance(target.type, TensorType):
            assert value is not None
            self.writer.line(f"loma::Tensor {name} = {self._checked(target, value)};")
            return
        ctype = scalar_type(target.type, target.span)
        text = "0" if value is None else c.item_text(self.host.value(value, target.type))
        self.writer.line(f"{ctype} {name} = {text};")

    def _checked(self, target: Var, value: Expr) -> str:
        """A tensor value for a variable, with a check of its sizes where they may differ."""
        text = self.host.stored(target.name, value)
        if _same_dims(target.type, value.type):
            return text
        return self._shaped(text, target, value)

    def _shaped(self, text: str, target: Var, value: Expr) -> str:
        place = self.context.place(self.context.line(target.span))
        what = f"{place}'{target.name}' must be {_must_be(target.type, value.type)}"
        return self.host.shaped(text, target.type, what)

    def _assign(self, stmt: Assign) -> None:
        target, value = stmt.target, stmt.value
        if isinstance(target, Index | Member):
            scalar_type(_root_type(target), stmt.span)
            raise errors.BackendLacksOperator(
                "the libtorch backend cannot assign to this place", stmt.span
            )
        name = self.context.variable(target)
        if not isinstance(target.type, TensorType):
            text = c.item_text(self.host.value(value, target.type))
            self.writer.line(f"{name} {stmt.op} {text};")
        elif stmt.op == "=":
            self.writer.line(f"{name} = {self._checked(target, value)};")
        else:
            if _same_dims(target.type, value.type):
                self.writer.line(f"{self.host.added(target, value)};")
                return
            text = self._shaped(self.host.apart(target, value), target, value)
            self.writer.line(f"{name}.add_({text});")

    def _unpack(self, stmt: Unpack) -> None:
        writer, context = self.writer, self.context
        for target in stmt.targets:
            if target.name not in self.declared:
                self.declared.add(target.name)
                writer.line(f"{context.ctype(target.type, target.span)} "
                            f"{context.variable(target)}{{}};")  # fmt: skip
        with writer.block():
            writer.line(f"auto results_ = {c.item_text(self.host.value(stmt.call))};")
            roots = {arg.name for arg in stmt.call.args if isinstance(arg, Var)} | {
                target.name for target in stmt.targets
            }
            for k, target in enumerate(stmt.targets):
                result = f"std::get<{k}>(results_)"
                name = context.variable(target)
                if not isinstance(target.type, TensorType):
                    ctype = scalar_type(target.type, target.span)
                    writer.line(f"{name} = static_cast<{ctype}>({result});")
                    continue
                text = f"std::move({result})"
                if roots & context.mutated:
                    text = f"loma::own({text})"
                elif target.name in context.dense:
                    text = f"loma::dense({text})"
                place = f"{context.place(context.line(target.span))}'{target.name}'"
                writer.line(f"{name} = {self.host.shaped(text, target.type, place)};")

    def _return(self, values: tuple[Expr, ...]) -> None:
        results = self.context.function.results
        texts = []
        for k, (value, type_) in enumerate(zip(values, results, strict=True)):
            if not isinstance(type_, TensorType):
                texts.append(c.item_text(self.host.value(value, type_)))
                continue
            text = self.host.tensor(value)
            if not _same_dims(type_, value.type):
                place = self.context.place(self.context.line(value.span))
                label = "the result" if len(results) == 1 else f"result {k + 1}"
                what = f"{place}{label} must be {_must_be(type_, value.type)}"
                text = self.host.shaped(text, type_, what)
            texts.append(text)
        if len(texts) == 1:
            self.writer.line(f"return {texts[0]};")
        elif texts:
            self.writer.line(f"return {{{', '.join(texts)}}};")


def _must_be(wanted: Type, found: Type) -> str:
    return f"{print_type(wanted)}, found {print_type(found)}, which"  # has sizes ...


def _same_dims(target: Type, value: Type) -> bool:
    """Whether a value's sizes are provably those of a type."""
    if not isinstance(target, TensorType) or target.dims is None:
        return True
    return isinstance(value, TensorType) and sizes.same(target.dims, value.dims)


def _root_type(place: Expr) -> Type:
    while isinstance(place, Index | Member):
        place = place.base
    return place.type
