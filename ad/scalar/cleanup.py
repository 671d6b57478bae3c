"""Small simplifications of a derivative once its dead code is gone.

Where the forward sweep turned out not to overwrite a value, it need not be put back; and an adjoint
that is set to zero and then added to is assigned.
"""

from __future__ import annotations

from loma.ad.scalar.paths import overlap, path_of, reads
from loma.core import builder as b
from loma.core.effects import effects
from loma.core.ir import Assign, Expr, Function, Place, Stmt, Var
from loma.core.walk import is_place, map_blocks, statements


def simplified(body: tuple[Stmt, ...], functions: dict[str, Function]) -> tuple[Stmt, ...]:
    """The body without needless restoring and clearing."""
    out: list[Stmt] = []
    copies: list[tuple[Place, Place]] = []  # places that hold equal values now
    for stmt in body:
        inner = map_blocks(stmt, lambda block: simplified(block, functions))
        match inner:
            case Assign(target, "=", value) if (target, value) in copies or target == value:
                continue
            case Assign(target, "+=", value) if out and _clears(out[-1], target, value):
                out[-1] = Assign(target, "=", value, inner.span)
            case _:
                out.append(inner)
        changes = [effects(one, functions) for one in statements((inner,))]
        changed = [path_of(place) for own in changes for place in (*own.declares, *own.writes)]
        copies = [
            (one, other) for one, other in copies
            if not any(overlap(path, used) for path in changed for used in _paths(one, other))
        ]  # fmt: skip
        match inner:
            case Assign(Var() as target, "=", value) if is_place(value):
                copies.append((value, target))
            case _:
                pass
    return tuple(out)


def _paths(*places: Place) -> set[tuple[str, ...]]:
    return {path for place in places for path in reads(place)}


def _clears(stmt: Stmt, target: Place, value: Expr) -> bool:
    """Whether the statement sets the target to zero, which the value does not depend on."""
    match stmt:
        case Assign(cleared, "=", zero) if cleared == target and b.is_const(zero, 0):
            return not any(overlap(path, path_of(target)) for path in reads(value))
        case _:
            return False
