"""Statements as C."""

from __future__ import annotations

from typing import assert_never

from loma import errors
from loma.backends.c.context import FunctionContext, is_by_value
from loma.backends.c.expressions import Expressions
from loma.backends.c.ranges import bounds
from loma.backends.cfamily import syntax as c
from loma.backends.cfamily.writer import Writer
from loma.core.aliases import meetings
from loma.core.effects import assigned
from loma.core.ir import (
    FLOAT, INT, ArrayType, Assign, AtomicAdd, Call, CallStmt, Declare, Expr, For, If, IndexAssign,
    IntConst, Param, Place, Pop, Push, Return, StackType, Stmt, StructType, Type, Unpack, Var,
    While, Zero,
)  # fmt: skip
from loma.core.printer import print_expr
from loma.core.walk import is_place, root
from loma.errors.spans import NOWHERE, Span

_SMALL_TAPE = 8 * 1024  # bytes: what a stack of known capacity may take of the C stack


class Statements(Expressions):
    """Writes the body of one function."""

    def __init__(self, context: FunctionContext, writer: Writer) -> None:
        super().__init__(context)
        self.writer = writer
        self.span: Span = NOWHERE
        self._declared = {param.name for param in context.function.params}
        self._owned: list[str] = []  # C names of large variables and stacks, which are pointers
        self._sizes: dict[str, str] = {}  # C names of the sizes of stacks
        self._rooms: dict[str, str] = {}  # and of the capacities of those that grow

    def body(self) -> None:
        """All of it, and the release of its memory."""
        context = self.context
        for param in context.function.params:
            if param.name in context.unread:
                self._use(context.passed(param.name))
            elif is_by_value(param) and context.passed(param.name) != context.name(param.name):
                self._copy_given(param)
        start = len(self.writer.lines)
        self.block(context.function.body)
        if not context.function.results:
            self._release()
        rest, self.writer.lines[start:] = self.writer.lines[start:], []
        if context.item and not context.reads_item:
            self._use(context.item)
        for made in context.temporaries:
            if made.on_heap:
                self._allocate(made.type, made.name, 1, context.function.span)
            else:
                self.define(context.types.declare(made.type, made.name))
        self.writer.lines += rest

    def _use(self, name: str) -> None:
        """Keeps gcc from warning of a variable that is not read."""
        self.evaluate(c.Cast("void", c.Token(name)))

    def _copy_given(self, param: Param) -> None:
        """The function's own struct, from the one that is passed by pointer."""
        given, copy = self.context.passed(param.name), Var(param.name, param.type, param.span)
        if self._is_large(param.type):
            self._declare_large(copy)
        else:
            self.define(self.context.types.declare(param.type, self.context.name(param.name)))
        self.store(self.destination(copy), c.dereference(c.Token(given)), param.type)

    def _allocate(self, type_: Type, name: str, count: int, span: Span) -> None:
        """A pointer to so many values of that type, all zero, on the heap."""
        size, line_args = c.Unary("sizeof", c.dereference(c.Token(name))), self.context.line_args
        memory = c.call(self.context.failing("allocate"), c.number(count), size, *line_args(span))
        self.define(self.context.types.declare_pointer(type_, name), memory)

    def block(self, body: tuple[Stmt, ...]) -> None:
        for stmt in body:
            self.statement(stmt)

    def statement(self, stmt: Stmt) -> None:
        self.span, self.context.line = stmt.span, stmt.span.line
        match stmt:
            case Declare(target, value):
                self._declare(target, value)
            case Assign(target, "=", value):
                self.assign(target, value)
            case Assign(target, _, value):
                self._increment(target, value)
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
                self.evaluate(self.call(call)[0])
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
        module = self.context.module
        for first, second, meet in meetings(call, module.functions[call.function], module.structs):
            numbers = c.number(first + 1), c.number(second + 1)
            apart, line_args = self.context.failing("apart"), self.context.line_args(span)
            self.evaluate(c.call(apart, self.condition(meet), *numbers, *line_args))

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
            parts = isinstance(type_, ArrayType | StructType)
            zero = self.context.types.zeros() if parts else self._zero(type_)
            self.define(self.context.types.declare(type_, name), zero)
        elif isinstance(type_, ArrayType):
            self.define(self.context.types.declare(type_, name))
            self.assign(target, value)
        else:
            self.define(self.context.types.declare(type_, name), self.value(value, type_))
        if target.name in self.context.unread:
            self._use(name)

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
        self._allocate(element, name, count, target.span)
        self._owned.append(name)

    def _on_heap(self) -> list[str]:
        """C names of all pointers to memory that the function releases."""
        return [*self._owned, *(made.name for made in self.context.temporaries if made.on_heap)]

    def _release(self) -> None:
        for name in self._on_heap():
            self.evaluate(c.call(self.context.helper("release"), c.Token(name)))

    def _unpack(self, stmt: Unpack) -> None:
        call, context = stmt.call, self.context
        called, results = self.call(call)
        types = context.module.functions[call.function].results
        values: list[c.Expression]
        if results:
            self.evaluate(called)
            values = [result.value for result in results]
        else:
            result, kind = context.fresh("results"), context.module.results[call.function]
            self.define(f"{kind} {result}", called)
            values = [c.Member(c.Token(result), f"value_{k}") for k in range(len(types))]
        for value, target, type_ in zip(values, stmt.targets, types, strict=True):
            if target.type == INT and type_ == FLOAT:
                value = c.call(context.helper("to_int"), value)
            is_new = target.name not in self._declared
            self._declared.add(target.name)
            if is_new and not self._is_large(target.type):
                self.define(context.types.declare(target.type, context.name(target.name)), value)
            else:
                if is_new:
                    self._declare_large(target)
                self.evaluate(c.Binary("=", self.destination(target), value))
            if target.name in context.unread:
                self._use(context.name(target.name))

    def _return(self, values: tuple[Expr, ...]) -> None:
        results, pointers = self.context.function.results, self.context.result_pointers
        found = [self.value(value, type_) for value, type_ in zip(values, results, strict=True)]
        if pointers:
            for pointer, value, type_ in zip(pointers, found, results, strict=True):
                self.store(c.dereference(c.Token(pointer)), value, type_)
            self._release()
            if len(pointers) == 1:
                self.writer.line(f"return {pointers[0]};")
            return
        if len(found) > 1:
            kind = self.context.module.results[self.context.function.name]
            result = self.context.types.literal(kind, found)
        else:
            kind, result = self.context.types.base(results[0]), found[0]
        if self._on_heap():
            # what is returned may stand in memory that is released
            name = self.context.fresh("result")
            self.define(f"{kind} {name}", result)
            self._release()
            result = c.Token(name)
        self.writer.line(f"return {c.text(result)};")

    # --------------------------------------------------------------------------------- assignments

    def evaluate(self, expression: c.Expression) -> None:
        """An expression as a statement."""
        self.writer.line(f"{c.text(expression)};")

    def define(self, declared: str, value: c.Expression | None = None) -> None:
        """A declaration, with a value if there is one."""
        given = "" if value is None else f" = {c.item_text(value)}"
        self.writer.line(f"{declared}{given};")

    def assign(self, target: Place, value: Expr) -> None:
        """``target = value``, also where the two overlap."""
        overlapping = is_place(value) and root(target) == root(value)
        found = self.stored(value, target.type)
        self.store(self.destination(target), found, target.type, overlapping=overlapping)

    def destination(self, target: Place) -> c.Expression:
        """A place as the target of :meth:`store`."""
        if isinstance(target.type, ArrayType):
            if target.type.size is None:
                raise errors.BackendLacksOperator(
                    f"'{print_expr(target)}' has no known length, so it cannot be assigned as a "
                    "whole",
                    self.span,
                    hint="assign its elements in a loop",
                )
            return self.first(target)
        return self.expression(target)

    def stored(self, value: Expr, type_: Type) -> c.Expression:
        """A value as :meth:`store` takes it."""
        return self.first(value) if isinstance(type_, ArrayType) else self.value(value, type_)

    def store(
        self, target: c.Expression, value: c.Expression, type_: Type, *, overlapping: bool = False
    ) -> None:
        """``target = value`` in C; an array is given by its first element."""
        if isinstance(type_, ArrayType):
            function = "memmove" if overlapping else "memcpy"
            self._on_bytes(function, target, value, self._size(type_))
        else:
            self.evaluate(c.Binary("=", target, value))

    def _on_bytes(self, function: str, *args: c.Expression) -> None:
        """A call of a function that works on memory."""
        self.context.module.helpers.add("<string.h>")
        self.evaluate(c.call(function, *args))

    def _size(self, type_: Type) -> c.Expression:
        return c.call("sizeof", c.Token(self.context.types.spelled(type_)))

    def zero(self, target: Place) -> None:
        """``zero(target)``."""
        type_ = target.type
        if isinstance(type_, ArrayType) and type_.size is None and self.context.is_slice(target):
            array = self.expression(target)
            data, count = c.Member(array, "data"), c.Member(array, "size")
            element = c.Unary("sizeof", c.dereference(data))
            self._on_bytes("memset", data, c.number(0), c.Binary("*", count, element))
        elif isinstance(type_, ArrayType):
            self._on_bytes("memset", self.destination(target), c.number(0), self._size(type_))
        else:
            self.evaluate(c.Binary("=", self.destination(target), self._zero(type_)))

    def _zero(self, type_: Type) -> c.Expression:
        """Zero as a number or a struct of that type."""
        if isinstance(type_, StructType):
            return self.context.types.literal(self.context.types.base(type_), ())
        return self.float_constant(0.0) if type_ == FLOAT else c.number(0)

    def _increment(self, target: Place, value: Expr) -> None:
        place = self.destination(target)
        if target.type == INT and value.type == FLOAT:
            total = c.Binary("+", place, self.expression(value))
            self.evaluate(c.Binary("=", place, c.call(self.context.helper("to_int"), total)))
        else:
            added = self.value(value, target.type)
            if target.type == INT and self.context.module.options.device:
                self.evaluate(c.Binary("=", place, self.wrapping("+", place, added)))
                return
            self.evaluate(c.Binary("+=", place, added))

    def _atomic_add(self, target: Place, value: Expr) -> None:
        context, place = self.context, self.destination(target)
        added = self.value(value, target.type)
        if context.function.name in context.module.concurrent and not context.is_local(target):
            if context.module.options.device:
                self.evaluate(c.call("loma_atomic_add", c.address_of(place), added))
                return
            context.module.helpers.add("openmp")
            self.writer.line("LOMA_OPENMP(atomic)")
        self.evaluate(c.Binary("+=", place, added))

    # ------------------------------------------------------------------------------ blocks, loops

    def _if(self, cond: Expr, then: tuple[Stmt, ...], other: tuple[Stmt, ...]) -> None:
        with self.writer.block(f"if ({c.text(self.condition(cond))})"):
            self.block(then)
        while len(other) == 1 and isinstance(other[0], If):
            inner = other[0]
            self.context.line = inner.span.line
            with self.writer.otherwise(f"else if ({c.text(self.condition(inner.cond))})"):
                self.block(inner.then)
            other = inner.other
        if other:
            with self.writer.otherwise():
                self.block(other)

    def _for(self, stmt: For) -> None:
        context = self.context
        counter, extent = context.name(stmt.counter), c.item_text(self.value(stmt.extent))
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
        cond = c.text(self.condition(stmt.cond))
        with self.writer.block(f"for (int {count} = 0; {cond}; ++{count})"):
            numbers, line_args = (c.Token(count), c.number(stmt.max_iter)), context.line_args
            self.evaluate(c.call(context.failing("within"), *numbers, *line_args(stmt.span)))
            self.block(stmt.body)
        context.line = stmt.span.line

    # -------------------------------------------------------------------------------------- stacks

    def _declare_stack(self, variable: str, type_: StackType) -> None:
        context, name = self.context, self.context.name(variable)
        size = self._sizes[variable] = context.fresh(f"{name}_size")
        bytes_ = context.types.bytes(type_.element) * (type_.capacity or 0)
        if type_.capacity is not None and bytes_ <= _SMALL_TAPE and context.frame.holds(bytes_):
            array = ArrayType(type_.element, type_.capacity)
            self.define(context.types.declare(array, name))
            self.define(f"int {size}", c.number(0))
        else:
            room = self._rooms[variable] = context.fresh(f"{name}_room")
            self.define(context.types.declare_pointer(type_.element, name), c.Token("NULL"))
            self.writer.line(f"int {size} = 0, {room} = 0;")
            self._owned.append(name)
        if variable in context.unread:
            self._use(name)
            self._use(size)

    def _push(self, stack: Var, value: Expr) -> None:
        context, type_ = self.context, stack.type
        assert isinstance(type_, StackType)
        data, size = c.Token(context.name(stack.name)), c.Token(self._sizes[stack.name])
        line_args = context.line_args(self.span)
        room = self._rooms.get(stack.name)
        if room is not None:
            known = type_.capacity is not None and type_.capacity < 2**31
            limit = c.Token(str(type_.capacity) if known else "INT_MAX")
            limits = c.address_of(c.Token(room)), limit, c.Unary("sizeof", c.dereference(data))
            grown = c.call(context.failing("grown"), data, size, *limits, *line_args)
            self.evaluate(c.Binary("=", data, grown))
            slot: c.Expression = c.Postfix("++", size)
        else:
            assert type_.capacity is not None
            capacity = c.number(type_.capacity)
            slot = c.call(context.failing("push"), c.address_of(size), capacity, *line_args)
        top = c.Subscript(data, slot)
        self.store(top, self.stored(value, type_.element), type_.element)

    def _pop(self, stack: Var, target: Place) -> None:
        type_ = stack.type
        assert isinstance(type_, StackType)
        data, size = c.Token(self.context.name(stack.name)), c.Token(self._sizes[stack.name])
        pop, line_args = self.context.failing("pop"), self.context.line_args(self.span)
        top = c.Subscript(data, c.call(pop, c.address_of(size), *line_args))
        self.store(self.destination(target), top, type_.element)
