"""What can be proved about subscripts: that one leaves its tensor, that no element is hit twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loma import sizes
from loma.axes import told_apart
from loma.ir import INT, Axis, Binary, BinaryOp, Expr, IntConst, Unary, Var
from loma.walk import variables


@dataclass(frozen=True, slots=True)
class Interval:
    """The smallest and the largest value of an int expression, both attained bounds or wider."""

    low: Expr
    high: Expr


def _arith(op: BinaryOp, left: Expr, right: Expr) -> Expr:
    return sizes.simplify(Binary(op, left, right, INT))


def interval(expr: Expr, extents: Mapping[str, Expr], known: frozenset[str]) -> Interval | None:
    """The range of a subscript, or None where nothing is known.

    ``extents`` are the ranges of indices and loop counters; ``known`` are the size variables, which
    are never negative. Other variables stand for themselves.
    """
    match expr:
        case Var(name) if name in extents:
            low: Expr = IntConst(0)
            bound = interval(extents[name], {k: v for k, v in extents.items() if k != name}, known)
            return None if bound is None else Interval(low, _arith("-", bound.high, IntConst(1)))
        case Var() | IntConst():
            return Interval(expr, expr)
        case Unary("-", operand):
            return _negate(interval(operand, extents, known))
        case Binary(op, left, right):
            a, b = interval(left, extents, known), interval(right, extents, known)
            return None if a is None or b is None else _binary(op, a, b, known)
        case _:
            return None


def _negate(of: Interval | None) -> Interval | None:
    if of is None:
        return None
    return Interval(
        sizes.simplify(Unary("-", of.high, INT)), sizes.simplify(Unary("-", of.low, INT))
    )


def _binary(op: str, a: Interval, b: Interval, known: frozenset[str]) -> Interval | None:
    match op:
        case "+":
            return Interval(_arith("+", a.low, b.low), _arith("+", a.high, b.high))
        case "-":
            return Interval(_arith("-", a.low, b.high), _arith("-", a.high, b.low))
        case "*":
            if a.low == a.high:
                a, b = b, a
            return _scaled(a, b.low, known) if b.low == b.high else None
        case "//" if b.low == b.high and _positive(b.low, known):
            return Interval(_arith("//", a.low, b.low), _arith("//", a.high, b.low))
        case "%" if b.low == b.high and _positive(b.low, known):
            return Interval(IntConst(0), _arith("-", b.low, IntConst(1)))
        case _:
            return None


def _scaled(of: Interval, factor: Expr, known: frozenset[str]) -> Interval | None:
    value = sizes.constant(factor)
    if value is None and not _positive(factor, known):
        return Interval(of.low, of.low) if of.low == of.high == IntConst(0) else None
    low, high = _arith("*", of.low, factor), _arith("*", of.high, factor)
    return Interval(high, low) if value is not None and value < 0 else Interval(low, high)


def _positive(expr: Expr, known: frozenset[str]) -> bool:
    """Whether the value is positive, or a product of sizes (then at least not negative)."""
    value = sizes.constant(expr)
    if value is not None:
        return value > 0
    poly = sizes.polynomial(expr)
    return all(
        coefficient > 0 and all(isinstance(a, Var) and a.name in known for a in monomial)
        for monomial, coefficient in poly.items()
    )


@dataclass(frozen=True, slots=True)
class Escape:
    """How a subscript leaves its dimension; ``always`` when no value of it is inside."""

    range: Interval
    below: bool
    always: bool


def escape(
    subscript: Expr, size: Expr, extents: Mapping[str, Expr], known: frozenset[str]
) -> Escape | None:
    """How the subscript provably leaves ``range(size)``; None if it does not, or who knows."""
    used = {name: extents[name] for name in variables(subscript) if name in extents}
    if any((n := sizes.constant(e)) is not None and n <= 0 for e in used.values()):
        return None  # an empty loop reads nothing
    found = interval(subscript, extents, known)
    if found is None:
        return None
    lowest, highest = sizes.constant(found.low), sizes.constant(found.high)
    over = sizes.constant(Binary("-", found.high, size, INT))
    all_over = sizes.constant(Binary("-", found.low, size, INT))
    if lowest is not None and lowest < 0:
        return Escape(found, True, highest is not None and highest < 0)
    if over is not None and over >= 0:
        return Escape(found, False, all_over is not None and all_over >= 0)
    if highest is not None and highest < 0:
        return Escape(found, True, True)
    if all_over is not None and all_over >= 0:
        return Escape(found, False, True)
    return None


def injective(subscripts: tuple[Expr, ...], axes: tuple[Axis, ...]) -> bool:
    """Whether different points of the axes provably have different subscripts."""
    return told_apart(subscripts, axes) >= {axis.name for axis in axes}
