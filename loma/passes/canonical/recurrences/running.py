"""Which reductions run along an index: their range grows by one from one value to the next, or to
the one before, as that of ``sum(x[q] for q in range(t + 1))`` does along t."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from loma.core import builder as b
from loma.core import sizes
from loma.core.bounds import ONE, ZERO
from loma.core.ir import (
    FLOAT, INT, Axis, Binary, Builtin, Expr, FloatConst, IntConst, NoDiff, Reduce, ReduceKind,
    Unary, Var,
)  # fmt: skip
from loma.core.sizes import arith
from loma.core.walk import free_variables, substitute


@dataclass(frozen=True, slots=True)
class Factor:
    value: Expr
    divides: bool = False


@dataclass(frozen=True, slots=True)
class Running:
    """A reduction that runs along the index ``along``.

    In terms of it, the range has ``extent`` values from ``begin`` on, of which ``last`` is the one
    that came last; ``backwards``: the range is shortest at the index's last value. What is reduced
    is ``own``, for each value of ``axis`` and of the axes ``inner``. The result is that times
    ``outer``, summed over the axes ``shared``.
    """

    kind: ReduceKind
    along: Axis
    axis: str
    extent: Expr
    begin: Expr
    last: Expr
    backwards: bool
    own: Expr
    inner: tuple[Axis, ...]
    outer: tuple[Factor, ...]
    shared: tuple[Axis, ...]

    @property
    def first(self) -> Expr:
        """The value of the index where the range is shortest."""
        return arith("-", self.along.extent, ONE) if self.backwards else ZERO

    def at(self, expr: Expr, place: Expr) -> Expr:
        """An int expression where the index has that value."""
        return sizes.simplify(substitute(expr, {self.along.name: place}))

    def new(self, place: Expr) -> Expr:
        """What comes in where the index has that value."""
        return self._summed({self.axis: self.at(self.last, place)}, self.inner)

    def start(self) -> Expr:
        """The whole reduction of ``own`` at the first place."""
        extent, begin = self.at(self.extent, self.first), self.at(self.begin, self.first)
        if sizes.constant(extent) == 1:
            return self._summed({self.axis: begin}, self.inner)
        behind = arith("+", begin, Var(self.axis, INT))
        return self._summed({self.axis: behind}, (Axis(self.axis, extent), *self.inner))

    def _summed(self, values: dict[str, Expr], axes: tuple[Axis, ...]) -> Expr:
        body = sizes.simple_subscripts(substitute(self.own, values))
        return Reduce(self.kind, body, axes, body.type) if axes else body

    def outside(self, value: Expr) -> Expr:
        """The result, of a value in the place of the reduction of ``own``."""
        for factor in self.outer:
            if factor.divides:
                value = b.binary("/", value, factor.value)
            else:
                value = b.binary("*", factor.value, value)
        return Reduce("sum", value, self.shared, value.type) if self.shared else value


def running(reduce: Reduce, axes: Mapping[str, Axis]) -> Running | None:
    """The reduction as one that runs along one of the axes; None where it does not."""
    inner = {axis.name for axis in reduce.axes}
    names = inner | axes.keys()
    moving = [axis for axis in reduce.axes if sizes.varies(axis.extent, names)]
    if len(moving) != 1 or not inner.isdisjoint(axes):
        return None
    (axis,) = moving
    depends = free_variables(axis.extent) & names
    along = axes.get(next(iter(depends), ""))
    if len(depends) != 1 or along is None or sizes.varies(along.extent, names):
        return None
    form = sizes.affine(axis.extent, (along,))
    slope = None if form is None else sizes.constant(form[0].get(along.name, ZERO))
    if slope not in (-1, 1) or not sizes.is_arithmetic(axis.extent):
        return None
    rest = tuple(other for other in reduce.axes if other is not axis)
    for step in (0, -slope):  # how the range's begin moves with the index
        begin = sizes.product((IntConst(step), Var(along.name, INT)))
        behind = arith("-", Var(axis.name, INT), begin)
        body = sizes.simple_subscripts(substitute(reduce.body, {axis.name: behind}))
        parts = _separated(reduce.kind, body if step else reduce.body, along.name, axis.name, rest)
        if parts is not None:
            end = arith("-", arith("+", begin, axis.extent), ONE)
            last = begin if step else end
            return Running(
                reduce.kind, along, axis.name, axis.extent, begin, last, slope < 0, *parts
            )
    return None


def _separated(
    kind: str, body: Expr, along: str, axis: str, axes: tuple[Axis, ...]
) -> tuple[Expr, tuple[Axis, ...], tuple[Factor, ...], tuple[Axis, ...]] | None:
    """``own``, ``inner``, ``outer`` and ``shared`` of a reduction."""
    if along not in free_variables(body):
        return body, axes, (), ()
    found = list(factors(body, False)) if kind == "sum" and body.type == FLOAT else []
    outer: list[Factor] = []
    own: list[Factor] = []
    for factor in found:
        names = free_variables(factor.value)
        if along in names and axis in names:
            return None
        (outer if along in names else own).append(factor)
    if not outer:
        return None
    product: Expr = FloatConst(1.0)
    for factor in own:
        if factor.divides:
            product = b.binary("/", product, factor.value)
        else:
            product = b.mul(product, factor.value)
    if product.type == INT:
        product = Builtin("int2float", (product,), FLOAT)
    used = {name for factor in outer for name in free_variables(factor.value)}
    shared = tuple(a for a in axes if a.name in used)
    return product, tuple(a for a in axes if a not in shared), tuple(outer), shared


def factors(product: Expr, divides: bool) -> Iterator[Factor]:
    """The factors of a product or quotient of floats."""
    match product:
        case Binary("*", left, right) if product.type == FLOAT:
            yield from factors(left, divides)
            yield from factors(right, divides)
        case Binary("/", left, right) if not divides:
            yield from factors(left, False)
            yield from factors(right, True)
        case Unary("-", operand) if product.type == FLOAT:
            yield Factor(FloatConst(-1.0))
            yield from factors(operand, divides)
        case NoDiff(operand):
            yield from factors(operand, divides)
        case _:
            yield Factor(product, divides)
