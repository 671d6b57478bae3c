"""Whether a read and a write of one tensor are of other elements, and which comes first.

Subscripts are compared as polynomials, with what is known of indices and loop counters: their
ranges, which may depend on each other (``k in range(j)``), and the conditions around.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from loma.core import sizes
from loma.core.bounds import facts, is_never_negative
from loma.core.ir import INT, Axis, Binary, Expr, Index, IntConst, Reduce, Unary, Var, ZeroPad
from loma.core.names import Names
from loma.core.sizes import IsSize
from loma.core.walk import children, is_element_of, map_guarded, substitute, variables

ONE = IntConst(1)


@dataclass(frozen=True, slots=True)
class Read:
    """A read inside an expression: the ranges of the reductions around it, and int expressions that
    are not negative, and such that are not zero, where it is evaluated. ``padded``: it is what
    zero_pad takes, and may leave its tensor; ``guarded``: a condition may leave it out."""

    place: Index
    extents: Mapping[str, Expr]
    known: tuple[Expr, ...] = ()
    nonzero: tuple[Expr, ...] = ()
    padded: bool = False
    guarded: bool = False


def reads_of(name: str, expr: Expr) -> list[Read]:
    """The reads of a tensor's elements in an expression, those in subscripts included."""
    return list(_reads(name, expr, {}, ()))


def _reads(
    name: str,
    expr: Expr,
    extents: Mapping[str, Expr],
    guards: tuple[Expr, ...],
    padded: bool = False,
) -> Iterator[Read]:
    if is_element_of(expr, name):
        known = tuple(fact for guard in guards for fact in facts(guard))
        nonzero = tuple(e for guard in guards for e in _nonzero(guard))
        yield Read(expr, extents, known, nonzero, padded, bool(guards))
    if isinstance(expr, Reduce):
        for axis in expr.axes:
            yield from _reads(name, axis.extent, extents, guards)
        own = {axis.name: axis.extent for axis in expr.axes}
        yield from _reads(name, expr.body, {**extents, **own}, guards)
        return
    found: list[Read] = []

    def visit(child: Expr, guard: Expr | None) -> Expr:
        more = () if guard is None else (guard,)
        found.extend(_reads(name, child, extents, guards + more, isinstance(expr, ZeroPad)))
        return child

    if children(expr):
        map_guarded(expr, visit)
    yield from found


def _nonzero(condition: Expr, holds: bool = True) -> tuple[Expr, ...]:
    """Int expressions that are not zero where the condition holds (or does not)."""
    match condition:
        case Unary("not", operand):
            return _nonzero(operand, not holds)
        case Binary("and", left, right) if holds:
            return _nonzero(left) + _nonzero(right)
        case Binary("!=" | "==" as op, left, right) if (op == "!=") == holds:
            return (Binary("-", left, right, INT),) if left.type == right.type == INT else ()
        case _:
            return ()


def apart(
    written: Index,
    axes: tuple[Axis, ...],
    read: Read,
    around: Mapping[str, Expr],
    is_size: IsSize,
    known: tuple[Expr, ...] = (),
) -> bool:
    """Whether no element that a statement with these axes reads at ``read`` is one that it writes
    at ``written``, for any two points of its axes.

    ``around`` are the ranges of the loop counters around, ``known`` int expressions that are not
    negative there.
    """
    there, extents = _renamed(read, axes, around)
    return any(
        differ(left, right, extents, is_size, known + there.known)
        or any(sizes.equal(Binary("-", *pair, INT), e)
               for e in there.nonzero for pair in ((left, right), (right, left)))
        for left, right in zip(written.subscripts, there.place.subscripts, strict=True)
    )  # fmt: skip


def _renamed(
    read: Read, axes: tuple[Axis, ...], around: Mapping[str, Expr]
) -> tuple[Read, dict[str, Expr]]:
    """The read at another point of the axes, and the ranges at both."""
    taken = {axis.name for axis in axes} | set(around) | set(read.extents)
    names = Names({*taken, *variables(read.place)})
    there = {a.name: a.extent for a in axes if a.name not in read.extents} | dict(read.extents)
    other = {name: names.fresh(f"{name}_read") for name in there}
    new: dict[str, Expr] = {name: Var(own, INT) for name, own in other.items()}
    extents = {**around, **{axis.name: axis.extent for axis in axes}}
    extents |= {other[name]: substitute(extent, new) for name, extent in there.items()}
    place = substitute(read.place, new)
    assert isinstance(place, Index)
    known, nonzero = (
        tuple(substitute(e, new) for e in found) for found in (read.known, read.nonzero)
    )
    return Read(place, read.extents, known, nonzero), extents


def differ(
    left: Expr, right: Expr, extents: Mapping[str, Expr], is_size: IsSize, known: tuple[Expr, ...]
) -> bool:
    """Whether two ints are never the same where no range is empty and no ``known`` is negative."""
    difference = Binary("-", left, right, INT)
    parts = dict(sizes.polynomial(difference))
    rest = parts.pop((), 0)
    step = math.gcd(*parts.values())
    if (rest % step if step else rest) != 0:  # as 2 * i and 2 * j + 1 do
        return True
    return any(
        is_never_negative(Binary("-", expr, ONE, INT), extents, is_size, known)
        for expr in (difference, Binary("-", right, left, INT))
    )


def same_element(written: Index, read: Index) -> bool:
    """Whether both are one element at every point."""
    pairs = zip(written.subscripts, read.subscripts, strict=True)
    return all(sizes.equal(left, right) is True for left, right in pairs)
