"""The check of an assignment that no element is named twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from loma.backends.interpreter.frame import Frame
from loma.backends.interpreter.grid import Grid
from loma.core.distinct import unproved
from loma.core.ir import IndexAssign
from loma.core.printer import print_expr


def check_once(
    frame: Frame, stmt: IndexAssign, grid: Grid, shape: Sequence[int], places: Sequence[Any]
) -> None:
    """ValueError where two points of the statement have the same ``places``, which are inside the
    target of that shape."""
    for part in unproved(stmt):
        used = [axis in part.axes for axis in stmt.axes]
        one = tuple(slice(None) if own else 0 for own in used)
        extents = [size for size, own in zip(grid.shape, used, strict=True) if own]
        at = {d: np.broadcast_to(places[d], grid.shape)[one].ravel() for d in part.dims}
        cells = np.ravel_multi_index(tuple(at.values()), [shape[d] for d in part.dims])
        order = np.argsort(cells, kind="stable")
        again = order[1:][cells[order[1:]] == cells[order[:-1]]]
        if not again.size:
            continue
        second = int(again.min())
        first = int(np.flatnonzero(cells == cells[second])[0])
        where, there = (
            ", ".join(
                f"{axis.name} = {position}"
                for axis, position in zip(part.axes, np.unravel_index(point, extents), strict=True)
            )
            for point in (first, second)
        )
        element = ", ".join(
            str(at[d][second]) if d in at else print_expr(subscript)
            for d, subscript in enumerate(stmt.element.subscripts)
        )
        raise ValueError(
            f"{frame.place(stmt.span)}: '{print_expr(stmt.target)}' is assigned twice: at {where} "
            f"and at {there} it is {print_expr(stmt.element.base)}[{element}]; '+=' adds up what "
            "falls on one element"
        )
