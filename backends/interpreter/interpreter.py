"""Runs functions of a module: arguments, statements, results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_never

import numpy as np
from numpy.typing import NDArray

from loma.backends.interpreter import arithmetic as arith
from loma.backends.interpreter.arguments import bind_arguments, check_shape
from loma.backends.interpreter.evaluate import (
    Frame, checked_subscripts, evaluate, extents_of,
)  # fmt: skip
from loma.backends.interpreter.grid import SCALAR
from loma.ir import (
    Assign, Axis, Call, CallStmt, Declare, Expr, For, Function, If, Index, IndexAssign, Member,
    Module, Place, Return, Stmt, TensorType, Unpack, Var, While, Zero, ZeroPad,
)  # fmt: skip
from loma.walk import children, free_variables

Value = Any
Array = NDArray[Any]


class Interpreter:
    """Runs the functions of a module on NumPy arrays, in float64."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self._functions = {function.name: function for function in module.functions}
        self._structs = {struct.name: struct for struct in module.structs}

    def call(self, name: str, *args: Value) -> tuple[Value, ...]:
        """The results of the function, then the final value of each ``Out`` argument.

        There is one argument for every parameter, ``Out`` ones included: arrays, numbers, lists
        and dicts (arrays and structs of the scalar layer). None of them is changed. Raises
        TypeError or ValueError for arguments that do not fit, and for sizes and subscripts that
        turn out wrong; KeyError when there is no such function.
        """
        return self._invoke(self._functions[name], args)

    def _invoke(self, function: Function, args: Sequence[Value]) -> tuple[Value, ...]:
        frame = Frame(function, self._functions, self._invoke)
        bind_arguments(frame, args)
        results: tuple[Value, ...] = ()
        with np.errstate(all="ignore"):
            for stmt in function.body:
                if isinstance(stmt, Return):
                    results = self._results(frame, stmt)
                else:
                    self._run(frame, stmt)
        outs = tuple(frame.env[p.name] for p in function.params if p.mode == "Out")
        return results + outs

    def _results(self, frame: Frame, stmt: Return) -> tuple[Value, ...]:
        types = frame.function.results
        values = [
            arith.convert(evaluate(frame, e), t) for e, t in zip(stmt.values, types, strict=True)
        ]
        for k, (value, type_) in enumerate(zip(values, types, strict=True)):
            label = "the result" if len(types) == 1 else f"result {k + 1}"
            check_shape(frame, type_, value, label, stmt.span)
        return tuple(values)

    # ------------------------------------------------------------------------------- statements

    def _block(self, frame: Frame, body: tuple[Stmt, ...]) -> None:
        for stmt in body:
            self._run(frame, stmt)

    def _run(self, frame: Frame, stmt: Stmt) -> None:
        match stmt:
            case Declare():
                self._declare(frame, stmt)
            case Assign(target, op, value):
                new = evaluate(frame, value)
                if op == "+=":
                    new = evaluate(frame, target) + new
                self._store(frame, target, new)
            case IndexAssign():
                assign_elements(frame, stmt)
            case Unpack(targets, call):
                values = self._called(frame, call)
                for target, value in zip(targets, values, strict=True):
                    self._store(frame, target, value)
            case Zero(target):
                frame.env[target.name] = arith.zero_like(frame.env[target.name])
            case If(cond, then, other):
                taken = bool(arith.is_true(evaluate(frame, cond)))
                self._block(frame, then if taken else other)
            case For(counter, extent, body, backwards):
                count = range(int(evaluate(frame, extent)))
                for position in reversed(count) if backwards else count:
                    frame.env[counter] = position
                    self._block(frame, body)
            case While():
                self._while(frame, stmt)
            case CallStmt(call):
                self._called(frame, call)
            case Return():
                raise AssertionError("a return inside a block")
            case _:
                assert_never(stmt)

    def _declare(self, frame: Frame, stmt: Declare) -> None:
        type_ = stmt.target.type
        if stmt.value is not None:
            self._store(frame, stmt.target, evaluate(frame, stmt.value))
            return
        shape: tuple[int, ...] = ()
        if isinstance(type_, TensorType):
            shape = tuple(int(evaluate(frame, dim)) for dim in type_.dims or ())
            if any(size < 0 for size in shape):
                raise ValueError(
                    f"{frame.place(stmt.span)}: '{stmt.target.name}' would have the shape "
                    f"{list(shape)}"
                )
        frame.env[stmt.target.name] = arith.zero(type_, shape, self._structs)

    def _while(self, frame: Frame, stmt: While) -> None:
        count = 0
        while bool(arith.is_true(evaluate(frame, stmt.cond))):
            if count == stmt.max_iter:
                raise RuntimeError(
                    f"{frame.place(stmt.span)}: the loop runs more than max_iter = "
                    f"{stmt.max_iter} times"
                )
            self._block(frame, stmt.body)
            count += 1

    def _called(self, frame: Frame, call: Call) -> tuple[Value, ...]:
        """The results of a call; its Out arguments are stored back."""
        callee = self._functions[call.function]
        values = self._invoke(callee, [evaluate(frame, arg) for arg in call.args])
        outs = [a for a, p in zip(call.args, callee.params, strict=True) if p.mode == "Out"]
        results = len(callee.results)
        for place, value in zip(outs, values[results:], strict=True):
            assert isinstance(place, Var | Index | Member)
            self._store(frame, place, value)
        return values[:results]

    def _store(self, frame: Frame, target: Place, value: Value) -> None:
        new = arith.convert(value, target.type)
        match target:
            case Var(name, type_, span):
                check_shape(frame, type_, new, f"'{name}'", span)
                frame.env[name] = new
            case Index(base, subscripts):
                places = [evaluate(frame, sub) for sub in subscripts]
                array = evaluate(frame, base)
                if isinstance(base.type, TensorType):
                    checked = checked_subscripts(frame, target, array.shape, places, SCALAR)
                    array[tuple(checked)] = new
                else:
                    checked = checked_subscripts(frame, target, (len(array),), places, SCALAR)
                    array[checked[0]] = new
            case Member(base, name):
                evaluate(frame, base)[name] = new
            case _:
                assert_never(target)


# ------------------------------------------------------------------------------ index statements


def assign_elements(frame: Frame, stmt: IndexAssign) -> None:
    """An index statement, all its points at once: the right side first, then the writes."""
    extents = extents_of(frame, stmt.axes)
    _check_extents(frame, stmt, extents)
    grid = SCALAR.extended(stmt.axes, extents)
    if 0 in grid.shape:
        return
    value = evaluate(frame, stmt.value, grid)
    target = stmt.target
    if isinstance(target, Var):
        total = np.sum(grid.full(value)) if grid.shape else value
        frame.env[target.name] = arith.convert(frame.env[target.name] + total, target.type)
        return
    array = evaluate(frame, target.base)
    places = [evaluate(frame, sub, grid) for sub in target.subscripts]
    checked = tuple(checked_subscripts(frame, target, array.shape, places, grid))
    if not grid.shape:
        array[checked] = array[checked] + value if stmt.op == "+=" else value
        return
    value = grid.full(value)
    if stmt.op == "=":
        array[checked] = value
        return
    # what the target does not mention is summed first: pairwise, more exact than one by one
    mentioned = {name for sub in target.subscripts for name in free_variables(sub)}
    summed = tuple(k for k, axis in enumerate(stmt.axes) if axis.name not in mentioned)
    value = np.sum(value, axis=summed, keepdims=True)
    if not checked:
        array[()] += value.sum()
        return
    own = tuple(np.broadcast_to(place, value.shape) for place in checked)
    np.add.at(array, own, value.astype(array.dtype, copy=False))


def _check_extents(frame: Frame, stmt: IndexAssign, extents: tuple[int, ...]) -> None:
    """All dimensions in which an axis stands alone as a subscript have its extent."""
    sizes = {axis.name: size for axis, size in zip(stmt.axes, extents, strict=True)}
    for index in (*_reads(stmt.target, stmt.axes), *_reads(stmt.value, stmt.axes)):
        if not isinstance(index.base, Var) or not isinstance(index.base.type, TensorType):
            continue
        shape = frame.env[index.base.name].shape
        for dim, (sub, size) in enumerate(zip(index.subscripts, shape, strict=True)):
            if isinstance(sub, Var) and sizes.get(sub.name, size) != size:
                raise ValueError(
                    f"{frame.place(stmt.span)}: index '{sub.name}' runs over "
                    f"{sizes[sub.name]} elements, but dimension {dim} of "
                    f"'{index.base.name}' has size {size}"
                )


def _reads(expr: Expr, axes: tuple[Axis, ...]) -> list[Index]:
    """Element reads, except those inside zero_pad."""
    if isinstance(expr, ZeroPad):
        return [r for sub in expr.read.subscripts for r in _reads(sub, axes)]
    own = [expr] if isinstance(expr, Index) else []
    return own + [read for child in children(expr) for read in _reads(child, axes)]
