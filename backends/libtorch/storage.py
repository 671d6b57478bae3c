"""When a declared tensor is allocated, and when its zeros need not be written.

A declared tensor starts at zero, but most are overwritten as a whole before anybody looks. It is
allocated where it is first used: uninitialised when that statement writes every element.
"""

from __future__ import annotations

from collections.abc import Sequence

from loma.distinct import fills
from loma.ir import (
    Assign, Axis, Index, IndexAssign, Stmt, Unpack, Var,
)  # fmt: skip
from loma.walk import blocks, expressions, free_variables, mentioned_names, walk


def own_names(stmt: Stmt) -> set[str]:
    """Variables in the statement itself, not in its nested blocks."""
    return {name for expr in expressions(stmt) for name in free_variables(expr)}


def overwrites(stmt: Stmt, name: str) -> bool:
    """Whether the statement writes every element of the tensor without reading it, provided that
    the tensor is all zero if the statement adds to it."""
    match stmt:
        case IndexAssign(Index(Var(target)) as place, _, value, axes) if target == name:
            if any(isinstance(node, Var) and node.name == name for node in walk(value)):
                return False
            return covers(place, axes)
        case Assign(Var(target), "=", value) if target == name:
            return all(not isinstance(n, Var) or n.name != name for n in walk(value))
        case Unpack(targets, call):
            return any(t.name == name for t in targets) and all(
                not isinstance(n, Var) or n.name != name for n in walk(call)
            )
        case _:
            return False


def covers(place: Index, axes: tuple[Axis, ...]) -> bool:
    """Whether the subscripts run over the whole tensor. That distinct axes run over the dimensions
    where they stand alone is checked when the statement runs."""
    known = {axis.name for axis in axes}
    names = [s.name if isinstance(s, Var) else None for s in place.subscripts]
    alone = len(set(names)) == len(names) and all(name in known for name in names)
    return alone or fills(place, axes)


def is_whole(stmt: Stmt, name: str) -> bool:
    """Whether the statement gives the variable a new tensor, so that none is needed before."""
    match stmt:
        case Assign(Var(target), "="):
            return target == name
        case Unpack(targets):
            return any(t.name == name for t in targets)
        case _:
            return False


def zeroed_before(block: Sequence[Stmt], position: int, name: str) -> int | None:
    """Of ``zero(name)`` at ``position``: which later statement of the block overwrites the tensor
    before anything else touches it, if there is one."""
    for k in range(position + 1, len(block)):
        stmt = block[k]
        if name in mentioned_names((stmt,)):
            if blocks(stmt) or not overwrites(stmt, name):
                return None
            return k
    return None
