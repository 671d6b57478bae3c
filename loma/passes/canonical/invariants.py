"""Factors that do not depend on an index summed over leave the sum.

``sum(a[i, j] * b[j, k] / z[i] for j in J)`` is ``sum(a[i, j] * b[j, k] for j in J) / z[i]`` in the
canonical form, a matrix product and one division for each element. What a product is divided by,
and its sign, go to where a factor of theirs would go. The sum is rounded otherwise then, and where
such a factor is not finite it may differ. Terms that are the same but for numbers are one:
``0.5 * x[i] * y[i] + x[i] * (0.5 * y[i])`` is ``x[i] * y[i]``. In derivatives ``mul_no_nan`` guards
slopes: of ``sum(mul_no_nan(-(a[i] / z / z), g[i]) for i in I)`` the sum ``s`` of
``mul_no_nan(a[i], g[i])`` stays, and what leaves guards it, ``-mul_no_nan(1 / z, mul_no_nan(1 / z,
s))``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite

from loma.core import builder as b, sizes
from loma.core.axes import target_axes
from loma.core.bounds import counted, exists
from loma.core.ir import (
    FLOAT, INT, Assign, Axis, Binary, Builtin, Declare, Expr, FloatConst, For, Function, Index,
    IndexAssign, IntConst, IntType, Module, Reduce, Select, Stmt, Unary, Var, replace,
)  # fmt: skip
from loma.core.names import Names, names_of
from loma.core.sizes import IsSize
from loma.core.walk import (
    free_variables, map_blocks, map_children, map_tensor_functions, reads_elements, walk,
)  # fmt: skip
from loma.passes.canonical.hoisting import may_fail

Fails = Callable[[Expr], bool]


def invariants(module: Module) -> Module:
    """The pass on every tensor function of a module."""

    def changed(function: Function) -> Function:
        is_size = frozenset(sizes.size_variables(function)).__contains__

        def block(body: tuple[Stmt, ...], counters: Mapping[str, Expr]) -> tuple[Stmt, ...]:
            return tuple(statement(stmt, counters) for stmt in body)

        def statement(stmt: Stmt, counters: Mapping[str, Expr]) -> Stmt:
            inside = counted(stmt, counters, is_size) if isinstance(stmt, For) else counters
            stmt = _statement(stmt, counters, is_size)
            return map_blocks(stmt, lambda body: block(body, inside))

        names = Names(names_of(function))
        body = tuple(new for stmt in function.body for new in _of_number(stmt, is_size, names))
        return replace(function, body=block(body, {}))

    return map_tensor_functions(module, changed)


def _statement(stmt: Stmt, counters: Mapping[str, Expr], is_size: IsSize) -> Stmt:
    if not isinstance(stmt, IndexAssign):
        return stmt
    scope = {axis.name: axis for axis in stmt.axes}
    fails = lambda part: may_fail(part, scope, is_size)  # noqa: E731
    value = _without(stmt.value, stmt.axes, fails)
    own = target_axes(stmt)
    summed = tuple(axis for axis in stmt.axes if axis not in own)
    if summed and isinstance(stmt.target, Index) and _fill_their_dimensions(summed, value):
        # Where there is nothing to sum, the place need not exist.
        extents = {**counters, **{axis.name: axis.extent for axis in stmt.axes}}
        there = _is_some(summed) or exists(stmt.target, extents, is_size)
        found = _Product.of(value, stmt.axes).split(summed, fails) if there else None
        if found is not None:
            outside, inside = found
            total = Reduce("sum", inside, summed, FLOAT, stmt.value.span)
            return replace(stmt, value=outside.times(total), axes=own)
    return replace(stmt, value=value)


def _of_number(stmt: Stmt, is_size: IsSize, names: Names) -> tuple[Stmt, ...]:
    """A sum that is added to a number as one in a number of its own, without these factors."""
    match stmt:
        case IndexAssign(Var(), "+=", value, (_, *_) as axes) if value.type == FLOAT:
            fails = lambda part: may_fail(part, {a.name: a for a in axes}, is_size)  # noqa: E731
            if (found := _Product.of(value, axes).split(axes, fails)) is not None:
                outside, inside = found
                total = Var(names.fresh("_r"), FLOAT, stmt.span)
                summing = replace(stmt, target=total, value=inside)
                last = Assign(stmt.target, "+=", outside.times(total), stmt.span)
                return Declare(total, None, stmt.span), summing, last
        case _:
            pass
    return (stmt,)


def _without(expr: Expr, axes: tuple[Axis, ...], fails: Fails) -> Expr:
    """The expression with these factors in front of its sums."""
    around = (*axes, *expr.axes) if isinstance(expr, Reduce) else axes
    expr = map_children(expr, lambda child: _without(child, around, fails))
    if isinstance(expr, Reduce) and expr.kind == "sum" and expr.type == FLOAT:
        found = _Product.of(expr.body, around).split(expr.axes, fails)
        if found is not None:
            outside, inside = found
            return outside.times(replace(expr, body=inside))
    return expr


def _fill_their_dimensions(axes: tuple[Axis, ...], value: Expr) -> bool:
    """Whether the axes may as well have ranges of their own: no call has to check that the
    dimensions where they stand alone agree."""
    extents = {axis.name: axis.extent for axis in axes}
    return all(
        sizes.equal(dim, extents[s.name]) is True
        for node in walk(value)
        if isinstance(node, Index) and isinstance(node.base, Var)
        for s, dim in zip(node.subscripts, sizes.dims_of(node.base), strict=True)
        if isinstance(s, Var) and s.name in extents
    )


def _is_some(axes: tuple[Axis, ...]) -> bool:
    """Whether there is surely something to sum."""
    return all((sizes.constant(axis.extent) or 0) > 0 for axis in axes)


@dataclass(frozen=True, slots=True)
class _Product:
    """The product of factors over that of divisors; with a ``slope``, ``mul_no_nan`` of it and
    that, as derivatives have it: 0 where that is 0."""

    factors: tuple[Expr, ...]
    divisors: tuple[Expr, ...] = ()
    negative: bool = False
    slope: _Product | None = None

    @staticmethod
    def of(expr: Expr, axes: tuple[Axis, ...]) -> _Product:
        """A float that these axes run through as a product; ints, which wrap and truncate, are
        factors."""
        if expr.type == FLOAT:
            match expr:
                case Unary("-", operand):
                    own = _Product.of(operand, axes)
                    return replace(own, negative=not own.negative)
                case Binary("*", left, right):
                    return _Product.of(left, axes)._times(_Product.of(right, axes))
                case Binary("/", left, right):
                    own = _Product.of(left, axes)
                    return replace(own, divisors=(*own.divisors, right))
                case Select(_, then, other):
                    sides = _Product.of(then, axes), _Product.of(other, axes)
                    if (common := _in_common(expr, sides, axes)) is not None:
                        return common
                case Binary("+" | "-" as op, left, right):
                    sides = _Product.of(left, axes), _Product.of(right, axes)
                    if op == "-":
                        sides = sides[0], replace(sides[1], negative=not sides[1].negative)
                    if (alike := _alike(*sides)) is not None:
                        return alike
                case Builtin("mul_no_nan", (slope, value)):
                    own = _Product.of(slope, axes)
                    if own.slope is None:
                        guard = replace(own, negative=False)
                        return _Product((), (), own.negative, guard)._times(
                            _Product.of(value, axes)
                        )
                case _ if b.is_const(expr, 1):
                    return _Product(())
                case _:
                    pass
        return _Product((expr,))

    def _times(self, other: _Product) -> _Product:
        slope = self.slope or other.slope
        if self.slope is not None and other.slope is not None:
            slope = self.slope._times(other.slope)
        return _Product(
            self.factors + other.factors,
            self.divisors + other.divisors,
            self.negative != other.negative,
            slope,
        )

    def split(self, axes: tuple[Axis, ...], fails: Fails) -> tuple[_Product, Expr] | None:
        """What does not depend on the axes, and the rest, which is a product or was divided; None
        where there is nothing of one of them, or what does not depend on the axes might fail where
        there is nothing to sum."""
        names = {axis.name for axis in axes}
        outer, inner = _parted(self.factors, names)
        over, under = _parted(self.divisors, names)
        if any(reads_elements(axis.extent) for axis in axes):
            over, under = (), self.divisors  # of a row without elements it may be 0
        slope = self.slope or _Product(())
        steep, steeper = _parted(slope.factors, names)
        flat, flatter = _parted(slope.divisors, names)
        leaving = (*outer, *over, *steep, *flat)
        if not (leaving or self.negative) or all(factor.type != FLOAT for factor in inner):
            return None  # nothing leaves, or what stays is no sum of floats
        if not _is_some(axes) and any(map(fails, leaving)):
            return None
        rest = _divided(list(inner), under)
        if steeper or flatter:
            inside = _divided(list(steeper or (b.flt(1.0),)), flatter)
            rest = Builtin("mul_no_nan", (inside, rest), FLOAT)
        over = tuple(_of_some(divisor, axes) for divisor in over)
        return _Product(outer, over, self.negative, _Product(steep, flat)), rest

    def times(self, value: Expr) -> Expr:
        for factor in reversed(self.factors):
            value = b.binary("*", factor, value)
        for divisor in self.divisors:
            value = b.binary("/", value, divisor)
        for slope in [] if self.slope is None else self.slope._steps():
            value = Builtin("mul_no_nan", (slope, value), FLOAT)
        return b.neg(value) if self.negative else value

    def _steps(self) -> list[Expr]:
        """Numbers of this product, with one divisor each: what they are multiplied with one after
        the other stays between what it is and what it becomes, where 1 / z / z might overflow."""
        factors, divisors = self.factors, self.divisors
        if not divisors:
            return [_divided(list(factors), ())] if factors else []
        first = _divided(list(factors or (b.flt(1.0),)), divisors[:1])
        return [first, *(b.binary("/", b.flt(1.0), divisor) for divisor in divisors[1:])]


def _alike(one: _Product, other: _Product) -> _Product | None:
    """The sum of two products that differ in their numbers alone, neither of which takes away from
    the other, as a product: of ``0.5 * x * y`` and ``x * (0.5 * y)`` ``x * y``."""
    numbers = [_numbers(side.factors) for side in (one, other)]
    if one.negative != other.negative or one.slope != other.slope or min(numbers) <= 0.0:
        return None
    rests = [Counter(f for f in side.factors if b.number(f) is None) for side in (one, other)]
    if rests[0] != rests[1] or Counter(one.divisors) != Counter(other.divisors):
        return None
    factors = tuple(f for f in one.factors if b.number(f) is None)
    total = sum(numbers)
    return replace(one, factors=factors if total == 1.0 else (b.flt(total), *factors))


def _numbers(factors: tuple[Expr, ...]) -> float:
    """The product of those that are numbers."""
    return math.prod(number for number in map(b.number, factors) if number is not None)


def _parted(parts: tuple[Expr, ...], names: set[str]) -> tuple[tuple[Expr, ...], tuple[Expr, ...]]:
    """Those that depend on none of the names, and the others."""
    free = {part: free_variables(part).isdisjoint(names) for part in parts}
    return tuple(p for p in parts if free[p]), tuple(p for p in parts if not free[p])


def _divided(factors: list[Expr], divisors: tuple[Expr, ...]) -> Expr:
    """The product, with each divisor below the first factor that has all variables of it."""
    late: list[Expr] = []
    for divisor in divisors:
        names = free_variables(divisor)
        fits = [k for k, f in enumerate(factors) if names <= free_variables(f) and f.type == FLOAT]
        if fits:
            factors[fits[0]] = b.binary("/", factors[fits[0]], divisor)
        else:
            late.append(divisor)
    value = factors[0]
    for factor in factors[1:]:
        value = b.binary("*", value, factor)
    for divisor in late:
        value = b.binary("/", value, divisor)
    return value


def _in_common(
    choice: Select, sides: tuple[_Product, _Product], axes: tuple[Axis, ...]
) -> _Product | None:
    """A choice between two products as what both have times a choice. Of one beside a zero only
    numbers: what else might be infinite the condition may guard."""
    extents = frozenset(axis.extent for axis in axes)
    zeros = [b.is_const(value, 0.0) for value in (choice.then, choice.other)]
    if all(zeros) or any(side.slope for side in sides):
        return None

    def both(left: tuple[Expr, ...], right: tuple[Expr, ...]) -> Counter[Expr]:
        if any(zeros):
            return Counter(part for part in left + right if _is_number(part, extents))
        return Counter(left) & Counter(right)

    factors = both(*(side.factors for side in sides))
    divisors = both(*(side.divisors for side in sides))
    negative = all(side.negative or zero for side, zero in zip(sides, zeros, strict=True))
    rests = []
    for side, zero in zip(sides, zeros, strict=True):
        left = list((Counter(side.factors) - factors).elements()) or [b.flt(1.0)]
        under = tuple((Counter(side.divisors) - divisors).elements())
        rest = b.flt(0.0) if zero else _divided(left, under)
        rests.append(b.neg(rest) if side.negative and not negative else rest)
    then, other = rests
    if not (factors or divisors or negative) or then.type != FLOAT or other.type != FLOAT:
        return None
    choice = replace(choice, then=then, other=other)
    shared = _Product(tuple(factors.elements()), tuple(divisors.elements()), negative)
    return shared._times(_Product((choice,)))


def _is_number(expr: Expr, extents: frozenset[Expr]) -> bool:
    """Whether it is a number other than 0, where no extent is 0."""
    if isinstance(expr, FloatConst):
        return expr.value != 0 and isfinite(expr.value)
    number = _counted(expr)
    if number is None:
        return False
    monomials = sizes.polynomial(number)
    return len(monomials) == 1 and extents.issuperset(atom for m in monomials for atom in m)


def _counted(expr: Expr) -> Expr | None:
    """The int that it is."""
    if isinstance(expr, Builtin) and expr.name == "int2float":
        (expr,) = expr.args
    return expr if isinstance(expr.type, IntType) else None


def _of_some(divisor: Expr, axes: tuple[Axis, ...]) -> Expr:
    """A divisor that is a number of values summed is 1 where there are none: their sum is 0."""
    number = _counted(divisor)
    if number is None or sizes.constant(number):
        return divisor
    atoms = {atom for monomial in sizes.polynomial(number) for atom in monomial}
    if not any(axis.extent in atoms for axis in axes):
        return divisor
    some = Builtin("max", (number, IntConst(1)), INT, number.span)
    return replace(divisor, args=(some,)) if isinstance(divisor, Builtin) else some
