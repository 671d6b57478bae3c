"""Convolutions that are written out as sums: with a small filter of its own for each channel, as
loops over so few elements are faster than the library, and of parts of tensors, which may be those
of groups, for :mod:`loma.passes.canonical.groups`. So is pooling of small windows."""

from __future__ import annotations

import math
from dataclasses import dataclass

from loma.core import sizes
from loma.core.ir import Expr, IntConst, Op, TensorType, Var

_SMALL = 7  # elements of a filter along one dimension
_FEW = 9  # elements of a window of which the largest is taken,
_SEVERAL = 64  # or their mean


@dataclass(frozen=True, slots=True)
class Window:
    """What a convolution takes along one dimension."""

    size: Expr
    padding: int
    dilation: int
    stride: int


def windows_of(value: Op) -> list[Window] | None:
    """Those of a convolution that has a small filter of its own for each channel, at each place."""
    x, w = (arg.type.dims if isinstance(arg.type, TensorType) else None for arg in value.args[:2])
    groups = dict(value.attrs)["groups"]
    assert isinstance(groups, Expr)
    if x is None or w is None or w[1] != IntConst(1) or groups == IntConst(1):
        return None
    if not (sizes.equal(x[1], groups) is True and sizes.equal(w[0], groups) is True):
        return None
    found = _windows(value, w)
    small = all(0 < (sizes.constant(window.size) or 0) <= _SMALL for window in found or ())
    plain = all(window.stride == 1 for window in found or ())
    return found if small and plain else None


def windows_of_parts(value: Op) -> list[Window] | None:
    """Those of a convolution of all channels of a part of a tensor with a part of the filters."""
    x, w = value.args[:2]
    whole = dict(value.attrs)["groups"] == IntConst(1)
    dims = w.type.dims if isinstance(w.type, TensorType) else None
    if not (whole and _is_part(x) and _is_part(w)) or dims is None:
        return None
    return _windows(value, dims)


def windows_of_pool(value: Op) -> list[Window] | None:
    """Those of a pooling of a few elements; of the largest of them without padding, which would be
    a condition on each."""
    attrs = dict(value.attrs)
    found: list[Window] = []
    for names in zip(*(_ints(attrs[n]) for n in ("kernel_size", "stride", "padding")), strict=True):
        size, stride, padding = map(sizes.constant, names)
        if size is None or not stride or stride < 0 or padding is None or padding < 0:
            return None
        if padding and value.name == "max_pool2d":
            return None
        found.append(Window(IntConst(size), padding, 1, stride))
    count = math.prod(sizes.constant(window.size) or 0 for window in found)
    return found if 0 < count <= (_SEVERAL if value.name == "avg_pool2d" else _FEW) else None


def _ints(attr: object) -> tuple[Expr, ...]:
    assert isinstance(attr, tuple)
    return attr


def _is_part(value: Expr) -> bool:
    return isinstance(value, Op) and value.name == "slice" and isinstance(value.args[0], Var)


def _windows(value: Op, dims: tuple[Expr, ...]) -> list[Window] | None:
    attrs = dict(value.attrs)
    found: list[Window] = []
    for k, dim in enumerate(dims[2:]):
        numbers = []
        for name in ("padding", "dilation", "stride"):
            given = attrs[name]
            assert isinstance(given, tuple)
            numbers.append(sizes.constant(given[k]))
        padding, dilation, stride = numbers
        if padding is None or dilation is None or stride is None:
            return None
        if not (padding >= 0 and dilation > 0 and stride > 0):
            return None
        found.append(Window(dim, padding, dilation, stride))
    return found
