"""What can be proved about subscripts: that one leaves its tensor."""

from __future__ import annotations

from collections.abc import Mapping

from loma.core import sizes
from loma.core.bounds import Interval, interval
from loma.core.ir import INT, Binary, Expr
from loma.core.walk import variables


def escape(
    subscript: Expr, size: Expr, extents: Mapping[str, Expr], known: frozenset[str]
) -> tuple[Interval, bool] | None:
    """The values of a subscript that provably leaves ``range(size)``, and whether none of them is
    inside; None if it does not, or who knows."""
    used = {name: extents[name] for name in variables(subscript) if name in extents}
    if any((n := sizes.constant(e)) is not None and n <= 0 for e in used.values()):
        return None  # an empty loop reads nothing
    found = interval(subscript, extents, known.__contains__)
    if found is None:
        return None
    lowest, highest = sizes.constant(found.low), sizes.constant(found.high)
    first = sizes.constant(Binary("-", found.low, size, INT))
    last = sizes.constant(Binary("-", found.high, size, INT))
    always = (highest is not None and highest < 0) or (first is not None and first >= 0)
    below = found.low_attained and lowest is not None and lowest < 0
    above = found.high_attained and last is not None and last >= 0
    return (found, always) if always or below or above else None
