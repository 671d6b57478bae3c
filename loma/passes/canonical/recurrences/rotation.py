"""Rounds of a loop begin where least is handed on from one to the next.

    for t in range(n):                          for t in range(n):
        if t > 0:                                   V[i] = sum(U[i, j] * L[j] for j)
            L[j] += U[i, j] * V[i]                  if t + 1 < n:
        V[i] = sum(U[i, j] * L[j] for j)                L[j] += U[i, j] * V[i]

On the left a round is handed L and V, on the right L alone: a tape has no V then, and the adjoint
of a round need not add to L again. The same statements run one after the other as before. What
begins the first round and does not know that it does, stands in front of the loop.
"""

from __future__ import annotations

from collections.abc import Mapping

from loma.core import builder as b, sizes
from loma.core.bounds import ONE, ZERO
from loma.core.effects import written
from loma.core.ir import (
    INT, Assign, Expr, For, Function, If, IndexAssign, Stmt, Var, Zero, replace,
)  # fmt: skip
from loma.core.sizes import IsSize, arith
from loma.core.walk import (
    free_variables, map_blocks, own_names, statements, substitute,
)  # fmt: skip
from loma.passes.canonical.copies import without_constant_conditions
from loma.passes.canonical.recurrences.decided import decided
from loma.passes.fold import folded
from loma.passes.liveness import CallModes, Liveness

LARGEST = 4  # statements that begin a round, of which there are two copies then


def rotated(
    loop: For, live: frozenset[str], functions: Mapping[str, Function], modes: CallModes,
    is_size: IsSize,
) -> tuple[tuple[Stmt, ...], For]:  # fmt: skip
    """What stands in front of the loop, which is as it was if no other beginning is better, and
    the loop; ``live`` is what is read behind it."""
    changed = written(loop.body, functions)
    fixed = sizes.is_arithmetic(loop.extent) and free_variables(loop.extent).isdisjoint(changed)
    if loop.backwards or not fixed:
        return (), loop
    end = Liveness(modes).block((loop,), live)[1]  # of a round: for the next one, and behind all

    def handed(at: int) -> frozenset[str]:
        return Liveness(modes).block(loop.body[at:], end)[1] & changed

    now = handed(0)
    for at in range(1, len(loop.body)):
        head = loop.body[:at]
        several = len(list(statements(head))) > LARGEST
        if several or not all(_moves(stmt, loop.counter) for stmt in head):
            break
        if handed(at) < now:
            return _guarded(head, loop, ZERO, {}, is_size), _with_end(loop, at, is_size)
    return (), loop


def _moves(stmt: Stmt, counter: str) -> bool:
    """Whether a statement does the same in each round that runs it."""
    match stmt:
        case If(_, then, other):
            return all(_moves(one, counter) for one in (*then, *other))
        case IndexAssign() | Assign() | Zero():
            return counter not in own_names(stmt)
        case _:
            return False


def _with_end(loop: For, at: int, is_size: IsSize) -> For:
    """The loop with its first statements, ``at`` of them, at the end of the round before."""
    following = arith("+", Var(loop.counter, INT), ONE)
    ranges = {loop.counter: loop.extent}
    last = _guarded(loop.body[:at], loop, following, ranges, is_size)
    return replace(loop, body=(*loop.body[at:], *last))


def _guarded(
    head: tuple[Stmt, ...], loop: For, place: Expr, ranges: Mapping[str, Expr], is_size: IsSize
) -> tuple[Stmt, ...]:
    """The beginning of the round with that number, if there is such a round; none if it does
    nothing."""

    def at_place(stmt: Stmt) -> Stmt:  # whose number only conditions mention
        if isinstance(stmt, If):
            cond = substitute(stmt.cond, {loop.counter: place})
            stmt = replace(stmt, cond=folded(decided(cond, ranges, is_size)))
        return map_blocks(stmt, lambda block: tuple(map(at_place, block)))

    body = without_constant_conditions(tuple(map(at_place, head)))
    exists = b.binary("<", place, loop.extent)
    return (If(exists, body, (), head[0].span),) if body else ()
