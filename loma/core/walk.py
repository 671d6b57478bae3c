"""Walking and rebuilding IR: the one place that knows every node's children."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, count
from operator import attrgetter, is_
from typing import TypeGuard, assert_never

from loma.core.ir import (
    INT, ArrayType, Assign, AtomicAdd, Attr, Axis, Binary, Builtin, Call, CallStmt, Declare,
    Expr, FloatConst, For, Function, If, Index, IndexAssign, IntConst, MakeStruct, Member,
    Module, NoDiff, Op, Place, Pop, Push, Reduce, Return, Select, StackType, Stmt, StructType,
    TensorType, TupleType, Type, Unary, Unpack, Var, While, Zero, ZeroPad, is_tensor_function,
    remembered, replace,
)  # fmt: skip
from loma.errors.spans import Span

_NONE: frozenset[str] = frozenset()


_CHILDREN: dict[type[Expr], Callable[..., tuple[Expr, ...]]] = {
    IntConst: lambda _: (),
    FloatConst: lambda _: (),
    Var: lambda _: (),
    Index: lambda expr: (expr.base, *expr.subscripts),
    Member: lambda expr: (expr.base,),
    Unary: lambda expr: (expr.operand,),
    NoDiff: lambda expr: (expr.operand,),
    Binary: attrgetter("left", "right"),
    Select: attrgetter("cond", "then", "other"),
    Builtin: attrgetter("args"),
    Call: attrgetter("args"),
    MakeStruct: attrgetter("args"),
    Op: lambda expr: (*expr.args, *_attr_values(expr)),
    Reduce: lambda expr: (*(axis.extent for axis in expr.axes), expr.body),
    ZeroPad: lambda expr: (expr.read,),
}


def _attr_values(op: Op) -> Iterator[Expr]:
    return chain.from_iterable(v if isinstance(v, tuple) else (v,) for _, v in op.attrs)


def children(expr: Expr) -> tuple[Expr, ...]:
    """The direct subexpressions, in order of evaluation."""
    return _CHILDREN[type(expr)](expr)  # passes spend much of their time here: no ``match``


@remembered
def depth(expr: Expr) -> int:
    """How many levels an expression has."""
    return 1 + max(map(depth, children(expr)), default=0)


def map_children(expr: Expr, function: Callable[[Expr], Expr]) -> Expr:
    """The same node with ``function`` applied to each direct subexpression: itself, with all that
    is remembered of it, if none changes."""
    old = _CHILDREN[type(expr)](expr)
    if not old:
        return expr
    new = tuple(map(function, old))
    return expr if all(map(is_, new, old)) else _with_children(expr, new)


def exchanged(expr: Expr, old: Expr, new: Expr) -> Expr:
    """The expression with ``new`` wherever ``old`` stands in it."""
    return all_exchanged(expr, {old: new})


def all_exchanged(expr: Expr, values: Mapping[Expr, Expr]) -> Expr:
    """The expression with these values for parts of it."""
    found = values.get(expr)
    return found or map_children(expr, lambda child: all_exchanged(child, values))


@remembered
def without_no_diff(expr: Expr) -> Expr:
    """The value without the marks that only derivatives look at."""
    while isinstance(expr, NoDiff):
        expr = expr.operand
    return map_children(expr, without_no_diff)


def _with_children(expr: Expr, new: tuple[Expr, ...]) -> Expr:
    """The same node with these subexpressions, in the order of :func:`children`."""
    match expr:
        case IntConst() | FloatConst() | Var():
            return expr
        case Index():
            return replace(expr, base=new[0], subscripts=new[1:])
        case Member():
            return replace(expr, base=new[0])
        case Unary() | NoDiff():
            return replace(expr, operand=new[0])
        case Binary(op, _, _, type_, span):
            return Binary(op, new[0], new[1], type_, span)
        case Select():
            return replace(expr, cond=new[0], then=new[1], other=new[2])
        case Builtin() | Call() | MakeStruct():
            return replace(expr, args=new)
        case Op(_, args, attrs):
            rest = iter(new[len(args) :])
            return replace(
                expr, args=new[: len(args)], attrs=map_attrs(attrs, lambda _: next(rest))
            )
        case Reduce(_, _, axes):
            ranges = tuple(Axis(axis.name, extent) for axis, extent in zip(axes, new, strict=False))
            return replace(expr, body=new[-1], axes=ranges)
        case ZeroPad():
            return replace(expr, read=new[0]) if isinstance(new[0], Index) else new[0]
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
    return iter(_walked(expr))


@remembered
def _walked(expr: Expr) -> tuple[Expr, ...]:
    found = []
    waiting = [expr]
    while waiting:
        expr = waiting.pop()
        found.append(expr)
        if below := _CHILDREN[type(expr)](expr):
            waiting += below[::-1]
    return tuple(found)


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


def is_element_of(expr: Expr, name: str) -> TypeGuard[Index]:
    """Whether the expression is an element of the variable of that name."""
    return isinstance(expr, Index) and isinstance(expr.base, Var) and expr.base.name == name


def as_part(expr: Expr, name: str, whole: Var, dim: int, place: Expr) -> Expr:
    """The expression with elements of ``whole``, at ``place`` of its dimension ``dim``, for those
    of the tensor of that name, which lacks the dimension."""
    new = map_children(expr, lambda child: as_part(child, name, whole, dim, place))
    if is_element_of(new, name):
        subscripts = (*new.subscripts[:dim], place, *new.subscripts[dim:])
        return replace(new, base=whole, subscripts=subscripts)
    return new


def needed_places(expr: Expr) -> Iterator[Index]:
    """The elements that have to be there: all that are read but by ``zero_pad``."""
    if isinstance(expr, Index):
        yield expr
    inside = expr.read.subscripts if isinstance(expr, ZeroPad) else children(expr)
    for child in inside:
        yield from needed_places(child)


def reduced_axes(expr: Expr) -> Iterator[Axis]:
    """The axes of all reductions in an expression."""
    return (axis for node in walk(expr) if isinstance(node, Reduce) for axis in node.axes)


def variables(expr: Expr) -> Iterator[str]:
    """Names of the variables that occur, axes of reductions included, with repetition."""
    return (node.name for node in walk(expr) if isinstance(node, Var))


@remembered
def reads_elements(expr: Expr) -> bool:
    """Whether an expression looks at an element of a tensor."""
    return any(isinstance(node, Index) for node in walk(expr))


def variable_names(expr: Expr) -> frozenset[str]:
    """Names of the variables that occur, axes of reductions included."""
    return frozenset((expr.name,)) if isinstance(expr, Var) else _variable_names(expr)


@remembered
def _variable_names(expr: Expr) -> frozenset[str]:
    return _NONE.union(*map(variable_names, children(expr)))


def subscript_variables(place: Index) -> frozenset[str]:
    """Names of the variables that occur in the subscripts."""
    return _NONE.union(*map(variable_names, place.subscripts))


def free_variables(expr: Expr) -> frozenset[str]:
    """Names that occur and are not bound by a reduction inside the expression."""
    return frozenset((expr.name,)) if isinstance(expr, Var) else _free_variables(expr)


@remembered
def _free_variables(expr: Expr) -> frozenset[str]:
    if isinstance(expr, Reduce):
        inside = free_variables(expr.body).difference(axis.name for axis in expr.axes)
        return inside.union(*(free_variables(axis.extent) for axis in expr.axes))
    return _NONE.union(*map(free_variables, children(expr)))


def reads_of_type(type_: Type) -> frozenset[str]:
    """Variables in a tensor type's dimensions."""
    dims = type_.dims or () if isinstance(type_, TensorType) else ()
    return _NONE.union(*map(variable_names, dims))


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
    return chain.from_iterable(map(_statements, body))


def _statements(stmt: Stmt) -> tuple[Stmt, ...]:
    return _nested(stmt) if isinstance(stmt, If | For | While) else (stmt,)


@remembered
def _nested(stmt: Stmt) -> tuple[Stmt, ...]:
    inside = (_statements(inner) for block in blocks(stmt) for inner in block)
    return (stmt, *chain.from_iterable(inside))


def nodes(body: tuple[Stmt, ...]) -> Iterator[Expr]:
    """Every expression and all parts of it, of nested statements, too."""
    for stmt in statements(body):
        for expr in expressions(stmt):
            yield from walk(expr)


def calls(body: tuple[Stmt, ...]) -> Iterator[Call]:
    """Every call of a function of the program, nested ones included."""
    return chain.from_iterable(map(_calls, body))


@remembered
def _calls(stmt: Stmt) -> tuple[Call, ...]:
    return tuple(node for node in nodes((stmt,)) if isinstance(node, Call))


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


@remembered
def own_names(stmt: Stmt) -> frozenset[str]:
    """Variables that occur in a statement itself, and are no reduction's axis."""
    return _NONE.union(*map(free_variables, expressions(stmt)))


def declared_and_used(body: tuple[Stmt, ...]) -> tuple[set[str], Counter[str]]:
    """Variables that statements, nested ones included, declare without a value; and in how many
    others each variable occurs."""
    declared: set[str] = set()
    uses: Counter[str] = Counter()
    for stmt in statements(body):
        if isinstance(stmt, Declare) and stmt.value is None:
            declared.add(stmt.target.name)
        else:
            uses.update(own_names(stmt))
    return declared, uses


def mentioned_names(body: tuple[Stmt, ...]) -> frozenset[str]:
    """Variables that occur in statements, nested ones included, and are no reduction's axis."""
    return _NONE.union(*map(_mentioned_names, body))


@remembered
def _mentioned_names(stmt: Stmt) -> frozenset[str]:
    return own_names(stmt).union(*map(mentioned_names, blocks(stmt)))


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
