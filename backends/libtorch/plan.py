"""How an index statement runs: which axes are parallel, and which one is the innermost loop."""

from __future__ import annotations

from dataclasses import dataclass

from loma import sizes
from loma.backends.libtorch.access import (
    Access, Loop, analyse, merge, reads, score, used_as_value,
)  # fmt: skip
from loma.backends.libtorch.nest import Nest
from loma.ir import Axis, Expr, Index, IndexAssign, IntConst, Reduce, Var
from loma.walk import walk


@dataclass(slots=True)
class Plan:
    """How a statement runs: parallel loops, other loops around the innermost, the innermost.

    ``by_rows``: the innermost axis belongs to the target. ``kind``: the reduction over ``summed``.
    """

    stmt: IndexAssign
    value: Expr
    kind: str
    assign: bool
    parallel: list[Loop]
    around: list[Loop]
    summed: list[Loop]
    inner: Loop | None
    by_rows: bool


def target_axes(stmt: IndexAssign) -> set[str]:
    if isinstance(stmt.target, Var):
        return set()
    return {
        node.name
        for subscript in stmt.target.subscripts
        for node in walk(subscript)
        if isinstance(node, Var)
    } & {axis.name for axis in stmt.axes}


def reads_target(target: Index, body: Expr) -> bool:
    return any(isinstance(n, Index) and n.base == target.base for n in walk(body))


def make_plan(
    nest: Nest, stmt: IndexAssign, kind: str, body: Expr, axes: tuple[Axis, ...], assign: bool
) -> Plan:
    for root in (stmt.target, body):
        for read, scope, padded in reads(root, axes):
            nest.accesses.setdefault(
                (read, padded), analyse(read, nest.context.dims(read.base), scope, padded)
            )
    own = target_axes(stmt)
    alone: set[str] = set()
    target: Access | None = None
    if isinstance(stmt.target, Index):
        assert isinstance(stmt.target.base, Var)
        alone = {s.name for s in stmt.target.subscripts if isinstance(s, Var)} & own
        target = nest.access(stmt.target, False)
        nest.writable.add(stmt.target.base.name)
    found = list(nest.accesses.values())
    keep = used_as_value(body) | {
        name
        for node in walk(body)
        if isinstance(node, Reduce)
        for axis in node.axes
        for name in used_as_value(axis.extent)
    }
    if kind in ("argmax", "argmin"):
        keep |= {axis.name for axis in axes[len(stmt.axes) :]}
    loops = [Loop(axis, axis.name in own, axis.name in alone) for axis in axes]
    loops.sort(key=lambda loop: (not loop.target, not loop.alone))
    loops = merge(loops, found, keep)
    nest.scope[:] = [loop.axis for loop in loops]
    inner = _innermost(loops, found, target, kind, stmt, body, assign)
    rest = [loop for loop in loops if loop is not inner]
    parallel = [loop for loop in rest if loop.alone]
    others = [loop for loop in rest if not loop.alone]
    by_rows = inner is not None and inner.target
    return Plan(
        stmt, body, kind, assign, parallel[:2], parallel[2:],
        others, inner, by_rows,
    )  # fmt: skip


def _innermost(
    loops: list[Loop],
    found: list[Access],
    target: Access | None,
    kind: str,
    stmt: IndexAssign,
    body: Expr,
    assign: bool,
) -> Loop | None:
    """The axis of the innermost loop; rows of the target are preferred where both are as good."""
    if target is None:
        return max(reversed(loops), key=lambda loop: score(loop.name, found)) if loops else None
    summed = [loop for loop in loops if not loop.target]
    rows = [
        loop
        for loop in loops
        if loop.target
        and not target.is_loose_in(loop.name)
        and (loop.alone or (sizes.constant(target.coefficient(loop.name)) or 0) != 0)
    ]
    scattered = any(loop.target and not loop.alone for loop in loops)
    if kind in ("argmax", "argmin") or (
        summed and (_target_in(stmt, body) or (scattered and assign))
    ):
        rows = []
    best_row = _best(rows, found)
    best_sum = _best(summed, found)
    if best_row is None or best_sum is None:
        return best_row or best_sum
    row, total = score(best_row.name, found), score(best_sum.name, found)
    if row == total and _is_longer(best_sum.axis, best_row.axis):
        return best_sum
    return best_row if row >= total else best_sum


def _best(loops: list[Loop], found: list[Access]) -> Loop | None:
    """The axis that most accesses walk in order; of equals the longer one, or else the last."""
    best: Loop | None = None
    for loop in reversed(loops):
        more = 0 if best is None else score(loop.name, found) - score(best.name, found)
        if best is None or more > 0 or (more == 0 and _is_longer(loop.axis, best.axis)):
            best = loop
    return best


def _target_in(stmt: IndexAssign, body: Expr) -> bool:
    return isinstance(stmt.target, Index) and reads_target(stmt.target, body)


def _is_longer(axis: Axis, other: Axis) -> bool:
    """Whether the sizes tell that the axis is the longer one, as W - Q + 1 is beside a window Q."""
    a, b = sizes.constant(axis.extent), sizes.constant(other.extent)
    if a is not None and b is not None:
        return a > b
    atoms = {atom for monomial in sizes.polynomial(other.extent) for atom in monomial}
    names = {atom.name for atom in atoms if isinstance(atom, Var)}
    plain = isinstance(axis.extent, Var | IntConst)
    return not plain and sizes.mentions(axis.extent, names)
