"""What holds of every loop tree; what does not is a mistake of lowering, never of the program.

That no two parallel iterations touch the same element is not proved here: the interpreter watches
it (``tests/support/tree_loops.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from loma.backends.schedule import ir
from loma.backends.schedule.ir import (
    Accumulator, AllReduce, Blocks, Compare, Each, Fill, Form, Groups, If, InPlace, Kind, Lanes,
    Lazy, Let, Loop, Narrow, Node, Note, Parallel, Part, Rounds, Scan, Store, StoreLanes, Stretch,
    Tiles, Total, Transpose, UpdateLanes, Variable,
)  # fmt: skip
from loma.backends.schedule.scope import Scope
from loma.core.ir import INT, POSITIONS, Index, IntConst, Var
from loma.core.verify_expressions import VerificationError

__all__ = ["VerificationError", "verify_tree"]

_KINDS: dict[Form, tuple[str, ...]] = {
    "row": ("sum", "prod", "max", "min", *POSITIONS), "sum": ("sum", "prod", "max", "min"),
    "best": ("max", "min"), "wide": POSITIONS, "narrow": POSITIONS, "joint": POSITIONS,
}  # fmt: skip


def verify_tree(tree: Parallel | InPlace, outside: Callable[[str], bool]) -> None:
    """Raises VerificationError unless the tree is well formed. ``outside``: whether a name stands
    for something around it."""
    _Verifier(tree, outside).run()


@dataclass(slots=True)
class _Verifier(Scope):
    stored: set[str] = field(default_factory=set)
    in_group: bool = False
    in_each: bool = False

    def run(self) -> None:
        tree = self.tree
        numbers = [check.number for check in tree.checks]
        self.require(numbers == list(range(1, len(numbers) + 1)), f"checks are numbered {numbers}")
        for check in tree.checks:
            if check.size is not None:
                self.host_ints(check.size)
        for tensor in tree.writes:
            self.tensor(tensor)
        if isinstance(tree, Parallel):
            extents = (tree.team.extent,) if tree.team is not None else ()
            self.host_ints(tree.count, tree.work, *extents, *tree.needs)
            for total in tree.totals:
                self.number(total)
            self.independent = 1
            self.declare(tree.counter)
        self.block(tree.body)
        self.node = None
        wanted = {var.name for var in tree.writes}
        if isinstance(tree, Parallel):
            wanted |= tree.parts.keys()
        missing = ", ".join(sorted(wanted - self.stored))
        self.require(not missing, f"nothing writes {missing}")

    def block(self, nodes: Sequence[Node], *counters: Var) -> None:
        with self.inner(*counters):
            self.nodes(nodes)

    def nodes(self, nodes: Sequence[Node]) -> None:
        for position, node in enumerate(nodes):
            self.node = node
            if isinstance(node, Narrow):
                self.split(node, nodes[position + 1 :])
            self.visit(node)

    def split(self, node: Narrow, behind: Sequence[Node]) -> None:
        """The stretch in which all tests hold has a loop, and so has what is around it."""
        loops = [other for other in behind if isinstance(other, Loop)]
        inside = any((loop.low, loop.high) == (node.begin, node.end) for loop in loops)
        around = any(loop.without == (node.begin, node.end) for loop in loops)
        self.require(inside and around, "no loops run inside and around this stretch")

    # --------------------------------------------------------------------------------- nodes

    def visit(self, node: Node) -> None:
        match node:
            case Let(var, value):
                self.require(self.number(value) == var.type, "a constant of another type")
                self.declare(var)
            case Lazy(var, body, value):
                with self.inner():
                    self.nodes(body)
                    self.require(self.number(value) == var.type, "a value of another type")
                self.declare(var)
            case Variable(var, value, _):
                self.number(value)
                self.declare(var, "variable")
            case Accumulator(var, kind, dtype):
                self.kind(kind, dtype in ("float", "float32", "int"))
                self.declare(var, "accumulator")
            case AllReduce(accumulator, kind):
                found = self.known(accumulator, "accumulator").node
                same = isinstance(found, Accumulator) and found.kind == kind
                self.require(same, "another reduction than the accumulator's")
            case Store():
                self.store(node)
            case Note(number):
                self.check(IntConst(number))
            case Narrow(begin, end, low, high, tests):
                self.ints(low, high)
                self.tests(tests)
                self.declare(begin)
                self.declare(end)
            case If(condition, then, other):
                self.number(condition)
                self.block(then)
                self.block(other)
            case Loop():
                self.loop(node)
            case Scan(counter, high, kind, _, before, place, value, factor):
                self.kind(kind, kind not in POSITIONS)
                some = factor is None or (kind == "sum" and before is not None)
                self.require(some, "a factor of nothing")
                self.ints(high)
                if before is not None:
                    self.element(before)
                with self.inner(counter):
                    self.number(value)
                    if factor is not None:
                        self.number(factor)
                    self.write(place)
            case Rounds(on, test, body, _, _):
                self.known(on, "part")
                self.block(test)
                self.block(body)
            case Transpose(var, first, stride, rows, columns):
                self.element(first)
                self.ints(stride, rows, columns)
                self.declare(var, "part")
            case Part(var):
                self.declare(var, "part")
            case Blocks(first, last, count, size, body):
                self.ints(count, size)
                self.block(body, first, last)
            case Groups(low, high, many, rest, body):
                self.ints(low, high)
                self.require(many > 0 and 0 <= (rest or 0) < many, "more are left than a group has")
                self.require(not self.in_group, "groups in a group")
                self.in_group = True
                self.block(body)
                self.in_group = False
            case Each(counter, body):
                self.require(self.in_group and not self.in_each, "no group is around")
                self.in_each = True
                self.block(body, counter)
                self.in_each = False
            case Tiles():
                self.tile(node)
            case _:
                self.lanes(node)

    def kind(self, kind: Kind, more: bool) -> None:
        self.require(kind != "set" and more, f"no reduction '{kind}' of that type")

    def store(self, node: Store) -> None:
        self.number(node.value)
        reduced = None
        if isinstance(node.place, Var):
            found = self.scope.get(node.place.name)
            if found is not None:
                written = found.what in ("variable", "accumulator")
                alone = found.independent == self.independent
                reduced = found.node.kind if isinstance(found.node, Accumulator) else None
            else:  # a scalar around loops that run where they stand
                written = isinstance(self.tree, InPlace) and self.outside(node.place.name)
                alone = self.independent == 0
            self.require(written, f"'{node.place.name}' may not be written")
            self.require(alone, "independent iterations share it")
            self.require(reduced in (None, node.kind), f"it takes '{reduced}'")
        else:
            self.write(node.place)
        self.require((node.kind in POSITIONS) == (node.position is not None), "positions")
        self.require(node.kind not in POSITIONS or reduced is not None, "no accumulator")
        if node.position is not None:
            self.ints(node.position)

    def write(self, place: Index) -> None:
        self.element(place)
        own = place.tensor.name
        if own in self.scope and isinstance(self.known(place.tensor, "part").node, Part):
            return
        parts = self.tree.parts if isinstance(self.tree, Parallel) else {}
        named = own in parts or own in {var.name for var in self.tree.writes}
        self.require(named, f"'{own}' is not among what the tree writes")
        self.stored.add(own)

    def loop(self, node: Loop) -> None:
        self.ints(node.low, node.high)
        if node.without is not None:
            found = self.known(node.without[0], "constant").node
            whole = isinstance(found, Narrow) and (found.begin, found.end) == node.without
            self.require(whole, "what is left out is no stretch")
            assert isinstance(found, Narrow)
            same = (found.low, found.high) == (node.low, node.high)
            self.require(same, "the stretch is that of another range")
        self.independent += node.role == "vector"
        self.block(node.body, node.counter)
        self.independent -= node.role == "vector"

    # --------------------------------------------------------------------------------- lanes

    def tile(self, node: Tiles) -> None:
        self.ints(node.low, node.high)
        self.require(not node.grouped or (self.in_group and not self.in_each), "no group is around")
        before, hidden = self.tiles, self.scope.pop(ir.TILE, None)
        self.tiles = (*before, node)
        self.block(node.body, Var(ir.TILE, INT))
        self.tiles = before
        if hidden is not None:
            self.scope[ir.TILE] = hidden

    def lanes(
        self, node: Lanes | Fill | UpdateLanes | Compare | StoreLanes | Total | Stretch
    ) -> None:
        match node:
            case Lanes(var, kind, dtype, form, grouped):
                self.kind(kind, dtype != "bool" and kind in _KINDS[form])
                self.require(form != "row" or bool(self.tiles), "a row outside of tiles")
                in_groups = bool(self.tiles) and self.tiles[-1].grouped
                self.require(not grouped or (form == "row" and in_groups), "no group is around")
                self.declare(var, "lanes")
            case Fill(Lanes() as lanes, kind):
                self.require(lanes.form == "row" and kind == lanes.kind, "no row of that kind")
                self.used(lanes)
            case Fill(place, kind):
                assert not isinstance(place, Lanes)
                self.kind(kind, kind not in POSITIONS)
                self.write(place)
            case UpdateLanes(lanes, counter, value, load):
                self.used(lanes, in_each=lanes.grouped)
                self.require(load or not lanes.compares, "lanes that compare are loaded")
                with self.inner(counter):
                    self.in_lanes = True
                    self.number(value)
                    self.in_lanes = False
            case Compare(lanes, position):
                self.used(lanes)
                self.require(lanes.compares, "lanes that do not compare")
                self.require((position is not None) == (lanes.kind in POSITIONS), "positions")
                if position is not None:
                    self.ints(position)
            case StoreLanes(lanes, counter, place):
                self.require(lanes.form == "row", "lanes that are parts of one result")
                self.used(lanes, in_each=lanes.grouped)
                with self.inner(counter):
                    self.write(place)
            case Total(var, lanes):
                found = self.known(lanes.var, "lanes")
                self.require(found.node == lanes, "these are other lanes")
                self.require(lanes.form != "row", "a row has no total")
                self.require(found.tiles == self.tiles, "a total before all tiles are done")
                self.declare(var)
            case Stretch(var, tests):
                self.require(bool(self.tiles), "a stretch outside of tiles")
                self.tests(tests)
                self.declare(var, "stretch")
            case _:
                assert_never(node)

    def used(self, lanes: Lanes, in_each: bool = False) -> None:
        """Lanes at hand in the tile around: a row is that tile's own, others outlive it."""
        found = self.known(lanes.var, "lanes")
        self.require(found.node == lanes, "these are other lanes")
        self.require(bool(self.tiles), "no tile is around")
        self.require(found.independent == self.independent, "independent iterations share it")
        own = self.tiles if lanes.form == "row" else self.tiles[:-1]
        self.require(found.tiles == own, "these lanes belong to other tiles")
        self.require(self.tiles[-1].dtype == lanes.dtype, "tiles of another type")
        self.require(self.in_each or not in_each, "not one value of the group")
