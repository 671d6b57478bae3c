"""Scalar functions as C++ templates, with their arrays and structs as C++ values.

An array of known size is a ``std::array``, a struct an aggregate, a stack a ``std::vector``:
copying one copies it deeply, as in loma. An array argument of any length is a ``loma::Span``.
What does not fit on a thread's stack (:mod:`loma.backends.cfamily.stack`) is on the heap: variables
behind a reference, large structs as arguments by reference and as results in a ``std::unique_ptr``.
Threads of a device have no heap to speak of: everything is in a thread's memory there.
"""

from __future__ import annotations

import sys
from typing import assert_never

from loma import errors
from loma.backends.cfamily import syntax as c
from loma.backends.cfamily.context import CppContext, signature
from loma.backends.cfamily.cpp import scalar_function_name, scalar_type
from loma.backends.cfamily.names import cpp_name, cpp_string
from loma.backends.cfamily.stack import BY_VALUE, LIMIT, Frame, Use
from loma.backends.cfamily.writer import Writer
from loma.backends.schedule.target import Target
from loma.backends.torch.statements import Statements
from loma.backends.torch.tensors import Host
from loma.core.aliases import meetings
from loma.core.effects import assigned
from loma.core.ir import (
    FLOAT, INT, ArrayType, Assign, AtomicAdd, Call, CallStmt, Declare, Expr, For, Function, If,
    Index, IndexAssign, MakeStruct, Member, Module, Param, Pop, Push, Return, StackType, Stmt,
    Struct, StructType, Type, Unpack, Var, While, Zero, is_tensor_function,
)  # fmt: skip
from loma.core.layout import Layout
from loma.core.walk import aggregates, calls, mentioned_names, root, variables
from loma.errors.spans import Span, line_in_file


def lower_scalars(module: Module, machine: Target) -> str:
    """The scalar functions that tensor functions use, callees first, behind their structs."""
    needed: set[str] = set()
    for function in reversed(module.functions):
        if is_tensor_function(function) or function.name in needed:
            needed.update(call.function for call in calls(function.body))
    functions = [f for f in module.functions if f.name in needed and not is_tensor_function(f)]
    memory = _Memory(module, machine)
    used = {name for f in functions for type_, _ in aggregates(f) for name in _structs_in(type_)}
    for struct in reversed(module.structs):  # parts stand before what they are parts of
        if struct.name in used:
            used.update(name for _, type_ in struct.members for name in _structs_in(type_))
    texts = [_lower_struct(struct) for struct in module.structs if struct.name in used]
    texts += [_lower_function(function, module, machine, memory) for function in functions]
    return "\n\n".join(texts)


class _Memory:
    """Sizes of values in bytes, reals as doubles, and what functions take of the stack."""

    def __init__(self, module: Module, machine: Target) -> None:
        self.has_heap = not machine.teams
        self.functions = {function.name: function for function in module.functions}
        self.uses: dict[str, Use] = {}  # by function, when it has been lowered
        self.structs = {struct.name: struct for struct in module.structs}
        self._layout = Layout(integer=8, real=8, array=8)

    def bytes(self, type_: Type) -> int:
        return self._layout.bytes(type_, self.structs)

    def is_large(self, *types: Type) -> bool:
        """Whether structs of those types, together, are passed and returned by reference."""
        return sum(self.bytes(t) for t in types if isinstance(t, StructType)) > BY_VALUE

    def is_elsewhere(self, *types: Type) -> bool:
        """Whether results of those types are on the heap."""
        return self.has_heap and self.is_large(*types)

    def frame(self, function: Function) -> Frame:
        names = (call.function for call in calls(function.body))
        limit = LIMIT if self.has_heap else sys.maxsize
        return Frame((self.uses[name] for name in names if name in self.uses), limit)

    def note(self, function: Function, frame: Frame) -> None:
        """Keeps what a call takes of the stack, after lowering."""
        called = (self.functions[call.function] for call in calls(function.body))
        passed = sum(
            BY_VALUE for f in called if any(isinstance(p.type, StructType) for p in f.params)
        )
        numbers = len(mentioned_names(function.body))
        self.uses[function.name] = frame.use(function, numbers, passed, not self.has_heap)


# ---------------------------------------------------------------------------------------- types


def value_type(type_: Type, span: Span) -> str:
    """The C++ type of a variable, a member or a result of a scalar function."""
    match type_:
        case ArrayType(element, int(size)):
            return f"std::array<{value_type(element, span)}, {size}>"
        case ArrayType():
            raise errors.BackendLacksOperator(
                "the libtorch backend has no arrays of arrays of unknown length in functions that "
                "tensor functions call",
                span,
            )
        case StackType(element, _):
            return f"std::vector<{value_type(element, span)}>"
        case StructType(name):
            return f"{_struct_name(name)}<real>"
        case _:
            return scalar_type(type_, span)


def _param(param: Param, memory: _Memory, copied: bool) -> str:
    name, written = cpp_name(param.name), param.mode == "Out"
    match param.type:
        case StructType() if not written and memory.is_large(param.type):
            name = f"{name}_given_" if copied else name
            return f"const {value_type(param.type, param.span)}& {name}"
        case ArrayType(element, None):
            const = "" if written else "const "
            return f"loma::Span<{const}{value_type(element, param.span)}> {name}"
        case ArrayType() if not written:
            return f"const {value_type(param.type, param.span)}& {name}"
        case _:
            return f"{value_type(param.type, param.span)}{'&' if written else ''} {name}"


def _struct_name(name: str) -> str:
    return f"{cpp_name(name)}__struct"


def _structs_in(type_: Type) -> set[str]:
    """The struct of a value, or of its elements."""
    while isinstance(type_, ArrayType | StackType):
        type_ = type_.element
    return {type_.name} if isinstance(type_, StructType) else set()


def _lower_struct(struct: Struct) -> str:
    writer = Writer()
    with writer.block(f"template <typename real>\nstruct {_struct_name(struct.name)}", ";"):
        for name, type_ in struct.members:
            writer.line(f"{value_type(type_, struct.span)} {cpp_name(name)}{{}};")
    return writer.text()


# ------------------------------------------------------------------------------------- functions


def _lower_function(function: Function, module: Module, machine: Target, memory: _Memory) -> str:
    if function.simd:
        raise errors.BackendLacksOperator(
            f"the libtorch backend cannot call the @simd function '{function.name}'", function.span
        )
    context, body = CppContext(function, module, machine), Writer()
    statements_ = ScalarStatements(context, ScalarExpressions(context, memory), body)
    statements_.frame = memory.frame(function)
    changed = set(assigned(function.body, memory.functions))
    for param in function.params:
        if param.mode == "In" and memory.is_large(param.type) and param.name in changed:
            given = c.Token(f"{cpp_name(param.name)}_given_")
            statements_.declare(Var(param.name, param.type, param.span), given)
    statements_.block(function.body)
    memory.note(function, statements_.frame)
    params = ", ".join(_param(param, memory, param.name in changed) for param in function.params)
    head = f"{_result(function, memory)[1]} {scalar_function_name(function.name)}({params})"
    writer = Writer()
    writer.line(signature(function))
    with writer.block(f"template <typename real>\nstatic inline {head}"):
        writer.extend(body.lines or [""])
    return writer.text()


def _result(function: Function, memory: _Memory) -> tuple[str, str]:
    """The C++ type of the result, several as a tuple, and that in which it is returned."""
    types = [value_type(type_, function.span) for type_ in function.results]
    if not types:
        return "void", "void"
    result = types[0] if len(types) == 1 else f"std::tuple<{', '.join(types)}>"
    is_elsewhere = memory.is_elsewhere(*function.results)
    return result, f"std::unique_ptr<{result}>" if is_elsewhere else result


class ScalarExpressions(Host):
    """Expressions of one scalar function; places are C++ lvalues."""

    def __init__(self, context: CppContext, memory: _Memory) -> None:
        super().__init__(context)
        self.memory = memory

    def variable(self, var: Var) -> c.Expression:
        return c.Token(self.context.variable(var))

    def index(self, read: Index) -> c.Expression:
        base, (subscript,) = self.value(read.base), read.subscripts
        return c.call("loma::at", base, self.value(subscript, INT), *self.origin(read.span))

    def member(self, member: Member) -> c.Expression:
        return c.Member(self.value(member.base), cpp_name(member.name))

    def make_struct(self, make: MakeStruct) -> c.Expression:
        members = self.memory.structs[make.type.name].members
        values = tuple(self.value(arg, t) for arg, (_, t) in zip(make.args, members, strict=True))
        type_ = value_type(make.type, make.span)
        if self.memory.is_elsewhere(make.type):
            made = c.Unary("new", c.Braces(type_, values))
            return c.Unary("*", c.call(f"std::unique_ptr<{type_}>", made))
        return c.Braces(type_, values)

    def _call(self, call: Call) -> c.Expression:
        function = self.callee(call)
        pairs = list(zip(call.args, function.params, strict=True))
        changed = {root(arg) for arg, param in pairs if param.mode == "Out"}
        args: list[c.Expression] = []
        for arg, param in pairs:
            value = self.value(arg, param.type)
            by_reference = param.mode == "In" and self.memory.is_large(param.type)
            if by_reference and changed & set(variables(arg)):
                # the call changes what the struct may be a part of
                type_ = value_type(param.type, arg.span)
                if self.memory.has_heap:
                    value = c.Unary("*", c.call(f"std::make_unique<{type_}>", value))
                else:
                    value = c.Braces(type_, (value,))
            args.append(value)
        found = c.call(f"{scalar_function_name(call.function)}<real>", *args)
        return c.Unary("*", found) if self.memory.is_elsewhere(*function.results) else found

    def origin(self, span: Span) -> tuple[c.Expression, ...]:
        """The last arguments of what can fail: the function and the line."""
        name = c.Token(cpp_string(self.context.function.name))
        return name, c.number(line_in_file(self.context.line(span)))


class ScalarStatements(Statements):
    """Writes the statements of one scalar function."""

    host: ScalarExpressions
    frame: Frame

    def declare(self, target: Var, value: c.Expression | None = None) -> None:
        """A variable, all zero without ``value``."""
        host, type_ = self.host, target.type
        self.declared.add(target.name)
        text = c.item_text(value) if value else ""
        name, spelled = self.context.variable(target), value_type(type_, target.span)
        if isinstance(type_, ArrayType | StructType) and not self.frame.holds(
            host.memory.bytes(type_)
        ):
            self.writer.line(f"const auto {name}_heap_ = std::make_unique<{spelled}>({text});")
            self.writer.line(f"{spelled}& {name} = *{name}_heap_;")
        else:
            self.writer.line(f"{spelled} {name}{f' = {text}' if text else '{}'};")

    def block(self, block: tuple[Stmt, ...]) -> None:
        for stmt in block:
            self._stand_at(stmt)
            self.comment(stmt)
            self._statement(stmt)

    def _statement(self, stmt: Stmt) -> None:
        host = self.host
        origin = host.origin(stmt.span)
        match stmt:
            case Declare(target, value):
                self.declare(target, None if value is None else host.value(value, target.type))
            case Assign(target, "=", value):
                self._evaluate(c.Binary("=", host.value(target), host.value(value, target.type)))
            case Assign(target, _, value) | AtomicAdd(target, value):
                self._add(target, value)
            case Zero(target):
                place, type_ = host.value(target), target.type
                if isinstance(type_, ArrayType | StructType):
                    unknown = isinstance(type_, ArrayType) and type_.size is None
                    self._evaluate(c.call(f"loma::{'clear' if unknown else 'zero'}", place))
                else:
                    self._evaluate(c.Binary("=", place, c.Braces("", ())))
            case Push(stack, value):
                assert isinstance(stack.type, StackType)
                pushed = host.value(value, stack.type.element)
                limit = c.number(-1 if stack.type.capacity is None else stack.type.capacity)
                self._evaluate(c.call("loma::push", host.variable(stack), pushed, limit, *origin))
            case Pop(stack, target):
                place = host.value(target)
                self._evaluate(c.call("loma::pop", place, host.variable(stack), *origin))
            case CallStmt(call):
                self._check_apart(call, stmt.span)
                self._evaluate(host.value(call))
            case Unpack(targets, call):
                self._take_apart(targets, call)
            case Return(values):
                results = self.context.function.results
                items = [host.value(v, t) for v, t in zip(values, results, strict=True)]
                if host.memory.is_elsewhere(*results):
                    made = _result(self.context.function, host.memory)[0]
                    found: c.Expression = c.call(f"std::make_unique<{made}>", *items)
                else:
                    found = items[0] if len(items) == 1 else c.Braces("", tuple(items))
                self.writer.line(f"return {c.text(found)};")
            case If(condition, then, other):
                rest = (lambda: self.block(other)) if other else None
                self.branch(condition, lambda: self.block(then), rest)
            case For(_, extent, body):
                self.count(stmt, extent, lambda: self.block(body))
            case While(condition, _, body):
                self.repeat(stmt, condition, lambda: self.block(body))
            case IndexAssign():
                raise AssertionError(stmt)
            case _:
                assert_never(stmt)

    def _check_apart(self, call: Call, span: Span) -> None:
        """Checks arguments of which only subscripts tell whether they are one storage."""
        host = self.host
        for first, second, meet in meetings(call, host.callee(call), host.memory.structs):
            given = c.number(first + 1), c.number(second + 1), *host.origin(span)
            self._evaluate(c.call("loma::apart", host.condition(meet), *given))

    def _add(self, target: Expr, value: Expr) -> None:
        place = self.host.value(target)
        if target.type == INT and value.type == FLOAT:
            total = c.Binary("+", place, self.host.value(value, FLOAT))
            self._evaluate(c.Binary("=", place, c.call("static_cast<int64_t>", total)))
        else:
            self._evaluate(c.Binary("+=", place, self.host.value(value, target.type)))

    def _take_apart(self, targets: tuple[Var, ...], call: Call) -> None:
        for target in targets:
            if target.name not in self.declared:
                self.declare(target)
        places = c.call("std::tie", *map(self.host.variable, targets))
        self._evaluate(c.Binary("=", places, self.host.value(call)))

    def _evaluate(self, expr: c.Expression) -> None:
        self.writer.line(f"{c.text(expr)};")
