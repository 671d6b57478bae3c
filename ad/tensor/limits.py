"""What the ranges of other counters say of a counter that no subscript tells.

The adjoint of a triangular loop writes ``_d_L[j + 1 + i, k]`` with ``k in range(j)``. Who knows
that the second subscript is 3 knows that this was written where ``j > 3``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from loma.core import sizes
from loma.core.ir import INT, Axis, Binary, Expr, IntConst
from loma.core.walk import free_variables


def limits(
    counter: str,
    ranges: Mapping[str, Expr],
    subscripts: Sequence[Expr],
    values: Sequence[Expr],
    unknown: Collection[str],
    below: bool,
) -> Iterator[Expr]:
    """Values that the counter does not fall below (``below``), or does not exceed, at each point
    where all ``subscripts`` have their ``values``.

    ``unknown`` are the counters that stand for such points, each with its range from 0; the ranges
    mention them by the same names.
    """
    for name, extent in ranges.items():
        if name not in unknown or set(unknown) & free_variables(extent) != {counter}:
            continue
        slope, rest = _linear(extent, counter)
        if slope != (1 if below else -1):
            continue
        for subscript, value in zip(subscripts, values, strict=True):
            if set(unknown) & free_variables(subscript) != {name}:
                continue
            at = solved(subscript, name, value)
            if at is None:
                continue
            # at < slope * counter + rest
            last = Binary("+", _minus(at, rest), IntConst(1), INT)
            yield last if below else _minus(IntConst(0), last)


def solved(subscript: Expr, name: str, value: Expr) -> Expr | None:
    """What a counter is where a subscript has that value; None unless its coefficient there is 1
    or -1."""
    slope, rest = _linear(subscript, name)
    if slope == 1:
        return _minus(value, rest)
    return _minus(rest, value) if slope == -1 else None


def _linear(expr: Expr, name: str) -> tuple[int | None, Expr]:
    """``slope`` and ``rest`` of ``slope * name + rest``; no slope where it is no such sum."""
    form = sizes.affine(expr, (Axis(name, IntConst(0)),))
    if form is None or name not in form[0]:
        return None, expr
    return sizes.constant(form[0][name]), form[1]


def _minus(left: Expr, right: Expr) -> Expr:
    return Binary("-", left, right, INT)
