"""Evaluates expressions: scalars on a grid of points, tensors as whole arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_never

import numpy as np
from numpy.typing import NDArray

from loma import errors
from loma.arithmetic import grids as arith
from loma.backends.interpreter.frame import Frame
from loma.backends.interpreter.grid import SCALAR, Grid
from loma.backends.interpreter.ops import OPS
from loma.backends.interpreter.values import convert, initial
from loma.core.builtins import BUILTINS
from loma.core.ir import (
    FLOAT, INT, OF_NOTHING, ArrayType, Attr, Binary, Builtin, Call, Expr, FloatConst, Index,
    IntConst, MakeStruct, Member, NoDiff, Op, Reduce, ReduceKind, Select, TensorType, Type, Unary,
    Var, ZeroPad,
)  # fmt: skip
from loma.core.ops import INFIX
from loma.core.printer import print_expr
from loma.errors.spans import Span
from loma.runtime_errors import Kind

Value = Any
Array = NDArray[Any]


def evaluate(frame: Frame, expr: Expr, grid: Grid = SCALAR) -> Value:
    """The value of any expression; see :mod:`loma.backends.interpreter.grid` for its shape."""
    match expr:
        case IntConst(value):
            return value
        case FloatConst(value):
            return np.float64(value)
        case Var(name):
            values = grid.values
            return values[name] if values and name in values else frame.env[name]
        case Index():
            return _read(frame, expr, grid)
        case ZeroPad(read):
            return _padded_read(frame, read, grid)
        case Member(base, name):
            return evaluate(frame, base, grid)[name]
        case Unary(op, operand):
            value = evaluate(frame, operand, grid)
            if op == "not":
                return arith.COMPARISONS["=="](value, 0)
            return _narrow(frame, -value)
        case Binary():
            return _binary(frame, expr, grid)
        case Select():
            return _select(frame, expr, grid)
        case Builtin():
            return _builtin(frame, expr, grid)
        case NoDiff(operand):
            return evaluate(frame, operand, grid)
        case Reduce():
            return _reduce(frame, expr, grid)
        case Call():
            return _call(frame, expr, grid)
        case MakeStruct(args, type_):
            members = frame.structs[type_.name].members
            return {
                name: convert(evaluate(frame, arg), t, frame.bits)
                for arg, (name, t) in zip(args, members, strict=True)
            }
        case Op():
            return _operator(frame, expr)
        case _:
            assert_never(expr)


def _as(value: Value, type_: Type) -> Value:
    """A scalar operand as that type."""
    return arith.to_float(value) if type_ == FLOAT else value


# -------------------------------------------------------------------------------------- scalars


def _binary(frame: Frame, expr: Binary, grid: Grid) -> Value:
    left = evaluate(frame, expr.left, grid)
    if expr.op in ("and", "or"):
        return _logical(frame, expr, left, grid)
    right = evaluate(frame, expr.right, grid)
    is_float = FLOAT in (expr.left.type, expr.right.type) or expr.type == FLOAT
    if is_float:
        left, right = arith.to_float(left), arith.to_float(right)
    if expr.op in arith.COMPARISONS:
        return arith.COMPARISONS[expr.op](left, right)
    if is_float:
        return arith.FLOAT_BINARY[expr.op](left, right)
    if INFIX[expr.op].divides:
        right = _nonzero(frame, right, grid, expr.span)
    if expr.op == "**" and isinstance(left, int) and frame.bits == 32:
        return _narrow(frame, pow(left, right, 1 << 32))
    return _narrow(frame, arith.INT_BINARY[expr.op](left, right))


def _narrow(frame: Frame, value: Value) -> Value:
    """An int as the function computes with it: of 32 bits, except in what works on tensors."""
    return arith.wrapped(value, 32) if frame.bits == 32 and isinstance(value, int) else value


def _nonzero(
    frame: Frame, divisor: Value, grid: Grid, span: Span, text: str = "division of an int by zero"
) -> Value:
    if np.ndim(divisor) == 0:
        if divisor != 0:
            return divisor
        if frame.bits == 32:
            raise frame.failure(Kind.DIVISION, span)
    zeros = np.asarray(divisor) == 0
    mask = grid.mask()
    if np.any(zeros if mask is None else zeros & mask) and not grid.empty:
        raise ValueError(f"{frame.place(span)}: {text}")
    return arith.choose(zeros, 1, divisor)


def _logical(frame: Frame, expr: Binary, left: Value, grid: Grid) -> Value:
    """``and`` and ``or``; the right side is evaluated only where it decides."""
    taken = arith.is_true(left)
    if np.ndim(taken) == 0:
        if bool(taken) == (expr.op == "or"):
            return int(expr.op == "or")
        return arith.COMPARISONS["!="](evaluate(frame, expr.right, grid), 0)
    inner = grid.where(taken if expr.op == "and" else np.logical_not(taken))
    right = arith.is_true(evaluate(frame, expr.right, inner))
    joined = np.logical_and(taken, right) if expr.op == "and" else np.logical_or(taken, right)
    return joined.astype(np.int64)


def _select(frame: Frame, expr: Select, grid: Grid) -> Value:
    cond = arith.is_true(evaluate(frame, expr.cond, grid))
    if np.ndim(cond) == 0:
        return _as(evaluate(frame, expr.then if cond else expr.other, grid), expr.type)
    then = evaluate(frame, expr.then, grid.where(cond))
    other = evaluate(frame, expr.other, grid.where(np.logical_not(cond)))
    return np.where(cond, _as(then, expr.type), _as(other, expr.type))


def _builtin(frame: Frame, expr: Builtin, grid: Grid) -> Value:
    if expr.name == "thread_id":
        return frame.item
    if expr.name in frame.own:
        return frame.own[expr.name](frame, expr)
    function = arith.BUILTIN_FUNCTIONS.get(expr.name)
    if function is None:
        raise errors.BackendLacksOperator(f"the interpreter has no '{expr.name}'", expr.span)
    args = [evaluate(frame, arg, grid) for arg in expr.args]
    if expr.type != INT or BUILTINS[expr.name].result != "operands":
        args = [arith.to_float(arg) for arg in args]
    if expr.name == "len":
        return _length(frame, args, grid, expr.span)
    if expr.name == "float2int":
        return arith.to_int(args[0], frame.bits)
    return _narrow(frame, function(*args)) if expr.type == INT else function(*args)


def _length(frame: Frame, bounds: list[Value], grid: Grid, span: Span) -> Value:
    """How many values a range has."""
    start, stop, step = bounds
    if np.ndim(step) == 0 and step == 0 and frame.bits == 32:
        raise frame.failure(Kind.STEP, span)
    found = arith.range_length(
        start, stop, _nonzero(frame, step, grid, span, "the step of a range is 0")
    )
    if frame.bits == 32 and np.ndim(found) == 0 and found >= 2**31:
        raise frame.failure(Kind.LENGTH, span)
    return found


def _reduce(frame: Frame, expr: Reduce, grid: Grid) -> Value:
    extents = tuple(evaluate(frame, axis.extent, grid) for axis in expr.axes)
    inner = grid.extended(expr.axes, extents)
    is_sum_like = expr.kind in OF_NOTHING
    if not is_sum_like and not grid.empty:
        _refuse_empty(frame, expr, grid, extents)
    own = tuple(range(len(grid.shape), len(inner.shape)))
    if 0 in inner.shape:
        empty = np.full(grid.shape, OF_NOTHING.get(expr.kind, 0))
        return _scalar(_as(empty, expr.type), grid)
    body = inner.full(evaluate(frame, expr.body, inner))
    if inner.domain is not None and is_sum_like:
        body = np.where(inner.domain, body, OF_NOTHING[expr.kind])
    match expr.kind:
        case "sum":
            return _scalar(np.sum(body, axis=own), grid)
        case "prod":
            return _scalar(np.prod(body, axis=own), grid)
        case "max" | "min":
            return _scalar(_extreme(expr.kind, body, inner, own), grid)
        case "argmax" | "argmin":
            best = _extreme(expr.kind, body, inner, own, keepdims=True)
            hits = (body == best) | (body != body)
            hits = hits if inner.domain is None else hits & inner.domain
            flat = hits.reshape((*grid.shape, -1))
            return _scalar(np.argmax(flat, axis=-1), grid)
        case _:
            assert_never(expr.kind)


def _extreme(
    kind: ReduceKind, body: Array, grid: Grid, own: tuple[int, ...], keepdims: bool = False
) -> Array:
    if grid.domain is not None:
        worst = initial(kind, body.dtype == np.int64)
        body = np.where(grid.domain, body, worst)
    function = np.max if kind.endswith("max") else np.min
    return np.asarray(function(body, axis=own, keepdims=keepdims))


def _refuse_empty(frame: Frame, expr: Reduce, grid: Grid, extents: tuple[Value, ...]) -> None:
    mask = grid.mask()
    for extent in extents:
        none = np.asarray(extent) <= 0
        if np.any(none if mask is None else none & mask):
            raise ValueError(f"{frame.place(expr.span)}: '{expr.kind}' of no elements")


def _scalar(value: Array, grid: Grid) -> Value:
    if grid.shape:
        return value
    item = value.item() if isinstance(value, np.ndarray | np.generic) else value
    return item if isinstance(item, int) else np.float64(item)


# ---------------------------------------------------------------------------------------- reads


def _read(frame: Frame, expr: Index, grid: Grid) -> Value:
    base = evaluate(frame, expr.base, grid)
    places = [evaluate(frame, sub, grid) for sub in expr.subscripts]
    if isinstance(expr.base.type, ArrayType):
        return base[array_position(frame, expr, len(base), places[0])]
    places = checked_subscripts(frame, expr, base.shape, places, grid)
    return _take(base, places, grid)


def _take(base: Array, places: Sequence[Value], grid: Grid) -> Value:
    if base.size == 0:
        # only reached where no point is active
        return np.zeros((1,) * len(grid.shape), dtype=base.dtype) if grid.shape else 0
    value = base[tuple(places)]
    return _scalar(value, SCALAR) if np.ndim(value) == 0 else value


def _padded_read(frame: Frame, expr: Index, grid: Grid) -> Value:
    base = evaluate(frame, expr.base, grid)
    inside: Any = True
    places: list[Value] = []
    for sub, size in zip(expr.subscripts, base.shape, strict=True):
        place = evaluate(frame, sub, grid)
        inside = np.logical_and(inside, np.logical_and(place >= 0, place < size))
        places.append(np.clip(place, 0, max(size - 1, 0)))
    value = _take(base, places, grid)
    if np.ndim(inside):
        return np.where(inside, value, value.dtype.type(0) if np.ndim(value) else 0)
    return value if inside else value * 0 if isinstance(value, int) else np.float64(0.0)


def array_position(frame: Frame, expr: Index, size: int, position: Value) -> int:
    """The position of an array's element. IndexError when there is none."""
    place = int(position)
    if not 0 <= place < size:
        raise frame.failure(Kind.SUBSCRIPT, expr.span, place, size)
    return place


def checked_subscripts(
    frame: Frame, expr: Index, shape: tuple[int, ...], places: list[Value], grid: Grid
) -> list[Value]:
    """The subscripts, all inside the tensor: ValueError where one that is read is not."""
    out: list[Value] = []
    for dim, (place, size) in enumerate(zip(places, shape, strict=True)):
        low, high = _reach(place, grid)
        if low < 0 or high >= size:
            raise ValueError(_outside(frame, expr, dim, low, high, size))
        if grid.shape and (np.min(place, initial=0) < 0 or np.max(place, initial=0) >= size):
            place = np.clip(place, 0, max(size - 1, 0))
        out.append(place)
    return out


def _reach(place: Value, grid: Grid) -> tuple[int, int]:
    """The smallest and largest value of a subscript where it is read; (0, -1) if nowhere."""
    if not grid.shape:
        return int(place), int(place)
    mask = grid.mask()
    if mask is not None:
        place = np.broadcast_to(place, grid.shape)[np.broadcast_to(mask, grid.shape)]
    if 0 in grid.shape or np.size(place) == 0:
        return 0, -1
    return int(np.min(place)), int(np.max(place))


def _outside(frame: Frame, expr: Index, dim: int, low: int, high: int, size: int) -> str:
    runs = f"is {low}" if low == high else f"runs from {low} to {high}"
    found = (
        f"{frame.place(expr.span)}: subscript '{print_expr(expr.subscripts[dim])}' of "
        f"'{print_expr(expr.base)}' {runs}, outside dimension {dim} of size {size}"
    )
    return found if low == high else f"{found}; wrap the read in zero_pad(...) if zero is meant"


# ---------------------------------------------------------------------------- calls and operators


def _call(frame: Frame, expr: Call, grid: Grid) -> Value:
    function = frame.functions[expr.function]
    args = [evaluate(frame, arg, grid) for arg in expr.args]
    if not grid.shape:
        results = frame.invoke(frame, function, args)
        return results[0] if len(results) == 1 else results
    mask = grid.mask()
    live = np.ones(grid.shape, np.bool_) if mask is None else grid.full(mask)
    out = np.zeros(grid.shape, dtype=np.int64 if function.results[0] == INT else np.float64)
    columns = [grid.full(arg)[live] for arg in args]
    values = [frame.invoke(frame, function, row)[0] for row in zip(*columns, strict=True)]
    out[live] = values if columns else frame.invoke(frame, function, ())[0]
    return out


def _operator(frame: Frame, expr: Op) -> Array:
    rule = OPS.get(expr.name)
    if rule is None:
        raise errors.BackendLacksOperator(
            f"the interpreter has no operator '{expr.name}'", expr.span
        )
    args = [evaluate(frame, arg) for arg in expr.args]
    attrs = {name: _attr(frame, value) for name, value in expr.attrs}
    try:
        result = np.asarray(rule(*args, **attrs))
    except (ValueError, IndexError) as error:
        kind = ValueError if isinstance(error, ValueError) else IndexError
        raise kind(f"{frame.place(expr.span)}: '{expr.name}': {error}") from None
    is_int = isinstance(expr.type, TensorType) and expr.type.integer
    return result.astype(np.int64 if is_int else np.float64, copy=False)


def _attr(frame: Frame, value: Attr) -> int | tuple[int, ...]:
    if isinstance(value, tuple):
        return tuple(int(evaluate(frame, item)) for item in value)
    return int(evaluate(frame, value))
