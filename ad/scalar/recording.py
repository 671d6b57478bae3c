"""What has to be recorded: values that the reverse sweep reads and the forward sweep overwrites.

The *to-be-recorded* analysis (Hascoet, Naumann, Pascual, "To be recorded" analysis in reverse-mode
automatic differentiation, 2005) goes through the program in its own order with the set of places
whose present values the adjoints of earlier statements read. Only where a statement overwrites one
of those is the old value kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

from loma.ad.scalar.paths import Path, PathSet, is_definite, overlap, path_of, reads, target_reads
from loma.ad.scalar.steps import int_step
from loma.core import builder as b
from loma.core.effects import effects, written_places
from loma.core.ir import (
    Assign, Expr, FloatType, For, Function, If, IntConst, IntType, Member, Place, Stmt, Struct,
    StructType, Type, Var, While,
)  # fmt: skip
from loma.core.walk import expressions, statements

AdjointOf = Callable[[Stmt], list[Stmt]]


@dataclass(eq=False)
class Recording:
    """Finds, for each statement, the places whose old values are to be kept.

    ``_adjoint_of`` gives the adjoint of a statement without nested blocks; ``_types`` are those of
    the primal's variables.
    """

    _adjoint_of: AdjointOf
    _types: Mapping[str, Type]
    _functions: dict[str, Function]
    _structs: Mapping[str, Struct]
    # By numbers of statements:
    kept: dict[int, list[Place]] = field(default_factory=dict)  # for a loop: before it
    stepped: set[int] = field(default_factory=set)  # those that are undone by a step back
    direct: dict[int, bool] = field(default_factory=dict)  # a condition or range can be read again

    def __post_init__(self) -> None:
        self._uses = cache(self._used)
        self._inside = cache(self._effects_inside)

    def run(self, body: tuple[Stmt, ...], restored: frozenset[str]) -> None:
        """Goes through a function; the values of ``restored`` on entry count as needed."""
        self._block(body, PathSet((name,) for name in restored))

    def _block(self, body: tuple[Stmt, ...], needed: PathSet) -> PathSet:
        """``needed`` holds what earlier adjoints read; the set after the block is returned."""
        for stmt in body:
            needed = self._statement(stmt, needed)
        return needed

    def _statement(self, stmt: Stmt, needed: PathSet) -> PathSet:
        match stmt:
            case If(cond, then, other):
                after = self._block(then, needed.copy())
                after.merge(self._block(other, needed.copy()))
                self._head(stmt, cond, after)
                return after
            case For(_, extent, body):
                after = self._loop(stmt, body, needed)
                self._head(stmt, extent, after)
                return after
            case While(_, _, body):
                return self._loop(stmt, body, needed)
            case _:
                return self._leaf(stmt, needed)

    def _loop(self, loop: Stmt, body: tuple[Stmt, ...], needed: PathSet) -> PathSet:
        needed = self._kept_before(loop, needed)
        while True:
            start = needed.copy()
            start.merge(self._block(body, needed.copy()))
            if start == needed:
                return needed
            needed = start

    def _kept_before(self, loop: Stmt, needed: PathSet) -> PathSet:
        """A variable that the loop overwrites, and that no adjoint inside reads, is kept once,
        before the loop, and not in every iteration."""
        used, changed = self._inside(loop)
        kept: list[Place] = []
        needed = needed.copy()
        for path in needed.sorted():
            place = self._scalar_place(path)
            if (
                place is not None
                and any(overlap(path, other) for other in changed)
                and not any(overlap(path, other) for other in used)
            ):
                kept.append(place)
                needed.remove_below(path)
        self.kept[loop.number] = kept
        return needed

    def _effects_inside(self, loop: Stmt) -> tuple[list[Path], list[Path]]:
        """What the adjoints of a loop's statements may read, and what the statements write."""
        used: dict[Path, None] = {}
        changed: dict[Path, None] = {}
        for stmt in statements((loop,)):
            if isinstance(stmt, If | For | While):
                found = [path for expr in expressions(stmt) for path in reads(expr)]
            else:
                found = self._uses(stmt)
            for place in effects(stmt, self._functions).writes:
                changed[path_of(place)] = None
                found = [*found, *target_reads(place)]
            used |= dict.fromkeys(found)
        return list(used), list(changed)

    def _scalar_place(self, path: Path) -> Place | None:
        """The number that a path stands for, if it stands for one."""
        if not is_definite(path):
            return None
        place: Place = Var(path[0], self._types[path[0]])
        for name in path[1:]:
            assert isinstance(place.type, StructType)
            members = dict(self._structs[place.type.name].members)
            place = Member(place, name, members[name])
        return place if isinstance(place.type, IntType | FloatType) else None

    def _head(self, stmt: Stmt, cond: Expr, after: PathSet) -> None:
        """A condition whose operands the blocks do not write is read again in the reverse sweep,
        after the blocks' own reversal; its operands are then needed."""
        changed = [path_of(place) for place in written_places((stmt,), self._functions)]
        read = list(reads(cond))
        direct = not any(overlap(path, other) for path in read for other in changed)
        self.direct[stmt.number] = direct
        if direct and self._has_adjoint((stmt,)):
            after.update(path for path in read if path[0] in self._types)

    def _has_adjoint(self, body: tuple[Stmt, ...]) -> bool:
        return any(
            self._is_undone(stmt)
            or (not isinstance(stmt, If | For | While) and self._adjoint_of(stmt))
            for stmt in statements(body)
        )

    def _leaf(self, stmt: Stmt, needed: PathSet) -> PathSet:
        used = self._uses(stmt)
        needed.update(used)
        kept: list[Place] = []
        for place in effects(stmt, self._functions).writes:
            path = path_of(place)
            if needed.touches(path):
                if step_back(stmt) is not None:
                    self.stepped.add(stmt.number)
                    continue  # the old value follows from the new one, which is needed in turn
                kept += self._parts(place, path, needed)
                needed.update(target_reads(place))
                if is_definite(path):
                    needed.remove_below(path)
        self.kept[stmt.number] = kept
        return needed

    def _is_undone(self, stmt: Stmt) -> bool:
        return bool(self.kept.get(stmt.number)) or stmt.number in self.stepped

    def _used(self, stmt: Stmt) -> list[Path]:
        """The primal values that the statement's adjoint reads."""
        inner = statements(tuple(self._adjoint_of(stmt)))
        named = (path for one in inner for expr in expressions(one) for path in reads(expr))
        return list(dict.fromkeys(path for path in named if path[0] in self._types))

    def _parts(self, place: Place, path: Path, needed: PathSet) -> list[Place]:
        """The smallest parts of a place that hold what is needed: numbers, and whole arrays."""
        if not needed.touches(path):
            return []
        if isinstance(place.type, StructType):
            out: list[Place] = []
            for name, type_ in self._structs[place.type.name].members:
                out += self._parts(Member(place, name, type_), (*path, name), needed)
            return out
        return [place]


def step_back(stmt: Stmt) -> Stmt | None:
    """What undoes the statement when it moves an int variable by a constant."""
    step = int_step(stmt)
    if step is None:
        return None
    var, by = step
    return Assign(var, "=", b.binary("-" if by >= 0 else "+", var, IntConst(abs(by))), stmt.span)
