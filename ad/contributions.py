"""Reverse mode on one scalar expression: which reads it adds what to.

The adjoint ``g`` of the expression's value goes down the tree; at every read of an active variable
the product of ``g`` with the partial derivatives on the way is a contribution. Where one part
stands in several places, its adjoints from all of them go down together. What stands in a
branch of a conditional expression contributes only where that branch is taken: the condition guards
the whole product, so that not even a NaN gets through. Elsewhere there may be no such element, as
in ``x[i - d] if i >= d else 0.0``: then the condition is told beside the contribution.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from loma.ad.activity import reaches
from loma.ad.rules import SCALAR_RULES
from loma.ad.scalar_rules import times
from loma.core import builder as b
from loma.core.ir import (
    FLOAT, ArrayType, Binary, Builtin, Call, Expr, FloatConst, FloatType, Index, IntConst, IntType,
    MakeStruct, Member, NoDiff, Op, Place, Reduce, Select, Unary, Var, ZeroPad,
)  # fmt: skip
from loma.core.walk import certain_reads, children, root, walk


@dataclass(frozen=True, slots=True)
class Contribution:
    """``value`` is to be added to the adjoint of ``place``; ``padded`` when the read was inside
    ``zero_pad``, so that what falls outside the tensor is dropped. With a ``guard`` there is such a
    place only where that holds."""

    place: Place
    padded: bool
    value: Expr
    guard: Expr | None = None

    @property
    def selected(self) -> Expr:
        """The value, zero where the guard does not hold."""
        return self.value if self.guard is None else b.select(self.guard, self.value, b.flt(0))


PartialName = Callable[[str, int], str]
_Terms: TypeAlias = dict[tuple[Expr, ...], list[Expr]]  # what counts under which conditions


def always_exists(place: Place) -> bool:
    """Whether a place is there for all values of ints: its subscripts are constants, below the
    sizes that its type names."""
    for node in walk(place):
        if isinstance(node, Index):
            bounded = isinstance(node.base.type, ArrayType) and node.base.type.size is not None
            if not bounded or not isinstance(node.subscripts[0], IntConst):
                return False
    return True


def contributions(
    expr: Expr,
    g: Expr,
    active: Callable[[str], bool],
    partial_name: PartialName,
    where: Expr | None = None,
    exists: Callable[[Place], bool] = always_exists,
) -> list[Contribution]:
    """The contributions of ``expr`` with adjoint ``g``, one for each place that it reads; they
    count only where the condition ``where`` holds.

    ``partial_name(function, k)`` names the function that computes a scalar function's partial
    derivative with respect to its argument k. ``exists`` tells places that are there whatever the
    conditions around their reads are: one contribution serves all of their reads. So are those that
    another read has in any case, and constant subscripts of arrays of known size, which are checked
    where the program is read.
    """
    found: dict[tuple[Place, bool, Expr | None], _Terms] = {}
    again: dict[Expr, _Terms] = {part: {} for part in _repeated(expr)}
    certain = set(certain_reads(expr))

    def emit(place: Place, padded: bool, value: Expr, guards: tuple[Expr, ...]) -> None:
        guard: Expr | None = None
        if guards and place not in certain and not exists(place):
            guard = b.every(guards)
            guards = ()
        conditions = guards if where is None else (where, *guards)
        terms = found.setdefault((place, padded, guard), {})
        terms.setdefault(conditions, []).append(value)

    def visit(expr: Expr, g: Expr, guards: tuple[Expr, ...]) -> None:
        if expr in again:
            again[expr].setdefault(guards, []).append(g)
        else:
            descend(expr, g, guards)

    def descend(expr: Expr, g: Expr, guards: tuple[Expr, ...]) -> None:
        if isinstance(expr.type, IntType):
            return
        match expr:
            case IntConst() | FloatConst() | NoDiff():
                pass
            case Var() | Index() | Member():
                if active(root(expr)):
                    emit(expr, False, g, guards)
            case ZeroPad(read):
                assert isinstance(read.base, Var)
                if active(read.base.name):
                    emit(read, True, g, guards)
            case Unary("-", operand):
                visit(operand, b.neg(g), guards)
            case Unary():
                pass
            case Binary("*", left, right) if left == right:  # one contribution, not two equal ones
                apply("**", (left, IntConst(2)), g, guards)
            case Binary(op, left, right):
                apply(op, (left, right), g, guards)
            case Builtin(name, args):
                apply(name, args, g, guards)
            case Select(cond, then, other):
                visit(then, g, (*guards, cond))
                # Not ``<`` turned into ``>=``: NaN makes both false.
                visit(other, g, (*guards, b.unary("not", cond)))
            case Call(function, args):
                for k, arg in enumerate(args):
                    if isinstance(arg.type, FloatType) and reaches(arg, active):
                        slope = Call(partial_name(function, k), args, FLOAT)
                        visit(arg, Builtin("mul_no_nan", (slope, g), FLOAT), guards)
            case Reduce() | Op() | MakeStruct():
                raise AssertionError(f"not in normal form: {type(expr).__name__}")
            case _:
                assert_never(expr)

    def apply(name: str, args: tuple[Expr, ...], g: Expr, guards: tuple[Expr, ...]) -> None:
        if not any(reaches(arg, active) for arg in args):
            return
        for arg, partial in zip(args, SCALAR_RULES[name](*args), strict=True):
            if partial is not None and reaches(arg, active):
                visit(arg, times(g, partial), guards)

    visit(expr, g, ())
    for part, terms in again.items():
        for guards, total in _together(terms):
            descend(part, total, guards)
    order = {
        node: -k for k, node in enumerate(reversed(list(walk(expr))))
    }  # where it is first read
    return [
        Contribution(place, padded, _total(terms), guard)
        for (place, padded, guard), terms in sorted(
            found.items(), key=lambda item: order[item[0][0]]
        )
    ]


def _repeated(expr: Expr) -> list[Expr]:
    """The parts, more than reads, that stand in several places, those first that have others in
    them."""
    counts: Counter[Expr] = Counter()
    sizes: dict[Expr, int] = {}

    def count(part: Expr) -> int:
        if part not in sizes:
            sizes[part] = 1 + sum(map(count, children(part)))
        counts[part] += 1
        return sizes[part]

    count(expr)
    plain = (Var, Index, Member, IntConst, FloatConst, NoDiff, ZeroPad)
    parts = (p for p, n in counts.items() if n > 1 and p.type == FLOAT and not isinstance(p, plain))
    return sorted(parts, key=lambda part: -sizes[part])


def _together(terms: _Terms) -> list[tuple[tuple[Expr, ...], Expr]]:
    """Adjoints of one value under some conditions, as few as may be: where one counts if a
    condition holds, and another if it does not, one of them counts in any case."""
    left = {guards: b.total(values) for guards, values in terms.items()}
    for length in range(max(map(len, left), default=0), 0, -1):
        for guards in [own for own in left if len(own) == length]:
            around = guards[:-1]
            then, other = (*around, guards[-1]), (*around, b.unary("not", guards[-1]))
            if then in left and other in left:
                chosen = b.select(guards[-1], left.pop(then), left.pop(other))
                left[around] = b.add(left[around], chosen) if around in left else chosen
    return list(left.items())


def _total(terms: _Terms) -> Expr:
    """The sum of what counts where some conditions hold, as choices: what counts where a condition
    holds, and where it does not, is one of two values."""
    sides: dict[Expr, tuple[_Terms, _Terms]] = {}
    for (first, *rest), values in ((key, value) for key, value in terms.items() if key):
        denied = isinstance(first, Unary) and first.op == "not"
        condition = first.operand if isinstance(first, Unary) and denied else first
        sides.setdefault(condition, ({}, {}))[denied][tuple(rest)] = values
    total = list(terms.get((), ()))
    for condition, (then, other) in sides.items():
        if not then:
            condition, then, other = b.unary("not", condition), other, then
        total.append(b.select(condition, _total(then), _total(other) if other else b.flt(0)))
    return b.total(total)
