"""Sums that may run in one loop, as they read the same, stand side by side.

``m[c] = sum(x[n, c] for n in N)`` and a later ``s[c] = sum(x[n, c] * y[n, c] for n in N)`` have the
same loops, and share what is most of their work: reading ``x``. The later one goes where the first
one stands, unless it depends on what is in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loma.core import sizes
from loma.core.effects import is_blank, written
from loma.core.ir import (
    INT, Axis, Expr, Function, Index, IndexAssign, Reduce, Stmt, TensorType, Var, remembered,
    replace,
)  # fmt: skip
from loma.core.walk import (
    free_variables, map_blocks, mentioned_names, reads_of_type, root, substitute, walk,
)  # fmt: skip


def beside(function: Function) -> Function:
    """The function with such sums next to each other."""
    return replace(function, body=_block(function.body))


def alike(first: Stmt, second: Stmt) -> bool:
    """Whether both are sums over axes of the same extents, into elements of their own, that read
    some element which all of the axes tell."""
    one, other = _sum(first), _sum(second)
    if one is None or other is None:
        return False
    pairs = list(zip(one.axes, other.axes, strict=False))
    same = (len(one.axes), one.own) == (len(other.axes), other.own)
    if not same or any(axis.extent != mate.extent for axis, mate in pairs):
        return False
    names = _names(one, other)
    return not one.reads.isdisjoint(substitute(read, names) for read in other.reads)


def reads_beside(block: Sequence[Stmt], position: int) -> tuple[Index, ...]:
    """What the sums around a position of a block read that may run in one loop with the sum that
    stands there, by the names that this one's axes have."""
    own = _sum(block[position])
    if own is None:
        return ()
    first = last = position
    while first > 0 and alike(block[first - 1], block[first]):
        first -= 1
    while last + 1 < len(block) and alike(block[last], block[last + 1]):
        last += 1
    found: list[Index] = []
    for stmt in (*block[first:position], *block[position + 1 : last + 1]):
        other = _sum(stmt)
        assert other is not None
        for read in other.every:
            renamed = substitute(read, _names(own, other))
            assert isinstance(renamed, Index)
            found.append(renamed)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Sum:
    """``axes``: the first ``own`` in the order of the target's subscripts, then those summed over.
    ``reads``: the elements that all of them tell. ``every``: all elements, unless a reduction
    inside has axes of its own."""

    axes: tuple[Axis, ...]
    own: int
    reads: frozenset[Expr]
    every: tuple[Index, ...]


def _names(one: _Sum, other: _Sum) -> dict[str, Expr]:
    """What the axes of the other sum are called in one that runs in the same loops."""
    pairs = zip(one.axes, other.axes, strict=True)
    return {mate.name: Var(axis.name, INT) for axis, mate in pairs}


@remembered
def _sum(stmt: Stmt) -> _Sum | None:
    if not isinstance(stmt, IndexAssign):
        return None
    by_name = {axis.name: axis for axis in stmt.axes}
    places = stmt.target.subscripts if isinstance(stmt.target, Index) else ()
    bare = [s.name for s in places if isinstance(s, Var) and s.name in by_name]
    value: Expr = stmt.value
    summed = tuple(axis for axis in stmt.axes if axis.name not in bare)
    if isinstance(stmt.value, Reduce) and stmt.value.kind == "sum" and not summed:
        value, summed = stmt.value.body, stmt.value.axes
    axes = (*(by_name[name] for name in bare), *summed)
    names = {axis.name for axis in axes}
    ragged = any(sizes.mentions(axis.extent, names) for axis in axes)
    if (
        not summed
        or ragged
        or len(set(bare)) < len(bare)
        or free_variables(stmt.target) & names - set(bare)
    ):
        return None
    every = tuple(
        node
        for node in walk(value)
        if isinstance(node, Index) and isinstance(node.base.type, TensorType)
    )
    reads = frozenset(node for node in every if names <= free_variables(node))
    plain = not any(isinstance(node, Reduce) for node in walk(value))
    return _Sum(axes, len(bare), reads, every if plain else ()) if reads else None


def _block(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    out = [map_blocks(stmt, _block) for stmt in body]
    position = 0
    while position < len(out):
        end = position + 1
        for later in range(end, len(out)):
            stmt = out[later]
            if any(alike(one, stmt) for one in out[position:end]) and _moves(out, end, later):
                name = _target(stmt)
                own = [s for s in out[end:later] if _declares(s, name)]
                between = [s for s in out[end:later] if not _declares(s, name)]
                out[position : later + 1] = [*own, *out[position:end], stmt, *between]
                position, end = position + len(own), end + len(own) + 1
        position = end
    return tuple(out)


def _target(stmt: Stmt) -> str:
    assert isinstance(stmt, IndexAssign)
    return root(stmt.target)


def _declares(stmt: Stmt, name: str) -> bool:
    return is_blank(stmt) and stmt.target.name == name


def _moves(block: list[Stmt], start: int, later: int) -> bool:
    """Whether a statement may as well run at ``start``, with what declares its target."""
    stmt = block[later]
    assert isinstance(stmt, IndexAssign)
    reads, writes = mentioned_names((stmt,)), written((stmt,))
    name = _target(stmt)
    between = [other for other in block[start:later] if not _declares(other, name)]
    if len(between) < later - start and isinstance(stmt.target, Index):
        reads |= reads_of_type(stmt.element.tensor.type)
    return all(
        reads.isdisjoint(written((other,))) and writes.isdisjoint(mentioned_names((other,)))
        for other in between
    )
