"""What is proved of the values of int expressions: which range they have, that a subscript stays
inside its dimension where a condition holds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from loma.core import sizes
from loma.core.ir import (
    INT, Axis, Binary, Builtin, Call, Expr, For, Index, IntConst, IntType, Op, Reduce, Select,
    TensorType, Unary, Var, ZeroPad,
)  # fmt: skip
from loma.core.sizes import IsSize, arith
from loma.core.walk import children, free_variables

ZERO = IntConst(0)
ONE = IntConst(1)


@dataclass(frozen=True, slots=True)
class Interval:
    """Bounds of an int expression; one that is ``attained`` is its smallest or largest value."""

    low: Expr
    high: Expr
    low_attained: bool
    high_attained: bool


def interval(expr: Expr, extents: Mapping[str, Expr], is_size: IsSize) -> Interval | None:
    """The range of an int expression, or None where nothing is known.

    ``extents`` are the ranges of indices and loop counters, none of which is empty; ``is_size``
    tells the variables that are never negative. Other variables stand for themselves.
    """
    low: sizes.Polynomial = {}
    high: sizes.Polynomial = {}
    low_attained = high_attained = True
    used: set[str] = set()
    for monomial, coefficient in sizes.polynomial(expr).items():
        moving = [atom for atom in monomial if sizes.mentions(atom, set(extents))]
        fixed = tuple(atom for atom in monomial if atom not in moving)
        if not moving:
            low = sizes.added(low, {fixed: coefficient})
            high = sizes.added(high, {fixed: coefficient})
            continue
        found = _atom(moving[0], extents, is_size)
        factor = sizes.from_polynomial({fixed: abs(coefficient)})
        if len(moving) > 1 or found is None or not sizes.is_nonnegative(factor, is_size):
            return None
        # An index in two terms cannot be at both ends of its range at once.
        own = free_variables(moving[0]) & set(extents)
        alone = not own & used
        used |= own
        sign = 1 if coefficient > 0 else -1
        ends = [(found.low, found.low_attained), (found.high, found.high_attained)]
        least, most = ends[::sign]
        low = sizes.added(low, sizes.polynomial(Binary("*", factor, least[0], INT)), sign)
        high = sizes.added(high, sizes.polynomial(Binary("*", factor, most[0], INT)), sign)
        low_attained = low_attained and alone and least[1]
        high_attained = high_attained and alone and most[1]
    bounds = sizes.from_polynomial(low), sizes.from_polynomial(high)
    return Interval(*bounds, low_attained, high_attained)


def least(expr: Expr, extents: Mapping[str, Expr], is_size: IsSize) -> Expr | None:
    """A lower bound of an int expression, or None where nothing is known.

    Indices whose range no other one depends on are put at an end of their range first, so that
    ``j - k`` is at least 1 where k is in ``range(j)``.
    """
    left = dict(extents)
    while True:
        names = {v.name for m in sizes.polynomial(expr) for v in m if isinstance(v, Var)}
        names &= left.keys()
        behind = {name: _behind(name, left) for name in names}
        for name in [n for n in left if n in names]:
            if any(name in behind[other] for other in names - {name}):
                continue
            form = sizes.affine(expr, (Axis(name, left[name]),))
            if form is None:
                continue
            slope, rest = form[0][name], form[1]
            if sizes.is_nonnegative(slope, is_size):
                expr = rest
            elif sizes.is_nonnegative(arith("-", ZERO, slope), is_size):
                last = Binary("-", left[name], ONE, INT)
                expr = arith("+", rest, Binary("*", slope, last, INT))
            else:
                continue
            del left[name]
            break
        else:
            found = interval(expr, extents, is_size)
            return None if found is None else found.low


def _behind(name: str, extents: Mapping[str, Expr]) -> set[str]:
    """The indices that the range of one depends on, directly or not."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        new = (free_variables(extents[waiting.pop()]) & extents.keys()) - found
        found |= new
        waiting += new
    return found


def _atom(atom: Expr, extents: Mapping[str, Expr], is_size: IsSize) -> Interval | None:
    """The range of an index, a quotient or a remainder."""
    match atom:
        case Var(name) if name in extents:
            others = {k: v for k, v in extents.items() if k != name}
            bound = interval(extents[name], others, is_size)
            if bound is None:
                return None
            same = bound.low == bound.high  # whatever other indices are
            return Interval(ZERO, arith("-", bound.high, ONE), same, same)
        case Binary("//" | "%" as op, left, right) if _is_positive(right, is_size):
            of = interval(left, extents, is_size)
            if op == "%":
                from_zero = of is not None and of.low_attained and of.low == ZERO
                return Interval(ZERO, arith("-", right, ONE), from_zero, False)
            if of is None:
                return None
            low, high = (arith("//", end, right) for end in (of.low, of.high))
            return Interval(low, high, of.low_attained, of.high_attained)
        case _:
            return None


def _is_positive(expr: Expr, is_size: IsSize) -> bool:
    """Whether the value is positive, or a product of sizes: where that is 0, dividing fails."""
    value = sizes.constant(expr)
    return value > 0 if value is not None else sizes.is_nonnegative(expr, is_size)


def facts(condition: Expr, holds: bool = True) -> tuple[Expr, ...]:
    """Int expressions that are not negative where the condition holds (or does not)."""
    match condition:
        case Unary("not", operand):
            return facts(operand, not holds)
        case Binary("and", left, right) if holds:
            return facts(left) + facts(right)
        case Binary("or", left, right) if not holds:
            return facts(left, False) + facts(right, False)
        case Binary("<" | "<=" | ">" | ">=" | "==" | "!=" as op, left, right):
            if left.type != INT or right.type != INT:
                return ()
            if op in ("==", "!="):
                equal = (op == "==") == holds
                return (arith("-", left, right), arith("-", right, left)) if equal else ()
            if op in (">", ">="):
                left, right = right, left
            if not holds:  # left > right, or left >= right
                left, right = right, left
            strict = (op in ("<", ">")) == holds
            difference = Binary("-", right, left, INT)
            return (arith("-", difference, ONE) if strict else sizes.simplify(difference),)
        case _:
            return ()


def stays_inside(
    subscript: Expr,
    size: Expr,
    extents: Mapping[str, Expr],
    is_size: IsSize,
    known: tuple[Expr, ...] = (),
) -> bool:
    """Whether a subscript provably stays in a dimension, at every point of axes that are not empty
    where the expressions ``known`` are not negative."""
    if isinstance(subscript, Var) and extents.get(subscript.name) == size:
        return True  # as most do
    if isinstance(size, Builtin) and size.name == "max":  # as the rounds of a loop, max(T, 0)
        return any(stays_inside(subscript, s, extents, is_size, known) for s in size.args)
    if isinstance(subscript, Select):
        cond, then, other = subscript.cond, subscript.then, subscript.other
        return stays_inside(then, size, extents, is_size, (*known, *facts(cond))) and stays_inside(
            other, size, extents, is_size, (*known, *facts(cond, False))
        )
    last = Binary("-", size, ONE, INT)
    room = Binary("-", last, subscript, INT)
    return all(is_never_negative(expr, extents, is_size, known) for expr in (subscript, room))


def last_places(extents: Mapping[str, Expr]) -> tuple[Expr, ...]:
    """What is not negative where axes have points."""
    return tuple(arith("-", extent, ONE) for extent in dict.fromkeys(extents.values()))


def exists(
    place: Index, extents: Mapping[str, Expr], is_size: IsSize, known: tuple[Expr, ...] = ()
) -> bool:
    """Whether a place provably is in its tensor, at every point of axes that are not empty where
    the expressions ``known`` are not negative."""
    dims = sizes.dims_of(place.tensor) if isinstance(place.base.type, TensorType) else None
    return dims is not None and all(
        stays_inside(subscript, dim, extents, is_size, known)
        for subscript, dim in zip(place.subscripts, dims, strict=True)
    )


def never_fails(
    value: Expr, extents: Mapping[str, Expr], is_size: IsSize, known: tuple[Expr, ...] = ()
) -> bool:
    """Whether a value without reductions provably is no error at any point of axes where the
    expressions ``known`` are not negative: it may be computed where nobody looks at it, or left
    out."""
    match value:
        case Binary("//" | "%", left, right, IntType()) if any(
            sizes.equal(right, extent) is True for extent in extents.values()
        ):
            return never_fails(left, extents, is_size, known)  # not 0 where there is a point
        case Binary("/" | "//" | "%", left, IntConst(by), IntType()) if by:
            return never_fails(left, extents, is_size, known)
        case Select(cond, then, other):
            return (
                never_fails(cond, extents, is_size, known)
                and never_fails(then, extents, is_size, (*known, *facts(cond)))
                and never_fails(other, extents, is_size, (*known, *facts(cond, False)))
            )
        case Reduce() | Call() | Op() | Binary("/" | "//" | "%", type=IntType()):
            return False
        case ZeroPad(read):
            return all(never_fails(s, extents, is_size, known) for s in read.subscripts)
        case Index() if not exists(value, extents, is_size, known):
            return False
        case _:
            return all(never_fails(child, extents, is_size, known) for child in children(value))


def is_never_negative(
    expr: Expr, extents: Mapping[str, Expr], is_size: IsSize, known: tuple[Expr, ...] = ()
) -> bool:
    """Whether an int expression is at least zero at every point of axes that are not empty where
    the expressions ``known`` are."""
    for fact, ranges in product((ZERO, *known), _wider(extents)):
        low = least(Binary("-", expr, fact, INT), ranges, is_size)
        if low is None:
            continue
        if any(sizes.is_nonnegative(e, is_size) for e in (low, _below(low))):
            return True
    return False


def _wider(extents: Mapping[str, Expr]) -> Iterator[Mapping[str, Expr]]:
    """The ranges, or for ``range(min(a, b))`` one of those that are not cut off: what holds there
    holds."""
    yield extents
    for name, extent in extents.items():
        match extent:
            case Builtin("min", args):
                yield from ({**extents, name: arg} for arg in args)
            case _:
                pass


def _below(expr: Expr) -> Expr:
    """What is not larger than a multiple, without quotients: ``c * (x // c)`` lies between
    x - c + 1 and x."""
    terms = sizes.polynomial(expr)
    times = math.lcm(*(_divisor(m) // math.gcd(_divisor(m), c) for m, c in terms.items()))
    out: sizes.Polynomial = {}
    for monomial, coefficient in terms.items():
        coefficient *= times
        match monomial:
            case (Binary("//", top, IntConst(by)),) if by > 0:
                number = coefficient // by
                least = sizes.polynomial(top)
                if number > 0:
                    least = sizes.added(least, {(): by - 1}, -1)
                out = sizes.added(out, {m: c * number for m, c in least.items()})
            case _:
                out = sizes.added(out, {monomial: coefficient})
    return sizes.from_polynomial(out)


def _divisor(monomial: tuple[Expr, ...]) -> int:
    """By what a term is divided, 1 if it is none that is."""
    match monomial:
        case (Binary("//", _, IntConst(by)),) if by > 0:
            return by
        case _:
            return 1


def counted(loop: For, ranges: Mapping[str, Expr], is_size: IsSize) -> dict[str, Expr]:
    """The ranges of loop counters inside of another loop, as far as sizes tell them."""
    inside = {name: extent for name, extent in ranges.items() if name != loop.counter}
    if all(map(is_size, free_variables(loop.extent))):
        inside[loop.counter] = loop.extent
    return inside


def conjuncts(condition: Expr) -> Iterator[Expr]:
    """The conditions that all hold where a condition does."""
    match condition:
        case Binary("and", left, right):
            yield from conjuncts(left)
            yield from conjuncts(right)
        case _:
            yield condition


def room_of(read: Index) -> list[Expr]:
    """What is not negative where a read's subscripts are inside of its tensor, but for indices that
    stand alone: these run over the dimension."""
    found: list[Expr] = []
    for subscript, dim in zip(read.subscripts, sizes.dims_of(read.tensor), strict=True):
        if isinstance(subscript, Var):
            continue
        found += [sizes.simplify(subscript), arith("-", arith("-", dim, ONE), subscript)]
    return found


def unsaid_of(read: Index, condition: Expr) -> list[Expr] | None:
    """Where a condition says only that some of :func:`room_of` a read are not negative: the
    others."""
    room, parts = room_of(read), list(conjuncts(condition))
    said = [end for part in parts for end in facts(part)]
    alone = all(map(facts, parts)) and all(end in room for end in said)
    return [end for end in room if end not in said] if alone else None
