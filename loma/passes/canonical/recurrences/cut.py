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

from collections import Counter
from collections.abc import Collection, Mapping

from loma.core import builder as b, sizes
from loma.core.effects import assigned, written
from loma.core.ir import (
    FLOAT, INT, Assign, Axis, Binary, Builtin, Declare, Expr, For, Function, If,
    IndexAssign, Module, Reduce, Stmt, Var, replace,
)  # fmt: skip
from loma.core.sizes import size_variables
from loma.core.walk import (
    expressions, free_variables, map_blocks, map_children, map_expressions,
    map_tensor_functions, own_names, reads_elements, statements, substitute,
)  # fmt: skip

_NEUTRAL = {"sum": 0.0, "prod": 1.0}


def whole_ranges(module: Module) -> Module:
    """The pass on every tensor function of a module."""
    functions = {function.name: function for function in module.functions}
    return map_tensor_functions(module, lambda function: _Ranges(function, functions).run())


class _Ranges:
    def __init__(self, function: Function, functions: Mapping[str, Function]) -> None:
        self._function = function
        self._writes = Counter(assigned(function.body, functions))
        self._writes.update(
            stmt.target.name
            for stmt in statements(function.body)
            if isinstance(stmt, Declare) and stmt.value is not None
        )
        ints = {param.name for param in function.params if param.type == INT}
        self._fixed = {*size_variables(function), *ints} - written(function.body, functions)
        self._known: dict[str, Expr] = {}  # ints that are assigned once, in terms of counters
        self._idle = set[str]()  # those of them that ranges were made of, perhaps they alone

    def run(self) -> Function:
        body = self._block(self._function.body, frozenset())
        return replace(self._function, body=self._without_unread(body))

    def _block(self, body: tuple[Stmt, ...], counters: frozenset[str]) -> tuple[Stmt, ...]:
        known = dict(self._known)
        new = tuple(self._statement(stmt, counters) for stmt in body)
        self._known = known
        return new

    def _statement(self, stmt: Stmt, counters: frozenset[str]) -> Stmt:
        match stmt:
            case Assign(Var(name), "=", value) | Declare(Var(name), value):
                if value is not None:
                    self._note(name, value, counters)
                return stmt
            case For():
                inner = counters | {stmt.counter}
                stmt = map_blocks(stmt, lambda block: self._block(block, inner))
                assert isinstance(stmt, For)
                return self._loop(stmt, counters)
            case IndexAssign():
                names = counters | {axis.name for axis in stmt.axes}
                return replace(stmt, value=self._value(stmt.value, names))
            case _:
                return map_blocks(stmt, lambda block: self._block(block, counters))

    def _note(self, name: str, value: Expr, counters: frozenset[str]) -> None:
        """Notes what an int is that does not change while its block runs."""
        names = free_variables(value)
        stays = names <= self._fixed | counters | self._known.keys()
        if value.type == INT and stays and not reads_elements(value) and self._writes[name] == 1:
            self._known[name] = substitute(value, self._known)

    def _loop(self, loop: For, counters: frozenset[str]) -> For:
        cut = self._cut(loop.extent, counters)
        if cut is None:
            return loop
        start, first, extent, limits = cut
        body = tuple(_moved(stmt, loop.counter, start, first) for stmt in loop.body)
        if self._lost(start) & {name for stmt in statements(body) for name in own_names(stmt)}:
            return loop
        test = self._inside(loop.counter, first, limits)
        return replace(loop, extent=extent, body=(If(test, body, (), loop.span),))

    def _value(self, expr: Expr, counters: frozenset[str]) -> Expr:
        if not isinstance(expr, Reduce):
            return map_children(expr, lambda child: self._value(child, counters))
        names = counters | {axis.name for axis in expr.axes}
        expr = replace(expr, body=self._value(expr.body, names))
        if expr.kind not in _NEUTRAL or expr.type != FLOAT or len(expr.axes) != 1:
            return expr
        (axis,) = expr.axes
        cut = self._cut(axis.extent, counters)
        if cut is None:
            return expr
        start, first, extent, limits = cut
        body = _at(expr.body, axis.name, start, first)
        if self._lost(start) & free_variables(body):
            return expr
        test = self._inside(axis.name, first, limits)
        value = b.select(test, body, b.flt(_NEUTRAL[expr.kind]))
        return replace(expr, body=value, axes=(Axis(axis.name, extent),))

    def _cut(
        self, extent: Expr, counters: Collection[str]
    ) -> tuple[Expr, Expr, Expr, list[tuple[bool, Expr]]] | None:
        """Of a range that is cut off at an end, and moves with a counter: where it begins, where
        the whole range does, how long that is, and the limits (whether at the end, which)."""
        match extent:
            case Binary("-", end, start):
                pass
            case _:
                return None
        lows = _arms(substitute(start, self._known), "max")
        highs = _arms(substitute(end, self._known), "min")
        if len(lows) == len(highs) == 1:
            return None
        for low in lows:
            for high in highs:
                length = sizes.simplify(b.binary("-", high, low))
                moves = free_variables(low) & set(counters)
                if moves and free_variables(length) <= self._fixed:
                    limits = [(False, limit) for limit in lows if limit is not low]
                    limits += [(True, limit) for limit in highs if limit is not high]
                    return start, low, length, limits
        return None

    def _inside(self, counter: str, first: Expr, limits: list[tuple[bool, Expr]]) -> Expr:
        """What holds in the range that was cut off, which needs the ints it was made of no more."""
        self._idle |= self._known.keys()
        place = b.binary("+", first, Var(counter, INT))
        return b.every([_limit(limit, place) for limit in limits])

    def _lost(self, start: Expr) -> frozenset[str]:
        """What nothing shall read any more where a range began."""
        named = isinstance(start, Var) and start.name in self._known
        return frozenset((start.name,)) if isinstance(start, Var) and named else frozenset()

    def _without_unread(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """The body without ints that only ranges were made of."""
        read = {
            name
            for stmt in statements(body)
            for expr in expressions(stmt)
            if not (isinstance(stmt, Assign | Declare) and expr is stmt.target)
            for name in free_variables(expr)
        }
        new = _without(body, self._idle - read)
        return body if new == body else self._without_unread(new)


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


def _without(body: tuple[Stmt, ...], names: Collection[str]) -> tuple[Stmt, ...]:
    kept = (
        stmt for stmt in body
        if not (isinstance(stmt, Assign | Declare) and isinstance(stmt.target, Var)
                and stmt.target.name in names)
    )  # fmt: skip
    return tuple(map_blocks(stmt, lambda block: _without(block, names)) for stmt in kept)
