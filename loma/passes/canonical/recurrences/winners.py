"""A loop that keeps the best of what it sees, and where that was, as the position of an extreme.

    for k in range(K):                    w = argmin(d(k) if d(k) < best else best for k in K)
        if d(k) < best:                   which = w if d(w) < best else which
            best = d(k)                   best = d(w) if d(w) < best else best
            which = k

``which`` is any number that a round has, of which there may be several. What is not a number is
never better, so that a choice stands inside the position. Of equals the first one counts where they
are to be better, and the last one otherwise. The derivative goes to the one that is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Set as AbstractSet
from typing import TypeAlias

from loma.core import builder as b, sizes
from loma.core.effects import blanks, counters, written
from loma.core.ir import (
    FLOAT, INT, Assign, Axis, Binary, Builtin, Declare, Expr, For, Function, If, Index,
    IndexAssign, IntConst, Module, Reduce, ReduceKind, Select, Stmt, Type, Var, replace,
)  # fmt: skip
from loma.core.names import Names, names_of
from loma.core.walk import (
    exchanged, expressions, free_variables, map_blocks, map_tensor_functions, mentioned_names,
    root, statements, substitute, walk,
)  # fmt: skip
from loma.passes.canonical.loops import mentions
from loma.passes.canonical.recurrences.contests import Contest, contests_of
from loma.passes.canonical.recurrences.evaluated import Cell, NotEvaluated, Round
from loma.passes.liveness import set_first

_Start: TypeAlias = Assign | IndexAssign | Declare
_LARGE = 1e38  # a number that has a larger one


def winners(module: Module) -> Module:
    """The pass on every tensor function of a module."""
    return map_tensor_functions(module, lambda function: _Winners(function).run())


class _Winners:
    def __init__(self, function: Function) -> None:
        self._function = function
        self._names = Names(names_of(function))
        self._added: list[Declare] = []
        self._mentions: Counter[str] | None = None

    def run(self) -> Function:
        if not any(isinstance(stmt, For) for stmt in statements(self._function.body)):
            return self._function
        body = self._block(self._function.body)
        return replace(self._function, body=(*self._added, *body))

    def _block(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for stmt in body:
            if isinstance(stmt, For) and _compares(stmt):
                made = self._without(stmt, out)
                if made is not None:
                    out += made
                    continue
            out.append(map_blocks(stmt, self._block))
        return tuple(out)

    def _without(self, loop: For, before: list[Stmt]) -> list[Stmt] | None:
        """What a loop does; the beginnings of what it keeps are taken from what is before."""
        changed = frozenset(written((loop,)) | counters((loop,)))
        state = Round(frozenset(written((loop,))), self._names)
        private = self._private(loop)
        axes: list[Axis] = []
        inner: Stmt = loop
        try:
            while isinstance(inner, For):
                if inner.backwards or not sizes.keeps_value(inner.extent, changed):
                    return None
                axes.append(Axis(inner.counter, inner.extent))
                *first, last = inner.body
                own = written(tuple(first))
                if not isinstance(last, For) or not _compares(last) or not own <= private:
                    state.run(inner.body)
                    break
                if own & written((last,)):
                    return None  # a round of the loop inside goes on with what the others left
                state.run(tuple(first))
                inner = last
        except NotEvaluated:
            return None
        kept = {place: v for place, v in state.values.items() if root(place) not in private}
        names = {axis.name for axis in axes}
        contests = contests_of(kept, changed - names, names)
        if not contests:
            return None
        roots = set(map(root, kept))
        for contest in contests:
            if contest.passes_nan and contest.others and len(axes) > 1:
                return None
            number = _number(_beginning(contest.best, before, roots)) if contest.last else 0.0
            if number is None or abs(number) > _LARGE:
                return None
        made = (self._statements(contest, tuple(axes), before, roots) for contest in contests)
        return [stmt for part in made for stmt in part]

    def _private(self, loop: For) -> set[str]:
        """Variables that a round alone mentions, which it sets before it looks at them."""
        if self._mentions is None:
            self._mentions = mentions(self._function.body)
        inside = mentions(loop.body)
        own = blanks(self._function.body)
        alone = {name for name in own if 0 < inside[name] == self._mentions[name]}
        return {name for name in alone if set_first(name, loop.body)}

    def _statements(
        self, contest: Contest, axes: tuple[Axis, ...], before: list[Stmt], kept: set[str]
    ) -> list[Stmt]:
        """What is kept at the end of all rounds."""
        best, kind = contest.best, contest.kind
        starts = {place: _beginning(place, before, kept) for place in (best, *contest.others)}
        ahead = _begins_with(contest, axes, starts)
        begun: Expr = best
        runs: list[Expr] = []
        if ahead is not None:
            zeros: dict[str, Expr] = {axis.name: IntConst(-ahead) for axis in axes}
            axes = tuple(replace(a, extent=_longer(a.extent, ahead)) for a in axes)
            begun = sizes.simple_subscripts(substitute(contest.value, zeros))
            for start in starts.values():
                _drop(start, before)
        else:
            runs = [b.binary(">", a.extent, IntConst(0)) for a in axes if not _is_some(a.extent)]
            if _number(starts[best]) is not None:
                begun = _value(starts[best])
        inner = tuple(Axis(self._names.fresh(axis.name), axis.extent) for axis in axes)

        def at(expr: Expr, places: list[Expr]) -> Expr:
            """An expression in the round that the counters tell."""
            pairs = zip(axes, places, strict=True)
            moved = {a.name: sizes.arith("-", p, IntConst(ahead)) if ahead else p for a, p in pairs}
            return sizes.simple_subscripts(substitute(expr, moved))

        def turned(places: list[Expr]) -> list[Expr]:
            """The places that count from the end, if the last of equals is kept."""
            pairs = zip(axes, places, strict=True)
            return [_from_the_end(a, p) if contest.last else p for a, p in pairs]

        made: list[Stmt] = []
        if contest.passes_nan and not contest.others:
            value: Expr = Reduce(kind, at(contest.value, [*_variables(inner)]), inner, FLOAT)
            value = value if ahead is not None else Builtin(kind, (begun, value), FLOAT)
            made.append(_set(best, value))
            return [If(b.every(runs), tuple(made), ())] if runs else made

        cond = exchanged(contest.cond, best, begun)
        worse = b.flt(_beyond(_number(starts[best]) or 0.0, kind)) if contest.last else begun
        indices = turned([*_variables(inner)])
        place: ReduceKind = "argmin" if kind == "min" else "argmax"
        key = b.select(at(cond, indices), at(contest.value, indices), worse)
        end = begun
        winner = self._variable(f"{root(best)}_place", INT)
        if contest.passes_nan:
            # Where the first is that is not a number, if one is: none behind it is better.
            least = self._variable(f"{root(best)}_least", INT)
            made.append(Assign(least, "=", Reduce(place, at(contest.value, indices), inner, INT)))
            end = at(contest.value, unravelled(least, axes))
            ahead_of_it = b.binary("and", b.binary("<", indices[0], least), at(cond, indices))
            key = b.select(ahead_of_it, at(contest.value, indices), worse)
            rest = Reduce(place, key, inner, INT)
            made.append(Assign(winner, "=", b.select(b.binary("==", end, end), least, rest)))
        else:
            made.append(Assign(winner, "=", Reduce(place, key, inner, INT)))
        there = turned(unravelled(winner, axes))
        value = at(contest.value, there)
        if not isinstance(value, Index):
            new = self._variable(f"{root(best)}_there", FLOAT)
            made.append(Assign(new, "=", value))
            value, cond = new, exchanged(cond, contest.value, new)
        taken = at(cond, there) if ahead is None else None
        for kept_place, given in contest.others.items():
            other = at(given, there)
            # Of none that is better the first one is the best.
            first = other == winner and _number(starts[kept_place]) == 0
            first = first and not (contest.last or contest.passes_nan)
            choice = other if taken is None or first else b.select(taken, other, kept_place)
            made.append(_set(kept_place, choice))
        if contest.passes_nan:
            made.append(_set(best, end if taken is None else Builtin(kind, (begun, end), FLOAT)))
        else:
            made.append(_set(best, value if taken is None else b.select(taken, value, begun)))
        return [If(b.every(runs), tuple(made), ())] if runs else made

    def _variable(self, name: str, type_: Type) -> Var:
        var = Var(self._names.fresh(name), type_)
        self._added.append(Declare(var, None))
        return var


def _compares(loop: For) -> bool:
    """Whether a loop chooses between values."""
    return any(
        isinstance(stmt, If)
        or any(
            isinstance(node, Select) or (isinstance(node, Builtin) and node.name in ("max", "min"))
            for expr in expressions(stmt)
            for node in walk(expr)
        )
        for stmt in statements(loop.body)
    )


def _begins_with(
    contest: Contest, axes: tuple[Axis, ...], starts: dict[Cell, _Start | None]
) -> int | None:
    """0 where what is kept begins with what the first round has, 1 with what the round in front of
    it would have, None with something else."""
    if contest.last:
        return None
    values = {contest.best: contest.value, **contest.others}
    alone = len(axes) == 1 and isinstance(contest.cond, Binary) and contest.cond.op != "and"
    for ahead in (0, 1) if alone or (contest.passes_nan and len(axes) == 1) else (0,):
        places: dict[str, Expr] = {axis.name: IntConst(-ahead) for axis in axes}
        same = all(
            start is not None and _same(_value(start), substitute(values[place], places))
            for place, start in starts.items()
        )
        if same and all(_runs(axis, contest.value, ahead) for axis in axes):
            return ahead
    return None


def _same(one: Expr, other: Expr) -> bool:
    if one.type == other.type == INT and sizes.equal(one, other) is True:
        return True
    return sizes.simple_subscripts(one) == sizes.simple_subscripts(other)


def _runs(axis: Axis, value: Expr, ahead: int) -> bool:
    """Whether there is a round, where the first element of a value exists."""
    extent = _longer(axis.extent, ahead)
    place = sizes.arith("+", Var(axis.name, INT), IntConst(ahead))
    return _is_some(extent) or any(
        sizes.equal(subscript, place) is True and sizes.equal(dim, extent) is True
        for part in walk(value)
        if isinstance(part, Index) and isinstance(part.base, Var)
        for subscript, dim in zip(part.subscripts, sizes.dims_of(part.base), strict=True)
    )


def _beginning(place: Cell, before: list[Stmt], kept: AbstractSet[str]) -> _Start | None:
    """The statement that gives a place its value ahead of a loop, if that is made of what is the
    same there: of nothing that is ``kept``."""
    behind = set(kept)
    for stmt in reversed(before):
        if isinstance(stmt, Assign | IndexAssign | Declare) and stmt.target == place:
            given = stmt.value
            fixed = given is not None and not behind & free_variables(given)
            whole = isinstance(stmt, Declare) or stmt.op == "="
            plain = not isinstance(stmt, IndexAssign) or not stmt.axes
            return stmt if fixed and whole and plain else None
        if root(place) in mentioned_names((stmt,)):
            return None
        behind |= written((stmt,))
    return None


def _value(start: _Start | None) -> Expr:
    assert start is not None
    assert start.value is not None
    return start.value


def _drop(start: _Start | None, before: list[Stmt]) -> None:
    """Takes the beginning of what is set now from the statements."""
    assert start is not None
    (place,) = (k for k, stmt in enumerate(before) if stmt is start)
    before[place : place + 1] = [replace(start, value=None)] if isinstance(start, Declare) else []


def _number(start: _Start | None) -> float | None:
    """The number that something begins with."""
    return None if start is None or start.value is None else b.number(start.value)


def _beyond(number: float, kind: str) -> float:
    """What is worse than a number that a place begins with."""
    step = max(1.0, abs(number))
    return number + step if kind == "min" else number - step


def _longer(extent: Expr, ahead: int) -> Expr:
    return sizes.simplify(b.binary("+", extent, IntConst(ahead))) if ahead else extent


def _is_some(extent: Expr) -> bool:
    return (sizes.constant(extent) or 0) > 0


def unravelled(position: Expr, axes: tuple[Axis, ...]) -> list[Expr]:
    """What the indices are at a position."""
    found: list[Expr] = []
    for axis in axes[:0:-1]:
        found.append(b.binary("%", position, axis.extent))
        position = b.binary("//", position, axis.extent)
    return [position, *reversed(found)]


def _variables(axes: tuple[Axis, ...]) -> Iterator[Var]:
    return (Var(axis.name, INT) for axis in axes)


def _from_the_end(axis: Axis, place: Expr) -> Expr:
    return b.binary("-", b.binary("-", axis.extent, IntConst(1)), place)


def _set(place: Cell, value: Expr) -> Stmt:
    if isinstance(place, Index):
        return IndexAssign(place, "=", value, ())
    return Assign(place, "=", value)
