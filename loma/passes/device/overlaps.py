"""Segments that meet, where they lie in order: neither first elements nor ends go back.

    for b in range(B):
        for l in range(length[b]):
            y[first[b] + l, d] += g[b, d]        the adjoint of sums over windows

The segments that have an element are neighbours then, from the number of those that have ended up
to the number of those that have begun, and a statement runs over elements:

    y[e, d] += sum(g[low[e] + k, d] for k in range(high[e] - low[e]))

An assignment is the last one's. Whether segments lie so the device finds out; nobody waits for it.
Where no two of them meet, in whatever order, an element has the one segment that owns it.
"""

from __future__ import annotations

from dataclasses import dataclass

from loma.core import builder as b, sizes
from loma.core.axes import shifted_places
from loma.core.ir import (
    INT, Axis, Binary, Builtin, Declare, Expr, Index, IndexAssign, IntConst, Reduce, Select, Stmt,
    TensorType, Var, Zero, replace,
)  # fmt: skip
from loma.core.names import Names
from loma.core.walk import substitute
from loma.passes.device.elements import of_element, statement
from loma.passes.device.segment_loops import Item

_ZERO, _ONE = IntConst(0), IntConst(1)
_MANY = IntConst(1 << 16)  # elements that are told side by side


@dataclass(frozen=True, slots=True)
class Overlap:
    """The element e has the segments from ``low[e]`` to ``high[e]``, where no two segments meet, or
    all that meet lie in order, which ``holds`` says."""

    low: Var
    high: Var
    holds: Expr

    def first(self, element: Expr) -> Expr:
        return Index(self.low, (b.binary("+", element, _ZERO),), INT)

    def last(self, element: Expr) -> Expr:
        """One more than the number of the last segment that has an element."""
        return Index(self.high, (b.binary("+", element, _ZERO),), INT)

    def count(self, element: Expr) -> Expr:
        """How many segments have an element."""
        return b.binary("-", self.last(element), self.first(element))

    def statement(
        self, own: Axis, item: Item, first: Expr, size: Expr, blank: bool, names: Names
    ) -> IndexAssign:
        """The statement for all elements, where that of an iteration adds to the segment's, or
        gives them their value. Segments begin at ``first``; ``blank``: other elements are zero."""
        stmt, along = item.stmt, item.along
        assert along is not None
        element, one = (Var(names.fresh(wish), INT) for wish in ("_element", "_one"))
        number = b.binary("-", self.last(element), _ONE)
        if stmt.op == "+=":
            number = b.binary("+", self.first(element), one)
        moved = of_element(own.name, number, along.name, first, element)
        target = replace(stmt.element, subscripts=tuple(map(moved, stmt.element.subscripts)))
        value = moved(stmt.value)
        count = self.count(element)
        if stmt.op == "+=":
            value = Reduce("sum", value, (Axis(one.name, count),), value.type)
        else:
            other = b.zero(value) if blank else target
            value = b.select(Binary(">", count, _ZERO, INT), value, other)
        return statement(stmt, target, value, Axis(element.name, size))


def may_meet(own: Axis, first: Expr, length: Expr) -> bool:
    """Whether a segment does not just begin where the one before it ends, as those do that have
    one list of places."""
    if isinstance(length, Select) and length.other == _ZERO:
        length = length.then  # of some of them
    after: dict[str, Expr] = {own.name: b.binary("+", Var(own.name, INT), _ONE)}
    begin, end = (
        sizes.simple_subscripts(sizes.simplify(expr))
        for expr in (substitute(first, after), b.binary("+", first, length))
    )
    return sizes.equal(begin, end) is not True


def overlap(
    own: Axis, first: Expr, length: Expr, size: Expr, alone: Expr, owner: Var, names: Names
) -> tuple[list[Stmt], list[Stmt], Overlap]:
    """What has to be declared and done for the segments of a loop; ``alone``: whether no two of
    them have an element in common. ``owner[e]`` is one more than the number of the one that has the
    element e then, or 0."""
    low, high = (
        Var(names.fresh(wish), TensorType((b.binary("+", size, _ONE),), "int"))
        for wish in ("_low", "_high")
    )
    back = Var(names.fresh("_back"), TensorType((), "int"))
    lanes = Var(names.fresh("_lanes"), INT)
    end = b.binary("+", first, Builtin("max", (length, _ZERO), INT))
    count = b.binary("+", own.extent, _ONE)
    holds = b.every(
        (Binary("==", alone, _ZERO, INT), Binary("==", Index(back, (), INT), _ZERO, INT))
    )
    declared: list[Stmt] = [
        Declare(low, None), Declare(high, None), Declare(back, None),
        Declare(lanes, b.binary("+", b.binary("//", _MANY, count), _ONE)),
    ]  # fmt: skip
    done: list[Stmt] = [_back(own, first, end, size, back, names)]
    for var, bound in ((low, end), (high, first)):
        done += [Zero(var), _numbers(own, bound, size, var, lanes, holds, names)]
    element = Var(names.fresh("_element"), INT)
    place = b.binary("+", element, _ZERO)
    mine = Index(owner, (place,), INT)
    before = Builtin("max", (b.binary("-", mine, _ONE), _ZERO), INT)
    for var, number in ((low, before), (high, mine)):
        target = Index(var, (place,), INT)
        axes = (Axis(element.name, size),)
        done.append(IndexAssign(target, "=", Select(alone, number, target, INT), axes))
    return declared, done, Overlap(low, high, holds)


def _at(own: Axis, bound: Expr, number: Expr) -> Expr:
    return substitute(bound, {own.name: number})


def _back(own: Axis, first: Expr, end: Expr, size: Expr, back: Var, names: Names) -> Stmt:
    """How many segments go back behind the one before, or reach out of what there is."""
    segment = Var(names.fresh("_segment"), INT)
    before = b.binary("-", segment, _ONE)
    bounds = [
        Binary(
            "<",
            _at(own, bound, segment),
            Select(Binary(">", segment, _ZERO, INT), _at(own, bound, before), _ZERO, INT),
            INT,
        )
        for bound in (first, end)
    ]
    outside = Binary(">", _at(own, end, segment), size, INT)
    value: Expr = Select(b.some((*bounds, outside)), _ONE, _ZERO, INT)
    value = shifted_places(value, {segment.name: own.extent})
    axes = (Axis(segment.name, own.extent),)
    return IndexAssign(Index(back, (), INT), "=", Reduce("sum", value, axes, INT), ())


def _numbers(
    own: Axis, bound: Expr, size: Expr, var: Var, lanes: Var, holds: Expr, names: Names
) -> Stmt:
    """For each element how many segments have a bound that is not behind it."""
    number, lane, step = (Var(names.fresh(w), INT) for w in ("_number", "_lane", "_step"))
    count = b.binary("+", own.extent, _ONE)
    before = _at(own, bound, b.binary("-", number, _ONE))
    begin: Expr = Select(Binary(">", number, _ZERO, INT), before, _ZERO, INT)
    stop: Expr = Select(Binary("<", number, own.extent, INT), _at(own, bound, number), size, INT)
    begin, stop = (shifted_places(each, {number.name: count}) for each in (begin, stop))
    length = b.binary("-", stop, begin)
    many = Select(holds, Builtin("max", (length, _ZERO), INT), _ZERO, INT)
    steps = b.binary("//", b.binary("+", many, b.binary("-", lanes, _ONE)), lanes)
    at = b.binary("+", b.binary("*", step, lanes), lane)
    place = b.binary("+", begin, Builtin("min", (at, b.binary("-", length, _ONE)), INT))
    inside = b.every((Binary("<=", _ZERO, place, INT), Binary("<", place, size, INT)))
    # What is not there is one more element, which does not count.
    target = Index(var, (Select(inside, place, size, INT),), INT)
    axes = (Axis(number.name, count), Axis(lane.name, lanes), Axis(step.name, steps))
    return IndexAssign(target, "=", number, axes, distinct=True)
