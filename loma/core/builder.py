"""Makes typed IR: an expression has its type the moment it exists.

The frontend builds programs with it and AD builds derivatives with it, so both obey one set of type
rules. Errors carry the span that is passed in.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import cast

from loma import errors
from loma.core import sizes
from loma.core.builtins import BUILTINS
from loma.core.ir import (
    FLOAT, INT, ArrayType, Attr, Binary, BinaryOp, Builtin, Expr, FloatConst, FloatType, Index,
    IntConst, IntType, MakeStruct, NoDiff, Op, ReduceKind, Select, Struct, StructType, TensorType,
    Type, Unary, Var,
)  # fmt: skip
from loma.core.ops import INFIX, OPS, PREDICATES, AttrInfo, OpInfo
from loma.core.shapes import OpCall
from loma.errors.spans import NOWHERE, Span

TENSOR_CHOICE = "choose between tensors with where(cond, a, b)"
VARYING_SIZE = (
    "write sums over range(k) with an index: sum(A[k, j] * x[j] for j in range(k)), or take it at "
    "its full size with zeros outside"
)


def show_type(type_: Type) -> str:
    """A type as a user writes it."""
    from loma.core.printer import print_type

    return print_type(type_)


def is_scalar(type_: Type) -> bool:
    return isinstance(type_, IntType | FloatType)


def is_rank0(type_: Type) -> bool:
    return isinstance(type_, TensorType) and type_.dims == ()


def as_scalar(expr: Expr) -> Expr:
    """A rank-0 tensor read as a scalar; every other expression as it is."""
    if not is_rank0(expr.type):
        return expr
    assert isinstance(expr.type, TensorType)
    return Index(expr, (), INT if expr.type.integer else FLOAT, expr.span)


def convertible(source: Type, target: Type) -> bool:
    """Whether a value may be assigned, passed or returned where ``target`` is expected."""
    if is_scalar(target):
        return is_scalar(source) or is_rank0(source)
    match source, target:
        case TensorType(a), TensorType(b):
            return source.integer == target.integer and not sizes.differ(a, b)
        case _:
            return source == target


def same_ints(expr: Expr, type_: Type) -> Expr:
    """A tensor with that type's elements: a BoolTensor widened, or of what in ints is not 0."""
    match expr.type, type_:
        case TensorType(_, "bool"), TensorType(_, "int"):
            return operator("add", (expr, IntConst(0)), {}, expr.span)
        case TensorType(_, "int"), TensorType(_, "bool"):
            return operator("ne", (expr, IntConst(0)), {}, expr.span)
        case _:
            return expr


def truth(expr: Expr) -> Expr:
    """A scalar as an element of a BoolTensor: 1 where it is not 0."""
    match expr:
        case Binary(op) if op in PREDICATES:
            return expr
        case Unary("not") | IntConst(0 | 1) | Index(Var(_, TensorType(_, "bool"))):
            return expr
        case _:
            zero = FloatConst(0.0) if expr.type == FLOAT else IntConst(0)
            return binary("!=", expr, zero, expr.span)


def passable(source: Type, target: Type) -> bool:
    """Whether a value may be passed to an argument: also a sized array where any length is taken.

    Sizes of tensors are not compared: they are written in the names of different functions.
    """
    match source, target:
        case TensorType(a), TensorType(b):
            return source.integer == target.integer and (a is None or b is None or len(a) == len(b))
        case ArrayType(element, _), ArrayType(wanted, None):
            return element == wanted
        case _:
            return convertible(source, target)


# --------------------------------------------------------------------------- scalar expressions


def unary(op: str, operand: Expr, span: Span = NOWHERE) -> Expr:
    """``-x`` and ``not x`` on scalars and tensors."""
    if op == "not":
        operand = as_scalar(operand)
    if isinstance(operand.type, TensorType):
        return operator("neg" if op == "-" else "not", (operand,), {}, span)
    if not is_scalar(operand.type):
        raise errors.UnaryOpTypeMismatch(
            f"'{op}' takes an int or a float, found {show_type(operand.type)}", span
        )
    if op == "not":
        return Unary("not", operand, INT, span)
    match operand:
        case IntConst(value):
            return IntConst(-value, span)
        case FloatConst(value):
            return FloatConst(-value, span)
    return Unary("-", operand, operand.type, span)


def binary(op: str, left: Expr, right: Expr, span: Span = NOWHERE) -> Expr:
    """An infix operation; on a tensor it becomes the operator of that name, with broadcasting."""
    for side in (left, right):
        if not is_scalar(side.type) and not isinstance(side.type, TensorType):
            raise errors.BinaryOpTypeMismatch(
                f"'{op}' takes ints and floats, found {show_type(left.type)} and "
                f"{show_type(right.type)}",
                span,
            )
    if isinstance(left.type, TensorType) or isinstance(right.type, TensorType):
        return operator(INFIX[op].name, (left, right), {}, span)
    result: Type = FLOAT if FLOAT in (left.type, right.type) else INT
    if op in PREDICATES:
        result = INT
    if op == "**" and not (isinstance(right, IntConst) and right.value >= 0):
        result = FLOAT
    return Binary(cast(BinaryOp, op), left, right, result, span)


def every(conditions: Sequence[Expr]) -> Expr:
    """Whether all of them hold, of which there is one at least."""
    return functools.reduce(lambda a, c: binary("and", a, c), conditions)


def some(conditions: Sequence[Expr]) -> Expr:
    """Whether one of them holds, of which there is one at least."""
    return functools.reduce(lambda a, c: binary("or", a, c), conditions)


def select(cond: Expr, then: Expr, other: Expr, span: Span = NOWHERE) -> Expr:
    """``then if cond else other`` on scalars."""
    cond, then, other = as_scalar(cond), as_scalar(then), as_scalar(other)
    if not is_scalar(cond.type):
        raise errors.IfCondTypeMismatch(
            f"a condition is an int or a float, found {show_type(cond.type)}",
            cond.span,
            hint=TENSOR_CHOICE if isinstance(cond.type, TensorType) else None,
        )
    if not (is_scalar(then.type) and is_scalar(other.type)):
        tensors = any(isinstance(e.type, TensorType) for e in (then, other))
        raise errors.BinaryOpTypeMismatch(
            f"the branches of 'if ... else' are {show_type(then.type)} and "
            f"{show_type(other.type)}; they must be ints or floats",
            span,
            hint=TENSOR_CHOICE if tensors else "write if / else, with an assignment in each",
        )
    result: Type = FLOAT if FLOAT in (then.type, other.type) else INT
    return Select(cond, then, other, result, span)


def combined(kind: ReduceKind, before: Expr, new: Expr) -> Expr:
    """A reduction of some values and one more; of no kind that gives a position."""
    match kind:
        case "sum":
            return Binary("+", before, new, before.type)
        case "prod":
            return Binary("*", before, new, before.type)
        case _:
            return Builtin(kind, (before, new), before.type)


def builtin(name: str, args: Sequence[Expr], span: Span = NOWHERE) -> Expr:
    """A call of a built-in scalar function."""
    info = BUILTINS[name]
    if len(args) != info.arity:
        raise errors.CallTypeMismatch(
            f"'{name}' takes {errors.counted(info.arity, 'argument')}, found {len(args)}", span
        )
    scalars = tuple(as_scalar(arg) for arg in args)
    for arg_name, arg in zip(info.args, scalars, strict=True):
        if not is_scalar(arg.type):
            raise errors.CallTypeMismatch(
                f"'{name}' takes ints and floats here, found {show_type(arg.type)}", arg.span
            )
        if arg_name in info.ints and arg.type != INT:
            raise errors.CallTypeMismatch(
                f"argument '{arg_name}' of '{name}' is an int, found {show_type(arg.type)}",
                _place(arg, span), hint="convert it: float2int(x)",
            )  # fmt: skip
    if info.result == "operands":
        result: Type = FLOAT if any(a.type == FLOAT for a in scalars) else INT
    else:
        result = INT if info.result == "int" else FLOAT
    return Builtin(name, scalars, result, span)


def make_struct(struct: Struct, args: Sequence[Expr], span: Span = NOWHERE) -> MakeStruct:
    """``make_S(a, b)``: a struct of its members' values, in order."""
    name = f"make_{struct.name}"
    for member, type_ in struct.members:
        if isinstance(type_, ArrayType):
            raise errors.CallTypeMismatch(
                f"'{name}' cannot be called: member '{member}' of '{struct.name}' is an array",
                span,
                hint=f"declare a variable, x : {struct.name}, and assign its members",
            )
    if len(args) != len(struct.members):
        listed = ", ".join(member for member, _ in struct.members) or "none"
        raise errors.CallTypeMismatch(
            f"'{name}' takes {errors.counted(len(struct.members), 'argument')} ({listed}), found "
            f"{len(args)}",
            span,
        )
    values: list[Expr] = []
    for arg, (member, type_) in zip(args, struct.members, strict=True):
        value = as_scalar(arg) if is_scalar(type_) else arg
        if not convertible(value.type, type_):
            raise errors.CallTypeMismatch(
                f"argument '{member}' of '{name}' must be {show_type(type_)}, found "
                f"{show_type(value.type)}",
                _place(arg, span),
            )
        values.append(value)
    return MakeStruct(tuple(values), StructType(struct.name), span)


# ----------------------------------------------------- arithmetic for derivatives, constants folded


def is_const(expr: Expr, value: float) -> bool:
    return isinstance(expr, FloatConst | IntConst) and expr.value == value


def number(expr: Expr) -> float | None:
    """The number that an expression is, if it is one."""
    match expr:
        case FloatConst(value) | IntConst(value):
            return value
        case Unary("-", FloatConst(value) | IntConst(value)):
            return -value
        case _:
            return None


def add(left: Expr, right: Expr) -> Expr:
    if is_const(left, 0.0):
        return right
    return left if is_const(right, 0.0) else binary("+", left, right)


# Longer sums are sums of sums, which keeps the tree of any sum flat.
_LONGEST_SUM = 50


def total(terms: Sequence[Expr]) -> Expr:
    """The sum of the terms, at least one, from left to right."""
    if len(terms) > _LONGEST_SUM:
        part = _LONGEST_SUM // 2
        size = -(-(len(terms) - part) // part)
        groups = [total(terms[k : k + size]) for k in range(part, len(terms), size)]
        terms = [*terms[:part], *groups]
    return functools.reduce(add, terms)


def mul(left: Expr, right: Expr) -> Expr:
    if is_const(left, 1.0) and right.type != INT:
        return right
    if is_const(right, 1.0) and left.type != INT:
        return left
    if is_const(right, -1.0):
        return neg(left)
    return neg(right) if is_const(left, -1.0) else binary("*", left, right)


def neg(operand: Expr) -> Expr:
    if isinstance(operand, Unary) and operand.op == "-":
        return operand.operand
    return unary("-", operand)


def no_diff(operand: Expr) -> NoDiff:
    return NoDiff(operand, operand.type, operand.span)


def zero(like: Expr) -> Expr:
    """The number of that type, float or int."""
    return FloatConst(0.0) if like.type == FLOAT else IntConst(0)


def flt(value: float) -> FloatConst:
    return FloatConst(float(value))


# ------------------------------------------------------------------------------ tensor operators


def operator(
    name: str, args: Sequence[Expr], attrs: dict[str, object] | None = None, span: Span = NOWHERE
) -> Op:
    """A call of a tensor operator, its attributes checked and completed.

    ``attrs`` maps names to ints, int expressions, or sequences of them.
    """
    info = OPS[name]
    complete = attributes(info, args, attrs, span)
    call = OpCall(name, tuple(args), complete, span)
    return Op(name, tuple(args), tuple(complete.items()), info.shape(call), span)


def attributes(
    info: OpInfo, args: Sequence[Expr], attrs: dict[str, object] | None, span: Span
) -> dict[str, Attr]:
    """The attributes of an operator's call, all of them; the arguments are checked, too."""
    _check_args(info, args, span)
    given = dict(attrs or {})
    complete = {attr.name: _attr(info, attr, given, args, span) for attr in info.attrs}
    for name in given:
        if name not in complete:
            raise errors.OperatorArguments(
                f"'{info.name}' has no attribute '{name}'; it has {', '.join(complete) or 'none'}",
                span, hint=errors.suggest(name, complete),
            )  # fmt: skip
    for attr in info.attrs:
        if isinstance(attr.default, str) and complete[attr.name] == ():
            complete[attr.name] = complete[attr.default]
    return complete


def _check_args(info: OpInfo, args: Sequence[Expr], span: Span) -> None:
    least = 1 if info.takes_list else len(info.args) - info.optional
    if len(args) < least or (len(args) > len(info.args) and not info.takes_list):
        wanted = f"{least}" if not info.optional else f"{least} or {len(info.args)}"
        raise errors.OperatorArguments(
            f"'{info.name}' takes {wanted} tensor argument{'s' if wanted != '1' else ''} "
            f"({', '.join(info.args)}), found {len(args)}",
            span,
        )
    kinds = {"bool": "a BoolTensor", "int": "an IntTensor"}
    for position, arg in enumerate(args):
        name, place = info.arg(position), _place(arg, span)
        if info.scalars and is_scalar(arg.type):
            continue
        what = f"argument '{name}' of '{info.name}' must be"
        if not isinstance(arg.type, TensorType):
            raise errors.OperatorArguments(f"{what} a tensor, found {show_type(arg.type)}", place)
        takes_ints, found = name in info.ints, kinds.get(arg.type.element, "a float tensor")
        if takes_ints and not arg.type.integer:
            raise errors.DtypeMismatch(f"{what} an IntTensor, found {found}", place)
        if arg.type.integer and not takes_ints and not info.any_element:
            raise errors.DtypeMismatch(f"{what} a float tensor, found {found}", place)


def _place(part: Expr, span: Span) -> Span:
    """Where a part of an expression stands, else the expression."""
    return part.span if part.span != NOWHERE else span


def _attr(
    info: OpInfo, attr: AttrInfo, given: dict[str, object], args: Sequence[Expr], span: Span
) -> Attr:
    copies = isinstance(attr.default, str)
    value = given.get(attr.name, () if copies else attr.default)
    what = f"attribute '{attr.name}' of '{info.name}'"
    if value is None:
        raise errors.OperatorArguments(
            f"'{info.name}' needs its attribute '{attr.name}'", span,
            hint=f"{info.name}(..., {attr.name}=...)",
        )  # fmt: skip
    is_list = isinstance(value, tuple | list)
    exprs = tuple(map(_number, value if isinstance(value, tuple | list) else (value,)))
    for expr in exprs:
        if attr.kind != "float" and expr.type != INT:
            raise errors.OperatorArguments(
                f"{what} takes ints, found {show_type(expr.type)}", _place(expr, span)
            )
    if attr.kind in ("dim", "dims", "flag", "word"):
        exprs = tuple(_constant(info, attr, e, args, span) for e in exprs)
        twice = [e for k, e in enumerate(exprs) if e in exprs[:k]]
        if twice and attr.kind == "dims" and info.name != "permute":
            raise errors.OperatorArguments(
                f"'{info.name}' names dimension {sizes.constant(twice[0])} twice", span
            )
    if attr.kind in ("int", "dim", "flag", "float", "word"):
        if is_list:
            wanted = "float" if attr.kind == "float" else "int"
            raise errors.OperatorArguments(f"{what} is one {wanted}, found a list", span)
        if not is_scalar(exprs[0].type):
            raise errors.OperatorArguments(
                f"{what} is a float, found {show_type(exprs[0].type)}", span
            )
        return exprs[0]
    rank = attr.count or (len(attr.default) if isinstance(attr.default, tuple) else 0)
    if rank:
        exprs = exprs if is_list else exprs * rank
        if len(exprs) != rank and not (copies and not exprs):
            count = {1: "one int", 2: "two ints", 3: "three ints"}[rank]
            raise errors.OperatorArguments(f"{what} takes {count}, found {len(exprs)}", span)
    return exprs


def _number(value: object) -> Expr:
    if isinstance(value, float):
        return FloatConst(value)
    return IntConst(value) if isinstance(value, int) else cast(Expr, value)


def _constant(
    info: OpInfo, attr: AttrInfo, expr: Expr, args: Sequence[Expr], span: Span
) -> IntConst:
    value = sizes.constant(expr)
    if value is None:
        raise errors.OperatorArguments(
            f"attribute '{attr.name}' of '{info.name}' must be a constant", span
        )
    if attr.kind in ("flag", "word"):
        return IntConst(value)
    # a reduction's result type is of lower rank, but its dims name those of its first argument;
    # the *_like operators and the adjoints that carry a shape name dims of what they make
    like = args[-1] if info.args[-1] in info.constant else args[0]
    own = cast(TensorType, like.type).dims
    if own is None or any(other.name == "shape" for other in info.attrs):
        return IntConst(value)
    if not -len(own) <= value < len(own):
        raise errors.OperatorArguments(
            f"'{info.name}' has no dimension {value}: its argument has rank {len(own)}", span
        )
    return IntConst(value % len(own))
