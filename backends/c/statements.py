"""Statements as C."""

from __future__ import annotations

from typing import assert_never

from loma import errors
from loma.backends.c.context import FunctionContext, Temporary, is_by_value
from loma.backends.c.copies import Copies
from loma.backends.c.places import PRODUCT
from loma.backends.c.ranges import bounds
from loma.backends.writer import Writer
from loma.core.aliases import meetings
from loma.core.effects import assigned
from loma.core.ir import (
    FLOAT, INT, ArrayType, Assign, AtomicAdd, Builtin, Call, CallStmt, Declare, Expr, For, If,
    IndexAssign, IntConst, Param, Place, Pop, Push, Return, StackType, Stmt, StructType, Type,
    Unpack, Var, While, Zero,
)  # fmt: skip
from loma.core.walk import expressions, statements, walk
from loma.errors.spans import Span

_SMALL_TAPE = 8 * 1024  # bytes: what a stack of known capacity may take of the C stack


class Statements(Copies):
    """Writes the body of one function."""

    def __init__(self, context: FunctionContext, writer: Writer) -> None:
        super().__init__(context, writer)
        self._declared = {param.name for param in context.function.params}
        self._owned: list[str] = []  # C names of pointers to memory that the function releases
        self._sizes: dict[str, str] = {}  # C names of the sizes of stacks
        self._rooms: dict[str, str] = {}  # and of the capacities of those that grow

    def body(self) -> None:
        """All of it, and the release of its memory."""
        context = self.context
        for param in context.function.params:
            if param.name in context.unread:
                self.writer.line(f"(void){context.passed(param.name)};")
            elif is_by_value(param) and context.passed(param.name) != context.name(param.name):
                self._copy_given(param)
        if context.item and not _asks_for_item(context.function.body):
            self.writer.line(f"(void){context.item};")
        start = len(self.writer.lines)
        self.block(context.function.body)
        if not context.function.results:
            self._release()
        first = Writer(self.writer.depth)
        for made in context.temporaries:
            first.line(self._declared_temporary(made))
        self.writer.lines[start:start] = first.lines

    def _copy_given(self, param: Param) -> None:
        """The function's own struct, from the one that is passed by pointer."""
        given, copy = self.context.passed(param.name), Var(param.name, param.type, param.span)
        if self._is_large(param.type):
            self._declare_large(copy)
        else:
            self.writer.line(
                f"{self.context.types.declare(param.type, self.context.name(param.name))};"
            )
        self.writer.line(f"{self.destination(copy)} = *{given};")

    def _declared_temporary(self, made: Temporary) -> str:
        if not made.on_heap:
            return f"{self.context.types.declare(made.type, made.name)};"
        declared = self.context.types.declare(made.type, f"*{made.name}")
        place = self.context.place(self.context.function.span)
        return f"{declared} = {self.context.helper('allocate')}(1, sizeof *{made.name}, {place});"

    def block(self, body: tuple[Stmt, ...]) -> None:
        for stmt in body:
            self.statement(stmt)

    def statement(self, stmt: Stmt) -> None:
        self.span, self.context.line = stmt.span, stmt.span.line
        line = self.writer.line
        match stmt:
            case Declare(target, value):
                self._declare(target, value)
            case Assign(target, "=", value):
                self.assign(target, value)
            case Assign(target, _, value):
                line(self._increment(target, value))
            case AtomicAdd(target, value):
                self._atomic_add(target, value)
            case Zero(target):
                self.zero(target)
            case Push(stack, value):
                self._push(stack, value)
            case Pop(stack, target):
                self._pop(stack, target)
            case If(cond, then, other):
                self._if(cond, then, other)
            case For():
                self._for(stmt)
            case While():
                self._while(stmt)
            case CallStmt(call):
                self._check_apart(call, stmt.span)
                line(f"{self.call(call)[0]};")
            case Unpack():
                self._unpack(stmt)
            case Return(values):
                self._return(values)
            case IndexAssign():
                raise errors.BackendLacksOperator(
                    "the C backend has no index statements", stmt.span, hint="write a loop"
                )
            case _:
                assert_never(stmt)

    def _check_apart(self, call: Call, span: Span) -> None:
        """Checks arguments of which only subscripts tell whether they are one storage."""
        for first, second, meet in self._meetings(call):
            numbers = f"{first + 1}, {second + 1}, {self.context.place(span)}"
            apart = self.context.failing("apart")
            self.writer.line(f"{apart}({self.condition(meet)}, {numbers});")

    def _meetings(self, call: Call) -> list[tuple[int, int, Expr]]:
        module = self.context.module
        return meetings(call, module.functions[call.function], module.structs)

    # ------------------------------------------------------------------------------- declarations

    def _declare(self, target: Var, value: Expr | None) -> None:
        type_, name = target.type, self.context.name(target.name)
        self._declared.add(target.name)
        if isinstance(type_, StackType):
            self._declare_stack(target.name, type_)
        elif self._is_large(type_):
            self._declare_large(target)
            if value is not None:
                self.assign(target, value)
        elif value is None:
            zero = "{0}" if isinstance(type_, ArrayType | StructType) else self.zero_text(type_)
            self.writer.line(f"{self.context.types.declare(type_, name)} = {zero};")
        elif isinstance(type_, ArrayType):
            self.writer.line(f"{self.context.types.declare(type_, name)};")
            self.assign(target, value)
        else:
            declared = self.context.types.declare(type_, name)
            self.writer.line(f"{declared} = {self.text(value, type_)};")
        if target.name in self.context.unread:
            self.writer.line(f"(void){name};")

    def _is_large(self, type_: Type) -> bool:
        """Whether a variable stands on the heap: the C stack has little room."""
        if not isinstance(type_, ArrayType | StructType):
            return False
        return not self.context.frame.holds(self.context.types.bytes(type_))

    def _declare_large(self, target: Var) -> None:
        name, type_ = self.context.name(target.name), target.type
        count, element = 1, type_
        if isinstance(type_, ArrayType):
            assert type_.size is not None
            count, element = type_.size, type_.element
        else:
            self.context.pointers.add(target.name)
        declared = self.context.types.declare(element, f"*{name}")
        place = self.context.place(target.span)
        allocate = self.context.failing("allocate")
        self.writer.line(f"{declared} = {allocate}({count}, sizeof *{name}, {place});")
        self._owned.append(name)

    def _release(self) -> None:
        made = [made.name for made in self.context.temporaries if made.on_heap]
        for name in [*self._owned, *made]:
            self.writer.line(f"{self.context.helper('release')}({name});")

    def _unpack(self, stmt: Unpack) -> None:
        call, context = stmt.call, self.context
        text, results = self.call(call)
        types = context.module.functions[call.function].results
        if results:
            self.writer.line(f"{text};")
            values = [result.value for result in results]
        else:
            result, name = context.fresh("results"), context.module.results[call.function]
            self.writer.line(f"{name} {result} = {text};")
            values = [f"{result}.value_{k}" for k in range(len(types))]
        for value, target, type_ in zip(values, stmt.targets, types, strict=True):
            if target.type == INT and type_ == FLOAT:
                value = f"{context.helper('to_int')}({value})"
            if target.name not in self._declared and not self._is_large(target.type):
                self._declared.add(target.name)
                declared = context.types.declare(target.type, context.name(target.name))
                self.writer.line(f"{declared} = {value};")
            else:
                if target.name not in self._declared:
                    self._declared.add(target.name)
                    self._declare_large(target)
                self.writer.line(f"{self.destination(target)} = {value};")
            if target.name in context.unread:
                self.writer.line(f"(void){context.name(target.name)};")

    def _return(self, values: tuple[Expr, ...]) -> None:
        results, targets = self.context.function.results, self.context.targets
        texts = [self.text(value, type_) for value, type_ in zip(values, results, strict=True)]
        if targets:
            for target, text in zip(targets, texts, strict=True):
                self.writer.line(f"*{target} = {text};")
            self._release()
            if len(targets) == 1:
                self.writer.line(f"return {targets[0]};")
            return
        if len(texts) > 1:
            kind = self.context.module.results[self.context.function.name]
            text = f"({kind}){{{', '.join(texts)}}}"
        else:
            kind, text = self.context.types.base(results[0]), texts[0]
        if self._owned or any(made.on_heap for made in self.context.temporaries):
            # what is returned may stand in memory that is released
            name = self.context.fresh("result")
            self.writer.line(f"{kind} {name} = {text};")
            self._release()
            text = name
        self.writer.line(f"return {text};")

    # --------------------------------------------------------------------------------- assignments

    def _increment(self, target: Place, value: Expr) -> str:
        place = self.destination(target)
        if target.type == INT and value.type == FLOAT:
            helper = self.context.helper("to_int")
            return f"{place} = {helper}({place} + {self.at(value, PRODUCT)});"
        return f"{place} += {self.text(value, target.type)};"

    def _atomic_add(self, target: Place, value: Expr) -> None:
        text = f"{self.destination(target)} += {self.text(value, target.type)};"
        context = self.context
        if context.function.name in context.module.concurrent and not context.is_local(target):
            context.module.helpers.add("openmp")
            self.writer.line("LOMA_OPENMP(atomic)")
        self.writer.line(text)

    # ------------------------------------------------------------------------------ blocks, loops

    def _if(self, cond: Expr, then: tuple[Stmt, ...], other: tuple[Stmt, ...]) -> None:
        with self.writer.block(f"if ({self.condition(cond)})"):
            self.block(then)
        while len(other) == 1 and isinstance(other[0], If):
            inner = other[0]
            self.context.line = inner.span.line
            with self.writer.otherwise(f"else if ({self.condition(inner.cond)})"):
                self.block(inner.then)
            other = inner.other
        if other:
            with self.writer.otherwise():
                self.block(other)

    def _for(self, stmt: For) -> None:
        context = self.context
        counter, extent = context.name(stmt.counter), self.text(stmt.extent)
        if stmt.backwards:
            head = f"for (int {counter} = {extent}; {counter}-- > 0;)"
        elif self._is_fixed(stmt):
            head = f"for (int {counter} = 0; {counter} < {extent}; ++{counter})"
        else:
            end = context.fresh("end")
            head = f"for (int {counter} = 0, {end} = {extent}; {counter} < {end}; ++{counter})"
        found = bounds(stmt.extent, context.ranges)
        if found is not None:
            context.ranges[stmt.counter] = 0, max(found[1] - 1, 0)
        with self.writer.block(head):
            self.block(stmt.body)
        context.ranges.pop(stmt.counter, None)

    def _is_fixed(self, stmt: For) -> bool:
        """Whether the extent is a constant, or a variable that the loop leaves alone."""
        if isinstance(stmt.extent, IntConst):
            return True
        changed = assigned(stmt.body, self.context.module.functions)
        return isinstance(stmt.extent, Var) and stmt.extent.name not in changed

    def _while(self, stmt: While) -> None:
        context = self.context
        count = context.fresh("count")
        cond = self.condition(stmt.cond)
        with self.writer.block(f"for (int {count} = 0; {cond}; ++{count})"):
            check = context.failing("within")
            place = context.place(stmt.span)
            self.writer.line(f"{check}({count}, {stmt.max_iter}, {place});")
            self.block(stmt.body)
        context.line = stmt.span.line

    # -------------------------------------------------------------------------------------- stacks

    def _declare_stack(self, variable: str, type_: StackType) -> None:
        context, name = self.context, self.context.name(variable)
        size = self._sizes[variable] = context.fresh(f"{name}_size")
        bytes_ = context.types.bytes(type_.element) * (type_.capacity or 0)
        if type_.capacity is not None and bytes_ <= _SMALL_TAPE and context.frame.holds(bytes_):
            array = ArrayType(type_.element, type_.capacity)
            self.writer.line(f"{context.types.declare(array, name)};")
            self.writer.line(f"int {size} = 0;")
        else:
            room = self._rooms[variable] = context.fresh(f"{name}_room")
            self.writer.line(f"{context.types.declare(type_.element, f'*{name}')} = NULL;")
            self.writer.line(f"int {size} = 0, {room} = 0;")
            self._owned.append(name)
        if variable in context.unread:
            self.writer.line(f"(void){name};")
            self.writer.line(f"(void){size};")

    def _push(self, stack: Var, value: Expr) -> None:
        context, type_ = self.context, stack.type
        assert isinstance(type_, StackType)
        name, size = context.name(stack.name), self._sizes[stack.name]
        place = context.place(self.span)
        room = self._rooms.get(stack.name)
        if room is not None:
            known = type_.capacity is not None and type_.capacity < 2**31
            limit = str(type_.capacity) if known else "INT_MAX"
            grown = f"{context.failing('grown')}({name}, {size}, &{room}, {limit}"
            self.writer.line(f"{name} = {grown}, sizeof *{name}, {place});")
            slot = f"{name}[{size}++]"
        else:
            slot = f"{name}[{context.failing('push')}(&{size}, {type_.capacity}, {place})]"
        self.copy(slot, value, type_.element, overlapping=False)

    def _pop(self, stack: Var, target: Place) -> None:
        type_ = stack.type
        assert isinstance(type_, StackType)
        pop = self.context.failing("pop")
        place = self.context.place(self.span)
        top = f"{self.context.name(stack.name)}[{pop}(&{self._sizes[stack.name]}, {place})]"
        self.copy_text(self.destination(target), top, type_.element, overlapping=False)


def _asks_for_item(body: tuple[Stmt, ...]) -> bool:
    return any(
        isinstance(node, Builtin) and node.name == "thread_id"
        for stmt in statements(body)
        for expr in expressions(stmt)
        for node in walk(expr)
    )
