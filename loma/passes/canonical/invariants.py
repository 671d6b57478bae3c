"""Factors that do not depend on an index summed over leave the sum.

``sum(a[i, j] * b[j, k] / z[i] for j in J)`` is ``sum(a[i, j] * b[j, k] for j in J) / z[i]`` in the
canonical form, a matrix product and one division for each element. What a product is divided by,
and its sign, go to where a factor of theirs would go. The sum is rounded otherwise then, and where
such a factor is not finite it may differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from loma.core import builder as b, sizes
from loma.core.axes import target_axes
from loma.core.ir import (
    FLOAT, INT, Axis, Binary, Builtin, Expr, Function, Index, IndexAssign, IntConst, IntType,
    Module, Reduce, Stmt, Unary, Var,
)  # fmt: skip
from loma.core.sizes import IsSize
from loma.core.walk import (
    free_variables, map_blocks, map_children, map_tensor_functions, walk,
)  # fmt: skip

from loma.passes.canonical.hoisting import may_fail

Fails = Callable[[Expr], bool]


def invariants(module: Module) -> Module:
    """The pass on every tensor function of a module."""

    def changed(function: Function) -> Function:
        sizes_of = set(sizes.size_variables(function))

        def block(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
            return tuple(map_blocks(_statement(s, sizes_of.__contains__), block) for s in body)

        return replace(function, body=block(function.body))

    return map_tensor_functions(module, changed)


def _statement(stmt: Stmt, is_size: IsSize) -> Stmt:
    if not isinstance(stmt, IndexAssign):
        return stmt
    scope = {axis.name: axis for axis in stmt.axes}
    fails = lambda part: may_fail(part, scope, is_size)  # noqa: E731
    value = _without(stmt.value, fails)
    own = target_axes(stmt)
    summed = tuple(axis for axis in stmt.axes if axis not in own)
    if summed and isinstance(stmt.target, Index) and _fill_their_dimensions(summed, value):
        found = _Product.of(value).split(summed, fails)
        if found is not None:
            outside, inside = found
            total = Reduce("sum", inside, summed, FLOAT, stmt.value.span)
            return replace(stmt, value=outside.times(total), axes=own)
    return replace(stmt, value=value)


def _without(expr: Expr, fails: Fails) -> Expr:
    """The expression with these factors in front of its sums."""
    expr = map_children(expr, lambda child: _without(child, fails))
    if isinstance(expr, Reduce) and expr.kind == "sum" and expr.type == FLOAT:
        found = _Product.of(expr.body).split(expr.axes, fails)
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


@dataclass(frozen=True, slots=True)
class _Product:
    """The product of factors over that of divisors."""

    factors: tuple[Expr, ...]
    divisors: tuple[Expr, ...] = ()
    negative: bool = False

    @staticmethod
    def of(expr: Expr) -> _Product:
        """A float as a product; ints, which wrap and truncate, are factors."""
        if expr.type == FLOAT:
            match expr:
                case Unary("-", operand):
                    own = _Product.of(operand)
                    return replace(own, negative=not own.negative)
                case Binary("*", left, right):
                    one, other = _Product.of(left), _Product.of(right)
                    return _Product(
                        one.factors + other.factors,
                        one.divisors + other.divisors,
                        one.negative != other.negative,
                    )
                case Binary("/", left, right):
                    own = _Product.of(left)
                    return replace(own, divisors=(*own.divisors, right))
                case _:
                    pass
        return _Product((expr,))

    def split(self, axes: tuple[Axis, ...], fails: Fails) -> tuple[_Product, Expr] | None:
        """What does not depend on the axes, and the rest, which is a product or was divided; None
        where nothing is gained, or what does not might fail where there is nothing to sum."""
        names = {axis.name for axis in axes}
        outer, inner = _parted(self.factors, names)
        over, under = _parted(self.divisors, names)
        if not inner or not (outer or over or self.negative):
            return None
        if len(inner) < 2 and not over:
            return None
        some = all((sizes.constant(axis.extent) or 0) > 0 for axis in axes)
        if not some and any(map(fails, (*outer, *over))):
            return None
        rest = _divided(list(inner), under)
        over = tuple(_of_some(divisor, axes) for divisor in over)
        return _Product(outer, over, self.negative), rest

    def times(self, value: Expr) -> Expr:
        for factor in reversed(self.factors):
            value = b.binary("*", factor, value)
        for divisor in self.divisors:
            value = b.binary("/", value, divisor)
        return b.neg(value) if self.negative else value


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


def _of_some(divisor: Expr, axes: tuple[Axis, ...]) -> Expr:
    """A divisor that is a number of values summed is 1 where there are none: their sum is 0."""
    number = divisor
    if isinstance(divisor, Builtin) and divisor.name == "int2float":
        (number,) = divisor.args
    if not isinstance(number.type, IntType) or sizes.constant(number):
        return divisor
    atoms = {atom for monomial in sizes.polynomial(number) for atom in monomial}
    if not any(axis.extent in atoms for axis in axes):
        return divisor
    some = Builtin("max", (number, IntConst(1)), INT, number.span)
    return replace(divisor, args=(some,)) if isinstance(divisor, Builtin) else some
