"""What can be proved about subscripts: that one leaves its tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loma import sizes
from loma.bounds import Interval, interval
from loma.ir import INT, Binary, Expr
from loma.walk import variables


@dataclass(frozen=True, slots=True)
class Escape:
    """How a subscript leaves its dimension; ``always`` when no value of it is inside."""

    range: Interval
    below: bool
    always: bool


def escape(
    subscript: Expr, size: Expr, extents: Mapping[str, Expr], known: frozenset[str]
) -> Escape | None:
    """How the subscript provably leaves ``range(size)``; None if it does not, or who knows."""
    used = {name: extents[name] for name in variables(subscript) if name in extents}
    if any((n := sizes.constant(e)) is not None and n <= 0 for e in used.values()):
        return None  # an empty loop reads nothing
    found = interval(subscript, extents, known.__contains__)
    if found is None:
        return None
    lowest, highest = sizes.constant(found.low), sizes.constant(found.high)
    over = sizes.constant(Binary("-", found.high, size, INT))
    all_over = sizes.constant(Binary("-", found.low, size, INT))
    if found.low_attained and lowest is not None and lowest < 0:
        return Escape(found, True, highest is not None and highest < 0)
    if found.high_attained and over is not None and over >= 0:
        return Escape(found, False, all_over is not None and all_over >= 0)
    if highest is not None and highest < 0:
        return Escape(found, True, True)
    if all_over is not None and all_over >= 0:
        return Escape(found, False, True)
    return None
