"""Indices that subscripts divide: ``y[i // 4] += x[i]`` runs over quotients and remainders.

With ``i = 4 * w + r`` it is ``y[w] += x[4 * w + r]``, whose places are affine in the axes, and one
more statement for the last, shorter stretch: ``y[N // 4] += x[4 * (N // 4) + r]`` for ``r`` below
``N % 4``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from loma import config
from loma.core import sizes
from loma.core.axes import target_axes
from loma.core.distinct import told_apart
from loma.core.ir import (
    INT, Axis, Binary, BinaryOp, Expr, Index, IndexAssign, IntConst, Reduce, Var,
)  # fmt: skip
from loma.core.sizes import IsSize, arith
from loma.core.walk import free_variables, map_children, walk


@dataclass(frozen=True, slots=True)
class _Divided:
    """An index as ``divisor * whole + part``, and what it runs over as such."""

    index: str
    divisor: int
    whole: Expr
    part: Expr
    axes: tuple[Axis, ...]

    def replaced(self, expr: Expr) -> Expr:
        """The expression in terms of these axes; messages show what the program has."""
        match expr:
            case Var(self.index):
                times = arith("*", IntConst(self.divisor), self.whole)
                return arith("+", times, self.part)
            case Binary("//" | "%" as op, Var(self.index), IntConst(by)):
                if self.divisor % by:
                    return map_children(expr, self.replaced)
                left = _divided(op, self.part, by, self.divisor)
                if op == "//":
                    times = arith("*", IntConst(self.divisor // by), self.whole)
                    left = arith("+", times, left)
                if isinstance(left, Var):  # an axis that fits the dimension, and need not fill it
                    left = Binary("+", left, IntConst(0), INT)
                assert isinstance(left, Binary | IntConst)
                return replace(left, span=expr.span)
            case Reduce():
                axes = tuple(replace(a, extent=self.replaced(a.extent)) for a in expr.axes)
                return replace(expr, body=self.replaced(expr.body), axes=axes)
            case _:
                return map_children(expr, self.replaced)

    def axes_of(self, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(new for a in axes for new in (self.axes if a.name == self.index else (a,)))


def _divided(op: BinaryOp, part: Expr, by: int, below: int) -> Expr:
    """The quotient or remainder of what is less than ``below``."""
    if by == below:
        return IntConst(0) if op == "//" else part
    return arith(op, part, IntConst(by))


def without_divisions(
    stmt: IndexAssign, is_size: IsSize, in_vectors: bool
) -> list[tuple[IndexAssign, bool]]:
    """Statements that do the same one after the other. Each comes with whether no other one of them
    writes the same elements.

    ``in_vectors``: vectors of neighbours are read and written, which quotients would take apart.
    """
    for axis in stmt.axes if "divisions" in config.optimisations() else ():
        by = _divisor(stmt, axis, in_vectors)
        if by is None:
            continue
        apart = axis.name in told_apart(stmt.element.subscripts, target_axes(stmt))
        return [
            (part, own and apart)
            for form in _forms(axis, by, is_size)
            for part, own in without_divisions(_with(stmt, form), is_size, in_vectors)
        ]
    return [(stmt, True)]


def _with(stmt: IndexAssign, form: _Divided) -> IndexAssign:
    target = form.replaced(stmt.target)
    assert isinstance(target, Index | Var)
    axes = form.axes_of(stmt.axes)
    return replace(stmt, target=target, value=form.replaced(stmt.value), axes=axes)


def _forms(axis: Axis, by: int, is_size: IsSize) -> Iterator[_Divided]:
    count, divisor = sizes.count(axis.extent, is_size), IntConst(by)
    whole, part = (Var(f"@{axis.name}_{what}_", INT) for what in ("whole", "part"))
    times, rest = arith("//", count, divisor), arith("%", count, divisor)
    yield _Divided(axis.name, by, whole, part, (Axis(whole.name, times), Axis(part.name, divisor)))
    if sizes.constant(rest) != 0:
        yield _Divided(axis.name, by, times, part, (Axis(part.name, rest),))


def _divisor(stmt: IndexAssign, axis: Axis, in_vectors: bool) -> int | None:
    """By what an index is to be divided, if that is worth it: a subscript of the target does so, or
    a read does while elements are written in order."""
    target = stmt.target
    if not isinstance(target, Index) or axis.name.startswith("@"):
        return None
    extents = [other.extent for other in stmt.axes if other is not axis]
    names = {other.name for other in stmt.axes}
    if free_variables(axis.extent) & names or any(sizes.mentions(e, {axis.name}) for e in extents):
        return None
    written = set(_divisors(target, axis.name))
    reads = (node for node in walk(stmt.value) if isinstance(node, Index))
    read = {divisor for node in reads for divisor in _divisors(node, axis.name)}
    largest = max(written | read, default=0)
    in_order = Var(axis.name, INT) in target.subscripts
    return largest or None if written or (in_order and in_vectors) else None


def _divisors(place: Index, index: str) -> Iterator[int]:
    """The constants by which subscripts divide an index."""
    for subscript in place.subscripts:
        for node in walk(subscript):
            match node:
                case Binary("//" | "%", Var(name), IntConst(by)) if name == index and by > 1:
                    yield by
