"""Ranges that ``min`` and ``max`` cut off, as whole ranges under a condition.

``for k in range(max(t - 2, 0), min(t + 3, T)): s += x[k]`` goes through five neighbours of ``t``,
as far as they are there. So does

    for r in range(5):
        if 0 <= t - 2 + r and t - 2 + r < T:
            s += x[t - 2 + r]

whose range is the same for every ``t``, so that loops of all ``t`` can be one statement. Sums and
products over such ranges are those over the whole range, of 0 or 1 outside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loma.core import builder as b, sizes
from loma.core.bounds import ZERO, is_never_negative
from loma.core.effects import written
from loma.core.ir import (
    FLOAT, INT, Axis, Binary, Builtin, Expr, For, Function, If, IndexAssign, IntType,
    Module, Reduce, Stmt, Var, replace,
)  # fmt: skip
from loma.core.sizes import size_variables
from loma.core.walk import (
    free_variables, map_blocks, map_children, map_expressions,
    map_tensor_functions, substitute,
)  # fmt: skip

_NEUTRAL = {"sum": 0.0, "prod": 1.0}


def whole_ranges(module: Module) -> Module:
    """The pass on every tensor function of a module."""
    functions = {function.name: function for function in module.functions}
    return map_tensor_functions(module, lambda function: _Ranges(function, functions).run())


class _Ranges:
    def __init__(self, function: Function, functions: Mapping[str, Function]) -> None:
        self._function = function
        ints = {param.name for param in function.params if param.type == INT}
        self._sizes = frozenset(size_variables(function)) - written(function.body, functions)
        self._fixed = self._sizes | (ints - written(function.body, functions))

    def run(self) -> Function:
        return replace(self._function, body=self._block(self._function.body, {}))

    def _block(self, body: tuple[Stmt, ...], counters: Mapping[str, Expr]) -> tuple[Stmt, ...]:
        return tuple(self._statement(stmt, counters) for stmt in body)

    def _statement(self, stmt: Stmt, counters: Mapping[str, Expr]) -> Stmt:
        match stmt:
            case For():
                inner = {**counters, stmt.counter: stmt.extent}
                stmt = map_blocks(stmt, lambda block: self._block(block, inner))
                assert isinstance(stmt, For)
                return self._loop(stmt, counters)
            case IndexAssign():
                names = {**counters, **{axis.name: axis.extent for axis in stmt.axes}}
                return replace(stmt, value=self._value(stmt.value, names))
            case _:
                return map_blocks(stmt, lambda block: self._block(block, counters))

    def _loop(self, loop: For, counters: Mapping[str, Expr]) -> For:
        cut = self._cut(loop.extent, counters)
        if cut is None:
            return loop
        start, first, extent, limits = cut
        body = tuple(_moved(stmt, loop.counter, start, first) for stmt in loop.body)
        test = _inside(loop.counter, first, limits)
        return replace(loop, extent=extent, body=(If(test, body, (), loop.span),))

    def _value(self, expr: Expr, counters: Mapping[str, Expr]) -> Expr:
        if not isinstance(expr, Reduce):
            return map_children(expr, lambda child: self._value(child, counters))
        names = {**counters, **{axis.name: axis.extent for axis in expr.axes}}
        expr = replace(expr, body=self._value(expr.body, names))
        if expr.kind not in _NEUTRAL or expr.type != FLOAT or len(expr.axes) != 1:
            return expr
        (axis,) = expr.axes
        cut = self._cut(axis.extent, counters)
        if cut is None:
            return expr
        start, first, extent, limits = cut
        body = _at(expr.body, axis.name, start, first)
        test = _inside(axis.name, first, limits)
        value = b.select(test, body, b.flt(_NEUTRAL[expr.kind]))
        return replace(expr, body=value, axes=(Axis(axis.name, extent),))

    def _cut(
        self, extent: Expr, counters: Mapping[str, Expr]
    ) -> tuple[Expr, Expr, Expr, list[tuple[bool, Expr]]] | None:
        """Of a range that is cut off at an end, and moves with a counter: where it begins, where
        the whole range does, how long that is, and the limits (whether at the end, which)."""
        match extent:
            case Binary("-", end, start):
                pass
            case Builtin("min", type=IntType()) if sizes.is_arithmetic(extent):
                start, end = ZERO, extent
            case _:
                return None
        lows = _arms(start, "max")
        highs = _arms(end, "min")
        if len(lows) == len(highs) == 1:
            return None
        for low in lows:
            for high in highs:
                length = sizes.simplify(b.binary("-", high, low))
                others = [limit for limit in highs if limit is not high]
                moves = (
                    free_variables(low) & counters.keys() and free_variables(length) <= self._fixed
                )
                if moves or (start == ZERO and self._is_cut_off(length, others, counters)):
                    limits = [(False, limit) for limit in lows if limit is not low]
                    return start, low, length, [*limits, *((True, limit) for limit in others)]
        return None

    def _is_cut_off(self, length: Expr, ends: Sequence[Expr], counters: Mapping[str, Expr]) -> bool:
        """Whether a range from 0 on is as long as a size, but where it ends before that with the
        counters: not if it always does."""
        is_size = self._sizes.__contains__
        moving = [end for end in ends if free_variables(end) & counters.keys()]
        return (
            bool(moving)
            and free_variables(length) <= self._sizes
            and not any(
                is_never_negative(b.binary("-", length, end), counters, is_size) for end in moving
            )
        )


def _inside(counter: str, first: Expr, limits: list[tuple[bool, Expr]]) -> Expr:
    """What holds in the range that was cut off."""
    place = sizes.arith("+", first, Var(counter, INT))
    return b.every([_limit(limit, place) for limit in limits])


def _arms(expr: Expr, kind: str) -> list[Expr]:
    """The ints of which an expression is the largest or smallest."""
    if isinstance(expr, Builtin) and expr.name == kind and expr.type == INT:
        return [arm for arg in expr.args for arm in _arms(arg, kind)]
    return [expr]


def _limit(limit: tuple[bool, Expr], place: Expr) -> Expr:
    ends, value = limit
    return b.binary("<", place, value) if ends else b.binary("<=", value, place)


def _moved(stmt: Stmt, counter: str, start: Expr, first: Expr) -> Stmt:
    stmt = map_blocks(stmt, lambda body: tuple(_moved(s, counter, start, first) for s in body))
    return map_expressions(stmt, lambda expr: _at(expr, counter, start, first))


def _at(expr: Expr, counter: str, start: Expr, first: Expr) -> Expr:
    """With a counter from ``first`` on for one from ``start`` on."""
    if expr.type == INT and counter in free_variables(expr) and sizes.is_arithmetic(expr):
        behind = b.binary("-", b.binary("+", first, Var(counter, INT)), start)
        return sizes.simplify(substitute(expr, {counter: behind}))
    return map_children(expr, lambda child: _at(child, counter, start, first))
