"""Maxima that only shift: ``max(x) + log(sum(exp(x - max(x))))`` is the same with any other number
in place of the maximum. So its derivative by that number is zero, and neither an adjoint nor the
place of the maximum is needed. The same holds for softmax, and for all that scales exponentials.

A maximum is one of these if nothing that follows from it, and has a weight
(:mod:`loma.ad.tensor.weights`), gets into a value without one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction

from loma import config
from loma.ad.tensor.weights import STAYS, ZERO, NoWeight, Weight, added, same, weight_of
from loma.core.effects import assigned, effects, written
from loma.core.ir import (
    INT, Assign, Declare, Expr, For, Function, If, Index, IndexAssign, Reduce, Return, Stmt,
    Unpack, Var, While, Zero,
)  # fmt: skip
from loma.core.walk import blocks, expressions, free_variables, root, statements
from loma.passes.liveness import covers


def shifts(function: Function) -> frozenset[str]:
    """The tensors of a function in normal form that hold maxima which only shift."""
    if "shifts" not in config.optimisations():
        return frozenset()
    valued = (stmt for stmt in statements(function.body) if not _is_blank(stmt))
    writes = Counter(root(place) for stmt in valued for place in effects(stmt).writes)
    return frozenset(_shifts(function, function.body, writes))


def _shifts(function: Function, block: tuple[Stmt, ...], writes: Counter[str]) -> Iterator[str]:
    for k, stmt in enumerate(block):
        for inner in blocks(stmt):
            yield from _shifts(function, inner, writes)
        if isinstance(stmt, If) and len(stmt.then) == 1 and all(map(_is_blank, stmt.other)):
            stmt = stmt.then[0]  # if there is anything of which to take a maximum
        match stmt:
            case IndexAssign(Index(Var(name)), "=", Reduce("max" | "min")) if writes[
                name
            ] == 1 and covers(stmt):
                if _cancels(function, stmt, _blank(block[:k]), block[k + 1 :]):
                    yield name


def _blank(block: tuple[Stmt, ...]) -> set[str]:
    """The variables that are all zero behind these statements."""
    blank: set[str] = set()
    for stmt in block:
        if isinstance(stmt, Zero | Declare) and _is_blank(stmt):
            blank.add(root(stmt.target))
        else:
            blank.difference_update(written((stmt,)))
    return blank


def _cancels(
    function: Function, maximum: IndexAssign, blank: set[str], after: tuple[Stmt, ...]
) -> bool:
    """Whether no value depends on a maximum, the statements behind it in its block being those that
    may know it; ``blank`` are the variables that are all zero there."""
    weights = _Weights(maximum, blank)
    try:
        for stmt in after:
            weights.statement(stmt)
    except NoWeight:
        return False
    known = {maximum.number} | {stmt.number for stmt in statements(after)}
    others = (stmt for stmt in statements(function.body) if stmt.number not in known)
    outs = {param.name for param in function.params}
    seen = {name for stmt in others if not _is_blank(stmt) for name in _names(stmt)}
    return weights.moved.isdisjoint(outs | seen)


def _is_blank(stmt: Stmt) -> bool:
    return isinstance(stmt, Zero) or (isinstance(stmt, Declare) and stmt.value is None)


def _names(stmt: Stmt) -> set[str]:
    return {name for expr in expressions(stmt) for name in free_variables(expr)}


def _position(k: int) -> str:
    return f"${k}"  # no name of a program


class _Weights:
    """The weights of variables, statement by statement; their subscripts are in terms of those of
    the variable. ``moved``: the variables that had one."""

    def __init__(self, maximum: IndexAssign, blank: set[str]) -> None:
        target = maximum.element
        own = tuple(Var(_position(k), INT) for k in range(len(target.subscripts)))
        self._of = dict.fromkeys(blank, ZERO) | {target.tensor.name: Weight({own: Fraction(1)})}
        self._before: set[str] = set()  # variables with a value of statements before
        self.moved = {target.tensor.name}

    def statement(self, stmt: Stmt) -> None:
        match stmt:
            case Declare(target, None) | Zero(Var() as target):
                self._of[target.name] = ZERO
            case IndexAssign():
                self._index(stmt)
            case Declare(target, value) | Assign(Var() as target, _, value):
                assert value is not None
                found = self._weight(value)
                if isinstance(stmt, Assign) and stmt.op == "+=":
                    found = added(self._known(target, ()), found)
                self._write(target, found)
            case If() | For() | While():
                self._nested(stmt)
            case Unpack(targets, call):
                self._still(call)
                for target in targets:
                    self._write(target, STAYS)
            case Return(values):
                for value in values:
                    self._still(value)
            case _:
                for expr in expressions(stmt):
                    self._still(expr)

    def _nested(self, stmt: If | For | While) -> None:
        """Blocks that may not run, or run again: what they write has no weight."""
        for name in assigned((stmt,)):
            if self._of.get(name, STAYS).terms:
                raise NoWeight
            self._of[name] = STAYS
        moved = set(self.moved)
        for block in blocks(stmt):
            for inner in block:
                self.statement(inner)
        if self.moved != moved:
            raise NoWeight

    def _index(self, stmt: IndexAssign) -> None:
        target = stmt.target
        found = self._weight(stmt.value)
        own = target.subscripts if isinstance(target, Index) else ()
        place: dict[str, Expr] = {
            sub.name: Var(_position(k), INT) for k, sub in enumerate(own) if isinstance(sub, Var)
        }
        summed = {axis.name for axis in stmt.axes} - place.keys()
        if found.terms and (found.names() & summed or (summed and found.adds)):
            raise NoWeight
        found = found.at(place)
        base = target.tensor if isinstance(target, Index) else target
        if stmt.op == "+=":
            found = added(self._known(base, ()), found)
        elif not covers(stmt):
            found = same(self._known(base, ()), found)
        if found.adds and not covers(stmt) and self._known(base, ()).zero:
            raise NoWeight
        self._write(base, found)

    def _write(self, target: Var, weight: Weight) -> None:
        name = target.name
        if not all(free.startswith("$") for free in weight.names()):
            raise NoWeight  # another value of a counter, another element
        if weight.terms:
            if name in self._before:
                raise NoWeight
            self.moved.add(name)
        self._of[name] = weight

    def _weight(self, expr: Expr) -> Weight:
        return weight_of(expr, self._known)

    def _still(self, expr: Expr) -> None:
        if self._weight(expr).terms:
            raise NoWeight

    def _known(self, base: Var, subscripts: tuple[Expr, ...]) -> Weight:
        if base.name not in self._of:
            self._before.add(base.name)
            return STAYS
        if not subscripts:
            return self._of[base.name]
        return self._of[base.name].at(
            {_position(k): subscript for k, subscript in enumerate(subscripts)}
        )
