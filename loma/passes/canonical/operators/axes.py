"""The axes that the elements of operators have, and those of what is cut, turned or broadcast."""

from __future__ import annotations

from dataclasses import dataclass

from loma.core import sizes
from loma.core.ir import (
    FLOAT, INT, Axis, Expr, Index, IntConst, NoDiff, Op, Reduce, ReduceKind, TensorType, Var,
)  # fmt: skip
from loma.passes.canonical.views import turned

PERMUTED = ("transpose", "permute")
VIEWS = ("slice", *PERMUTED, "reshape")
UNIT = Axis("_one", IntConst(1))  # of a dimension of size 1, whose only subscript is 0


class Stays(Exception):
    """A statement has no form as index statements."""


def float_dims(expr: Expr, ints: bool = False) -> tuple[Expr, ...]:
    """The sizes of a tensor of floats."""
    if not isinstance(expr.type, TensorType):
        raise Stays
    return dims_of(expr.type, ints)


def dims_of(type_: TensorType, ints: bool = False) -> tuple[Expr, ...]:
    if type_.dims is None or (type_.integer and not ints):
        raise Stays
    return type_.dims


def own_axes(dims: tuple[Expr, ...], axes: list[Axis]) -> list[Axis]:
    """The axes of a tensor that is broadcast to some."""
    if len(dims) > len(axes):
        raise Stays
    found: list[Axis] = []
    for dim, axis in zip(dims, axes[len(axes) - len(dims) :], strict=True):
        if sizes.equal(dim, axis.extent) is True:
            found.append(axis)
        elif dim == IntConst(1):
            found.append(Axis(axis.name, dim))
        else:
            raise Stays
    return found


@dataclass(frozen=True, slots=True)
class Slice(Axis):
    """The axis of a tensor of which a slice is read: ``place`` is where its element lies."""

    place: Expr


@dataclass(frozen=True, slots=True)
class Part(Slice):
    """The axis of a tensor of which a slice is read that may leave it, as the slice itself finds
    out; ``inner`` is the axis of the slice."""

    inner: Axis
    view: Op


def subscript(axis: Axis) -> Expr:
    if isinstance(axis, Slice):
        return axis.place
    return IntConst(0) if axis.extent == IntConst(1) else Var(axis.name, INT)


def place_of(tensor: Var, axes: list[Axis]) -> Index:
    return Index(tensor, tuple(map(subscript, axes)), FLOAT)


def turned_axes(value: Op, axes: list[Axis]) -> list[Axis]:
    """The axes of what is flipped or rolled."""
    own = own_axes(float_dims(value), axes)
    places = turned(value, tuple(map(subscript, own)))
    if places is None or any(isinstance(axis, Part) for axis in own):
        raise Stays
    return [
        axis if place == subscript(axis) else Slice(axis.name, axis.extent, place)
        for axis, place in zip(own, places, strict=True)
    ]


def moving(axes: list[Axis]) -> tuple[Axis, ...]:
    """Those that have more than one value."""
    return tuple(axis for axis in axes if axis.extent != IntConst(1))


def reduction(kind: ReduceKind, body: Expr, axes: list[Axis]) -> Expr:
    own = moving(axes)
    return Reduce(kind, body, own, FLOAT, body.span) if own else body


def is_composed(value: Expr) -> bool:
    """Whether a tensor is more than a variable or a call."""
    while isinstance(value, NoDiff):
        value = value.operand
    return isinstance(value, Op)


def constant_of(value: object) -> int:
    assert isinstance(value, Expr)
    found = sizes.constant(value)
    if found is None:
        raise Stays
    return found
