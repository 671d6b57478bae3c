"""Statements that look like recurrences and are none: all reads see what was there before."""

from __future__ import annotations

from collections.abc import Iterator

from loma import errors
from loma.core import sizes
from loma.core.ir import INT, Axis, Binary, Expr, Index, ZeroPad
from loma.core.overlap import reads_of
from loma.core.printer import print_expr
from loma.core.walk import free_variables


def no_recurrence(
    place: Index, name: str, value: Expr, axes: tuple[Axis, ...]
) -> Iterator[errors.UserWarning]:
    """A warning where the target is read at neighbours on one side only, as a recurrence does; a
    stencil reads both sides, and a move has nothing but the read on its right side."""
    if isinstance(value, Index | ZeroPad):
        return
    found = [(read.place, _shift(place, read.place, axes)) for read in reads_of(name, value)]
    shifts = [(read, shift) for read, shift in found if shift and any(shift.values())]
    signs = {next(step for step in shift.values() if step) > 0 for _, shift in shifts}
    if len(signs) != 1:
        return
    moved = {axis for _, shift in shifts for axis, step in shift.items() if step}
    loops = " ".join(
        f"for {axis.name} in range({print_expr(axis.extent)}):"
        for axis in axes
        if axis.name in moved
    )
    yield errors.UserWarning(
        f"this is no recurrence: '{print_expr(shifts[0][0])}' is the value from before the "
        f"statement, which writes all of '{print_expr(place)}' at once",
        shifts[0][0].span,
        hint=f"for a recurrence write it in loops, {loops}; if old values are meant, copy "
        f"'{name}' to another tensor before, and read the copy",
    )


def _shift(place: Index, read: Index, axes: tuple[Axis, ...]) -> dict[str, int] | None:
    """By how much each axis is moved at the read; None where it is no such neighbour."""
    names = {axis.name for axis in axes}
    found: dict[str, int] = {}
    for written, there in zip(place.subscripts, read.subscripts, strict=True):
        step = sizes.constant(Binary("-", there, written, INT))
        own = free_variables(written) & names
        if step is None or (step and not own):
            return None
        found |= dict.fromkeys(own, step)
    return found
