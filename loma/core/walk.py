"""Walking and rebuilding IR: the one place that knows every node's children."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain, count
from typing import TypeGuard, assert_never

from loma.core.ir import (
    INT, ArrayType, Assign, AtomicAdd, Attr, Axis, Binary, Builtin, Call, CallStmt, Declare, Expr,
    FloatConst, For, Function, If, Index, IndexAssign, IntConst, MakeStruct, Member, Module, NoDiff,
    Op, Place, Pop, Push, Reduce, Return, Select, StackType, Stmt, StructType, TensorType,
    TupleType, Type, Unary, Unpack, Var, While, Zero, ZeroPad, is_tensor_function,
)  # fmt: skip
from loma.errors.spans import Span


def children(expr: Expr) -> tuple[Expr, ...]:
    """The direct subexpressions, in order of evaluation."""
    match expr:
        case IntConst() | FloatConst() | Var():
            return ()
        case Index(base, subscripts):
            return (base, *subscripts)
        case Member(base):
            return (base,)
        case Unary(_, operand) | NoDiff(operand):
            return (operand,)
        case Binary(_, left, right):
            return (left, right)
        case Select(cond, then, other):
            return (cond, then, other)
        case Builtin(_, args) | Call(_, args) | MakeStruct(args):
            return args
        case Op(_, args, attrs):
            lists = (value if isinstance(value, tuple) else (value,) for _, value in attrs)
            return (*args, *chain.from_iterable(lists))
        case Reduce(_, body, axes):
            return (*tuple(axis.extent for axis in axes), body)
        case ZeroPad(read):
            return (read,)
        case _:
            assert_never(expr)


def map_children(expr: Expr, function: Callable[[Expr], Expr]) -> Expr:
    """The same node with ``function`` applied to each direct subexpression."""
    match expr:
        case IntConst() | FloatConst() | Var():
            return expr
        case Index(base, subscripts):
            return replace(expr, base=function(base), subscripts=tuple(map(function, subscripts)))
        case Member(base):
            return replace(expr, base=function(base))
        case Unary(_, operand) | NoDiff(operand):
            return replace(expr, operand=function(operand))
        case Binary(_, left, right):
            return replace(expr, left=function(left), right=function(right))
        case Select(cond, then, other):
            return replace(expr, cond=function(cond), then=function(then), other=function(other))
        case Builtin(_, args) | Call(_, args) | MakeStruct(args):
            return replace(expr, args=tuple(map(function, args)))
        case Op(_, args, attrs):
            new = tuple(map(function, args))
            return replace(expr, args=new, attrs=map_attrs(attrs, function))
        case Reduce(_, body, axes):
            ranges = tuple(Axis(axis.name, function(axis.extent)) for axis in axes)
            return replace(expr, body=function(body), axes=ranges)
        case ZeroPad(read):
            inner = function(read)
            return replace(expr, read=inner) if isinstance(inner, Index) else inner
        case _:
            assert_never(expr)


def map_attrs(
    attrs: tuple[tuple[str, Attr], ...], function: Callable[[Expr], Expr]
) -> tuple[tuple[str, Attr], ...]:
    """An operator's attributes with ``function`` applied to each expression."""
    return tuple(
        (k, tuple(map(function, v)) if isinstance(v, tuple) else function(v)) for k, v in attrs
    )


def map_guarded(expr: Expr, function: Callable[[Expr, Expr | None], Expr]) -> Expr:
    """:func:`map_children` with a function that is also given the condition under which ``expr``
    evaluates the child; None: in any case."""
    match expr:
        case Select(cond, then, other):
            cond = function(cond, None)
            then = function(then, cond)
            other = function(other, Unary("not", cond, INT))
            return replace(expr, cond=cond, then=then, other=other)
        case Binary("and" | "or" as op, left, right):
            left = function(left, None)
            guard = left if op == "and" else Unary("not", left, INT)
            return replace(expr, left=left, right=function(right, guard))
        case _:
            return map_children(expr, lambda child: function(child, None))


def walk(expr: Expr) -> Iterator[Expr]:
    """The expression and everything below it, parents first."""
    waiting = [expr]
    while waiting:
        expr = waiting.pop()
        yield expr
        waiting += reversed(children(expr))


def certain_reads(expr: Expr) -> Iterator[Expr]:
    """The places that the expression reads under no condition."""
    match expr:
        case Select(cond):
            yield from certain_reads(cond)
        case Binary("and" | "or", left):
            yield from certain_reads(left)
        case ZeroPad(read):
            for subscript in read.subscripts:
                yield from certain_reads(subscript)
        case _:
            if isinstance(expr, Index | Member):
                yield expr
            for child in children(expr):
                yield from certain_reads(child)


def variables(expr: Expr) -> Iterator[str]:
    """Names of the variables that occur, axes of reductions included, with repetition."""
    return (node.name for node in walk(expr) if isinstance(node, Var))


def subscript_variables(place: Index) -> set[str]:
    """Names of the variables that occur in the subscripts."""
    return {name for subscript in place.subscripts for name in variables(subscript)}


def free_variables(expr: Expr, bound: frozenset[str] = frozenset()) -> set[str]:
    """Names that occur and are not bound by a reduction inside the expression."""
    match expr:
        case Var(name):
            return set() if name in bound else {name}
        case Reduce(_, body, axes):
            names = {v for axis in axes for v in free_variables(axis.extent, bound)}
            return names | free_variables(body, bound | {axis.name for axis in axes})
        case _:
            return {v for child in children(expr) for v in free_variables(child, bound)}


def reads_of_type(type_: Type) -> set[str]:
    """Variables in a tensor type's dimensions."""
    dims = type_.dims or () if isinstance(type_, TensorType) else ()
    return {name for dim in dims for name in variables(dim)}


def used_as_value(expr: Expr) -> set[str]:
    """Names that occur other than in the subscripts of an element read."""
    match expr:
        case Var(name):
            return {name}
        case Index() if isinstance(expr.base, Var):
            return set()
        case ZeroPad():
            return set()
        case _:
            return {name for child in children(expr) for name in used_as_value(child)}


def substitute(expr: Expr, values: dict[str, Expr]) -> Expr:
    """The expression with variables replaced by name; a reduction's own axes are left alone.

    What stands for a variable keeps its place in the text, for messages.
    """
    if not values:
        return expr
    match expr:
        case Var(name) if name in values:
            new = values[name]
            elsewhere = new.span.line and not isinstance(new, Var)
            return new if elsewhere or not expr.span.line else replace(new, span=expr.span)
        case Reduce(_, _, axes):
            own = {axis.name for axis in axes}
            inner = {k: v for k, v in values.items() if k not in own}
            new_axes = tuple(Axis(a.name, substitute(a.extent, values)) for a in axes)
            return replace(expr, body=substitute(expr.body, inner), axes=new_axes)
        case _:
            return map_children(expr, lambda child: substitute(child, values))


def map_sizes(type_: Type, function: Callable[[Expr], Expr]) -> Type:
    """A type with ``function`` applied to each of a tensor's dimensions."""
    if isinstance(type_, TensorType) and type_.dims is not None:
        return replace(type_, dims=tuple(map(function, type_.dims)))
    if isinstance(type_, TupleType):
        return TupleType(tuple(map_sizes(item, function) for item in type_.items))
    return type_


def substitute_type(type_: Type, values: dict[str, Expr]) -> Type:
    """A type with the variables in a tensor's dimensions replaced by name."""
    return map_sizes(type_, lambda dim: substitute(dim, values))


def substitute_typed(expr: Expr, values: dict[str, Expr]) -> Expr:
    """The expression with variables replaced by name, in the types below it, too.

    No reduction in it has an axis of one of these names.
    """
    if isinstance(expr, Var) and expr.name in values:
        return replace(values[expr.name], span=expr.span)
    new = map_children(expr, lambda child: substitute_typed(child, values))
    type_ = substitute_type(new.type, values)
    return new if type_ == new.type else replace(new, type=type_)  # type: ignore[arg-type]


def root(place: Expr) -> str:
    """The variable that a place is a part of."""
    while isinstance(place, Index | Member):
        place = place.base
    assert isinstance(place, Var), place
    return place.name


def is_place(expr: Expr) -> TypeGuard[Place]:
    """Whether the expression is a variable or a part of one."""
    while isinstance(expr, Index | Member):
        expr = expr.base
    return isinstance(expr, Var)


def subscripts(place: Expr) -> Iterator[Expr]:
    """The subscripts on the way to a place."""
    while isinstance(place, Index | Member):
        if isinstance(place, Index):
            yield from place.subscripts
        place = place.base


def blocks(stmt: Stmt) -> tuple[tuple[Stmt, ...], ...]:
    """The statement's nested blocks."""
    match stmt:
        case If(_, then, other):
            return (then, other)
        case For() | While():
            return (stmt.body,)
        case _:
            return ()


def map_blocks(stmt: Stmt, function: Callable[[tuple[Stmt, ...]], tuple[Stmt, ...]]) -> Stmt:
    """The statement with ``function`` applied to each nested block."""
    match stmt:
        case If(_, then, other):
            return replace(stmt, then=function(then), other=function(other))
        case For() | While():
            return replace(stmt, body=function(stmt.body))
        case _:
            return stmt


def at(stmt: Stmt, span: Span) -> Stmt:
    """The statement, and those inside it, at that place of the text where they have none."""
    located = stmt if stmt.span.line else replace(stmt, span=span)
    return map_blocks(located, lambda block: tuple(at(inner, span) for inner in block))


def numbered(body: tuple[Stmt, ...], numbers: Iterable[int] | None = None) -> tuple[Stmt, ...]:
    """The body with the next of ``numbers`` for every statement, nested ones included, parents
    first; without them each has one of its own, from 1."""
    following = count(1) if numbers is None else iter(numbers)

    def block(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return tuple(map_blocks(replace(s, number=next(following)), block) for s in body)

    return block(body)


def statements(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    """Every statement, nested ones included, parents first."""
    for stmt in body:
        yield stmt
        for block in blocks(stmt):
            yield from statements(block)


def nodes(body: tuple[Stmt, ...]) -> Iterator[Expr]:
    """Every expression and all parts of it, of nested statements, too."""
    for stmt in statements(body):
        for expr in expressions(stmt):
            yield from walk(expr)


def calls(body: tuple[Stmt, ...]) -> Iterator[Call]:
    """Every call of a function of the program, nested ones included."""
    return (node for node in nodes(body) if isinstance(node, Call))


def expressions(stmt: Stmt) -> tuple[Expr, ...]:
    """The expressions that stand in the statement itself; targets come last."""
    match stmt:
        case Declare(target, value):
            return (target,) if value is None else (value, target)
        case Assign(target, _, value) | AtomicAdd(target, value):
            return (value, target)
        case Push(stack, value):
            return (value, stack)
        case Pop(stack, target):
            return (stack, target)
        case IndexAssign(target, _, value, axes):
            return (*(axis.extent for axis in axes), value, target)
        case Unpack(targets, call):
            return (call, *targets)
        case Zero(target):
            return (target,)
        case If(cond) | While(cond):
            return (cond,)
        case For(_, extent):
            return (extent,)
        case CallStmt(call):
            return (call,)
        case Return(values):
            return values
        case _:
            assert_never(stmt)


def own_names(stmt: Stmt) -> set[str]:
    """Variables that occur in a statement itself, and are no reduction's axis."""
    return {name for expr in expressions(stmt) for name in free_variables(expr)}


def mentioned_names(body: tuple[Stmt, ...]) -> set[str]:
    """Variables that occur in statements, nested ones included, and are no reduction's axis."""
    return {name for stmt in statements(body) for name in own_names(stmt)}


def aggregates(function: Function) -> Iterator[tuple[Type, Span]]:
    """The arrays, structs and stacks that a function works on, with their places in the text."""
    for param in function.params:
        if isinstance(param.type, ArrayType | StructType | StackType):
            yield param.type, param.span
    for node in nodes(function.body):
        if isinstance(node.type, ArrayType | StructType | StackType):
            yield node.type, node.span


def map_tensor_functions(module: Module, change: Callable[[Function], Function]) -> Module:
    """The module with ``change`` applied to its tensor functions."""
    functions = (change(f) if is_tensor_function(f) else f for f in module.functions)
    return replace(module, functions=tuple(functions))


def map_expressions(stmt: Stmt, function: Callable[[Expr], Expr]) -> Stmt:
    """The statement with ``function`` applied to each of its own expressions, nested blocks too.

    A target must stay a place: ``function`` may only rename what it stands on.
    """

    def body_of(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return tuple(map_expressions(inner, function) for inner in body)

    def variable(var: Var) -> Var:
        new = function(var)
        assert isinstance(new, Var)
        return new

    def place_of(target: Place) -> Place:
        new = function(target)
        assert isinstance(new, Var | Index | Member)
        return new

    match stmt:
        case Declare(target, value):
            start = None if value is None else function(value)
            return replace(stmt, target=variable(target), value=start)
        case Assign(target, _, value) | AtomicAdd(target, value):
            return replace(stmt, target=place_of(target), value=function(value))
        case Push(stack, value):
            return replace(stmt, stack=variable(stack), value=function(value))
        case Pop(stack, target):
            return replace(stmt, stack=variable(stack), target=place_of(target))
        case IndexAssign(target, _, value, axes):
            place = function(target)
            assert isinstance(place, Var | Index)
            stmt = replace(stmt, target=place, value=function(value))
            return replace(stmt, axes=tuple(Axis(a.name, function(a.extent)) for a in axes))
        case Unpack(targets, call):
            new = function(call)
            assert isinstance(new, Call)
            return replace(stmt, targets=tuple(map(variable, targets)), call=new)
        case Zero(target):
            return replace(stmt, target=place_of(target))
        case If(cond) | While(cond):
            return map_blocks(replace(stmt, cond=function(cond)), body_of)
        case For(_, extent):
            return map_blocks(replace(stmt, extent=function(extent)), body_of)
        case CallStmt(call):
            new = function(call)
            assert isinstance(new, Call)
            return replace(stmt, call=new)
        case Return(values):
            return replace(stmt, values=tuple(map(function, values)))
        case _:
            assert_never(stmt)
