"""The points at which a scalar expression is evaluated: all points of an index statement at once.

A grid of k axes evaluates an expression to arrays of k dimensions that broadcast to its shape; a
grid without axes evaluates to plain numbers. A reduction extends the grid by its own axes, as
trailing dimensions, and folds them away again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loma.core.ir import Axis

Array = NDArray[Any]
Mask = NDArray[np.bool_] | None


@dataclass(frozen=True, slots=True)
class Grid:
    """``values`` maps an axis to its positions. ``domain`` marks the points that exist (None: all
    of them), which are fewer where an inner range depends on an outer axis; ``active`` those of
    them that a conditional expression reaches (None: all of them)."""

    axes: tuple[Axis, ...] = ()
    shape: tuple[int, ...] = ()
    values: dict[str, Array] | None = None
    domain: Mask = None
    active: Mask = None

    def extended(self, axes: tuple[Axis, ...], extents: tuple[Any, ...]) -> Grid:
        """The grid with more axes; an extent is a number, or one for each point of this grid."""
        sizes = tuple(max(int(np.max(e)) if np.size(e) else 0, 0) for e in extents)
        rank, more = len(self.shape), len(sizes)
        values = {name: _trailing(v, more) for name, v in (self.values or {}).items()}
        domain, active = _trailing(self.domain, more), _trailing(self.active, more)
        for k, (axis, size, extent) in enumerate(zip(axes, sizes, extents, strict=True)):
            own = [1] * (rank + more)
            own[rank + k] = size
            values[axis.name] = np.arange(size, dtype=np.int64).reshape(own)
            if np.ndim(extent):
                domain = meet(domain, values[axis.name] < _trailing(np.asarray(extent), more))
        return Grid(self.axes + axes, self.shape + sizes, values, domain, active)

    def where(self, cond: Any) -> Grid:
        """The grid whose active points are those where ``cond`` holds."""
        active = meet(self.active, np.asarray(cond, dtype=np.bool_))
        return Grid(self.axes, self.shape, self.values, self.domain, active)

    def mask(self, every: bool = False) -> Mask:
        """The points that count: the active ones, or every one that exists."""
        return self.domain if every else meet(self.domain, self.active)

    def full(self, value: Any) -> Array:
        return np.broadcast_to(value, self.shape)

    @property
    def empty(self) -> bool:
        """Whether no point is active."""
        mask = self.mask()
        return 0 in self.shape or (mask is not None and not mask.any())


def _trailing(array: Any, more: int) -> Any:
    return None if array is None else array.reshape(array.shape + (1,) * more)


def meet(left: Mask, right: Mask) -> Mask:
    if left is None or right is None:
        return right if left is None else left
    return np.logical_and(left, right)


SCALAR = Grid()
