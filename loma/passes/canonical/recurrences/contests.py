"""What a round of a loop keeps: the best of values, and what belongs to it."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal

from loma.core import builder as b
from loma.core.bounds import conjuncts
from loma.core.ir import FLOAT, Binary, Builtin, Expr, Select
from loma.core.ops import INFIX
from loma.core.walk import free_variables, reads_elements, root, subscripts
from loma.passes.canonical.recurrences.evaluated import Cell, Values


@dataclass(frozen=True, slots=True)
class Contest:
    """``best`` becomes ``value`` in a round where ``cond`` holds, which compares both; ``others``
    are then given values as well."""

    best: Cell
    value: Expr
    cond: Expr
    kind: Literal["min", "max"]
    last: bool  # whether it does where both are equal
    others: Values
    passes_nan: bool  # as ``min`` and ``max`` do

    @property
    def tests(self) -> tuple[Expr, ...]:
        """What tells that a round is the best so far."""
        match self.cond:
            case Binary(op, left, right) if mirrored := INFIX[op].mirrored:
                return self.cond, b.binary(mirrored, right, left)
            case _:
                return (self.cond,)


def contests_of(
    kept: Values, changed: AbstractSet[str], own: AbstractSet[str]
) -> list[Contest] | None:
    """What a round keeps, if that is the best values and what belongs to them; ``own``: the loop's
    counters, ``changed``: all else that is not the same in all rounds."""
    names = [root(place) for place in kept]
    found: list[Contest] = []
    rest: Values = {}
    for place, value in kept.items():
        inside = [name for part in subscripts(place) for name in free_variables(part)]
        if names.count(root(place)) > 1 or not (changed | own).isdisjoint(inside):
            return None
        contest = _contest(place, value, changed)
        if contest is None:
            rest[place] = value
        else:
            found.append(contest)
    for place, value in rest.items():
        match value:
            case Select(cond, then, other) if other == place and not free_variables(then) & changed:
                owner = next((c for c in found if cond in c.tests), None)
            case _:
                owner = None
        if owner is None:
            return None
        owner.others[place] = then
    return found


def _contest(best: Cell, value: Expr, changed: AbstractSet[str]) -> Contest | None:
    if best.type != FLOAT:
        return None
    match value:
        case Builtin("max" | "min" as kind, (kept, new)) if kept == best:
            if free_variables(new) & changed or not reads_elements(new):
                return None
            test = b.binary("<" if kind == "min" else ">", new, best)
            return Contest(best, new, test, kind, False, {}, True)
        case Select(cond, new, kept) if kept == best and not free_variables(new) & changed:
            tests = list(conjuncts(cond))
        case _:
            return None
    better: str | None
    of_best = [test for test in tests if root(best) in free_variables(test)]
    if len(of_best) != 1 or any(free_variables(t) & changed for t in tests if t is not of_best[0]):
        return None
    match of_best[0]:
        case Binary("<" | "<=" | ">" | ">=" as op, left, right) if (left, right) == (new, best):
            better = op
        case Binary("<" | "<=" | ">" | ">=" as op, left, right) if (right, left) == (new, best):
            better = INFIX[op].mirrored
        case _:
            return None
    last = better in ("<=", ">=")
    return Contest(best, new, cond, "min" if better in ("<", "<=") else "max", last, {}, False)
