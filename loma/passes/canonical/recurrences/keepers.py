"""What a loop keeps of its rounds, apart from what else the rounds do.

    for m in range(M):                     for m in range(M):
        d[m] = f(n, m)                         d[m] = f(n, m)
        p[n] = min(p[n], d[m])                 kept[m] = d[m]
                                           p[n] = min(p[n], min(kept[m] for m in range(M)))

A tensor has for each round what may be kept. Likewise what a round keeps that the counter tells, as
``if m == n: s = d[m]`` does. Then the other statements need the loop no longer for that.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from loma.core import builder as b, sizes
from loma.core.axes import target_axes
from loma.core.effects import written
from loma.core.ir import (
    FLOAT, INT, Assign, Axis, Binary, Builtin, Expr, For, If, Index, IndexAssign, IntConst, Reduce,
    Select, Stmt, TensorType, Var, replace,
)  # fmt: skip
from loma.core.names import Names
from loma.core.walk import free_variables, mentioned_names, root
from loma.passes.canonical.recurrences.extremes import from_the_end, guarded, kept_and_new


@dataclass(frozen=True, slots=True)
class Apart:
    """A loop whose rounds leave each what may be kept in tensors of its own, which ``variables``
    are, and the statements ``behind`` it that keep something of that."""

    loop: For
    variables: tuple[Var, ...]
    behind: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class _Kept:
    """What ``stmt`` keeps in a place: the extreme of all ``new`` ones, or that of a ``round``; only
    under conditions that the loop leaves as they are."""

    stmt: Assign | IndexAssign
    place: Var | Index
    new: Expr
    round: Expr | None
    conds: tuple[Expr, ...]


def apart(
    loop: For, count: Expr, changed: AbstractSet[str], rank: int, names: Names
) -> Apart | None:
    """The loop without what it keeps; None where it keeps nothing. ``count``: how many rounds it
    has; ``changed``: what changes anywhere; ``rank``: of the largest tensors that it goes
    through, which those for what is kept do not exceed."""
    if not sizes.keeps_value(count, changed):
        return None
    body: list[Stmt] = []
    variables: list[Var] = []
    behind: list[Stmt] = []
    for stmt in loop.body:
        kept = _kept(stmt, loop)
        if kept is None:
            body.append(stmt)
            continue
        place, value = kept.place, kept.new
        axes = target_axes(kept.stmt) if isinstance(kept.stmt, IndexAssign) else ()
        dims = (count, *(axis.extent for axis in axes))
        if len(dims) > rank or not all(sizes.keeps_value(dim, changed) for dim in dims):
            return None
        type_ = TensorType(dims, "float" if value.type == FLOAT else "int")
        var = Var(names.fresh(f"_{root(place).lstrip('_')}_kept"), type_)
        own = tuple(Var(axis.name, INT) for axis in axes)
        here = Index(var, (Var(loop.counter, INT), *own), value.type)
        if kept.conds:
            value = b.select(b.every(kept.conds), value, b.zero(value))
        body.append(IndexAssign(here, "=", value, axes, stmt.span))
        axis = Axis(names.fresh(loop.counter), count)
        keeps = _keeps(kept, var, own, axis, loop.backwards)
        behind.append(If(b.every(kept.conds), (keeps,), ()) if kept.conds else keeps)
        variables.append(var)
    if not variables:
        return None
    if (sizes.constant(count) or 0) <= 0:
        behind = [If(b.binary(">", count, IntConst(0)), tuple(behind), (), loop.span)]
    new = replace(loop, extent=count, body=tuple(body))
    return Apart(new, tuple(variables), tuple(behind))


def _kept(stmt: Stmt, loop: For) -> _Kept | None:
    """What a statement of a loop keeps."""
    inner = written(loop.body) | {loop.counter}
    conds, only = guarded(stmt, inner)
    match only:
        case Assign(Var() | Index() as place, "=", value):
            pass
        case IndexAssign(Index() as place, "=", value, axes) if axes == target_axes(only):
            pass
        case _:
            return None
    others = tuple(other for other in loop.body if other is not stmt)
    if root(place) in mentioned_names(others) or place.type not in (FLOAT, INT):
        return None
    if isinstance(place, Index) and any(inner & free_variables(s) for s in place.subscripts):
        return None
    found, at = kept_and_new(only), None
    if found is not None:
        new = found[2]
    elif isinstance(value, Select) and value.other == place:
        new, at = value.then, _round(value.cond, loop)
        if at is None or inner & free_variables(at):
            return None
    else:
        return None
    if root(place) in free_variables(new) or new.type != place.type:
        return None
    assert isinstance(only, Assign | IndexAssign)
    return _Kept(only, place, new, at, conds)


def _round(cond: Expr, loop: For) -> Expr | None:
    """The round in which a condition holds."""
    match cond:
        case Binary("==", Var(name), other) if name == loop.counter and other.type == INT:
            return other
        case Binary("==", other, Var(name)) if name == loop.counter and other.type == INT:
            return other
        case _:
            return None


def _keeps(kept: _Kept, var: Var, own: tuple[Var, ...], axis: Axis, backwards: bool) -> Stmt:
    """The statement that keeps something of all rounds, counted by an axis."""
    stmt, place, at, count = kept.stmt, kept.place, kept.round, axis.extent
    if at is not None:
        there = b.binary("and", b.binary("<=", IntConst(0), at), b.binary("<", at, count))
        return replace(stmt, value=b.select(there, Index(var, (at, *own), place.type), place))
    found = kept_and_new(stmt)
    assert found is not None
    _, kind, _, last = found
    index: Expr = Var(axis.name, INT)
    index = sizes.simplify(from_the_end(count, index)) if last != backwards else index
    new = Reduce(kind, Index(var, (index, *own), place.type), (axis,), place.type)
    both = (new, place) if last else (place, new)
    return replace(stmt, value=Builtin(kind, both, place.type, stmt.span))
