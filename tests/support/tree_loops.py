"""Runs loop trees, slowly and exactly as they say, in float64.

What a tree leaves open is decided at random: the order of iterations that are independent, the
widths of tiles and blocks, the sizes of groups. What it has not set is NaN, or a wild int, so that
a result which depends on it differs. What no tree may do is a :class:`TreeError`: two independent
iterations that touch one element, a constant that is set twice, an element that there is none of.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, assert_never

import numpy as np

from loma.arithmetic import grids as arith
from loma.backends.interpreter.evaluate import evaluate
from loma.backends.interpreter.frame import Frame
from tree_memory import Elements, Machine, TreeError, Variables
from tree_reductions import UPDATE, Extreme, Registers, Team, initial, is_int, poison
from loma.backends.schedule import ir
from loma.backends.schedule.ir import (
    Accumulator, AllReduce, Blocks, Check, Compare, Each, Fill, Groups, If, InPlace, Kind, Lanes,
    Lazy, Let, Loop, Narrow, Node, Note, Parallel, Part, Rounds, Scan, Store, StoreLanes,
    Stretch, Test, Tiles, Total, Transpose, UpdateLanes, Variable, dtype_of,
)  # fmt: skip
from loma.backends.schedule.printer import head
from loma.backends.schedule.walk import nodes
from loma.core import sizes
from loma.core.ir import INT, POSITIONS, Builtin, Element, Expr, Index, Select, Var
from loma.errors.spans import Span

Value = Any

MOST = 5  # lanes of a tile, values of a block


def run_tree(frame: Frame, tree: Parallel | InPlace, machine: Machine) -> None:
    """Runs a tree on the variables of a frame, whose tensors it changes. ValueError where a check
    fails, as other errors of a program."""
    _Run(frame, tree, machine).run()


class _Run:
    def __init__(self, frame: Frame, tree: Parallel | InPlace, machine: Machine) -> None:
        self.tree, self.machine = tree, machine
        self.env = Variables(frame.env)
        self.host = replace(frame, own=self._functions())
        self.frame = replace(self.host, env=self.env)
        self.declared: list[str] = []
        self.team = Team(machine.rng)
        self.failed: tuple[int, int] | None = None  # the first check that has, and the subscript
        self.start = self.count = self.lane = 0  # of the tile at hand, and the lane
        self.group, self.many, self.value_of_group = 0, 1, 0
        watched = machine.watched | {var.name for var in tree.writes}
        for name, value in frame.env.items():
            if isinstance(value, np.ndarray):
                for k, size in enumerate(value.shape):
                    self.env.setdefault(f"{name} {k}", size)
                flat = machine.parts[name] if name in machine.parts else value.reshape(-1)
                self.env[name] = Elements(name, flat, machine, name in watched)

    def run(self) -> None:
        tree = self.tree
        match tree:
            case Parallel(counter=counter, count=count, needs=needs):
                some = all(self.host_int(extent) > 0 for extent in needs)
                number = max(self.host_int(count), 0) if some else 0
                for name, total in tree.parts.items():
                    parts = np.full(number, poison("int" if total.type == INT else "float"))
                    self.env[name] = Elements(name, parts, self.machine, True)
                self.independent(counter, range(number), tree.body)
                for name, total in tree.parts.items():
                    parts = self.env[name].array
                    sums = [part.item() if total.type == INT else part for part in parts]
                    self.host.env[total.name] = sum(sums, self.host.env[total.name])
            case InPlace():
                self.block(tree.body)
                for node in nodes(tree.body):  # scalars around the loops
                    if isinstance(node, Store) and isinstance(node.place, Var):
                        name = node.place.name
                        if name in self.host.env:
                            self.host.env[name] = self.env[name]
            case _:
                assert_never(tree)
        if self.failed is not None:
            number, found = self.failed
            self.fail(next(check for check in tree.checks if check.number == number), found)
        if self.machine.race:  # where a check fails, iterations may meet at the first element
            raise TreeError(self.machine.race)

    def fail(self, check: Check, found: int) -> None:
        place = self.frame.place(Span(check.line))
        if check.size is None:
            raise ValueError(f"{place}: '{check.text}' of no elements")
        raise ValueError(
            f"{place}: subscript '{check.text}' of '{check.tensor}' is {found}, outside dimension "
            f"{check.dim} of size {self.host_int(check.size)}"
        )

    # ------------------------------------------------------------------------------- values

    def value(self, expr: Expr) -> Value:
        return evaluate(self.frame, expr)

    def whole(self, expr: Expr) -> int:
        return int(self.value(expr))

    def host_int(self, expr: Expr) -> int:
        """An int that the host computes, with tensors as the program has them."""
        return int(evaluate(self.host, expr))

    def _functions(self) -> dict[str, Callable[[Frame, Builtin], Value]]:
        def of_values(function: Callable[..., Value]) -> Callable[[Frame, Builtin], Value]:
            return lambda frame, expr: function(*(evaluate(frame, arg) for arg in expr.args))

        return {
            ir.INSIDE: of_values(lambda subscript, size: int(0 <= subscript < size)),
            ir.TESTED: of_values(lambda *args: int(self.inside(*args))),
            ir.CLAMPED: of_values(lambda *args: args[0] if self.inside(*args) else 0),
            ir.CEILING: of_values(lambda a, b: -(-a // b)),
            ir.QUOTIENT: of_values(lambda a, b: _natural(a) // b),
            ir.REMAINDER: of_values(lambda a, b: _natural(a) % b),
            **dict.fromkeys(ir.OF_TILES, of_values(lambda value: value)),  # of one value
            ir.STEPS_OF: of_values(lambda steps, rest: max(steps // max(rest, 1), 1)),
            ir.READ_IF: self.read_if,
            ir.PICK: of_values(lambda holds, a, b: a if arith.is_true(holds) else b),
            ir.POSITION: of_values(lambda accumulator: accumulator.position),
            ir.WHOLE: of_values(
                lambda stretch: int(stretch == (self.start, self.start + self.count))
            ),
            ir.IN_STRETCH: of_values(
                lambda stretch: int(stretch[0] <= self.start + self.lane < stretch[1])
            ),
        }

    def inside(self, subscript: int, size: int, check: int) -> bool:
        if 0 <= subscript < size:
            return True
        self.failed = self.failed or (check, subscript)
        return False

    def read_if(self, frame: Frame, expr: Builtin) -> Value:
        condition, read = expr.args
        if arith.is_true(evaluate(frame, condition)):
            return evaluate(frame, read)
        return 0 if expr.type == INT else np.float64(0.0)

    # ------------------------------------------------------------------------------- blocks

    @contextmanager
    def inner(self) -> Iterator[None]:
        """What is declared inside ends with it."""
        before = len(self.declared)
        yield
        for name in self.declared[before:]:
            self.env.pop(name, None)
            self.env.lazy.pop(name, None)
        del self.declared[before:]

    def declare(self, var: Var, value: Value) -> None:
        if var.name in self.declared:
            raise TreeError(f"'{var.name}' is set twice")
        self.declared.append(var.name)
        self.env[var.name] = value

    def block(self, nodes: Sequence[Node]) -> None:
        with self.inner():
            for node in nodes:
                self.visit(node)

    def iteration(self, counter: Var, value: int, body: Sequence[Node]) -> None:
        with self.inner():
            self.declare(counter, value)
            self.block(body)

    def independent(self, counter: Var, values: Iterable[int], body: Sequence[Node]) -> None:
        for value in self.machine.shuffled(values):
            self.iteration(counter, value, body)

    def visit(self, node: Node) -> None:
        match node:
            case Let(var, value):
                self.declare(var, self.value(value))
            case Lazy(var, body, value):
                self.declared.append(var.name)
                self.env.pop(var.name, None)
                self.env.lazy[var.name] = lambda: self.lazy(body, value)
            case Variable(var, value, dtype):
                self.declare(var, _as(self.value(value), dtype))
            case Accumulator(var, kind, dtype):
                position = kind in POSITIONS
                self.declare(var, Extreme(kind) if position else initial(dtype, kind))
                self.team.declare(var.name, kind, dtype)
            case AllReduce(accumulator):
                self.env[accumulator.name] = self.team.total(self.env, accumulator.name)
            case Store():
                self.store(node)
            case Note(check):
                self.inside(0, 0, check)
            case Narrow(begin, end, low, high, tests):
                first, last = self.narrowed(self.whole(low), self.whole(high), tests)
                self.declare(begin, first)
                self.declare(end, last)
            case If(condition, then, other):
                self.block(then if arith.is_true(self.value(condition)) else other)
            case Loop():
                self.loop(node)
            case Blocks():
                self.blocks(node)
            case Transpose():
                self.transpose(node)
            case Part(var):
                (count,) = sizes.dims_of(var)
                room = np.full(self.whole(count), poison(dtype_of(var)))
                around = len(self.machine.loops)
                self.declare(var, Elements(var.name, room, self.machine, True, around))
            case Rounds():
                self.rounds(node)
            case Scan(counter, high, kind, dtype, before, place, value, factor):
                found = initial(dtype, kind)
                if before is not None and self.whole(high) > 0:
                    found = self.value(before)
                for t in range(self.whole(high)):
                    with self.inner():
                        self.declare(counter, t)
                        if factor is not None:
                            times = self.value(factor)
                            cut = isinstance(factor, Select) and times == 0.0
                            found = 0.0 if cut else found * times
                        found = UPDATE[kind](found, _as(self.value(value), dtype))
                        self.write(place, "set", found)
            case Groups():
                self.groups(node)
            case Each(counter, body):
                for k in range(self.many):
                    self.value_of_group = k
                    self.iteration(counter, self.group + k, body)
                self.value_of_group = 0
            case Tiles():
                self.tiles(node)
            case _:
                self.lanes(node)

    def lazy(self, body: Sequence[Node], value: Expr) -> Value:
        with self.inner():
            for node in body:
                self.visit(node)
            return self.value(value)

    def store(self, node: Store) -> None:
        place, value = node.place, self.value(node.value)
        if isinstance(place, Var):
            old = self.env[place.name]
            if isinstance(old, Extreme):
                assert node.position is not None
                old.take(value, self.whole(node.position))
                return
            dtype: Element = "int" if place.type == INT else "float"
            self.env[place.name] = _as(UPDATE[node.kind](old, _as(value, dtype)), dtype)
            return
        self.write(place, node.kind, value)

    def write(self, place: Index, kind: Kind, value: Value) -> None:
        elements, offset = self.env[place.tensor.name], self.whole(place.subscripts[0])
        value = _as(value, dtype_of(place.tensor))
        if kind != "set":
            value = UPDATE[kind](self.value(place), value)
        elements[offset] = value

    def narrowed(self, low: int, high: int, tests: Sequence[Test]) -> tuple[int, int]:
        """The first stretch of [low, high) in which all tests hold; it must be the only one."""
        numbers = [(self.whole(t.step), self.whole(t.rest), self.whole(t.size)) for t in tests]
        places = [
            place
            for place in range(low, high)
            if all(0 <= step * place + rest < size for step, rest, size in numbers)
        ]
        if not places:
            return low, low
        if places[-1] - places[0] + 1 != len(places):
            raise TreeError("the places for which all tests hold are no interval")
        return places[0], places[-1] + 1

    def loop(self, node: Loop) -> None:
        low, high = self.whole(node.low), self.whole(node.high)
        values: Sequence[int] = range(low, high)
        if node.without is not None:
            begin, end = map(self.whole, node.without)
            values = [*range(low, begin), *range(end, high)]
        if node.role == "vector":
            self.independent(node.counter, values, node.body)
            return
        if node.role == "shared":
            for own in self.team.threads(self.env, values):
                for value in own:
                    self.iteration(node.counter, value, node.body)
            return
        for value in values:
            self.iteration(node.counter, value, node.body)

    def transpose(self, node: Transpose) -> None:
        rows, columns = self.whole(node.rows), self.whole(node.columns)
        if not (0 <= rows <= node.size and 0 <= columns <= node.size):
            raise TreeError(f"{rows} rows of {columns}: `{head(node)}`")
        tensor = self.env[node.first.tensor.name]
        first, stride = self.whole(node.first.subscripts[0]), self.whole(node.stride)
        part = np.full(node.size**2, poison(dtype_of(node.var)))
        for row in range(rows):
            for column in range(columns):
                part[column * node.size + row] = tensor[(first + stride * row + column,)]
        self.declare(node.var, Elements(node.var.name, part, self.machine, False))

    def rounds(self, node: Rounds) -> None:
        for count in itertools.count():
            self.block(node.test)
            if not self.env[node.on.name].array.any():
                return
            if count == node.most:
                raise RuntimeError(f"line {node.line}: more than {node.most} rounds")
            self.block(node.body)

    def blocks(self, node: Blocks) -> None:
        count, most = self.whole(node.count), self.whole(node.size)
        if most < 1:
            raise TreeError(f"blocks of {most} values")
        for low, length in list(self.machine.pieces(0, count, min(most, MOST))) or [(0, 0)]:
            with self.inner():
                self.declare(node.first, low)
                self.declare(node.last, low + length)
                self.block(node.body)

    # -------------------------------------------------------------------------------- lanes

    def groups(self, node: Groups) -> None:
        low, high = self.whole(node.low), self.whole(node.high)
        found = list(self.machine.pieces(low, high, node.many))
        if node.rest is not None:
            found = [(at, min(node.many, high - at)) for at in range(low, high, node.many)]
            if any(count not in (node.many, node.rest) for _, count in found):
                raise TreeError(f"other than {node.rest} are left: `{head(node)}`")
        before = self.group, self.many
        for self.group, self.many in found:
            self.block(node.body)
        self.group, self.many = before

    def tiles(self, node: Tiles) -> None:
        low, high = self.whole(node.low), self.whole(node.high)
        if node.length is not None and (low, high) != (0, node.length):
            raise TreeError(f"[{low}, {high}) has another length: `{head(node)}`")
        before, hidden = (self.start, self.count), self.env.pop(ir.TILE, None)
        for start, count in self.machine.pieces(low, high, MOST):
            self.start, self.count = start, count
            self.env[ir.TILE] = self.start
            self.block(node.body)
        (self.start, self.count), self.env[ir.TILE] = before, hidden

    def lanes(
        self, node: Lanes | Fill | UpdateLanes | Compare | StoreLanes | Total | Stretch
    ) -> None:
        match node:
            case Lanes(var):
                self.declare(var, Registers(node))
            case Fill(Lanes(dtype=dtype) as lanes, kind):
                for k in range(self.many if lanes.grouped else 1):
                    for lane in range(self.count):
                        self.registers(lanes).values[k, lane] = initial(dtype, kind)
            case Fill(place, kind):
                assert isinstance(place, Index)
                self.write(place, "set", initial(dtype_of(place.tensor), kind))
            case UpdateLanes():
                self.update(node)
            case Compare(lanes, position):
                self.compare(lanes, 0 if position is None else self.whole(position))
            case StoreLanes(lanes, counter, place):
                registers = self.registers(lanes)
                for at in self.each_lane(lanes, counter):
                    found = registers.value(at)
                    if lanes.kind in POSITIONS:
                        found = registers.positions.get(at, 0)
                    self.write(place, "set", found)
            case Total(var, lanes):
                self.declare(var, self.registers(lanes).total())
            case Stretch(var, tests):
                self.declare(var, self.narrowed(self.start, self.start + self.count, tests))
            case _:
                assert_never(node)

    def registers(self, lanes: Lanes) -> Registers:
        found = self.env[lanes.var.name]
        assert isinstance(found, Registers)
        return found

    def each_lane(self, lanes: Lanes, counter: Var) -> Iterator[tuple[int, int]]:
        """The lanes that exist, in any order; ``counter`` is where each of them is."""
        row = self.value_of_group if lanes.grouped else 0
        for lane in self.machine.shuffled(range(self.count)):
            self.lane = lane
            with self.inner():
                self.declare(counter, self.start + lane)
                yield row, lane

    def update(self, node: UpdateLanes) -> None:
        lanes, registers = node.lanes, self.registers(node.lanes)
        places = registers.next if lanes.compares else registers.values
        for at in self.each_lane(lanes, node.counter):
            new = _as(self.value(node.value), lanes.dtype)
            places[at] = new if node.load else UPDATE[lanes.kind](registers.value(at), new)

    def compare(self, lanes: Lanes, position: int) -> None:
        """In a row all lanes are at the same position, else next to each other."""
        for lane in range(self.count):
            where = position if lanes.form == "row" else position + lane
            self.registers(lanes).compare((0, lane), where)


def _natural(value: int) -> int:
    if value < 0:
        raise TreeError(f"{value} is negative")
    return value


def _as(value: Value, dtype: Element) -> Value:
    return arith.to_int(value) if is_int(dtype) else arith.to_float(value)
