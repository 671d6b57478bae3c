"""Marks of subscripts that stand under a condition (:mod:`loma.backends.schedule.guards`), and of
conditions that ask for a padded read (:mod:`loma.backends.lowering.borders`)."""

from __future__ import annotations

from loma.core.ir import Builtin, Expr
from loma.core.walk import map_children

# The conditions prove that it is inside; the element is tested. No program's function is so called.
HELD, CHECKED = "@held", "@checked"
# Whether the padded read that is its argument has an element.
EXISTS = "@exists"


def mark_of(subscript: Expr) -> str | None:
    """How a subscript is marked."""
    if isinstance(subscript, Builtin) and subscript.name in (HELD, CHECKED):
        return subscript.name
    return None


def unmarked(expr: Expr) -> Expr:
    """As the program has it."""
    if mark_of(expr) is not None:
        assert isinstance(expr, Builtin)
        return unmarked(expr.args[0])
    return map_children(expr, unmarked)
