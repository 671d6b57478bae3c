"""Runs functions of a module: arguments, statements, results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, assert_never

import numpy as np

from loma.arithmetic import grids as arith
from loma.backends.interpreter import values
from loma.backends.interpreter.arguments import bind_arguments, check_shape
from loma.backends.interpreter.evaluate import array_position, checked_subscripts, evaluate
from loma.backends.interpreter.frame import Frame
from loma.backends.interpreter.grid import SCALAR
from loma.backends.interpreter.once import check_once
from loma.backends.schedule.access import reads
from loma.core.aliases import meetings
from loma.core.ir import (
    Assign, AtomicAdd, Call, CallStmt, Declare, Expr, For, Function, If, Index, IndexAssign,
    IntConst, Member, Module, Place, Pop, Push, Return, StackType, Stmt, StructType, TensorType,
    Unpack, Var, While, Zero, is_tensor_function,
)  # fmt: skip
from loma.core.walk import free_variables
from loma.runtime_errors import Kind

Value = Any


class Interpreter:
    """Runs the functions of a module on NumPy arrays, in float64."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self._functions = {function.name: function for function in module.functions}
        self._structs = {struct.name: struct for struct in module.structs}

    def call(self, name: str, *args: Value) -> tuple[Value, ...]:
        """The results of the function, then the final value of each ``Out`` argument.

        There is one argument for every parameter, ``Out`` ones included: arrays, numbers, lists
        and dicts (arrays and structs of the scalar layer), and the number of work items after them
        for a @simd function, which are run one after the other. No argument is changed. Raises
        TypeError or ValueError for arguments that do not fit, and for sizes and subscripts of
        tensors that turn out wrong; what :mod:`loma.runtime_errors` lists; KeyError when there is
        no such function.
        """
        function = self._functions[name]
        bits = 64 if is_tensor_function(function) else 32
        frame = Frame(function, self._functions, self._structs, self._call, bits)
        with np.errstate(all="ignore"):
            if function.simd:
                return self._run_items(frame, args)
            found = self._invoke(frame, args)
        types = (*function.results, *(p.type for p in function.params if p.mode == "Out"))
        return tuple(map(values.to_host, found, types))

    def _call(self, caller: Frame, function: Function, args: Sequence[Value]) -> tuple[Value, ...]:
        return self._invoke(caller.called(function), args)

    def _invoke(self, frame: Frame, args: Sequence[Value]) -> tuple[Value, ...]:
        function = frame.function
        bind_arguments(frame, args)
        results: tuple[Value, ...] = ()
        for stmt in function.body:
            if isinstance(stmt, Return):
                frame.line = stmt.span.line
                results = self._results(frame, stmt)
            else:
                self._run(frame, stmt)
        return results + _outs(frame)

    def _run_items(self, frame: Frame, args: Sequence[Value]) -> tuple[Value, ...]:
        """A @simd function: its arguments are shared, but In scalars and structs are each item's
        own."""
        if not args:
            raise TypeError(f"{frame.function.name} takes the number of work items last")
        bind_arguments(frame, args[:-1])
        shared = frame.env
        for item in range(int(args[-1])):
            frame.item, frame.env = item, dict(shared)
            for param in frame.function.params:
                if param.mode == "In" and isinstance(param.type, StructType):
                    frame.env[param.name] = deepcopy(shared[param.name])
            self._block(frame, frame.function.body)
            for param in frame.function.params:
                if param.mode == "Out":
                    shared[param.name] = frame.env[param.name]
        frame.env = shared
        return _outs(frame)

    def _results(self, frame: Frame, stmt: Return) -> tuple[Value, ...]:
        types = frame.function.results
        found = [
            values.convert(evaluate(frame, e), t, frame.bits)
            for e, t in zip(stmt.values, types, strict=True)
        ]
        for k, (value, type_, expr) in enumerate(zip(found, types, stmt.values, strict=True)):
            label = "the result" if len(types) == 1 else f"result {k + 1}"
            check_shape(frame, type_, value, label, stmt.span, expr.type)
        return tuple(found)

    # ------------------------------------------------------------------------------- statements

    def _block(self, frame: Frame, body: tuple[Stmt, ...]) -> None:
        for stmt in body:
            self._run(frame, stmt)

    def _run(self, frame: Frame, stmt: Stmt) -> None:
        frame.line = stmt.span.line
        match stmt:
            case Declare():
                self._declare(frame, stmt)
            case Assign(target, op, value):
                new = evaluate(frame, value)
                self._store(frame, target, new if op == "=" else self._sum(frame, target, new))
            case AtomicAdd(target, value):
                # an atomic addition is one of the target's own type
                new = values.convert(evaluate(frame, value), target.type, frame.bits)
                self._store(frame, target, self._sum(frame, target, new))
            case Push():
                self._push(frame, stmt)
            case Pop(stack, target):
                if not frame.env[stack.name]:
                    raise frame.failure(Kind.EMPTY_STACK, stmt.span)
                self._store(frame, target, frame.env[stack.name].pop())
            case IndexAssign():
                assign_elements(frame, stmt)
            case Unpack(targets, call):
                found = self._called(frame, call)
                for target, value in zip(targets, found, strict=True):
                    self._store(frame, target, value)
            case Zero(target):
                self._store(frame, target, values.zero_like(evaluate(frame, target)))
            case If(cond, then, other):
                taken = bool(arith.is_true(evaluate(frame, cond)))
                self._block(frame, then if taken else other)
            case For(counter, extent, body, backwards):
                count = range(int(evaluate(frame, extent)))
                for position in reversed(count) if backwards else count:
                    frame.env[counter] = position
                    self._block(frame, body)
            case While():
                self._while(frame, stmt, stmt.cond, lambda: self._block(frame, stmt.body))
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
            # What a block declares stands here also where its sizes keep it from being run.
            shape = tuple(max(int(evaluate(frame, dim)), 0) for dim in type_.dims or ())
        frame.env[stmt.target.name] = values.zero(type_, shape, self._structs)

    def _while(self, frame: Frame, stmt: While, cond: Expr, body: Callable[[], None]) -> None:
        count = 0
        while bool(arith.is_true(evaluate(frame, cond))):
            if count == stmt.max_iter:
                raise frame.failure(Kind.LOOP, stmt.span, stmt.max_iter)
            body()
            frame.line = stmt.span.line
            count += 1

    def _push(self, frame: Frame, stmt: Push) -> None:
        stack = frame.env[stmt.stack.name]
        type_ = stmt.stack.type
        assert isinstance(type_, StackType)
        value = values.convert(evaluate(frame, stmt.value), type_.element, frame.bits)
        if type_.capacity is not None and len(stack) >= type_.capacity:
            raise frame.failure(Kind.FULL_STACK, stmt.span, type_.capacity)
        stack.append(value)

    def _sum(self, frame: Frame, target: Place, value: Value) -> Value:
        total = evaluate(frame, target) + value
        return arith.wrapped(total, frame.bits) if isinstance(total, int) else total

    def _called(self, frame: Frame, call: Call) -> tuple[Value, ...]:
        """The results of a call; its Out arguments are stored back."""
        callee = self._functions[call.function]
        outs = [
            _fixed(frame, arg)
            for arg, param in zip(call.args, callee.params, strict=True)
            if param.mode == "Out"
        ]
        for first, second, meet in meetings(call, callee, self._structs):
            if evaluate(frame, meet):
                raise frame.failure(Kind.ALIAS, call.span, first + 1, second + 1)
        found = self._call(frame, callee, [evaluate(frame, arg) for arg in call.args])
        results = len(callee.results)
        for place, value in zip(outs, found[results:], strict=True):
            self._store(frame, place, value)
        return found[:results]

    def _store(self, frame: Frame, target: Place, value: Value) -> None:
        new = values.convert(value, target.type, frame.bits)
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
                    array[array_position(frame, target, len(array), places[0])] = new
            case Member(base, name):
                evaluate(frame, base)[name] = new
            case _:
                assert_never(target)


def _outs(frame: Frame) -> tuple[Value, ...]:
    return tuple(frame.env[p.name] for p in frame.function.params if p.mode == "Out")


def _fixed(frame: Frame, place: Expr) -> Place:
    """The place with its subscripts as they are now: a call may change what they depend on."""
    match place:
        case Var():
            return place
        case Index(base, subscripts):
            now = tuple(IntConst(int(evaluate(frame, s)), s.span) for s in subscripts)
            return replace(place, base=_fixed(frame, base), subscripts=now)
        case Member(base):
            return replace(place, base=_fixed(frame, base))
        case _:
            raise AssertionError("an Out argument is a place")


# ------------------------------------------------------------------------------ index statements


def assign_elements(frame: Frame, stmt: IndexAssign) -> None:
    """An index statement, all its points at once: the right side first, then the writes."""
    grid = SCALAR
    for axis in stmt.axes:
        grid = grid.extended((axis,), (evaluate(frame, axis.extent, grid),))
    _check_extents(frame, stmt, grid.shape)
    if 0 in grid.shape:
        return
    value = evaluate(frame, stmt.value, grid)
    target = stmt.target
    if isinstance(target, Var):
        total = np.sum(grid.full(value)) if grid.shape else value
        frame.env[target.name] = values.convert(frame.env[target.name] + total, target.type)
        return
    array = evaluate(frame, target.base)
    places = [evaluate(frame, sub, grid) for sub in target.subscripts]
    checked = tuple(checked_subscripts(frame, target, array.shape, places, grid))
    check_once(frame, stmt, grid, array.shape, checked)
    if not grid.shape:
        array[checked] = array[checked] + value if stmt.op == "+=" else value
        return
    value = grid.full(value)
    if stmt.op == "=" and grid.domain is not None:
        there = grid.full(grid.domain)
        array[tuple(grid.full(place)[there] for place in checked)] = value[there]
        return
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
    for index, _, padded in (*reads(stmt.target, stmt.axes), *reads(stmt.value, stmt.axes)):
        if padded or not isinstance(index.base.type, TensorType):
            continue
        shape = frame.env[index.tensor.name].shape
        for dim, (sub, size) in enumerate(zip(index.subscripts, shape, strict=True)):
            if isinstance(sub, Var) and sizes.get(sub.name, size) != size:
                raise ValueError(
                    f"{frame.place(stmt.span)}: index '{sub.name}' runs over "
                    f"{sizes[sub.name]} elements, but dimension {dim} of "
                    f"'{index.tensor.name}' has size {size}"
                )
