"""Convolutions with a small filter of its own for each channel: sums over so few elements that
loops over them are faster than the library."""

from __future__ import annotations

from dataclasses import dataclass

from loma.core import sizes
from loma.core.ir import Expr, IntConst, Op, TensorType

_SMALL = 7  # elements of a filter along one dimension


@dataclass(frozen=True, slots=True)
class Window:
    """What a convolution takes along one dimension."""

    size: int
    padding: int
    dilation: int


def windows_of(value: Op) -> list[Window] | None:
    """Those of a convolution that has a small filter of its own for each channel, at each place."""
    x, w = (arg.type.dims if isinstance(arg.type, TensorType) else None for arg in value.args[:2])
    attrs = dict(value.attrs)
    groups = attrs["groups"]
    assert isinstance(groups, Expr)
    if x is None or w is None or w[1] != IntConst(1) or groups == IntConst(1):
        return None
    if not (sizes.equal(x[1], groups) is True and sizes.equal(w[0], groups) is True):
        return None
    found: list[Window] = []
    for k, dim in enumerate(w[2:]):
        numbers = [sizes.constant(dim)]
        for name in ("padding", "dilation", "stride"):
            given = attrs[name]
            assert isinstance(given, tuple)
            numbers.append(sizes.constant(given[k]))
        size, padding, dilation, stride = numbers
        if size is None or padding is None or dilation is None or stride != 1:
            return None
        if not (0 < size <= _SMALL and padding >= 0 and dilation > 0):
            return None
        found.append(Window(size, padding, dilation))
    return found
