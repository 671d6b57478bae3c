"""How values move when a variable is shifted.

Where each element of a variable moves by an amount of its own, ``d[at]``, a value made of it either
becomes ``value + sum(w[at] * d[at])``, or it *scales*: ``value * exp(sum(w[at] * d[at]))``. The
numbers ``w`` are its weight. Adding constants, sums, products of what scales, ``exp`` and ``log``
keep to this; what does not has no weight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from loma.core.ir import (
    Binary, Builtin, Expr, FloatConst, Index, IntConst, IntType, NoDiff, Reduce, Select, Unary, Var,
    ZeroPad,
)  # fmt: skip
from loma.core.walk import children, free_variables, substitute

Terms = Mapping[tuple[Expr, ...], Fraction]  # by subscripts of the variable


class NoWeight(Exception):
    """A value moves in another way."""


@dataclass(frozen=True, slots=True)
class Weight:
    """``zero``: of a value that is 0, which scales by anything."""

    terms: Terms = field(default_factory=dict)
    scales: bool = False
    zero: bool = False

    @property
    def adds(self) -> bool:
        return bool(self.terms) and not self.scales

    def at(self, values: dict[str, Expr]) -> Weight:
        """The weight with other subscripts."""
        found: dict[tuple[Expr, ...], Fraction] = {}
        for subscripts, count in self.terms.items():
            new = tuple(substitute(subscript, values) for subscript in subscripts)
            found[new] = found.get(new, Fraction(0)) + count
        return _weight(found, self.scales, self.zero)

    def times(self, factor: Fraction) -> Weight:
        terms = {at: count * factor for at, count in self.terms.items()}
        return _weight(terms, self.scales, self.zero)

    def names(self) -> set[str]:
        return {n for at in self.terms for subscript in at for n in free_variables(subscript)}


STAYS, ZERO = Weight(), Weight(zero=True)


def _weight(terms: Terms, scales: bool, zero: bool = False) -> Weight:
    terms = {at: count for at, count in terms.items() if count}
    return Weight(terms, scales and bool(terms), zero)


def added(a: Weight, b: Weight) -> Weight:
    if a.zero or b.zero or a.scales or b.scales:
        return same(a, b)
    return _weight(_merged(a.terms, b.terms), scales=False)


def same(a: Weight, b: Weight) -> Weight:
    """Of a value that is one of two."""
    if a.zero and not b.adds:
        return b
    if b.zero and not a.adds:
        return a
    if a.terms != b.terms or a.scales != b.scales:
        raise NoWeight
    return a


def multiplied(a: Weight, b: Weight) -> Weight:
    if a.zero or b.zero:
        return ZERO
    if a.adds or b.adds:
        raise NoWeight
    return _weight(_merged(a.terms, b.terms), scales=True)


def _merged(a: Terms, b: Terms) -> Terms:
    return {at: a.get(at, Fraction(0)) + b.get(at, Fraction(0)) for at in {**a, **b}}


def weight_of(expr: Expr, known: Callable[[Var, tuple[Expr, ...]], Weight]) -> Weight:
    """The weight of an expression; ``known`` has those of variables and their elements. Where no
    derivative passes (ints, ``no_diff``), nothing moves."""

    def of(expr: Expr) -> Weight:
        number = _number(expr)
        if number is not None:
            return STAYS if number else ZERO
        match expr:
            case NoDiff():
                return STAYS
            case _ if isinstance(expr.type, IntType):
                return STAYS
            case Var():
                return known(expr, ())
            case Index(Var() as base, subscripts):
                return known(base, subscripts)
            case ZeroPad(read):
                return same(of(read), ZERO)
            case Select(_, then, other):
                return same(of(then), of(other))
            case Reduce():
                return _reduced(expr, of(expr.body))
            case Unary("-", operand):
                found = of(operand)
                return found if found.scales else found.times(Fraction(-1))
            case Binary(op, left, right) if op in ("+", "-", "*", "/", "**"):
                return _binary(op, left, right, of)
            case Builtin(name, args):
                return _builtin(name, [of(arg) for arg in args])
            case _:
                return _still([of(child) for child in children(expr)])

    return of(expr)


def _number(expr: Expr) -> Fraction | None:
    match expr:
        case IntConst(value):
            return Fraction(value)
        case FloatConst(value) if value - value == 0:
            return Fraction(value)
        case Unary("-", operand):
            found = _number(operand)
            return None if found is None else -found
        case _:
            return None


def _still(parts: list[Weight]) -> Weight:
    if any(part.terms for part in parts):
        raise NoWeight
    return STAYS


def _reduced(expr: Reduce, body: Weight) -> Weight:
    kinds = {"max", "min"} if body.adds else {"sum", "max", "min"}
    if body.terms and (expr.kind not in kinds or body.names() & {a.name for a in expr.axes}):
        raise NoWeight
    return body


def _binary(op: str, left: Expr, right: Expr, of: Callable[[Expr], Weight]) -> Weight:
    a, b = of(left), of(right)
    first, second = _number(left), _number(right)
    match op:
        case "+":
            return added(a, b)
        case "-":
            return added(a, b if b.scales else b.times(Fraction(-1)))
        case "*" if a.adds and second is not None:
            return a.times(second)
        case "*" if b.adds and first is not None:
            return b.times(first)
        case "*":
            return multiplied(a, b)
        case "/" if a.adds and second:
            return a.times(1 / second)
        case "/" if not b.zero:
            return multiplied(a, b.times(Fraction(-1)))
        case "**" if second is not None and not a.adds:
            return a.times(second) if a.terms else STAYS
        case _:
            return _still([a, b])


def _builtin(name: str, args: list[Weight]) -> Weight:
    match name, args:
        case "exp", [x] if not x.scales:
            return _weight(x.terms, scales=True)
        case "log", [x] if x.scales:
            return _weight(x.terms, scales=False)
        case "sqrt", [x] if x.scales:
            return x.times(Fraction(1, 2))
        case "rsqrt", [x] if x.scales:
            return x.times(Fraction(-1, 2))
        case (("abs" | "relu"), [x]) if not x.adds:
            return x
        case (("max" | "min"), [x, y]):
            return same(x, y)
        case "mul_no_nan", [x, y]:
            return multiplied(x, y)
        case _:
            return _still(args)
