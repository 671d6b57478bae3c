"""Statements of a function as C++."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from loma import errors
from loma.backends.kernels.ir import Kernel, Nested, Step, Tiled, as_statement
from loma.backends.libtorch import serial, storage
from loma.backends.libtorch.access import without_no_diff
from loma.backends.libtorch.context import FunctionContext
from loma.backends.libtorch.expressions import (
    body_name, scalar_function_name, scalar_type, strip,
)  # fmt: skip
from loma.backends.libtorch.joined import write_joined
from loma.backends.libtorch.kernels import write_kernel, write_tiles, write_zero
from loma.backends.libtorch.loops import is_library_call, write_index_assign
from loma.backends.libtorch.names import cpp_name, cpp_string
from loma.backends.libtorch.once import write_once_checks
from loma.backends.libtorch.serial import is_serial, write_serial
from loma.backends.libtorch.tensors import Host
from loma.backends.libtorch.timing import timed, timed_kernel, timed_tiles
from loma.backends.writer import Writer
from loma.core import sizes
from loma.core.ir import (
    INT, Assign, AtomicAdd, Call, CallStmt, Declare, Expr, For, If, Index, IndexAssign, Member,
    NoDiff, Pop, Push, Reduce, Return, Stmt, TensorType, Type, Unpack, Var, While, Zero,
    is_tensor_function,
)  # fmt: skip
from loma.core.printer import print_stmt, print_type
from loma.core.walk import blocks, free_variables, map_children, mentioned_names, own_names, root
from loma.errors.spans import line_in_file

_COMMENT_LINES = 12


class Statements:
    """Writes the statements of one function.

    ``ready`` are the declared tensors that are surely allocated where the writing stands,
    ``touched`` those that an earlier statement may have allocated.
    """

    def __init__(self, context: FunctionContext, host: Host, writer: Writer) -> None:
        self.context = context
        self.host = host
        self.writer = writer
        self.lazy: dict[str, TensorType] = {}
        self.ready: set[str] = set()
        self.touched: set[str] = set()
        self.private: set[str] = set()  # tensors that live inside kernels alone
        self.declared: set[str] = {param.name for param in context.function.params}
        # In a backward function an adjoint that nobody wants stays undefined: its last parameters
        # say which results are wanted.
        function = context.function
        is_backward = function.half == "backward"
        self.needs = function.params[-len(function.results) :] if is_backward else ()

    def block(self, steps: tuple[Step, ...], outermost: bool) -> None:
        fresh: set[int] = set()
        block = tuple(map(as_statement, steps))
        done = 0
        for position, (step, stmt) in enumerate(zip(steps, block, strict=True)):
            if position < done:
                continue
            if self.context.kernel is not None and id(stmt) in self.context.kernel.joined:
                found = self.context.kernel.joined[id(stmt)]
                blank = {k - position for k in fresh}
                write_joined(self.writer, self.context, found, blank)
                done = position + len(found.statements)
                continue
            if isinstance(step, Kernel):
                with timed_kernel(self.context, self.writer, step):
                    write_kernel(self, step, outermost)
                self.touched |= mentioned_names((stmt,))
                continue
            if isinstance(step, Tiled):
                with timed_tiles(self.context, self.writer, step):
                    write_tiles(self, step, outermost)
                self.touched |= mentioned_names((stmt,))
                continue
            if stmt.span.line:
                self.context.current = stmt.span
            self._comment(stmt)
            if isinstance(step, Nested):
                self._steps(step, outermost)
                self.touched |= mentioned_names((stmt,))
                continue
            target = _zeroed_tensor(stmt)
            if target is not None:
                later = storage.zeroed_before(block, position, target.name)
                if later is not None:
                    fresh.add(later)
                else:
                    with timed(self.context, self.writer, [stmt]):
                        self._zero(target)
                continue
            if blocks(stmt):
                self._prepare(stmt, outermost)
                self._statement(stmt, False, outermost)
            else:
                with timed(self.context, self.writer, [stmt]) as unit:
                    unit.fresh = self._prepare(stmt, outermost) or position in fresh
                    self._statement(stmt, unit.fresh, outermost)
            if not isinstance(stmt, Declare) or stmt.value is not None:
                self.touched |= mentioned_names((stmt,))

    def _comment(self, stmt: Stmt) -> None:
        if isinstance(stmt, If | For | While | Return) or (
            isinstance(stmt, Declare) and stmt.value is None
        ):
            return
        line = f"line {line_in_file(stmt.span.line)}: " if stmt.span.line else ""
        lines = print_stmt(stmt).split("\n")
        if len(lines) > _COMMENT_LINES:
            lines = [*lines[:_COMMENT_LINES], "..."]
        text = "\n".join(lines)
        self.context.statement_text = f"{line}{text}"
        self.writer.comment(self.context.statement_text)

    # ------------------------------------------------------------------------------- allocation

    def _prepare(self, stmt: Stmt, outermost: bool) -> bool:
        """Allocates what the statement uses for the first time. Whether its target is all zero
        still, so that an index statement may assign instead of adding."""
        fresh = False
        for name in sorted(own_names(stmt)):
            if name not in self.lazy or name in self.ready:
                continue
            if isinstance(stmt, Return) and self.needs:
                self._allocate_wanted(stmt, name)
                continue
            unknown = not outermost or name in self.touched
            if storage.is_whole(stmt, name) and storage.overwrites(stmt, name):
                self.ready.add(name)
                continue
            made = (
                isinstance(stmt, IndexAssign)
                and name == root(stmt.target)
                and is_library_call(stmt)
            )
            whole = made or storage.overwrites(stmt, name)
            adds = isinstance(stmt, IndexAssign) and stmt.op == "+="
            blank = whole and not (adds and unknown)
            fresh = fresh or (blank and not unknown)
            self.ready.add(name)
            if blank and made:
                continue  # the result is a new tensor
            self.allocate(name, "empty" if blank else "zeros", outermost)
        return fresh

    def allocate(self, name: str, function: str, outermost: bool) -> None:
        """Allocates a declared tensor, if no statement before has; ``loma::empty`` or ``zeros``."""
        variable = cpp_name(name)
        made = self.host.allocate(self.lazy[name], function)
        unknown = not outermost or name in self.touched
        guard = f"if (!{variable}.defined()) " if unknown else ""
        self.writer.line(f"{guard}{variable} = {made};")
        self.ready.add(name)

    def _allocate_wanted(self, stmt: Return, name: str) -> None:
        """Allocates a result that no statement before has written to, if it is wanted."""
        variable = cpp_name(name)
        for value, need in zip(stmt.values, self.needs, strict=True):
            if value == Var(name, value.type):
                wanted = f"{cpp_name(need.name)} != 0 && !{variable}.defined()"
                made = self.host.allocate(self.lazy[name], "zeros")
                self.writer.line(f"if ({wanted}) {variable} = {made};")

    def _zero(self, target: Var) -> None:
        name = target.name
        if self.context.kernel is not None and name in self.context.kernel.private:
            write_zero(self, target)
            return
        if self.context.serial is not None:
            serial.write_zero(self, target)
            return
        variable = self.context.variable(target)
        if name in self.lazy and name not in self.ready:
            self.writer.line(f"if ({variable}.defined()) {variable}.zero_();")
        else:
            self.writer.line(f"{variable}.zero_();")

    def _nested(self, block: tuple[Step, ...], outermost: bool = False) -> None:
        """A branch runs at most once where the ``if`` does, a loop's body any number of times."""
        ready = set(self.ready)
        self.block(block, outermost)
        self.ready = ready

    def inside_kernel(self, body: tuple[Stmt, ...]) -> None:
        """Writes the statements of a kernel: all that they use is allocated."""
        lazy, self.lazy = self.lazy, {}
        probes, self.context.probes = self.context.probes, None  # the kernel is timed as a whole
        self.block(body, outermost=False)
        self.lazy, self.context.probes = lazy, probes

    def inside_tile(self, tiles: Tiled) -> None:
        """Writes the steps of a tile, whose temporaries are new each time."""
        lazy, self.lazy = self.lazy, {}
        for var in tiles.temporaries:
            assert isinstance(var.type, TensorType)
            self.lazy[var.name] = var.type
            self.writer.line(f"at::Tensor {cpp_name(var.name)};")
        self.block(tiles.body, outermost=True)
        self.lazy = lazy

    def _steps(self, step: Nested, outermost: bool) -> None:
        """A statement with blocks that has kernels inside."""
        match step.stmt:
            case If(cond):
                then, other = step.blocks
                self._if(cond, then, other, outermost)
            case For():
                self.loop(step.stmt, step.blocks[0])
            case While():
                self.loop_while(step.stmt, step.blocks[0])
            case _:
                assert_never(step.stmt)

    # ------------------------------------------------------------------------------- statements

    def _statement(self, stmt: Stmt, fresh: bool, outermost: bool) -> None:
        writer = self.writer
        match stmt:
            case Declare():
                self._declare(stmt)
            case Assign():
                self._assign(stmt)
            case IndexAssign():
                self._index_assign(stmt, fresh)
            case Unpack():
                self._unpack(stmt)
            case Zero(Var() as target):
                writer.line(f"{self.context.variable(target)} = 0;")
            case AtomicAdd(target, value):
                self._assign(Assign(target, "+=", value, stmt.span))
            case Zero() | Push() | Pop():
                raise errors.BackendLacksOperator(
                    "the libtorch backend has no arrays, structs and stacks in functions that work "
                    "on tensors",
                    stmt.span,
                    hint="put what needs them into a scalar function, and call it",
                )
            case If(cond, then, other):
                self._if(cond, then, other, outermost)
            case For() | While() if self.context.serial is None and is_serial(
                stmt, self.context.module
            ):
                write_serial(self, stmt)
            case For():
                self.loop(stmt, stmt.body)
            case While():
                self.loop_while(stmt, stmt.body)
            case CallStmt():
                self._call(stmt)
            case Return(values):
                self._return(values)
            case _:
                assert_never(stmt)

    def _declare(self, stmt: Declare) -> None:
        target, value = stmt.target, stmt.value
        name = self.context.variable(target)
        self.declared.add(target.name)
        if not isinstance(target.type, TensorType):
            ctype = scalar_type(target.type, target.span)
            text = "0" if value is None else strip(self.host.value(value, target.type))
            self.writer.line(f"{ctype} {name} = {text};")
        elif value is not None:
            self.writer.line(f"at::Tensor {name} = {self._checked(target, value)};")
        else:
            if target.name in self.private:
                return
            early = target.type.dims is None or self.context.dims(target) != target.type.dims
            if early:
                self.writer.line(f"at::Tensor {name} = {self.host.allocate(target.type, 'zeros')};")
            else:
                self.lazy[target.name] = target.type
                self.writer.line(f"at::Tensor {name};")

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
            text = strip(self.host.value(value, target.type))
            self.writer.line(f"{name} {stmt.op} {text};")
        elif stmt.op == "=":
            self.writer.line(f"{name} = {self._checked(target, value)};")
        else:
            if _same_dims(target.type, value.type):
                self.writer.line(f"{self.host.added(target, value)};")
                return
            text = self._shaped(self.host.tensor(value), target, value)
            self.writer.line(f"{name}.add_({text});")

    def _index_assign(self, stmt: IndexAssign, fresh: bool) -> None:
        inner = Writer()
        write_once_checks(inner, self.context, stmt)
        plain = hoisted(stmt, self.context, self.host, inner)
        write_index_assign(inner, self.context, plain, fresh)
        if inner.declares or (self.context.serial is not None and len(inner.lines) > 1):
            with self.writer.block():
                self.writer.extend(inner.lines)
        else:
            self.writer.extend(inner.lines)

    def _unpack(self, stmt: Unpack) -> None:
        writer, context = self.writer, self.context
        for target in stmt.targets:
            if target.name not in self.declared and target.name not in self.lazy:
                self.declared.add(target.name)
                writer.line(f"{context.ctype(target.type, target.span)} "
                            f"{context.variable(target)}{{}};")  # fmt: skip
        callee = self.host.callee(stmt.call)
        if is_tensor_function(callee):
            call = f"{body_name(callee.name)}<real>({self.host.arguments(stmt.call)})"
        else:
            call = self.host.value(stmt.call)
        with writer.block():
            writer.line(f"auto results_ = {call};")
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

    def _if(
        self, cond: Expr, then: tuple[Step, ...], other: tuple[Step, ...], outermost: bool
    ) -> None:
        with self.writer.block(f"if ({strip(self.host.condition(cond))})"):
            self._nested(then, outermost)
        if other:
            with self.writer.block("else"):
                self._nested(other, outermost)

    def loop(self, stmt: For, body: tuple[Step, ...]) -> None:
        name = cpp_name(stmt.counter)
        extent = strip(self.host.value(stmt.extent, INT))
        if not extent.isdigit() and extent not in map(cpp_name, self.context.sizes):
            count = self.context.temporary("count")
            self.writer.line(f"const int64_t {count} = {extent};")
            extent = count
        head = (
            f"for (int64_t {name} = {extent} - 1; {name} >= 0; --{name})"
            if stmt.backwards
            else f"for (int64_t {name} = 0; {name} < {extent}; ++{name})"
        )
        with self.writer.block(head), self.context.counting(stmt):
            self._nested(body)

    def loop_while(self, stmt: While, body: tuple[Step, ...]) -> None:
        count = self.context.temporary("count")
        line = line_in_file(stmt.span.line or self.context.current.line)
        function = self.context.function
        name = cpp_string(function.primal or function.name)
        self.writer.line(f"int64_t {count} = 0;")
        with self.writer.block(f"while ({strip(self.host.condition(stmt.cond))})"):
            self.writer.line(
                f"if ({count}++ == {stmt.max_iter}) "
                f"loma::while_error({name}, {line}, {stmt.max_iter});"
            )
            self._nested(body)

    def _call(self, stmt: CallStmt) -> None:
        callee = self.host.callee(stmt.call)
        if is_tensor_function(callee):
            name = body_name(callee.name)
            self.writer.line(f"{name}<real>({self.host.arguments(stmt.call)});")
        else:
            name = scalar_function_name(callee.name)
            self.writer.line(f"{name}<real>({self.host.arguments(stmt.call)});")

    def _return(self, values: tuple[Expr, ...]) -> None:
        results = self.context.function.results
        texts = []
        for k, (value, type_) in enumerate(zip(values, results, strict=True)):
            if not isinstance(type_, TensorType):
                texts.append(strip(self.host.value(value, type_)))
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


def hoisted(stmt: IndexAssign, context: FunctionContext, host: Host, writer: Writer) -> IndexAssign:
    """The statement with whole-tensor values and calls of tensor functions computed before it."""
    axes = frozenset(axis.name for axis in stmt.axes)

    def visit(expr: Expr, bound: frozenset[str]) -> Expr:
        match expr:
            case Index(base) if not isinstance(base, Var) and isinstance(base.type, TensorType):
                while isinstance(base, NoDiff):
                    base = base.operand
                if isinstance(base, Var):
                    return visit(replace(expr, base=base), bound)
                tensor = context.temporary_tensor("value", base.type)  # type: ignore[arg-type]
                text = f"loma::dense({host.tensor(base)})"
                writer.declare(f"const at::Tensor {context.variable(tensor)} = {text};")
                subscripts = tuple(visit(s, bound) for s in expr.subscripts)
                return replace(expr, base=tensor, subscripts=subscripts)
            case Call(name) if is_tensor_function(context.module.function(name)):
                if free_variables(expr) & bound:
                    raise errors.BackendLacksOperator(
                        f"'{name}' works on whole tensors; its value inside an index statement "
                        "must not depend on the indices",
                        expr.span,
                    )
                scalar = context.temporary("value")
                context.names[f"@{scalar}"] = scalar
                ctype = scalar_type(expr.type, expr.span)
                writer.declare(f"const {ctype} {scalar} = {host.value(expr)};")
                return Var(f"@{scalar}", expr.type)
            case Reduce(_, _, own):
                inner = bound | {axis.name for axis in own}
                return map_children(expr, lambda child: visit(child, inner))
            case _:
                return map_children(expr, lambda child: visit(child, bound))

    return replace(stmt, value=visit(without_no_diff(stmt.value), axes))


def _must_be(wanted: Type, found: Type) -> str:
    return f"{print_type(wanted)}, found {print_type(found)}, which"  # has sizes ...


def _same_dims(target: Type, value: Type) -> bool:
    """Whether a value's sizes are provably those of a type."""
    if not isinstance(target, TensorType) or target.dims is None:
        return True
    return isinstance(value, TensorType) and sizes.same(target.dims, value.dims)


def _zeroed_tensor(stmt: Stmt) -> Var | None:
    match stmt:
        case Zero(Var() as target) if isinstance(target.type, TensorType):
            return target
        case _:
            return None


def _root_type(place: Expr) -> Type:
    while isinstance(place, Index | Member):
        place = place.base
    return place.type
