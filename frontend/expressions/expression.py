"""Expressions: syntax to typed IR. What needs names of functions stands in ``calls``."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace

from loma import errors
from loma.core import builder as b, sizes
from loma.core.bounds import Interval
from loma.core.definitions import OPERATORS
from loma.core.ir import (
    FLOAT, INT, ArrayType, Binary, Expr, FloatConst, Index, IntConst, Member, StructType,
    TensorType, TupleType, Type, Var, is_tensor_function,
)  # fmt: skip
from loma.core.printer import print_expr
from loma.errors.spans import Span
from loma.frontend.expressions import calls, operators, slices
from loma.frontend.expressions.invariants import is_invariant
from loma.frontend.expressions.ranges import escape
from loma.frontend.scope import Scope, span_of, too_long
from loma.frontend.syntax import attributes
from loma.frontend.syntax.python_syntax import SYMBOLS, elts, is_slice
from loma.frontend.syntax.unsupported import unsupported
from loma.frontend.types import has_dimensions

_COMPARE: dict[type[ast.cmpop], str] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip


def expression(scope: Scope, node: ast.expr) -> Expr:
    """The expression. Inside index statements and reductions it is a scalar."""
    known = _invariant(scope, node) if scope.elementwise and is_invariant(scope, node) else None
    expr = _expression(scope, node) if known is None else known
    if scope.elementwise and isinstance(expr.type, TensorType):
        return _element(expr)
    return expr


def _invariant(scope: Scope, node: ast.expr) -> Expr | None:
    """The value of whole tensors, worked out before the statement; None if it is no number."""
    with scope.having(elementwise=False):
        value = b.as_scalar(expression(scope, node))
        return scope.once(value) if b.is_scalar(value.type) else None


def _element(expr: Expr) -> Expr:
    if isinstance(expr, Var) and b.is_rank0(expr.type):
        return b.as_scalar(expr)
    what, hint = "this", "give the tensor a name in a statement of its own before: t = ..."
    if isinstance(expr, Var):
        what, example = f"'{expr.name}'", _example(expr.name, expr.type)
        hint = f"write an element, as in {example}, or call the operator in a statement of its own "
        hint += "before"
    raise errors.RankMismatch(
        f"{what} is {b.show_type(expr.type)}; an index statement computes with elements",
        expr.span, hint=hint,
    )  # fmt: skip


def _example(name: str, type_: Type) -> str:
    rank = len(type_.dims or ()) if isinstance(type_, TensorType) else 1
    return f"{name}[{', '.join('ijklmnopq'[:rank])}]" if 0 < rank < 10 else f"{name}[...]"


def scalar(scope: Scope, node: ast.expr) -> Expr:
    """An expression that must be an int or a float (a rank-0 tensor is read)."""
    expr = b.as_scalar(expression(scope, node))
    if not b.is_scalar(expr.type):
        raise errors.TypeMismatch(
            f"expected an int or a float, found {b.show_type(expr.type)}", span_of(node)
        )
    return expr


def condition(scope: Scope, node: ast.expr, word: str) -> Expr:
    """The condition of ``if`` or ``while``."""
    expr = b.as_scalar(expression(scope, node))
    if not b.is_scalar(expr.type):
        error = errors.WhileCondTypeMismatch if word == "while" else errors.IfCondTypeMismatch
        raise error(
            f"the condition of '{word}' is an int or a float, found {b.show_type(expr.type)}",
            span_of(node),
            hint=b.TENSOR_CHOICE if isinstance(expr.type, TensorType) else None,
        )
    return expr


def int_expression(scope: Scope, node: ast.expr, what: str) -> Expr:
    """An expression that must be an int, named ``what`` in the error."""
    expr = b.as_scalar(expression(scope, node))
    if expr.type != INT:
        raise errors.TypeMismatch(
            f"{what} must be an int, found {b.show_type(expr.type)}", span_of(node),
            hint="convert it: float2int(x)" if expr.type == FLOAT else None,
        )  # fmt: skip
    return expr


def _expression(scope: Scope, node: ast.expr) -> Expr:
    span = span_of(node)
    match node:
        case ast.Constant():
            return _constant(scope, node)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))) if not isinstance(
            value, bool
        ):
            return _whole_number(scope, -value, span)
        case ast.Name():
            return scope.lookup(node)
        case ast.UnaryOp(op=op, operand=inner):
            return _unary(scope, node, op, inner)
        case ast.BinOp(left=left, op=ast.MatMult(), right=right):
            matrices = expression(scope, left), expression(scope, right)
            if not all(has_dimensions(m.type) for m in matrices):
                raise unsupported(node.op, node)
            return operators.applied(scope, OPERATORS["matmul"], matrices, {}, span)
        case ast.BinOp(left=left, op=op, right=right):
            if type(op) not in SYMBOLS:
                raise unsupported(op, node)
            first, second = expression(scope, left), expression(scope, right)
            return _shift(scope, left, b.binary(SYMBOLS[type(op)], first, second, span))
        case ast.BoolOp(op=op, values=values):
            return _logic(scope, "and" if isinstance(op, ast.And) else "or", values, span)
        case ast.Compare(left=left, ops=ops, comparators=others):
            return _compare(scope, node, [left, *others], ops)
        case ast.IfExp(test=test, body=body, orelse=other):
            cond = expression(scope, test)
            with scope.having(guarded=scope.guarded + 1):
                return b.select(cond, expression(scope, body), expression(scope, other), span)
        case ast.Subscript():
            return subscript(scope, node)
        case ast.Attribute():
            return member(scope, node)
        case ast.Call():
            return calls.call(scope, node)
        case _:
            raise unsupported(node)


def _shift(scope: Scope, left: ast.expr, whole: Expr) -> Expr:
    """``i - 1`` for an i that stands for ``k + 1`` is k."""
    symbol = scope.named(left)
    if symbol is None or symbol.value is None:
        return whole
    match whole:
        case Binary("+" | "-", Binary("+" | "-", Var(), IntConst()), IntConst()):
            return replace(sizes.simplify(whole), span=whole.span)
        case _:
            return whole


def _whole_number(scope: Scope, value: int, span: Span) -> IntConst:
    """An int literal: of 64 bits where tensors are, which have as large sizes, else of 32."""
    bits = 64 if is_tensor_function(scope.header) else 32
    if not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
        raise errors.SyntaxNotSupported(
            f"this whole number needs more than {bits} bits", span,
            hint=f"as a float it is {float(value)!r}" if abs(value) < 2**63 else None,
        )  # fmt: skip
    return IntConst(value, span)


def _constant(scope: Scope, node: ast.Constant) -> Expr:
    span = span_of(node)
    match node.value:
        case bool(value):
            return IntConst(int(value), span)
        case int(value):
            return _whole_number(scope, value, span)
        case float(value):
            return FloatConst(value, span)
        case complex():
            raise errors.SyntaxNotSupported("complex numbers are not part of loma", span)
        case str() | bytes():
            raise unsupported(node)
        case value:
            none = "leave out an argument that is not wanted"
            hint = none if value is None else "write the subscripts out"
            text = ast.unparse(node)
            raise errors.SyntaxNotSupported(f"'{text}' is not part of loma", span, hint=hint)


def _unary(scope: Scope, node: ast.expr, op: ast.unaryop, inner: ast.expr) -> Expr:
    operand = expression(scope, inner)
    match op:
        case ast.USub() | ast.Not():
            symbol = "-" if isinstance(op, ast.USub) else "not"
            return b.unary(symbol, operand, span_of(node))
        case ast.UAdd():
            if not isinstance(operand.type, TensorType) and not b.is_scalar(operand.type):
                raise errors.UnaryOpTypeMismatch(
                    f"'+' takes an int or a float, found {b.show_type(operand.type)}",
                    span_of(node),
                )
            return operand
        case _:
            raise unsupported(op, node)


def _logic(scope: Scope, op: str, nodes: list[ast.expr], span: Span) -> Expr:
    values = [expression(scope, nodes[0])]
    with scope.having(guarded=scope.guarded + 1):
        values += [expression(scope, node) for node in nodes[1:]]
    return _chain(op, values, span)


# Longer chains are nested in parts of this length, which keeps the tree of any chain flat.
_PART = 50


def _chain(op: str, values: list[Expr], span: Span) -> Expr:
    """``a and b and c``, from left to right."""
    if len(values) > _PART + 1:
        rest = values[_PART:]
        inner = Span(rest[0].span.line, rest[0].span.col, span.end_line, span.end_col)
        values = [*values[:_PART], _chain(op, rest, inner)]
    result = values[0]
    for right in values[1:]:
        whole = Span(span.line, span.col, right.span.end_line, right.span.end_col)
        result = b.binary(op, b.as_scalar(result), b.as_scalar(right), whole)
    return result


def _compare(scope: Scope, node: ast.expr, sides: list[ast.expr], ops: list[ast.cmpop]) -> Expr:
    """``a < b < c`` is ``a < b and b < c``; nothing in loma has effects, so b may stand twice."""
    for op in ops:
        if type(op) not in _COMPARE:
            raise unsupported(op, node)
    span = span_of(node)
    values = [expression(scope, sides[0]), _shared(scope, sides[1], len(sides) > 2)]
    with scope.having(guarded=scope.guarded + 1):
        values += [_shared(scope, side, side is not sides[-1]) for side in sides[2:]]
    links = [
        b.binary(_COMPARE[type(op)], left, right, span)
        for op, left, right in zip(ops, values[:-1], values[1:], strict=True)
    ]
    return _chain("and", links, span)


def _shared(scope: Scope, node: ast.expr, twice: bool) -> Expr:
    """An expression that a chain of comparisons has ``twice``, without another chain in it: each
    level would double what stands in it."""
    value = expression(scope, node)
    if not twice or not any(isinstance(inner, ast.Compare) for inner in ast.walk(node)):
        return value
    value = scope.once(b.as_scalar(value))
    if too_long(value):
        raise errors.SyntaxNotSupported(
            "a chain of comparisons inside a chain of comparisons", span_of(node),
            hint="give it a name in a statement of its own before, or join two comparisons with "
            "'and'",
        )  # fmt: skip
    return value


def member(scope: Scope, node: ast.Attribute) -> Member:
    """``x.name`` of a struct."""
    attributes.check_module(scope, node)
    base = _base(scope, node.value)
    if not isinstance(base.type, StructType):
        raise attributes.no_struct(node, base)
    members = dict(scope.program.structs[base.type.name].members)
    if node.attr in members:
        return Member(base, node.attr, members[node.attr], span_of(node))
    raise errors.StructMemberNotFound(
        f"struct '{base.type.name}' has no member '{node.attr}'", span_of(node),
        hint=errors.suggest(node.attr, members) or f"its members are {', '.join(members)}",
    )  # fmt: skip


def _base(scope: Scope, node: ast.expr) -> Expr:
    """What a subscript or a member access stands on: a whole tensor, array or struct."""
    with scope.having(elementwise=False):
        return _expression(scope, node)


def subscript(
    scope: Scope, node: ast.Subscript, padded: bool = False, target: bool = False
) -> Expr:
    """One element of a tensor or an array, or a slice of a tensor.

    ``padded``: a subscript may leave the tensor. ``target``: the element is written.
    """
    base = _base(scope, node.value)
    nodes = elts(node.slice)
    if isinstance(base.type, TensorType):
        return _tensor_element(scope, node, base, padded, target)
    if not isinstance(base.type, ArrayType):
        raise errors.ArrayAccessTypeMismatch(
            f"{b.show_type(base.type)} has no elements", span_of(node)
        )
    if len(nodes) != 1:
        raise errors.ArrayAccessTypeMismatch(
            f"an Array takes one subscript at a time, found {len(nodes)}", span_of(node),
            hint="write a[i][j]",
        )  # fmt: skip
    (position,) = _positions(scope, nodes)
    read = Index(base, (position,), base.type.element, span_of(node))
    if base.type.size is not None:
        _check_inside(scope, node, read, (IntConst(base.type.size),), target)
    return read


def check_rank(node: ast.Subscript, type_: TensorType) -> tuple[Expr, ...]:
    """The dims of a tensor that is subscripted; RankMismatch if the subscripts do not fit them."""
    nodes = elts(node.slice)
    name = f"'{node.value.id}'" if isinstance(node.value, ast.Name) else "this"
    if type_.dims is None:
        raise errors.RankMismatch(
            f"{name} is a tensor of unknown rank, which has no subscripts", span_of(node),
            hint="give its type sizes: Tensor[N, M]",
        )  # fmt: skip
    if len(nodes) != len(type_.dims):
        raise errors.RankMismatch(
            f"{name} is {b.show_type(type_)}, of rank {len(type_.dims)}, but has "
            f"{errors.counted(len(nodes), 'subscript')}",
            span_of(node),
            hint="a tensor takes all its subscripts at once, and gives one element",
        )
    return type_.dims


def _tensor_element(
    scope: Scope, node: ast.Subscript, base: Expr, padded: bool, target: bool
) -> Expr:
    type_, nodes = base.type, elts(node.slice)
    assert isinstance(type_, TensorType)
    if type_.dims is not None and not (scope.elementwise or padded or target):
        part = is_slice(nodes, len(type_.dims))
        if part or (nodes and not isinstance(base, Var)):
            found = slices.sliced(scope, node, base, type_.dims)
            return found if part else b.as_scalar(found)
        slices.check_no_tensor(scope, nodes)
    for item in nodes:
        if isinstance(item, ast.Slice | ast.Starred):
            raise unsupported(item, node if isinstance(item, ast.Slice) else item)
    dims = check_rank(node, type_)
    if not isinstance(base, Var) and (nodes or scope.elementwise):
        raise errors.RankMismatch(
            "subscripts take elements of variables only", span_of(node),
            hint="give the tensor a name in a statement of its own before: t = ...",
        )  # fmt: skip
    element: Type = INT if type_.integer else FLOAT
    positions = _positions(scope, nodes)
    if not padded:
        pairs = zip(positions, dims, strict=True)
        positions = tuple(slices.counted(position, dim) for position, dim in pairs)
    read = Index(base, positions, element, span_of(node))
    if not padded:
        _check_inside(scope, node, read, dims, target)
    return read


def _positions(scope: Scope, nodes: Sequence[ast.expr]) -> tuple[Expr, ...]:
    with scope.having(elementwise=True, subscripts=scope.subscripts + 1):
        found = [expression(scope, node) for node in nodes]
    for node, expr in zip(nodes, found, strict=True):
        if expr.type != INT:
            raise slices.not_an_int(node, expr.type)
    return tuple(found)


def _check_inside(
    scope: Scope, node: ast.Subscript, read: Index, dims: tuple[Expr, ...], target: bool
) -> None:
    """Refuses a subscript that provably leaves its dimension where the element is evaluated."""
    extents = {s.name: s.extent for s in scope.symbols.values() if s.extent is not None}
    known = frozenset(s.name for s in scope.symbols.values() if s.kind == "size")
    places = zip(read.subscripts, dims, elts(node.slice), strict=True)
    for k, (position, dim, item) in enumerate(places):
        found = escape(position, dim, extents, known)
        if found is None or (scope.guarded and not found[1]):
            continue
        name = ast.unparse(node.value)
        what, hint = _describe(position, dim, found[0], item)
        tensor = isinstance(read.base.type, TensorType)
        if tensor and (sizes.constant(position) or 0) < 0:
            hint = "positions count from 0, or from -1 at the end"
        elif hint is None and tensor and not target:
            hint = f"read zero outside with zero_pad({ast.unparse(node)})"
        raise errors.SubscriptOutOfRange(
            f"the subscript {what} outside dimension {k} of '{name}', of size {print_expr(dim)}",
            span_of(item),
            hint=hint,
        )


def _describe(position: Expr, dim: Expr, found: Interval, node: ast.expr) -> tuple[str, str | None]:
    """What a subscript that leaves its dimension does, and a hint for a constant one."""
    text, value = print_expr(position), sizes.constant(position)
    if value is not None:
        back = IntConst(-value if value < 0 else 1)
        last = print_expr(sizes.simplify(b.binary("-", dim, back)))
        return f"{text} is", f"positions count from 0; the last one is {last}"
    low, high = print_expr(found.low), print_expr(found.high)
    return f"'{ast.unparse(node)}' runs from {low} to {high},", None


def convert(value: Expr, target: Type, what: str, error: type[errors.TypeMismatch]) -> Expr:
    """The value where ``target`` is expected: a rank-0 tensor is read as a scalar."""
    if isinstance(value.type, TupleType):
        raise error(
            f"{what} is one value, found {len(value.type.items)} of them", value.span,
            hint="take them apart: a, b = f(x)",
        )  # fmt: skip
    if b.is_scalar(target):
        value = b.as_scalar(value)
    if not b.convertible(value.type, target):
        raise error(
            f"{what} must be {b.show_type(target)}, found {b.show_type(value.type)}", value.span
        )
    return b.same_ints(value, target)
