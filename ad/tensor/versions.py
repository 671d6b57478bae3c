"""Merges versions: a new version takes the old one's name where the old value is dead.

The sweeps of reverse mode write every new value of a variable under a new name. Where nobody reads
the old value any more, both names become one, and the copy between them disappears: what the
program did in place is done in place again.
"""

from __future__ import annotations

from collections.abc import Iterable

from loma.core import sizes
from loma.core.effects import written
from loma.core.ir import (
    Assign, Binary, Declare, Expr, Function, Index, IndexAssign, Op, Stmt, TensorType, Type, Unpack,
    Var, Zero, replace,
)  # fmt: skip
from loma.core.walk import map_blocks, map_children, map_expressions
from loma.passes.liveness import Liveness


def merged_names(
    forward: tuple[Stmt, ...],
    adjoint: tuple[Stmt, ...],
    live: frozenset[str],
    merges: list[tuple[str, str, int]],
    fixed: frozenset[str],
    apart: set[str],
    functions: tuple[Function, ...],
) -> dict[str, str]:
    """For each version the name that it shares; ``live`` is what is read after both sweeps,
    ``merges`` as in :class:`loma.ad.tensor.sweep.Sweeps`.

    Names in ``fixed`` (the arguments) are never written to, so nothing is merged into them; those
    in ``apart`` keep what they hold, too, once their statements have run. Nor does the adjoint
    sweep write to what the forward sweep made: in split mode that is an argument.
    """
    made_forward = fixed | written(forward)
    wanted = {start for _, _, start in merges}
    after: dict[int, frozenset[str]] = {}

    def visit(stmt: Stmt, live_after: frozenset[str]) -> None:
        if stmt.number in wanted:
            after[stmt.number] = live_after

    _, between = Liveness(functions, visit).block(adjoint, live)
    in_adjoint = set(after)
    Liveness(functions, visit).block(forward, between | live)
    group: dict[str, list[str]] = {}
    name_of: dict[str, str] = {}
    for old, new, start in merges:
        if start not in after or old in apart:  # dead code, or kept
            continue
        shared = name_of.get(old, old)
        members = group.setdefault(shared, [shared])
        if shared in fixed or (start in in_adjoint and made_forward & set(members)):
            continue
        if any(member in after[start] for member in members):
            continue
        members.append(new)
        name_of[new] = shared
    return name_of


def with_new_rows(body: tuple[Stmt, ...], rows: set[str]) -> tuple[Stmt, ...]:
    """A body for :func:`merged_names`, with tensors that are all new where an iteration is given
    the ``rows`` of them that it looks at: nobody reads the others."""
    if not rows:
        return body
    out: list[Stmt] = []
    for stmt in body:
        match stmt:
            case IndexAssign(Index(Var(name) as tensor)) if name in rows:
                out.append(Zero(tensor))
            case _:
                pass
        out.append(map_blocks(stmt, lambda inner: with_new_rows(inner, rows)))
    return tuple(out)


def rename(bodies: Iterable[tuple[Stmt, ...]], names: dict[str, str]) -> list[tuple[Stmt, ...]]:
    """Bodies that follow each other, under merged names; copies of a variable to itself are left
    out."""

    def moved(expr: Expr) -> Expr:
        if isinstance(expr, Var):
            return replace(expr, name=names[expr.name]) if expr.name in names else expr
        return map_children(expr, moved)

    declared: set[str] = set()
    return [_clean(tuple(map_expressions(s, moved) for s in body), declared) for body in bodies]


def _clean(body: tuple[Stmt, ...], declared: set[str]) -> tuple[Stmt, ...]:
    out: list[Stmt] = []
    for stmt in body:
        match stmt:
            case Declare(target, value):
                if target.name not in declared:
                    declared.add(target.name)
                    out.append(stmt)
                elif value is not None and value != target:
                    out.append(_assignment(target, value))
            case Unpack(targets):
                declared.update(target.name for target in targets)
                out.append(stmt)
            case Assign(target, "=", value) | IndexAssign(target, "=", value) if value == target:
                pass
            case Assign(Var() as target, "=", value):
                out.append(_assignment(target, value))
            case _:
                out.append(map_blocks(stmt, lambda inner: _clean(inner, declared)))
    return tuple(out)


def _assignment(target: Var, value: Expr) -> Assign:
    """``x = x + e`` is written ``x += e``, where e does not broadcast."""
    match value:
        case Binary("+", left, right) if left == target:
            return Assign(target, "+=", right)
        case Op("add", (left, right)) if left == target and _same_sizes(target.type, right.type):
            return Assign(target, "+=", right)
        case _:
            return Assign(target, "=", value)


def _same_sizes(left: Type, right: Type) -> bool:
    if not (isinstance(left, TensorType) and isinstance(right, TensorType)):
        return False
    return sizes.same(left.dims, right.dims)
