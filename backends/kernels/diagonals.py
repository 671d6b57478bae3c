"""Sums from a diagonal on as sums over whole rows, under a condition.

The adjoint of a sum up to a diagonal, ``y[t] = sum(w[t, j] * v[j] for j in range(t + 1))``, starts
there: ``d_v[j] += sum(d_y[j + t] * w[j + t, j] for t in range(T - j))``. That is no product of
matrices. ``d_v[j] += d_y[t] * w[t, j] if t >= j else 0.0`` is the same, and is one where what the
condition leaves out is zero anyway (:mod:`loma.backends.kernels.columns`).
"""

from __future__ import annotations

from loma.core import builder as b
from loma.core import sizes
from loma.core.ir import (
    INT, Axis, Binary, FloatConst, Function, If, Index, IndexAssign, Reduce, Stmt, Var,
    replace,
)  # fmt: skip
from loma.core.walk import substitute


def without_diagonals(function: Function) -> tuple[Function, int]:
    """A function with such sums over whole rows, and how many there are."""
    count = 0

    def visit(stmt: Stmt) -> Stmt:
        nonlocal count
        match stmt:
            case If(_, then, other):
                return replace(stmt, then=tuple(map(visit, then)), other=tuple(map(visit, other)))
            case IndexAssign():
                found = _whole(stmt)
                count += found is not None
                return found or stmt
            case _:
                return stmt

    return replace(function, body=tuple(map(visit, function.body))), count


def _whole(stmt: IndexAssign) -> IndexAssign | None:
    match stmt.value:
        case Reduce("sum", Binary("*", Index(), Index()) as body, (axis,)) as value:
            pass
        case _:
            return None
    if any(axis.name == own.name for own in stmt.axes):
        return None
    for own in stmt.axes:
        row, column = Var(axis.name, INT), Var(own.name, INT)
        extent = sizes.arith("+", axis.extent, column)
        if sizes.mentions(axis.extent, {own.name}) and not sizes.mentions(extent, {own.name}):
            moved = substitute(body, {axis.name: Binary("-", row, column, INT)})
            moved = sizes.simple_subscripts(moved)
            inside = b.select(b.binary(">=", row, column), moved, FloatConst(0.0), value.span)
            axes = (Axis(axis.name, extent),)
            if stmt.op == "+=":
                return replace(stmt, value=inside, axes=(*stmt.axes, *axes))
            return replace(stmt, value=replace(value, body=inside, axes=axes))
    return None
