"""Runs of consecutive statements that can share an index, and the temporaries inside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import chain, pairwise

from loma.backends.kernels.beside import alike
from loma.backends.kernels.sharing import (
    NOTHING, OUTERMOST, Around, Library, Shared, Sharing, index_assigns, mentions, reads_tensors,
    subscripts_of, whole_reads,
)  # fmt: skip
from loma.core.effects import assigned, blanks, written_places
from loma.core.ir import (
    CallStmt, Declare, For, Function, If, Index, IndexAssign, Stmt, TensorType, Var, Zero,
)  # fmt: skip
from loma.core.walk import (
    free_variables, mentioned_names, reads_elements, reads_of_type, statements,
)  # fmt: skip
from loma.passes.liveness import Liveness

_WAYS = 8  # ways to share an index that are looked at side by side


@dataclass(frozen=True, slots=True)
class Run:
    """``statements`` of a block up to position ``end``, declarations among them in ``before``.

    ``ways`` are all the ways in which they can share an index."""

    before: tuple[Stmt, ...]
    statements: tuple[Stmt, ...]
    ways: tuple[Shared, ...]
    end: int


class Runs:
    """Finds runs in the blocks of one function; all arguments as for :class:`Sharing`.

    Statements of the same number stand for one, and alone are no run, unless a loop repeats it.
    """

    def __init__(
        self,
        function: Function,
        library: Library,
        panels: bool = False,
        around: Around = OUTERMOST,
        parts: bool = False,
    ) -> None:
        self._sharing = Sharing(function, library, panels, around, parts)
        self._parts = parts
        self._mentions = mentions(function.body)
        self._inside = cache(mentions)
        self._is_closed = cache(self._keeps_scalars)
        self._counts_by_data = cache(_counts_by_data)
        self._declared = Counter(
            stmt.target.name for stmt in statements(function.body) if isinstance(stmt, Declare)
        )
        # Where a size changes, only the tensor knows what it was: it has to be one.
        changing = set(assigned(function.body))
        self._locals = {
            name: var
            for name, var in blanks(statements(function.body)).items()
            if isinstance(var.type, TensorType) and changing.isdisjoint(reads_of_type(var.type))
        }

    def longest(self, block: tuple[Stmt, ...], start: int) -> Run | None:
        """The longest run from a position of a block whose statements all hang together by tensors
        that they have in common; None when it has no two index statements and no loop."""
        group, ways, end = self._collect(block, start, len(block))
        connected = _connected(group, ways if self._parts else [])
        if connected < len(group):
            end = next(k for k in range(start, end) if block[k] is group[connected])
            group, ways, end = self._collect(block, start, end)
        found = index_assigns(tuple(group))
        steps = any(isinstance(stmt, For) for stmt in group)
        if not found or (len({stmt.number for stmt in found}) < 2 and not steps):
            return None
        if len(group) > 1 and max(Counter(chain.from_iterable(_uses(group))).values()) < 2:
            return None  # no more than sums beside each other
        moved = tuple(s for s in block[start:end] if isinstance(s, Declare))
        return Run(moved, tuple(group), tuple(ways), end)

    def end_at(self, block: tuple[Stmt, ...], position: int) -> bool:
        """Whether no run goes on behind a position of a block, wherever it starts."""
        for stmt in block[position:]:
            if not (isinstance(stmt, Declare) and _moves(stmt, set(), ())):
                return not self._collect((stmt,), 0, 1)[0]
        return True

    def _collect(
        self, block: tuple[Stmt, ...], start: int, stop: int
    ) -> tuple[list[Stmt], list[Shared], int]:
        """The statements from ``start`` that can share an index, the ways, and where they end."""
        group: list[Stmt] = []
        mentioned: set[str] = set()
        ways = [NOTHING]
        end = start
        for position in range(start, stop):
            stmt = block[position]
            if isinstance(stmt, Declare):
                if not _moves(stmt, mentioned, assigned(tuple(group))):
                    break
                continue
            # What others would leave for these rounds is as long as all of them: few columns.
            if group and (self._counts_by_data(stmt) or self._counts_by_data(group[-1])):
                break
            wider = self._extended(ways, stmt)
            if not wider:
                break
            ways = wider
            group.append(stmt)
            mentioned |= self._inside((stmt,)).keys()
            end = position + 1
        return group, ways, end

    def _extended(self, ways: list[Shared], stmt: Stmt) -> list[Shared]:
        """The ways in which a run can go on with a statement."""
        if not isinstance(stmt, IndexAssign | For | If | Zero) or not self._is_closed(stmt):
            return []
        wider = [new for way in ways for new in self._sharing.extend(way, stmt)]
        return [way for way in dict.fromkeys(wider) if way.extent is not None][:_WAYS]

    def blank(self, group: tuple[Stmt, ...]) -> frozenset[str]:
        """Tensors that are all zero before the group's first statement that mentions them."""
        first = self._sharing.first_writes
        return frozenset(
            s.element.tensor.name for s in index_assigns(group)
            if isinstance(s.target, Index) and first.get(s.element.tensor.name) is s
        )  # fmt: skip

    def temporaries(
        self, group: tuple[Stmt, ...], shared: Shared, loop: bool = False
    ) -> dict[str, Var]:
        """Tensors with the shared dimension that nothing outside of the group mentions, and, in a
        ``loop`` around the group, that carry no value from one run of it to the next."""
        inside = mentions(group)
        found = {
            name: self._locals[name]
            for name, _ in shared.dims
            if name in self._locals and self._mentions[name] == inside[name] + self._declared[name]
        }
        if not loop:
            return found
        rest = frozenset(name for name, _ in shared.dims) - found.keys()
        _, carried = Liveness(()).block(group, rest)
        return {
            name: var
            for name, var in found.items()
            if name not in carried or _ends_at_zero(group, name)
        }

    def _keeps_scalars(self, stmt: Stmt) -> bool:
        """Whether every scalar that the statement changes is its own: nothing else looks at it, and
        what it holds before does not matter."""
        if any(isinstance(inner, CallStmt) for inner in statements((stmt,))):
            return False  # who knows what the function writes
        changed = {
            place.name
            for place in written_places((stmt,))
            if isinstance(place, Var) and not isinstance(place.type, TensorType)
        } - self._sharing.totals
        inside = self._inside((stmt,))
        if any(self._mentions[n] - self._declared[n] != inside[n] for n in changed):
            return False
        if not changed:
            return True
        _, before = Liveness(()).block((stmt,), frozenset(inside.keys() - changed))
        return changed.isdisjoint(before)


def _counts_by_data(stmt: Stmt) -> bool:
    """Whether data say how many rounds the statement, or a loop in it, has."""
    return any(isinstance(s, For) and reads_elements(s.extent) for s in statements((stmt,)))


def _moves(stmt: Declare, mentioned: set[str], assigned: Iterable[str]) -> bool:
    """Whether a declaration inside a run, which mentions and assigns these names before it, can as
    well stand in front of the run."""
    if stmt.target.name in mentioned:
        return False
    if stmt.value is None:
        return True
    if isinstance(stmt.target.type, TensorType) or reads_tensors(stmt.value):
        return False
    return free_variables(stmt.value).isdisjoint(assigned)


def _ends_at_zero(group: tuple[Stmt, ...], name: str) -> bool:
    """Whether the last statement that mentions a tensor clears it."""
    last = next(stmt for stmt in reversed(group) if name in mentions((stmt,)))
    return isinstance(last, Zero) and isinstance(last.target, Var)


def _uses(group: list[Stmt]) -> list[set[str]]:
    """The tensors that each statement uses and some statement writes."""
    written = set(assigned(tuple(group)))
    return [written & mentioned_names((stmt,)) for stmt in group]


def _connected(group: list[Stmt], ways: list[Shared]) -> int:
    """How many statements from the first one on hang together: by tensors that one of them writes
    and another one uses, too, or as sums that run in one loop. Other operands that are only read
    gain nothing in a common loop, unless a sum over the index of one of the ways reads them."""
    tensors = _uses(group)
    summed = {
        name
        for way in ways
        for stmt, index in zip(index_assigns(tuple(group)), way.names, strict=True)
        if index not in subscripts_of(stmt)
        for name in whole_reads(stmt)
    }
    for own, stmt in zip(tensors, group, strict=True):
        own |= summed & mentioned_names((stmt,))
    for k, (stmt, following) in enumerate(pairwise(group)):
        if alike(stmt, following):
            tensors[k].add(f"{k}")
            tensors[k + 1].add(f"{k}")
    reached, seen = {0}, set(tensors[0]) if tensors else set()
    grows = True
    while grows:
        more = {k for k, own in enumerate(tensors) if k not in reached and own & seen}
        grows = bool(more)
        reached |= more
        seen = seen.union(*(tensors[k] for k in more))
    return next((k for k in range(len(group)) if k not in reached), len(group))
