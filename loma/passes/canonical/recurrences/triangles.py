"""Reductions over triangles, each as a reduction with a range of its own.

``sum(x[q] if q <= t else 0.0 for q in T)`` is ``sum(x[q] for q in range(t + 1))``. Adjoints of such
sums, and programs with loops, add along the triangle instead:

    for t in range(T):
        for q in range(t + 1):
            y[q] += x[t]                        # y[q] += sum(x[q + t] for t in range(T - q))

A band of W values at each element, ``x[q] if q >= t and q < t + W``, is a range of W, under what
is left of the condition. As one reduction for each element they need no loops over single
statements, and
:mod:`loma.passes.canonical.recurrences.scans` sees one form of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Set as AbstractSet
from dataclasses import dataclass
from itertools import permutations, product

from loma.core import bounds, sizes
from loma.core import builder as b
from loma.core.ir import (
    INT, OF_NOTHING, Axis, Binary, Expr, For, Function, If, Index, IndexAssign, IntConst, Module,
    Reduce, Select, Stmt, TensorType, Unary, Var, replace,
)  # fmt: skip
from loma.core.names import Names, names_of
from loma.core.sizes import IsSize, arith
from loma.core.walk import (
    free_variables, map_blocks, map_children, map_tensor_functions,
    substitute, variables, walk,
)  # fmt: skip
from loma.passes.canonical.recurrences.decided import comparisons

ZERO, ONE = bounds.ZERO, bounds.ONE


def triangles(module: Module) -> Module:
    """The pass on every tensor function of a module."""
    return map_tensor_functions(module, lambda function: _Triangles(function).run())


@dataclass(frozen=True, slots=True)
class _Nest:
    """``target op value`` for every point of ``axes``, which loops around the statement are part
    of, where the expressions ``known`` are not negative."""

    stmt: IndexAssign
    axes: tuple[Axis, ...]
    counters: frozenset[str]
    known: tuple[Expr, ...]
    value: Expr


class _Triangles:
    def __init__(self, function: Function) -> None:
        self._function = function
        self._names = Names(names_of(function))
        self._is_size: IsSize = frozenset(sizes.size_variables(function)).__contains__

    def run(self) -> Function:
        return replace(self._function, body=self._block(self._function.body))

    def _block(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return tuple(map(self._statement, body))

    def _statement(self, stmt: Stmt) -> Stmt:
        if isinstance(stmt, For | If | IndexAssign):
            stmt = self._gathered(stmt) or stmt
        if isinstance(stmt, IndexAssign):
            extents = {axis.name: axis.extent for axis in stmt.axes}
            return replace(stmt, value=self._ranged(stmt.value, extents))
        return map_blocks(stmt, self._block)

    # ------------------------------------------------------------------------ conditions as ranges

    def _ranged(self, expr: Expr, extents: Mapping[str, Expr]) -> Expr:
        """The expression with ranges for conditions of its reductions."""
        if not isinstance(expr, Reduce):
            return map_children(expr, lambda child: self._ranged(child, extents))
        inside = {**extents, **{axis.name: axis.extent for axis in expr.axes}}
        whole = self._ranged(expr.body, inside)
        known, body = _conditions(expr.kind, whole)
        for k, axis in enumerate(expr.axes if known else ()):
            found = self._range(axis, known, inside)
            around = extents.keys() - {a.name for a in expr.axes}
            if found is not None and not found.moves_with(around):
                continue
            moved = {name for fact in known for name in free_variables(fact)} & extents.keys()
            if found is None and not _is_of_matrix(body, axis.name, moved):
                found = self._band(axis, known, inside)
            if found is not None:
                axes = (*expr.axes[:k], Axis(axis.name, found.extent), *expr.axes[k + 1 :])
                body = found.guarded(axis.name, body, OF_NOTHING[expr.kind])
                return replace(expr, body=body, axes=axes)
        return replace(expr, body=whole)

    def _range(
        self, axis: Axis, known: tuple[Expr, ...], extents: Mapping[str, Expr]
    ) -> _Range | None:
        """The values of an axis for which all those expressions are not negative, if they are one
        range."""
        if (ends := _ends(axis, known)) is None:
            return None
        lows, highs = ends
        others = {name: extent for name, extent in extents.items() if name != axis.name}

        def decided(ends: list[Expr], sign: int) -> Expr | None:
            """The one of the ends that is inside of all others."""

            def is_inside(end: Expr, other: Expr) -> bool:
                room = arith("-", end, other) if sign > 0 else arith("-", other, end)
                return bounds.is_never_negative(room, others, self._is_size)

            inside = (e for e in ends if all(o is e or is_inside(e, o) for o in ends))
            return next(inside, None)

        low, high = decided(lows, 1), decided(highs, -1)
        return None if low is None or high is None else _Range(low, high)

    def _band(
        self, axis: Axis, known: tuple[Expr, ...], extents: Mapping[str, Expr]
    ) -> _Range | None:
        """As many values of an axis at each point of the others, which hold all those for which all
        those expressions are not negative, where that many move with the others."""
        if (ends := _ends(axis, known)) is None:
            return None
        lows, highs = ends
        others = {name: extent for name, extent in extents.items() if name != axis.name}
        for low in lows:
            for high in highs:
                moves = sizes.mentions(low, set(others)) and sizes.mentions(high, set(others))
                if not moves or not self._is_narrow(arith("-", high, low), axis.extent, others):
                    continue
                found = self._short(low, high, axis.extent, others)
                if found is None:
                    continue
                place = found.place(axis.name)
                inside = {**others, axis.name: found.extent}
                rooms = [arith("-", place, end) for end in lows if end is not low]
                rooms += [arith("-", arith("-", e, place), ONE) for e in highs if e is not high]
                rest = [
                    room for room in rooms
                    if not bounds.is_never_negative(room, inside, self._is_size)
                ]  # fmt: skip
                return replace(found, rest=tuple(rest))
        return None

    def _is_narrow(self, length: Expr, extent: Expr, others: Mapping[str, Expr]) -> bool:
        """Whether a band is as wide everywhere, and may well be less than the whole range: what is
        as long as the range of another index is what that runs through, as of a window."""
        if sizes.mentions(length, set(others)):
            return False
        if sizes.constant(extent) is not None and sizes.constant(length) is None:
            return False
        longer = bounds.is_never_negative(arith("-", length, extent), {}, self._is_size)
        return not longer and not any(sizes.equal(length, e) for e in others.values())

    def _short(
        self, low: Expr, high: Expr, extent: Expr, others: Mapping[str, Expr]
    ) -> _Range | None:
        """A band without most of the values that lie outside of the axis at any point, of which
        there may be any number where an argument says how wide it is."""
        last, length = arith("-", high, ONE), arith("-", high, low)
        back = len(sizes.polynomial(last)) < len(sizes.polynomial(low))
        if all(map(self._is_size, free_variables(length))):
            return _Range(low, high, back)
        ends = bounds.interval(last if back else low, others, self._is_size)
        if ends is None:
            return None
        first = arith("-", arith("-", extent, last), ONE) if back else low
        room = arith("+", ends.high, ONE) if back else arith("-", extent, ends.low)
        known = all(map(self._is_size, free_variables(room)))
        if not known or not bounds.is_never_negative(first, others, self._is_size):
            return None
        length = b.builtin("min", (length, room))
        start = arith("-", high, length) if back else low
        return _Range(start, arith("+", start, length), back)

    # ---------------------------------------------------------------------------- loops as ranges

    def _gathered(self, stmt: Stmt) -> IndexAssign | None:
        """A statement in loops, or one that adds along a triangle, as one with a reduction for each
        element; None where it is nothing of the kind."""
        nest = _nest(stmt)
        if nest is None:
            return None
        target, value = nest.stmt.element, nest.value
        names = {axis.name for axis in nest.axes}
        if len(names) < len(nest.axes) or target.tensor.name in free_variables(value):
            return None
        coupled = _coupled(nest, names)
        if len(coupled) != 2:
            return None
        places = [
            (at, gone)
            for at, subscript in enumerate(target.subscripts)
            for gone in sorted(free_variables(subscript) & coupled)
        ]
        for band, (at, gone) in product((False, True), places):
            (summed,) = coupled - {gone}
            found = self._solved(nest, at, gone, summed, band)
            if found is not None:
                return found
        return self._elementwise(nest, coupled) if nest.counters else None

    def _elementwise(self, nest: _Nest, coupled: set[str]) -> IndexAssign | None:
        """The statement for all elements, those behind the end of a row of the triangle gain
        nothing; None where an index of the triangle is not just a subscript of the target."""
        target, names = nest.stmt.element, {axis.name for axis in nest.axes}
        extents = {axis.name: axis.extent for axis in nest.axes}
        dims = zip(target.subscripts, sizes.dims_of(target.tensor), strict=True)
        room = {s.name: dim for s, dim in dims if isinstance(s, Var) and s.name in names}
        holds: list[Expr] = [Binary(">=", expr, ZERO, INT) for expr in nest.known]
        kept: list[Axis] = []
        for axis in nest.axes:
            name = axis.name
            if sizes.mentions(axis.extent, names):
                here = Var(name, INT)
                if name not in room or not bounds.stays_inside(
                    here, room[name], extents, self._is_size, nest.known
                ):
                    return None
                holds.append(Binary("<", here, axis.extent, INT))
                axis = Axis(name, room[name])
            if sum(sizes.mentions(s, {name}) for s in target.subscripts) == 1 and name in room:
                kept.append(axis)
            elif name in coupled or sizes.mentions(target, {name}):
                return None
        if not holds:  # two loops of which neither tells the other's range
            return None
        inner = tuple(axis for axis in nest.axes if axis.name not in {a.name for a in kept})
        value = nest.value
        if inner:
            value = Reduce("sum", value, inner, value.type, nest.stmt.span)
        value = b.select(b.every(holds), value, b.flt(0.0))
        return replace(nest.stmt, value=value, axes=_ordered(target, kept))

    def _solved(
        self, nest: _Nest, at: int, gone: str, summed: str, band: bool
    ) -> IndexAssign | None:
        """The sum over ``summed`` for each value of the subscript at a position, solved for the
        axis ``gone``; ``band``: over as many values for each of them."""
        stmt, target = nest.stmt, nest.stmt.element
        extents = {axis.name: axis.extent for axis in nest.axes}
        dim, subscript = sizes.dims_of(target.tensor)[at], target.subscripts[at]
        others = (*target.subscripts[:at], *target.subscripts[at + 1 :])
        if any(sizes.mentions(s, {gone, summed}) for s in others):
            return None
        form = sizes.affine(subscript, (Axis(gone, extents[gone]),))
        slope = None if form is None else sizes.constant(form[0].get(gone, ZERO))
        inside = bounds.stays_inside(subscript, dim, extents, self._is_size, nest.known)
        if form is None or slope not in (-1, 1) or not inside:
            return None
        own = Axis(gone if subscript == Var(gone, INT) else self._names.fresh("_p"), dim)
        place = Var(own.name, INT)
        value = sizes.product((IntConst(slope), arith("-", place, form[1])))
        solution: dict[str, Expr] = {} if own.name == gone else {gone: value}
        limits = [*nest.known, value, arith("-", extents[gone], arith("+", value, ONE))]
        limits = [sizes.simplify(substitute(expr, solution)) for expr in limits]
        here = {own.name: own.extent}
        if not all(
            bounds.is_never_negative(expr, here, self._is_size)
            for expr in limits
            if not sizes.mentions(expr, {summed})
        ):
            return None
        bound = tuple(expr for expr in limits if sizes.mentions(expr, {summed}))
        extent = sizes.simplify(substitute(extents[summed], solution))
        found = self._range(Axis(summed, extent), bound, here)
        if found is not None and not found.moves_with({own.name}):
            return None
        if found is None and band and any(dim == e for e in (extents[gone], extents[summed])):
            found = self._band(Axis(summed, extent), bound, here)
            if found is None and dim == extents[gone] and not sizes.mentions(extent, {own.name}):
                found = _Range(ZERO, extent, rest=bound)
        if found is None:
            return None
        rest = [axis for axis in nest.axes if axis.name not in (gone, summed)]
        kept = [axis for axis in rest if any(sizes.mentions(s, {axis.name}) for s in others)]
        inner = (Axis(summed, found.extent), *(axis for axis in rest if axis not in kept))
        wider = {axis.name: axis.extent for axis in (*kept, own, *inner)}
        for read in walk(nest.value):
            if isinstance(read, Index) and bounds.exists(read, extents, self._is_size, nest.known):
                moved = found.shifted(summed, sizes.simple_subscripts(substitute(read, solution)))
                if not (
                    isinstance(moved, Index)
                    and bounds.exists(moved, wider, self._is_size, found.rest)
                ):
                    return None  # the target has more elements than the triangle has rows
        body = sizes.simple_subscripts(substitute(nest.value, solution))
        body = found.guarded(summed, body, 0.0)
        target = replace(target, subscripts=_replaced(target.subscripts, at, place))
        total = Reduce("sum", body, inner, body.type, stmt.span)
        return replace(stmt, target=target, value=total, axes=_ordered(target, [*kept, own]))


@dataclass(frozen=True, slots=True)
class _Range:
    """The values [low, high) of an axis."""

    low: Expr
    high: Expr
    backwards: bool = False  # it is gone through from the end
    rest: tuple[Expr, ...] = ()  # those of which count for which these are not negative

    @property
    def extent(self) -> Expr:
        return arith("-", self.high, self.low)

    def moves_with(self, names: AbstractSet[str]) -> bool:
        """Whether one end of it depends on those axes, and on no other ones."""
        return sum(sizes.mentions(end, set(names)) for end in (self.low, self.high)) == 1

    def place(self, name: str) -> Expr:
        """The value that is so far behind the first one."""
        if self.backwards:
            return arith("-", arith("-", self.high, ONE), Var(name, INT))
        return arith("+", self.low, Var(name, INT))

    def shifted(self, name: str, body: Expr) -> Expr:
        """The body in terms of how far the axis of that name is behind the first value."""
        if self.low == ZERO and not self.backwards:
            return body
        return sizes.simple_subscripts(substitute(body, {name: self.place(name)}))

    def guarded(self, name: str, body: Expr, neutral: float) -> Expr:
        """The same, where all of the values do not count."""
        shifted = self.shifted(name, body)
        tests = [Binary(">=", room, ZERO, INT) for room in self.rest]
        return b.select(b.every(tests), shifted, b.flt(neutral)) if tests else shifted


def _ends(axis: Axis, known: tuple[Expr, ...]) -> tuple[list[Expr], list[Expr]] | None:
    """Where the values of an axis for which all those expressions are not negative begin and end:
    behind all of the first, before all of the second."""
    lows: list[Expr] = [ZERO]
    highs = [axis.extent]
    for expr in known:
        form = sizes.affine(expr, (axis,))
        slope = None if form is None else sizes.constant(form[0].get(axis.name, ZERO))
        if form is None or slope not in (-1, 1):
            return None
        if slope == 1:
            lows.append(arith("-", ZERO, form[1]))
        else:
            highs.append(arith("+", form[1], ONE))
    return lows, highs


def _is_of_matrix(body: Expr, name: str, others: AbstractSet[str]) -> bool:
    """Whether a body reads elements of which that index is a subscript and another one another:
    a library multiplies by a matrix as it is."""
    return any(
        sizes.mentions(one, {name}) and sizes.mentions(other, set(others))
        for node in walk(body)
        if isinstance(node, Index)
        for one, other in permutations(node.subscripts, 2)
    )


def _conditions(kind: str, body: Expr) -> tuple[tuple[Expr, ...], Expr]:
    """Expressions that are not negative where the body has a part in a reduction, and that body."""
    neutral = OF_NOTHING.get(kind)
    if kind == "sum" and isinstance(body, Binary) and body.op == "*":
        return _masked(body)
    if neutral is None or not isinstance(body, Select):
        return (), body
    cond, then, other = body.cond, body.then, body.other
    if b.is_const(then, neutral):
        cond, then, other = Unary("not", cond, INT), other, then
    if not b.is_const(other, neutral):
        return (), body
    known = comparisons(cond)
    return ((), body) if known is None else (known, then)


def _masked(product: Binary) -> tuple[tuple[Expr, ...], Expr]:
    """The same of a product with a mask, whose zeros stand for nothing, whatever they multiply."""
    for mask, other in ((product.left, product.right), (product.right, product.left)):
        known, factor = _conditions("sum", mask)
        if known:
            return known, b.mul(factor, other)
    return (), product


def _coupled(nest: _Nest, names: set[str]) -> set[str]:
    """The axes whose values depend on each other, and those of loops."""
    found = {axis.name for axis in nest.axes if sizes.mentions(axis.extent, names)}
    ends = (*(axis.extent for axis in nest.axes), *nest.known)
    return found.union(nest.counters, *(free_variables(end) & names for end in ends))


def _ordered(target: Index, axes: list[Axis]) -> tuple[Axis, ...]:
    """The axes in the order in which the target mentions them."""
    names = [n for s in target.subscripts for n in variables(s)]
    return tuple(sorted(axes, key=lambda axis: names.index(axis.name)))


def _replaced(subscripts: tuple[Expr, ...], at: int, new: Expr) -> tuple[Expr, ...]:
    return (*subscripts[:at], new, *subscripts[at + 1 :])


def _nest(stmt: Stmt) -> _Nest | None:
    """The statement and the loops and conditions around it that make one nest."""
    loops: list[Axis] = []
    known: tuple[Expr, ...] = ()
    while not isinstance(stmt, IndexAssign):
        match stmt:
            case For(counter, extent, (inner,)) if sizes.is_arithmetic(extent):
                loops.append(Axis(counter, extent))
            case If(cond, (inner,), ()) if loops and (facts := comparisons(cond)) is not None:
                known += facts
            case _:
                return None
        stmt = inner
    if not isinstance(stmt.target, Index) or not isinstance(stmt.target.base.type, TensorType):
        return None
    axes, value = (*loops, *stmt.axes), stmt.value
    if isinstance(value, Reduce) and value.kind == "sum":
        axes, value = axes + value.axes, value.body
    own, value = _conditions("sum", value)
    known += own
    if stmt.op != "+=" or not all(sizes.is_arithmetic(axis.extent) for axis in axes):
        return None
    return _Nest(stmt, axes, frozenset(axis.name for axis in loops), known, value)
