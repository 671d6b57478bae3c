"""Element accesses of a loop nest as addresses: an affine function of the loop's axes.

A tensor is dense and row-major, so ``X[b, 2*h + p]`` lies at ``b*H + 2*h + p``: a coefficient for
each axis and a rest. Axes that every access walks through as one longer axis are merged, and the
coefficients say which axis a vectorised loop should run over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from loma.backends.schedule.marks import EXISTS
from loma.core import builder as b, sizes
from loma.core.ir import (
    INT, Axis, Binary, Builtin, Call, Expr, Index, IntConst, Op, Reduce, Select, Var, ZeroPad,
)  # fmt: skip
from loma.core.walk import (
    children, free_variables, substitute, used_as_value, walk,
)  # fmt: skip

if TYPE_CHECKING:
    from loma.backends.schedule.context import FunctionContext

ZERO = IntConst(0)
ONE = IntConst(1)
ROUNDS = 8  # rounds of a loop that count where data say how many there are
_EXPENSIVE = 8  # steps of arithmetic that an expression with built-in functions counts
_CALLED = 64  # and one that calls functions of the program


@dataclass(frozen=True, slots=True)
class Subscript:
    """One subscript: affine in the axes (``parts`` is not None), or evaluated per element."""

    expr: Expr
    dim: int
    size: Expr
    stride: Expr
    parts: tuple[dict[str, Expr], Expr] | None


@dataclass(frozen=True, slots=True)
class Access:
    """One element read or written, at ``rest + sum(coefficients[axis] * axis) + loose``.

    ``loose`` are the subscripts that are not affine, ``loose_in`` the axes that they depend on.
    ``padded``: the read may leave the tensor.
    """

    base: Var
    subscripts: tuple[Subscript, ...]
    coefficients: dict[str, Expr] = field(compare=False)
    rest: Expr
    loose: tuple[Subscript, ...]
    padded: bool
    loose_in: set[str] = field(compare=False)

    def coefficient(self, axis: str) -> Expr:
        return self.coefficients.get(axis, ZERO)

    def is_loose_in(self, axis: str) -> bool:
        """Whether a subscript that is not affine depends on the axis."""
        return axis in self.loose_in


def strides(dims: Sequence[Expr]) -> tuple[Expr, ...]:
    """Row-major strides, in elements."""
    return tuple(sizes.product(tuple(dims[k + 1 :])) for k in range(len(dims)))


def ragged(axes: Sequence[Axis]) -> set[str]:
    """The axes whose extents depend on other ones."""
    names = {axis.name for axis in axes}
    return {axis.name for axis in axes if sizes.mentions(axis.extent, names)}


def analyse(
    context: FunctionContext, read: Index, axes: Sequence[Axis], padded: bool = False
) -> Access:
    """The address of an element in a loop over these axes.

    A subscript with an axis whose extent depends on another axis is evaluated per element, unless
    it provably stays inside: no check before the loops can tell.
    """
    varying = ragged(axes)
    dims = context.dims(read.base)
    subscripts: list[Subscript] = []
    coefficients: dict[str, Expr] = {}
    rest: Expr = ZERO
    for dim, (expr, stride) in enumerate(zip(read.subscripts, strides(dims), strict=True)):
        varies = sizes.mentions(expr, varying)
        loose = varies and not context.stays_inside(expr, dims[dim], axes)
        parts = None if loose else sizes.affine(expr, tuple(axes))
        subscripts.append(Subscript(expr, dim, dims[dim], stride, parts))
        if parts is None:
            continue
        for name, coefficient in parts[0].items():
            coefficients[name] = _plus(coefficients.get(name, ZERO), coefficient, stride)
        rest = _plus(rest, parts[1], stride)
    nonzero = {name: c for name, c in coefficients.items() if sizes.constant(c) != 0}
    checked = tuple(s for s in subscripts if s.parts is None)
    loose_in = {name for s in checked for name in free_variables(s.expr)}
    loose_in &= {axis.name for axis in axes}
    return Access(read.tensor, tuple(subscripts), nonzero, rest, checked, padded, loose_in)


def _plus(total: Expr, number: Expr, stride: Expr) -> Expr:
    """``total + number * stride``, in normal form."""
    if number == ZERO:
        return total
    if number == ONE:
        return stride if total == ZERO else sizes.total((total, stride))
    return sizes.simplify(Binary("+", total, Binary("*", number, stride, INT), INT))


# ------------------------------------------------------------------------------- expressions


def reads(expr: Expr, axes: tuple[Axis, ...]) -> Iterable[tuple[Index, tuple[Axis, ...], bool]]:
    """Every element read below an expression, with the axes in scope and whether it is padded, but
    for those in place of padded reads outside their tensors."""
    match expr:
        case Select(Builtin(name), then) if name == EXISTS:
            yield from reads(then, axes)
        case Reduce(_, body, own):
            for axis in own:
                yield from reads(axis.extent, axes)
            yield from reads(body, axes + own)
        case ZeroPad(read):
            yield read, axes, True
            for subscript in read.subscripts:
                yield from reads(subscript, axes)
        case Index() if isinstance(expr.base, Var):
            yield expr, axes, False
            for subscript in expr.subscripts:
                yield from reads(subscript, axes)
        case _:
            for child in children(expr):
                yield from reads(child, axes)


def steps(expr: Expr) -> int:
    """About how many steps of arithmetic an element counts: one, or more where the expression holds
    anything but element reads and arithmetic, and most where it has a call, as what is short stands
    in place of one."""
    if any(isinstance(node, Call) for node in walk(expr)):
        return _CALLED
    dear = any(
        isinstance(node, Builtin | Op | Reduce)
        and not (isinstance(node, Builtin) and node.name == EXISTS)
        for node in walk(expr)
    )
    return _EXPENSIVE if dear else 1


def rename_axes(reduce: Reduce, taken: set[str]) -> Reduce:
    """The reduction with axes that are not among the taken names."""
    values: dict[str, Expr] = {}
    axes: list[Axis] = []
    for axis in reduce.axes:
        name = axis.name
        while name in taken:
            name += "_1"
        if name != axis.name:
            values[axis.name] = Var(name, INT)
        axes.append(Axis(name, axis.extent))
    if not values:
        return reduce
    return replace(reduce, body=substitute(reduce.body, values), axes=tuple(axes))


# --------------------------------------------------------------------------------- choices


@dataclass(slots=True)
class Loop:
    """An axis of the nest, with what decides how it may run. ``parts``: the statement's axes that
    it goes through; ``pieces_of``: the axis of which each of its values is a piece."""

    axis: Axis
    target: bool  # in the target's subscripts
    alone: bool  # different values write different elements, whatever the other axes are
    parts: tuple[str, ...]
    pieces_of: str | None = None

    @property
    def name(self) -> str:
        return self.axis.name


def merge(loops: list[Loop], accesses: list[Access], keep: set[str]) -> list[Loop]:
    """Joins neighbouring axes that every access walks through as one; ``keep`` are left alone.

    The accesses' coefficients are changed in place: the merged axis goes by a joined name.
    """
    done: list[Loop] = []
    for loop in loops:
        previous = done[-1] if done else None
        if previous is not None and _mergeable(previous, loop, accesses, keep):
            parts = (*previous.parts, *loop.parts)
            name = joined_name(parts)
            extent = sizes.product((previous.axis.extent, loop.axis.extent))
            for access in accesses:
                inner = access.coefficients.pop(loop.name, None)
                access.coefficients.pop(previous.name, None)
                if inner is not None:
                    access.coefficients[name] = inner
                if access.loose_in & {previous.name, loop.name}:
                    access.loose_in.difference_update((previous.name, loop.name))
                    access.loose_in.add(name)
            done[-1] = Loop(Axis(name, extent), loop.target, loop.alone, parts)
        else:
            done.append(loop)
    return done


def joined_name(parts: Sequence[str]) -> str:
    """The name of an axis that is made of others."""
    plain = (p.removeprefix("@").removesuffix("_") if p.startswith("@") else p for p in parts)
    return f"@{'__'.join(plain)}__"


def _mergeable(outer: Loop, inner: Loop, accesses: list[Access], keep: set[str]) -> bool:
    if outer.name in keep or inner.name in keep:
        return False
    if (outer.target, outer.alone) != (inner.target, inner.alone):
        return False
    for access in accesses:
        names = {*outer.parts, *inner.parts}
        # What is read inside of a subscript is an access of its own.
        if any(names & used_as_value(s.expr) for s in access.loose):
            return False
        affine = (s.expr for s in access.subscripts if s.parts is not None)
        if access.padded and any(sizes.mentions(expr, names) for expr in affine):
            return False
        step = sizes.product((access.coefficient(inner.name), inner.axis.extent))
        if sizes.equal(access.coefficient(outer.name), step) is not True:
            return False
    return True


IN_ORDER = 4
_NEAR = (2, 3, 4)


def score(axis: str, accesses: Sequence[Access]) -> int:
    """How good a loop over the axis is for accesses: one that it reads in order, or not at all,
    counts most, and nearly as much one of which several elements come with each line of memory."""
    steps = (
        None if access.is_loose_in(axis) else sizes.constant(access.coefficient(axis))
        for access in accesses
    )
    return sum(
        IN_ORDER if step in (0, 1) else IN_ORDER - 1 if step in _NEAR else 0 for step in steps
    )


def cell(subscripts: list[tuple[Expr, Expr]]) -> Expr:
    """The number of an element among those of some dimensions, by subscripts and sizes; none of
    them where a subscript is outside, which the statement itself reports."""
    (cell, dim), *rest = subscripts
    if not rest:
        return cell
    inside = _inside(cell, dim)
    for subscript, size in rest:
        cell = b.add(b.mul(cell, size), subscript)
        inside = b.binary("and", inside, _inside(subscript, size))
    return Select(inside, cell, IntConst(-1), INT)


def _inside(subscript: Expr, size: Expr) -> Expr:
    return b.binary("and", b.binary(">=", subscript, IntConst(0)), b.binary("<", subscript, size))
