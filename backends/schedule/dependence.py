"""Which iterations of a loop depend on each other: what they read and write, element by element.

An element is known by its offset. Where all that a loop does to a tensor is at one and the same
offset, and that tells the loop's counter, no two of its iterations meet there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from loma.backends.schedule.ir import (
    Blocks, Compare, Each, Fill, Groups, Kind, Lanes, Let, Loop, Node, Store, StoreLanes, Tiles,
    Total, UpdateLanes,
)  # fmt: skip
from loma.backends.schedule.walk import blocks, declared, expressions, nodes
from loma.core import sizes
from loma.core.distinct import told_apart
from loma.core.ir import INT, Axis, Binary, Builtin, Expr, Index, IntConst, Var
from loma.core.walk import children, substitute

UNKNOWN = Var("@unknown", INT)  # the extent of an axis of which none is known


@dataclass(frozen=True, slots=True)
class Around:
    """Loops around an access. ``pieces``: pairs of an axis and another one that it tells, for its
    values are cut into stretches which the other one counts."""

    axes: tuple[Axis, ...] = ()
    pieces: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True)
class Access:
    """An element of a tensor, or a variable without an offset, which is read or, with a ``kind``,
    written."""

    name: str
    offset: Expr | None
    kind: Kind | None
    around: Around


def accesses(block: Sequence[Node], loops: Iterable[Loop] = ()) -> list[Access]:
    """What a block, inside those loops, does to all that it does not declare itself."""
    reader = _Reader()
    around = Around()
    for loop in loops:
        around = reader.entered(around, loop.counter, loop.low, loop.high)
    reader.block(block, around)
    own = {var.name for node in nodes(block) for var in declared(node)}
    own |= {loop.counter.name for loop in loops}
    return [access for access in reader.found if access.name not in own]


def written(found: Sequence[Access]) -> dict[str, list[Access]]:
    """All accesses to what is written, by name."""
    names = dict.fromkeys(access.name for access in found if access.kind is not None)
    return {name: [access for access in found if access.name == name] for name in names}


def told(group: Sequence[Access]) -> set[str] | None:
    """The loops of which no two iterations meet in what the accesses, all of one name, are to; None
    where these are not at one offset."""
    first = group[0].offset
    if first is None:
        return set()
    if not all(a.offset is not None and sizes.equal(a.offset, first) for a in group):
        return None
    extents: dict[str, Expr] = {}
    for access in group:
        for axis in access.around.axes:
            known = extents.setdefault(axis.name, axis.extent)
            if known != axis.extent:  # loops that go by the same name
                extents[axis.name] = UNKNOWN
    found = told_apart((first,), tuple(Axis(name, extent) for name, extent in extents.items()))
    pieces = frozenset.intersection(*(access.around.pieces for access in group))
    while more := {whole for axis, whole in pieces if axis in found} - found:
        found |= more
    return found


@dataclass(slots=True)
class _Reader:
    found: list[Access] = field(default_factory=list)
    values: dict[str, Expr] = field(default_factory=dict)  # what int constants stand for
    tile: tuple[Expr, Expr] = (UNKNOWN, UNKNOWN)

    def block(self, block: Sequence[Node], around: Around) -> None:
        for node in block:
            self.visit(node, around)

    def visit(self, node: Node, around: Around) -> None:
        place = node.place if isinstance(node, Store | Fill | StoreLanes) else None
        if isinstance(node, UpdateLanes | StoreLanes):
            around = self.entered(around, node.counter, *self.tile)
        for expr in expressions(node):
            for read in _places(expr):
                if read is not place:
                    self.access(read, None, around)
        match node:
            case Let(var, value) if var.type == INT:
                self.values[var.name] = substitute(value, self.values)
            case Store(place, kind):
                self.access(place, kind, around)
            case Fill(Lanes(var)):
                self.access(var, "set", around)
            case Fill(Index() as place):
                self.access(place, "set", around)
            case StoreLanes(lanes, _, place):
                self.access(place, "set", around)
                self.access(lanes.var, None, around)
            case UpdateLanes(lanes, load=load):
                self.access(lanes.var, "set" if load else lanes.kind, around)
            case Compare(lanes):
                self.access(lanes.var, lanes.kind, around)
            case Total(_, lanes):
                self.access(lanes.var, None, around)
            case Loop(counter, low, high, body):
                self.block(body, self.entered(around, counter, low, high))
            case Tiles(low, high, _, body):
                before, self.tile = self.tile, (low, high)
                self.block(body, around)
                self.tile = before
            case Groups(low, high, _, _, body):
                inside = around
                for each in (other for other in nodes(body) if isinstance(other, Each)):
                    inside = self.entered(inside, each.counter, low, high)
                self.block(body, inside)
            case Blocks(first, last, count, _, body):
                ends = (substitute(count, self.values), UNKNOWN)
                self.values[last.name] = Builtin("min", ends, INT)
                self.block(body, self.entered(around, first, IntConst(0), count))
            case _:
                for inner in blocks(node):
                    self.block(inner, around)

    def access(self, place: Expr, kind: Kind | None, around: Around) -> None:
        match place:
            case Index(Var(name), (offset,)):
                whole = substitute(offset, self.values)
                self.found.append(Access(name, sizes.simplify(whole), kind, around))
            case Var(name):
                self.found.append(Access(name, None, kind, around))

    def entered(self, around: Around, counter: Var, low: Expr, high: Expr) -> Around:
        """Inside a loop. Its axis begins at 0, if it has no negative values."""
        low, high = substitute(low, self.values), substitute(high, self.values)
        known = {axis.name for axis in around.axes if axis.extent != UNKNOWN}
        natural = sizes.is_nonnegative(low, lambda name: name in known)
        ends = high.args if isinstance(high, Builtin) and high.name == "min" else (high,)
        extent = ends[0] if natural else UNKNOWN
        pieces = {(counter.name, name) for name in self._cut(around, low, ends)}
        return Around((*around.axes, Axis(counter.name, extent)), around.pieces | pieces)

    def _cut(self, around: Around, low: Expr, ends: Sequence[Expr]) -> Iterator[str]:
        """The loop whose iterations have stretches of their own: from ``low``, ``step`` times its
        counter and more, to ``low + step`` at most."""
        parts = sizes.affine(low, around.axes)
        if parts is None or len(parts[0]) != 1:
            return
        ((name, step),) = parts[0].items()
        if any(sizes.equal(end, Binary("+", low, step, INT)) for end in ends):
            yield name


def _places(expr: Expr) -> Iterator[Expr]:
    """The elements and variables in an expression."""
    if isinstance(expr, Var | Index):
        yield expr
    for child in expr.subscripts if isinstance(expr, Index) else children(expr):
        yield from _places(child)
