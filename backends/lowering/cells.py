"""Numbers of elements, as index statements note them of what others name."""

from __future__ import annotations

from loma.core import builder as b
from loma.core.ir import INT, Expr, IntConst, Select


def cell(subscripts: list[tuple[Expr, Expr]]) -> Expr:
    """The number of an element among those of some dimensions; none of them where a subscript is
    outside, which the statement itself reports."""
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
