"""When a declared tensor is allocated, and when its zeros need not be written.

A declared tensor starts at zero, but most are overwritten as a whole before anybody looks. It is
allocated where it is first used: uninitialised when that statement writes every element.
"""

from __future__ import annotations

from collections.abc import Sequence

from loma.core.distinct import fills
from loma.core.effects import effects
from loma.core.ir import Assign, Axis, Index, IndexAssign, Stmt, Unpack, Var
from loma.core.walk import blocks, mentioned_names, root, variables


def overwrites(stmt: Stmt, name: str) -> bool:
    """Whether the statement writes every element of the tensor without reading it, provided that
    the tensor is all zero if the statement adds to it."""
    match stmt:
        case IndexAssign(Index(Var(target)) as place, _, value, axes) if target == name:
            return name not in variables(value) and covers(place, axes)
        case _:
            read = (node for expr in effects(stmt).reads for node in variables(expr))
            return is_whole(stmt, name) and name not in read


def covers(place: Index, axes: tuple[Axis, ...]) -> bool:
    """Whether the subscripts run over the whole tensor. That distinct axes run over the dimensions
    where they stand alone is checked when the statement runs."""
    known = {axis.name for axis in axes}
    names = [s.name if isinstance(s, Var) else None for s in place.subscripts]
    alone = len(set(names)) == len(names) and all(name in known for name in names)
    return alone or fills(place, axes)


def is_whole(stmt: Stmt, name: str) -> bool:
    """Whether the statement gives the variable a new tensor, so that none is needed before."""
    own = effects(stmt)
    return isinstance(stmt, Assign | Unpack) and not own.adds and name in map(root, own.writes)


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
