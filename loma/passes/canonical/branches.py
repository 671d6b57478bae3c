"""Branches of a loop's body as choices between values.

``if c: s += a`` / ``else: s += b`` says what ``s += a if c else b`` says. Iterations whose branches
depend on data are so statements of all iterations (:mod:`loma.passes.canonical.loops`). What a
branch writes where without it no element may lie, and the work of sums for elements of tensors,
stays in it. Variables of a branch alone are 0 where it is not taken. A condition of which a branch
changes something is worked out before.
"""

from __future__ import annotations

from collections.abc import Callable, Set as AbstractSet
from dataclasses import dataclass
from typing import TypeAlias

from loma.core import builder as b
from loma.core.effects import written
from loma.core.ir import (
    INT, Assign, Axis, Expr, FloatType, For, If, Index, IndexAssign, IntType, Reduce, Stmt, Unary,
    Var, replace,
)  # fmt: skip
from loma.core.walk import free_variables, walk

_Set: TypeAlias = Assign | IndexAssign
_Block: TypeAlias = tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of the loop around: whether a place exists at all points of axes, and which
    variables only a block mentions, that sets them before it looks at them. ``variable`` gives a
    new one, an int; ``inner`` are the counters of loops inside around a block."""

    exists: Callable[[Index, tuple[Axis, ...]], bool]
    private: Callable[[_Block], AbstractSet[str]]
    variable: Callable[[], Var]
    inner: tuple[Axis, ...] = ()


def without_branches(body: _Block, facts: Facts) -> _Block | None:
    """The statements without ``if``; None where one stays."""
    out: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, For):
            own = Axis(stmt.counter, stmt.extent)
            inner = without_branches(stmt.body, replace(facts, inner=(*facts.inner, own)))
            if inner is None:
                return None
            stmt = replace(stmt, body=inner)
        if not isinstance(stmt, If):
            out.append(stmt)
            continue
        chosen = _chosen(stmt, facts)
        if chosen is None:
            return None
        out += chosen
    return tuple(out)


def _chosen(stmt: If, facts: Facts) -> list[_Set] | None:
    """What both branches do, each statement only where its branch is taken."""
    cond = stmt.cond if stmt.cond.type == INT else b.binary("!=", stmt.cond, b.flt(0))
    if written((*stmt.then, *stmt.other)) & free_variables(cond):
        # The branches change what it looks at.
        taken = facts.variable()
        rest = _chosen(replace(stmt, cond=taken), facts)
        return None if rest is None else [Assign(taken, "=", cond, stmt.span), *rest]
    used = frozenset(free_variables(cond))
    then, other = (_settings(block, used, facts) for block in (stmt.then, stmt.other))
    if then is None or other is None:
        return None
    if len(then) == len(other) and all(map(_set_the_same, then, other)):
        return [_either(cond, one, two) for one, two in zip(then, other, strict=True)]
    # What the first branch left, the second one only looks at where there was none.
    found: list[_Set] = []
    for test, block, settings in ((cond, stmt.then, then), (_not(cond), stmt.other, other)):
        own = {*facts.private(block), *(set(map(_name, settings)) - written(block))}
        found += [_only_where(test, s, own) for s in settings]
    return found


def _settings(block: _Block, used: frozenset[str], facts: Facts) -> list[_Set] | None:
    """The statements of a branch, whose condition uses some variables; None where one stays."""
    found: list[_Set] = []
    for stmt in without_branches(block, facts) or block:
        match stmt:
            case Assign(Var(name, FloatType() | IntType())) | IndexAssign(Var(name)):
                fits = True
            case IndexAssign(Index() as place, _, value, axes):
                # A sum of products is a library's, and worth to be left out where it is not wanted.
                name = place.tensor.name
                sums = any(isinstance(node, Reduce) for node in walk(value))
                alone = not sums and {axis.name for axis in axes} <= free_variables(place)
                fits = alone and facts.exists(place, (*facts.inner, *axes))
            case _:
                return None
        if not fits or name in used:
            return None
        found.append(stmt)
    return found


def _name(stmt: _Set) -> str:
    return stmt.target.name if isinstance(stmt.target, Var) else _place(stmt).tensor.name


def _place(stmt: _Set) -> Index:
    assert isinstance(stmt.target, Index)
    return stmt.target


def _set_the_same(one: _Set, two: _Set) -> bool:
    def what(stmt: _Set) -> tuple[object, ...]:
        axes = stmt.axes if isinstance(stmt, IndexAssign) else None
        return stmt.target, stmt.op, axes

    return what(one) == what(two)


def _not(cond: Expr) -> Expr:
    return Unary("not", cond, INT, cond.span)


def _either(cond: Expr, one: _Set, two: _Set) -> _Set:
    return replace(one, value=b.select(cond, one.value, two.value, one.span))


def _only_where(cond: Expr, stmt: _Set, own: AbstractSet[str]) -> _Set:
    """A statement that leaves its target as it is where the condition does not hold; those of its
    ``own`` that nothing has set before are 0 there."""
    match stmt.value:
        case Reduce("sum", body) as total if stmt.op == "+=":
            # A sum of what counts, not a sum that is taken or not.
            return replace(stmt, value=replace(total, body=b.select(cond, body, b.zero(body))))
        case value:
            assert isinstance(stmt.target, Var | Index)
            new = stmt.op == "=" and _name(stmt) in own
            nothing = b.zero(stmt.target) if new or stmt.op == "+=" else stmt.target
            return replace(stmt, value=b.select(cond, value, nothing, stmt.span))
