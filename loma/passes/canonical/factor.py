"""Sums of products of many factors, in steps.

``y[i, j] += a[i, k] * b[k, l] * c[l, j]`` runs through four indices. Taken in two steps,

    _t[i, l] = sum(a[i, k] * b[k, l] for k in K)
    y[i, j] += _t[i, l] * c[l, j]

it is two matrix products, each over three indices. An index that is summed over is eliminated by
summing the product of all factors that have it: a step, which needs only the indices of these
factors. It is taken where it lacks some index of the whole sum, and not for a small factor.

The order of the steps is that of least work, as far as the sizes tell; among others, it follows the
parentheses of the product, so that ``a * b * c`` begins with ``a * b`` and ``a * (b * c)`` with
``b * c``, as matrix products in a program do. Steps differ from the sum in rounding, and where
something is not finite, as associating matrix products differently does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from loma.core import builder as b, bounds, sizes
from loma.core.axes import ranged, shifted_places, target_axes
from loma.core.ir import (
    FLOAT, INT, Axis, Binary, Builtin, Expr, FloatConst, Function, Index, IndexAssign, IntConst,
    Module, NoDiff, Reduce, Select, Stmt, TensorType, Unary, Var, ZeroPad, replace,
)  # fmt: skip
from loma.core.ops import divisor
from loma.core.sizes import Polynomial
from loma.core.walk import children, free_variables, map_tensor_functions, walk
from loma.passes.canonical.steps import Steps

_MOST = 8  # indices summed over for which orders are compared; with more, a sum stays as it is


def factor(module: Module) -> Module:
    """The pass on every tensor function of a module."""
    return map_tensor_functions(module, lambda function: _Factor(function).run())


@dataclass(frozen=True, slots=True)
class _Sum:
    """A sum of a product over ``summed``, for each point of ``axes``; both without the other.

    ``factors`` are the indices of each factor, from left to right.
    """

    product: Expr
    axes: tuple[Axis, ...]
    summed: tuple[Axis, ...]

    @property
    def extents(self) -> dict[str, Expr]:
        return {axis.name: axis.extent for axis in (*self.axes, *self.summed)}

    @property
    def factors(self) -> tuple[frozenset[str], ...]:
        names = self.extents.keys()
        return tuple(frozenset(free_variables(f) & names) for f in _factors(self.product))


class _Factor(Steps):
    def __init__(self, function: Function) -> None:
        super().__init__(function)
        types = [param.type for param in function.params] + list(function.results)
        self._dims = [dim for type_ in types for dim in sizes.dims_in(type_)]

    def _steps(self, stmt: IndexAssign) -> list[Stmt]:
        whole = self._sum(stmt)
        if whole is None:
            return [stmt]
        extents = whole.extents
        sized = {name for name, extent in extents.items() if self._may_be_size(extent)}
        axes = frozenset(axis.name for axis in whole.axes)
        _, first = _Orders(extents, sized, _order(whole)).best(whole.factors, axes)
        if first is None:
            return [stmt]
        step = self._step(stmt, whole, first)
        return [stmt] if step is None else [*self._steps(step[0]), *self._steps(step[1])]

    # --------------------------------------------------------------------- what may be rewritten

    def _sum(self, stmt: IndexAssign) -> _Sum | None:
        """What the statement sums, if nothing in it fails, or reads what it writes."""
        value: Expr = stmt.value
        inner: tuple[Axis, ...] = ()
        if isinstance(value, Reduce) and value.kind == "sum":
            inner, value = value.axes, value.body
        axes = target_axes(stmt)
        summed = tuple(axis for axis in stmt.axes if axis not in axes) + inner
        found = {axis.name: axis.extent for axis in (*axes, *summed)}
        parts = _factors(value)
        if len(parts) < 2 or not 0 < len(summed) <= _MOST:
            return None
        if len(found) < len(axes) + len(summed):
            return None  # a reduction's own index hides another one
        if any(not free_variables(extent) <= self._sizes for extent in found.values()):
            return None
        if value.type == FLOAT and sum(part.type == INT for part in parts) > 1:
            return None  # products of ints are not those of floats
        bare = {axis.name for axis in stmt.axes}
        if not all(self._is_safe(e, found, bare) for e in (stmt.target, value)):
            return None
        target = stmt.target.base if isinstance(stmt.target, Index) else stmt.target
        if free_variables(target) & free_variables(value):
            return None
        return _Sum(value, axes, summed)

    def _is_safe(self, expr: Expr, extents: dict[str, Expr], bare: set[str]) -> bool:
        """Whether the expression has a value for all sizes, at any point of axes that are not
        empty: then it does not matter whether others are. ``bare`` are the axes whose extents must
        be those of the dimensions where they stand alone."""
        match expr:
            case ZeroPad(read):
                return isinstance(read.base, Var) and all(
                    self._is_safe(s, extents, bare) for s in read.subscripts
                )
            case Index(Var() as base, subscripts) if isinstance(base.type, TensorType):
                dims = base.type.dims
                return dims is not None and all(
                    self._is_inside(s, dim, extents, bare)
                    for s, dim in zip(subscripts, dims, strict=True)
                )
            case Binary() | Builtin() if (by := divisor(expr)) and not sizes.constant(by):
                return False
            case IntConst() | FloatConst() | Var():
                return not isinstance(expr.type, TensorType)
            case Unary() | Binary() | Builtin() | NoDiff() | Select():
                return all(self._is_safe(child, extents, bare) for child in children(expr))
            case _:
                return False

    def _is_inside(
        self, subscript: Expr, dim: Expr, extents: dict[str, Expr], bare: set[str]
    ) -> bool:
        if isinstance(subscript, Var) and subscript.name in bare:
            return sizes.equal(extents[subscript.name], dim) is True
        return bounds.stays_inside(subscript, dim, extents, self._is_size)

    def _may_be_size(self, extent: Expr) -> bool:
        """Whether a dimension may have that size: it is not negative in any call."""
        return sizes.is_nonnegative(extent, self._is_size) or any(
            sizes.equal(extent, dim) is True for dim in self._dims
        )

    # ------------------------------------------------------------------------------------ a step

    def _step(
        self, stmt: IndexAssign, whole: _Sum, first: str
    ) -> tuple[IndexAssign, IndexAssign] | None:
        """The statement that sums over the index ``first``, and the one that is left."""
        factors = whole.factors
        taken = [k for k, own in enumerate(factors) if first in own]
        gone = _gone(factors, frozenset(taken), frozenset(axis.name for axis in whole.summed))
        extents, parts = whole.extents, _factors(whole.product)
        kept = [name for name in _ordered(whole, taken) if name not in gone]
        axes = tuple(Axis(name, extents[name]) for name in kept)
        inside = (part if k in taken else None for k, part in enumerate(parts))
        body = _pruned(whole.product, inside)
        assert body is not None
        dims = tuple(axis.extent for axis in axes)
        type_ = TensorType(dims, "int" if body.type == INT else "float")
        var = self._temporary("_t", type_, stmt.span)
        place = Index(var, tuple(Var(axis.name, INT) for axis in axes), body.type, stmt.span)
        summed = tuple(axis for axis in whole.summed if axis.name in gone)
        body = shifted_places(body, {axis.name: axis.extent for axis in axes})
        value = Reduce("sum", body, summed, body.type, stmt.span)
        step = IndexAssign(place, "=", value, axes, stmt.span)
        left_over = [None if k in taken else part for k, part in enumerate(parts)]
        left_over[taken[0]] = place
        rest = _pruned(whole.product, iter(left_over))
        assert rest is not None
        if isinstance(stmt.value, Reduce):
            left = tuple(axis for axis in stmt.value.axes if axis.name not in gone)
            rest = replace(stmt.value, body=rest, axes=left) if left else rest
        left = tuple(axis for axis in stmt.axes if axis.name not in gone)
        new, loops = ranged(stmt.target, stmt.op, rest, left)
        if loops or {axis.name for axis in new.axes} != {axis.name for axis in left}:
            return None
        return step, replace(new, span=stmt.span)


def _factors(product: Expr) -> list[Expr]:
    """The factors of a product, from left to right."""
    match product:
        case Binary("*", left, right):
            return _factors(left) + _factors(right)
        case _:
            return [product]


def _pruned(product: Expr, factors: Iterator[Expr | None]) -> Expr | None:
    """The product of other factors, associated in the same way; None stands for none."""
    match product:
        case Binary("*", left, right):
            new_left, new_right = _pruned(left, factors), _pruned(right, factors)
            if new_left is None or new_right is None:
                return new_left or new_right
            return b.binary("*", new_left, new_right, product.span)
        case _:
            return next(factors)


def _ordered(whole: _Sum, taken: list[int]) -> list[str]:
    """Indices of some factors: what all of them have, then others, as they stand in the text."""
    parts, factors = _factors(whole.product), whole.factors
    common = frozenset.intersection(*(factors[k] for k in taken))
    names = [
        node.name
        for k in taken
        for node in walk(parts[k])
        if isinstance(node, Var) and node.name in factors[k]
    ]
    return sorted(dict.fromkeys(names), key=lambda name: name not in common)


def _gone(
    factors: tuple[frozenset[str], ...], taken: frozenset[int], summed: frozenset[str]
) -> frozenset[str]:
    """Indices summed over that only the factors at these positions have."""
    others = {name for k, own in enumerate(factors) if k not in taken for name in own}
    inside = {name for k in taken for name in factors[k]}
    return frozenset(inside & summed - others)


# ------------------------------------------------------------------------------- orders of steps


def _order(whole: _Sum) -> tuple[str, ...]:
    """Indices summed over, those first whose factors the parentheses join first."""

    def width(product: Expr, name: str) -> int:
        """How many factors the smallest product has that holds all with the index."""
        match product:
            case Binary("*", left, right):
                at_left, at_right = (name in free_variables(side) for side in (left, right))
                if at_left and at_right:
                    return len(_factors(product))
                return width(left if at_left else right, name)
            case _:
                return 1

    names = [axis.name for axis in whole.summed]
    return tuple(sorted(names, key=lambda name: width(whole.product, name)))


class _Orders:
    """Compares orders of steps by the points that they run through: polynomials of the sizes.

    ``sized`` are the indices that a temporary may have.
    """

    def __init__(self, extents: dict[str, Expr], sized: set[str], order: tuple[str, ...]) -> None:
        self._extents = extents
        self._sized = sized
        self._order = order
        self._found: dict[object, tuple[Polynomial, str | None]] = {}

    def best(
        self, factors: tuple[frozenset[str], ...], axes: frozenset[str]
    ) -> tuple[Polynomial, str | None]:
        """The work of the best order in a sum for each point of ``axes``, and the index to
        eliminate first; None for none."""
        key = factors, axes
        if key in self._found:
            return self._found[key]
        every = axes.union(*factors)
        best: tuple[Polynomial, str | None] = self._points(every), None
        for name in self._order:
            taken = frozenset(k for k, own in enumerate(factors) if name in own)
            if name in axes or not 0 < len(taken) < len(factors):
                continue
            gone = _gone(factors, taken, every - axes)
            inside = frozenset().union(*(factors[k] for k in taken))
            kept = inside - gone
            if not kept or not kept <= self._sized or not self._falls(every - inside, gone):
                continue
            others = tuple(own for k, own in enumerate(factors) if k not in taken)
            step, _ = self.best(tuple(factors[k] for k in sorted(taken)), kept)
            rest, _ = self.best((kept, *others), axes)
            work = sizes.added(step, rest)
            if best[1] is None or _is_less(work, best[0]):
                best = work, name
        self._found[key] = best
        return best

    def _points(self, names: frozenset[str]) -> Polynomial:
        return sizes.polynomial(sizes.product(tuple(self._extents[n] for n in sorted(names))))

    def _falls(self, outside: frozenset[str], gone: frozenset[str]) -> bool:
        """Whether the work falls by more than half, with a step that has no index ``outside`` and
        leaves a sum without those that are ``gone``; sizes that are not known are large."""
        left = 0.0
        for names in (outside, gone):
            ratio = self._points(names)
            if ratio.keys() <= {()}:
                left += 1 / max(1, ratio.get((), 0))
        return left < 0.5


def _is_less(work: Polynomial, other: Polynomial) -> bool:
    """Whether less work is done for all sizes, or, where several are large, with fewer of them."""
    difference = sizes.added(other, work, -1)
    if difference and all(coefficient > 0 for coefficient in difference.values()):
        return True
    return max(map(len, work), default=0) < max(map(len, other), default=0)
