"""What one round of a loop gives places, as expressions of what they had before it.

Statements of a round are run on expressions: a variable that a round sets stands for its value, a
branch for a choice, and a loop inside that only adds to places for sums.
"""

from __future__ import annotations

from loma.core import builder as b
from loma.core.effects import written
from loma.core.ir import (
    FLOAT, INT, Assign, Axis, Binary, Expr, FloatType, For, If, Index, IndexAssign, IntConst,
    IntType, Op, Reduce, Select, Stmt, TensorType, Type, Var, Zero, ZeroPad, replace,
)  # fmt: skip
from loma.core.names import Names
from loma.core.walk import free_variables, map_children, root, substitute

Cell = Var | Index
Values = dict[Cell, Expr]


class NotEvaluated(Exception):
    """The statements do something else, too."""


class Round:
    """The values of places in a round that changes some variables."""

    def __init__(self, changed: frozenset[str], names: Names) -> None:
        self._changed, self._names = changed, names
        self._lost: set[str] = set()  # what a loop inside left in its last round
        self.values: Values = {}

    def run(self, body: tuple[Stmt, ...]) -> None:
        """Runs the statements; NotEvaluated where one of them is of another kind."""
        for stmt in body:
            self._statement(stmt)

    def value(self, expr: Expr, bound: frozenset[str] = frozenset()) -> Expr:
        """What an expression is now; ``bound``: the axes of reductions around it."""
        match expr:
            case Op() | Var(_, TensorType()):
                raise NotEvaluated
            case ZeroPad(read) if read.tensor.name in self._changed:
                raise NotEvaluated
            case Var(name) if name in self._changed:
                return self._read(expr, bound)
            case Index(Var(name), subscripts) if name in self._changed:
                places = tuple(self.value(place, bound) for place in subscripts)
                return self._read(Index(expr.base, places, expr.type, expr.span), bound)
            case Index(Var(), subscripts):
                return replace(expr, subscripts=tuple(self.value(s, bound) for s in subscripts))
            case Reduce(axes=axes):
                own = bound | {axis.name for axis in axes}
                return map_children(expr, lambda child: self.value(child, own))
            case _:
                return map_children(expr, lambda child: self.value(child, bound))

    def _read(self, place: Cell, bound: frozenset[str]) -> Expr:
        if root(place) in self._lost:
            raise NotEvaluated
        if place not in self.values:
            if any(root(own) == root(place) for own in self.values):
                raise NotEvaluated  # it may be the same element
            return place
        value = self.values[place]
        if bound & free_variables(value):
            raise NotEvaluated
        return value

    def _statement(self, stmt: Stmt) -> None:
        match stmt:
            case Assign(Var() | Index() as target, op, value):
                self._set(target, op, self.value(value))
            case IndexAssign(Var() as target, "+=", value, axes):
                self._set(target, "+=", self._sum(value, axes))
            case IndexAssign(Index() as target, op, value, ()):
                self._set(target, op, self.value(value))
            case Zero(Var(_, FloatType() | IntType()) as target):
                self._set(target, "=", IntConst(0))
            case If(cond, then, other):
                self._choice(self.value(cond), then, other)
            case For():
                self._added_up(stmt)
            case _:
                raise NotEvaluated

    def _sum(self, value: Expr, axes: tuple[Axis, ...]) -> Expr:
        if not axes:
            return self.value(value)
        return self.value(Reduce("sum", value, axes, value.type, value.span))

    def _set(self, target: Cell, op: str, value: Expr) -> None:
        if isinstance(target, Index):
            places = tuple(map(self.value, target.subscripts))
            target = Index(target.base, places, target.type, target.span)
        if not isinstance(target.type, FloatType | IntType):
            raise NotEvaluated
        if op == "+=":
            value = b.add(self._read(target, frozenset()), value)
        elif any(root(own) == root(target) and own != target for own in self.values):
            raise NotEvaluated
        self.values[target] = _as_type(value, target.type)

    def _choice(self, cond: Expr, then: tuple[Stmt, ...], other: tuple[Stmt, ...]) -> None:
        if cond.type != INT:
            cond = b.binary("!=", cond, b.flt(0))
        before = self.values
        self.values = before.copy()
        self.run(then)
        first, self.values = self.values, before.copy()
        self.run(other)
        second, self.values = self.values, before
        for place in first | second:
            one, two = (side.get(place, place) for side in (first, second))
            self.values = self.values | {place: one if one == two else _chosen(cond, one, two)}

    def _added_up(self, loop: For) -> None:
        """A loop that only adds to places."""
        changed = written(loop.body)
        extent = self.value(loop.extent)
        axis = Axis(self._names.fresh(loop.counter), extent)
        if changed & free_variables(extent):
            raise NotEvaluated
        before = self.values
        self.values = {place: old for place, old in before.items() if root(place) not in changed}
        lost, self._lost = self._lost, self._lost.copy()
        self.run(loop.body)
        inside, self.values = self.values, before.copy()
        self._lost = lost
        own: dict[str, Expr] = {loop.counter: Var(axis.name, INT)}
        for place, value in inside.items():
            if root(place) not in changed:
                continue
            added = _added(value, place)
            if added is None or changed & free_variables(added):
                if changed & free_variables(value):
                    raise NotEvaluated
                self._lost.add(root(place))
                self.values.pop(place, None)
                continue
            if loop.counter in free_variables(place):
                raise NotEvaluated
            total = Reduce("sum", substitute(added, own), (axis,), added.type, loop.span)
            if (
                isinstance(added, Reduce)
                and added.kind == "sum"
                and not any(loop.counter in free_variables(inner.extent) for inner in added.axes)
            ):
                body = substitute(added.body, own)
                total = Reduce("sum", body, (axis, *added.axes), added.type, loop.span)
            self._set(place, "+=", total)


def _added(value: Expr, place: Cell) -> Expr | None:
    """What a value is more than that of a place before."""
    match value:
        case Binary("+", left, right) if left == place:
            return right
        case Binary("+", left, right) if (first := _added(left, place)) is not None:
            return b.binary("+", first, right)
        case _:
            return None


def _chosen(cond: Expr, then: Expr, other: Expr) -> Expr:
    match then:
        case Select(inner, value, rest) if rest == other:
            return b.select(b.binary("and", cond, inner), value, other)
        case _:
            return b.select(cond, then, other)


def _as_type(value: Expr, type_: Type) -> Expr:
    if value.type == type_:
        return value
    if isinstance(value, IntConst):
        return b.flt(value.value)
    return b.builtin("int2float" if type_ == FLOAT else "float2int", [value])
