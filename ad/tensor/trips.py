"""How often loops run: the lengths of their tapes, and the iterations of ``while`` as a ``for``.

A tape has an entry for each iteration of a loop. How many that are follows from sizes and counters
around, or else the forward sweep finds it out: a loop inside another statement leaves the largest
of its counts in a variable, which has its value once and for all behind the outermost statement.
A ``while`` counts its iterations, so that its adjoint is that of ``for k in range(count)``.
"""

from __future__ import annotations

from dataclasses import dataclass

from loma.ad.tensor.normalise import Normal
from loma.core import builder as b, sizes
from loma.core.bounds import interval
from loma.core.effects import assigned
from loma.core.ir import (
    INT, Assign, Axis, Builtin, Declare, Expr, For, IntConst, Stmt, Var, While, replace,
)  # fmt: skip
from loma.core.sizes import IsSize
from loma.core.walk import free_variables, map_blocks, substitute


@dataclass(frozen=True, slots=True)
class Trips:
    """A function that counts what only running tells; by the numbers of its loops the lengths of
    their tapes, and what stands for each ``while`` in the adjoint sweep, under the same number.
    Loops that write to no active variable have no adjoint and are in neither."""

    normal: Normal
    lengths: dict[int, Expr]
    repeats: dict[int, For]


def with_counts(normal: Normal, active: set[str]) -> Trips:
    """The function in normal form with its loops counted."""
    worker = _Counting(normal, active)
    body: list[Stmt] = []
    for stmt in normal.function.body:
        worker.around = []
        worker.behind = []
        made = worker.block((stmt,), ())
        body += [*worker.around, *made, *worker.behind]
    function = replace(normal.function, body=tuple(body))
    return Trips(replace(normal, function=function), worker.lengths, worker.repeats)


class _Counting:
    def __init__(self, normal: Normal, active: set[str]) -> None:
        self._normal = normal
        self._active = active
        self._is_size = set(sizes.size_variables(normal.function)).__contains__
        self._changing = set(assigned(normal.function.body))
        self._depth = 0
        self.around: list[Stmt] = []  # declarations that stand before the outermost statement
        self.behind: list[Stmt] = []
        self.lengths: dict[int, Expr] = {}
        self.repeats: dict[int, For] = {}

    def block(self, body: tuple[Stmt, ...], loops: tuple[For, ...]) -> tuple[Stmt, ...]:
        return tuple(new for stmt in body for new in self._statement(stmt, loops))

    def _inside(self, stmt: Stmt, loops: tuple[For, ...]) -> Stmt:
        self._depth += 1
        new = map_blocks(stmt, lambda body: self.block(body, loops))
        self._depth -= 1
        return new

    def _statement(self, stmt: Stmt, loops: tuple[For, ...]) -> list[Stmt]:
        if self._active.isdisjoint(assigned((stmt,))):
            return [stmt]
        match stmt:
            case For():
                return self._for(stmt, loops)
            case While():
                return self._while(stmt, loops)
            case _:
                return [self._inside(stmt, loops)]

    def _for(self, stmt: For, loops: tuple[For, ...]) -> list[Stmt]:
        new = self._inside(stmt, (*loops, stmt))
        bound = _most_trips(stmt, loops, self._is_size)
        counters = {loop.counter for loop in loops}
        changing = counters | (self._changing if self._depth else set())
        if not free_variables(bound) & changing:
            self.lengths[stmt.number] = sizes.count(bound, self._is_size)
            return [new]
        length, noted = self._longest(stmt.extent)
        self.lengths[stmt.number] = length
        return [noted, new]

    def _while(self, stmt: While, loops: tuple[For, ...]) -> list[Stmt]:
        count = self._variable("_count")
        start: Stmt = Declare(count, IntConst(0))
        if self._depth:
            self.around.append(Declare(count, None))
            start = Assign(count, "=", IntConst(0))
        counter = self._variable("_pass")
        new = self._inside(stmt, loops)
        assert isinstance(new, While)
        inner, new = new.body, replace(new, body=(*new.body, Assign(count, "+=", IntConst(1))))
        extent, noted = count, []
        if self._depth:
            length, largest = self._longest(count)
            noted.append(largest)
        else:
            extent = length = self._variable("_trips")
            self.behind.append(Declare(length, count))
        repeat = For(counter.name, extent, inner, span=stmt.span, number=stmt.number)
        self.lengths[stmt.number] = length
        self.repeats[stmt.number] = repeat
        return [start, new, *noted]

    def _longest(self, count: Expr) -> tuple[Var, Stmt]:
        """A variable that is the largest of all values of ``count``, and the statement that takes
        one into account."""
        most, longest = self._variable("_most"), self._variable("_longest")
        self.around.append(Declare(most, IntConst(0)))
        self.behind.append(Declare(longest, most))
        return longest, Assign(most, "=", Builtin("max", (most, count), INT))

    def _variable(self, wish: str) -> Var:
        var = Var(self._normal.names.fresh(wish), INT)
        self._normal.types[var.name] = INT
        return var


def _most_trips(stmt: For, around: tuple[For, ...], is_size: IsSize) -> Expr:
    """The most iterations that the loop can make, as far as the loops around tell: what varies
    otherwise, and counters that no bound is known for, are still in it."""
    bound = stmt.extent
    for loop in reversed(around):
        counter, extent = loop.counter, loop.extent
        form = sizes.affine(bound, (Axis(counter, extent),))
        if form is None:  # steps divide: (N - i) // 2
            found = interval(bound, {counter: extent}, is_size)
            if found is None:
                break
            bound = found.high
            continue
        slopes, _ = form
        if counter in slopes:
            slope = sizes.constant(slopes[counter])
            grows = slope is not None and slope > 0
            last = b.binary("-", extent, IntConst(1)) if grows else IntConst(0)
            bound = substitute(bound, {counter: last})
    return sizes.simplify(bound)
