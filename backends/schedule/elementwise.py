"""Elementwise statements: each element of the target from the same elements of other tensors.

Nothing in them can fail, and those over the same elements can take turns at each element. So a
function of nothing else may write its Out arguments where they lie, and a kernel runs them in one
loop (:mod:`loma.backends.lowering.joined`).

A call is an operator without side effects: it works on copies of its Out arguments, and their final
values are written at the end, so that a call that fails changes nothing and autograd sees a
function. An elementwise function cannot fail half-way. Where no gradient is asked for, it writes
the caller's memory in its one pass, and nothing is copied (``call_in_place`` in
``runtime/dispatch.cpp``).
"""

from __future__ import annotations

from loma.core import sizes
from loma.core.ir import (
    INT, Axis, Binary, Builtin, Declare, Expr, FloatConst, FloatType, Function, Index, IndexAssign,
    IntConst, NoDiff, Select, Stmt, TensorType, Unary, Var,
)  # fmt: skip
from loma.core.ops import divisor
from loma.core.walk import walk


def writes_in_place(function: Function) -> bool:
    """Whether the function has Out arguments, all tensors, and is elementwise: index statements
    without sums, whose subscripts are indices that run over whole dimensions."""
    outs = [param.type for param in function.params if param.mode == "Out"]
    tensors = all(isinstance(type_, TensorType) and type_.dims is not None for type_ in outs)
    return bool(outs) and tensors and all(map(_is_harmless_statement, function.body))


def is_elementwise(stmt: IndexAssign) -> bool:
    """Whether all subscripts, of the target and of what is read, are indices that run over whole
    dimensions, and those of the target are all that there are."""
    target = stmt.target
    if not isinstance(target, Index):
        return False
    names = {s.name for s in target.subscripts if isinstance(s, Var)}
    apart = len(names) == len(target.subscripts) == len(stmt.axes)
    return apart and _cannot_fail(target, stmt.axes) and _cannot_fail(stmt.value, stmt.axes)


def _is_harmless_statement(stmt: Stmt) -> bool:
    match stmt:
        case Declare(Var(_, TensorType()), None):
            return True
        case Declare(Var(_, FloatType()), value):
            return value is None or _cannot_fail(value, ())
        case IndexAssign():
            return is_elementwise(stmt)
        case _:
            return False


def _cannot_fail(expr: Expr, axes: tuple[Axis, ...]) -> bool:
    return all(_is_harmless(node, axes) for node in walk(expr))


def _is_harmless(node: Expr, axes: tuple[Axis, ...]) -> bool:
    match node:
        case Binary(op, type=type_):
            return type_ != INT or (op != "**" and divisor(node) is None)
        case Index(Var(_, TensorType(dims)), subscripts) if dims is not None:
            extents = {axis.name: axis.extent for axis in axes}
            return all(
                isinstance(subscript, Var)
                and subscript.name in extents
                and sizes.equal(extents[subscript.name], dim) is True
                for subscript, dim in zip(subscripts, dims, strict=True)
            )
        case IntConst() | FloatConst() | Var() | Unary() | Select() | NoDiff():
            return True
        case Builtin():
            return divisor(node) is None
        case _:
            return False
