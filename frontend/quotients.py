"""Quotients of two ints that become floats: ``w[0] = 1 / 6`` is 0, which Python's is not."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple

from loma import errors
from loma.arithmetic.integers import truncated_quotient
from loma.core import sizes
from loma.core.builtins import BUILTINS
from loma.core.ir import (
    FLOAT, INT, Assign, AtomicAdd, Binary, Builtin, Call, Declare, Expr, Function, IndexAssign,
    MakeStruct, NoDiff, Op, Reduce, Return, Select, Stmt, TensorType, Type, Unary, Var,
)  # fmt: skip
from loma.core.ops import OPS, PREDICATES
from loma.core.walk import expressions, statements, walk
from loma.errors import Warnings
from loma.errors.excerpts import text_at
from loma.errors.spans import Span
from loma.frontend.constants import Constant, Number, value
from loma.frontend.scope import Program, span_of

_LITERAL = re.compile(r"-?\d[\d_]*")


def whole_quotients(program: Program, functions: Iterable[Function], source: str) -> Warnings:
    """A warning for each quotient of ints in the functions that is used as a float."""
    found: dict[Span, errors.UserWarning] = {}
    for function in functions:
        body = list(statements(function.body))
        kept: dict[str, Expr] = {}  # by variables that the program does not name
        for stmt in body:
            match stmt:
                case Declare(target, made) | Assign(Var() as target, "=", made):
                    if made is not None and not target.span.line:
                        kept[target.name] = made
        for stmt in body:
            for expr in _floats(stmt, function, program):
                for quotient in _quotients(expr, kept):
                    left, right = sizes.constant(quotient.left), sizes.constant(quotient.right)
                    result = None
                    if left is not None and right is not None:
                        if not right or not left % right:
                            continue
                        result = truncated_quotient(left, right)
                    span = quotient.span
                    found[span] = _warning(source, span, quotient.left.span, result)
    yield from (found[span] for span in sorted(found, key=astuple))


def of_constants(
    nodes: Iterable[ast.AnnAssign], constants: Mapping[str, Constant], source: str
) -> Warnings:
    """The same for the values of constants."""
    for node in nodes:
        if isinstance(node.annotation, ast.Name) and node.annotation.id == "float" and node.value:
            yield from _of_constant(node.value, constants, source)


def of_defaults(node: ast.FunctionDef, header: Function, source: str) -> Warnings:
    """The same for default values of arguments."""
    for param, default in zip(reversed(header.params), reversed(node.args.defaults), strict=False):
        if param.type == FLOAT:
            yield from _of_constant(default, {}, source)


def _of_constant(node: ast.expr, constants: Mapping[str, Constant], source: str) -> Warnings:
    def number(of: ast.expr) -> Number:
        return value(of, lambda name: constants[name.id].value)

    match node:
        case ast.UnaryOp(operand=operand):
            yield from _of_constant(operand, constants, source)
        case ast.BinOp(left=left, op=ast.Div(), right=right) if isinstance(
            a := number(left), int
        ) and isinstance(b := number(right), int):
            if a % b:
                yield _warning(source, span_of(node), span_of(left), truncated_quotient(a, b))
        case ast.BinOp(left=left, op=op, right=right) if not isinstance(op, ast.FloorDiv | ast.Mod):
            yield from _of_constant(left, constants, source)
            yield from _of_constant(right, constants, source)


def _warning(source: str, whole: Span, left: Span, result: int | None) -> errors.UserWarning:
    text = text_at(source, whole)
    head = text_at(source, Span(whole.line, whole.col, left.end_line, left.end_col))
    tail = text[len(head) :]
    is_ = "a whole number, toward zero as in C" if result is None else f"{result}, as in C"
    if not head or not text:  # over several lines
        return errors.UserWarning(
            f"this quotient of two ints is {is_}", whole,
            hint="make one of them a float, or write '//' if whole numbers are meant",
        )  # fmt: skip
    if _LITERAL.fullmatch(head):
        as_float = f"{head}.0{tail}"
    elif re.fullmatch(rf"\W*{_LITERAL.pattern}", tail) and not tail.endswith(")"):
        as_float = f"{text}.0"
    elif head == text_at(source, left):
        as_float = f"int2float({head}){tail}"
    else:
        as_float = f"int2float{text}"
    return errors.UserWarning(
        f"'{text}' of two ints is {is_}", whole,
        hint=f"write {as_float}, or {head}{tail.replace('/', '//', 1)} if whole numbers are meant",
    )  # fmt: skip


def _floats(stmt: Stmt, function: Function, program: Program) -> Iterator[Expr]:
    """The ints in a statement that become floats."""
    match stmt:
        case Declare(target, given) if given is not None:
            yield from _ints((given,), (target.type,))
        case Assign(target, _, given) | AtomicAdd(target, given) | IndexAssign(target, _, given):
            yield from _ints((given,), (target.type,))
        case Return(values):
            yield from _ints(values, function.results)
    for expr in expressions(stmt):
        for node in walk(expr):
            yield from _operands(node, program)


def _ints(values: Iterable[Expr], wanted: Iterable[Type]) -> Iterator[Expr]:
    for given, type_ in zip(values, wanted, strict=False):
        if given.type == INT and type_ == FLOAT:
            yield given


def _operands(node: Expr, program: Program) -> Iterator[Expr]:
    """The int operands of a node that are computed with as floats."""
    match node:
        case Binary(op, left, right):
            mixed = FLOAT in (left.type, right.type) and (node.type == FLOAT or op in PREDICATES)
            if mixed or (op == "**" and node.type == FLOAT):
                yield from _ints((left, right), (FLOAT, FLOAT))
        case Select(_, then, other) if node.type == FLOAT:
            yield from _ints((then, other), (FLOAT, FLOAT))
        case Builtin(name, args) if node.type == FLOAT and name != "int2float":
            info = BUILTINS[name]
            yield from _ints(args, (INT if arg in info.ints else FLOAT for arg in info.args))
        case Call(name, args):
            yield from _ints(args, (param.type for param in program.functions[name].params))
        case MakeStruct(args, type_):
            struct = program.structs[type_.name]
            yield from _ints(args, (member for _, member in struct.members))
        case Op(name, args, attrs):
            if any(isinstance(a.type, TensorType) and not a.type.integer for a in (node, *args)):
                yield from _ints(args, (FLOAT for _ in args))
            kinds = {attr.name: attr.kind for attr in OPS[name].attrs}
            for attr, given in attrs:
                if kinds.get(attr) == "float" and not isinstance(given, tuple):
                    yield from _ints((given,), (FLOAT,))


def _quotients(expr: Expr, kept: Mapping[str, Expr]) -> Iterator[Binary]:
    """The outermost quotients that the value of an int expression is made of."""
    match expr:
        case Binary("/"):
            yield expr
        case Binary("+" | "-" | "*", left, right) | Select(_, left, right):
            yield from _quotients(left, kept)
            yield from _quotients(right, kept)
        case Unary("-", operand) | NoDiff(operand):
            yield from _quotients(operand, kept)
        case Reduce("sum" | "prod" | "max" | "min", body):
            yield from _quotients(body, kept)
        case Builtin("max" | "min" | "abs" | "clamp", args):
            for arg in args:
                yield from _quotients(arg, kept)
        case Var(name) if name in kept:
            yield from _quotients(kept[name], kept)
