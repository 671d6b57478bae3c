"""Maxima that only shift: ``max(x) + log(sum(exp(x - max(x))))`` is the same with any other number
in place of the maximum. So its derivative by that number is zero, and neither an adjoint nor the
place of the maximum is needed. The same holds for softmax, and for all that scales exponentials.

A tensor is one of these, however it was made, if nothing that follows from it, and has a weight
(:mod:`loma.ad.tensor.weights`), gets into a value without one. Looked at are
maxima, and what exponents are made of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction

from loma import config
from loma.ad.tensor.weights import STAYS, ZERO, NoWeight, Weight, added, same, weight_of
from loma.core.effects import effects, is_blank, written
from loma.core.ir import (
    FLOAT, INT, Assign, Builtin, Declare, Expr, For, Function, If, Index, IndexAssign, Reduce,
    Return, Stmt, Unpack, Var, While, Zero,
)  # fmt: skip
from loma.core.walk import blocks, expressions, free_variables, nodes, root, statements, walk
from loma.passes.liveness import covers


def shifts(function: Function) -> frozenset[str]:
    """The tensors of a function in normal form that hold numbers which only shift."""
    if "shifts" not in config.optimisations():
        return frozenset()
    return frozenset(_shifts(function, function.body, _likely(function.body)))


def _likely(body: tuple[Stmt, ...]) -> set[str]:
    """Tensors that hold maxima, and those whose elements exponents are made of."""
    found: set[str] = set()
    for stmt in statements(body):
        match stmt:
            case IndexAssign(Index(Var(name)), "=", Reduce("max" | "min")):
                found.add(name)
            case _:
                pass
    exps = (node for node in nodes(body) if isinstance(node, Builtin) and node.name == "exp")
    reads = (n for e in exps for n in walk(e) if isinstance(n, Index))
    return found | {root(read) for read in reads}


def _shifts(function: Function, block: tuple[Stmt, ...], likely: set[str]) -> Iterator[str]:
    for k, stmt in enumerate(block):
        for inner in blocks(stmt):
            yield from _shifts(function, inner, likely)
        for name in sorted(likely.intersection(_given((stmt,)))):
            until = tuple(statements(block[: k + 1]))
            own = [s for s in until if name in _given((s,), inside=False)]
            last = own[-1]
            every = _given(function.body).count(name) == len(own)
            read = any(name in _names(effects(s).reads) for s in until)
            if not every or read or not isinstance(last, IndexAssign) or last.target.type != FLOAT:
                continue
            if _cancels(function, last.element, own, _blank(block[:k]), block[k + 1 :]):
                yield name


def _given(body: tuple[Stmt, ...], inside: bool = True) -> list[str]:
    """What statements give a value to, with repetition, zeros aside."""
    every = statements(body) if inside else body
    return [root(place) for s in every if not _is_blank(s) for place in effects(s).writes]


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
    function: Function,
    place: Index,
    made: list[Stmt],
    blank: set[str],
    after: tuple[Stmt, ...],
) -> bool:
    """Whether no value depends on a tensor that some statements have made, those behind them in
    their block being what may know it; ``blank`` are the variables that are all zero there."""
    weights = _Weights(place, blank)
    try:
        for stmt in after:
            weights.statement(stmt)
    except NoWeight:
        return False
    known = {stmt.number for stmt in statements(after)}
    own = {stmt.number for stmt in made}
    outs = {param.name for param in function.params}
    for stmt in statements(function.body):
        if stmt.number not in known and not _is_blank(stmt):
            outs |= _names(effects(stmt).reads if stmt.number in own else expressions(stmt))
    return weights.moved.isdisjoint(outs)


def _is_blank(stmt: Stmt) -> bool:
    return isinstance(stmt, Zero) or is_blank(stmt)


def _names(exprs: Iterable[Expr]) -> set[str]:
    return {name for expr in exprs for name in free_variables(expr)}


def _position(k: int) -> str:
    return f"${k}"  # no name of a program


class _Weights:
    """The weights of variables, statement by statement; their subscripts are in terms of those of
    the variable. ``moved``: the variables that had one."""

    def __init__(self, target: Index, blank: set[str]) -> None:
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
        own = dict.fromkeys(written((stmt,)), STAYS)
        if any(self._of.get(name, STAYS).terms for name in own):
            raise NoWeight
        moved = set(self.moved)
        for block in blocks(stmt):
            self._of |= own  # a branch does not know what the other one has made zero
            for inner in block:
                self.statement(inner)
        if self.moved != moved:
            raise NoWeight
        self._of |= own

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
