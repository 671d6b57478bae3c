"""Running reductions of trees: accumulators, lanes. What nothing has set is NaN, or a wild int."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from loma.arithmetic import grids as arith
from loma.backends.interpreter import values
from loma.backends.schedule.ir import Kind, Lanes
from loma.core.ir import POSITIONS, Element

Value = Any

WILD = -(1 << 40) - 12345  # an int that nothing has set

UPDATE: dict[Kind, Callable[[Value, Value], Value]] = {
    "set": lambda _, new: new,
    "sum": lambda old, new: old + new,
    "prod": lambda old, new: old * new,
    "max": arith.larger,
    "min": arith.smaller,
}


@dataclass(slots=True)
class Extreme:
    """The best value so far, and where it was."""

    kind: Kind
    best: Value = None
    position: int = -1

    def take(self, value: Value, position: int) -> None:
        if self.position < 0 or _replaces(self.kind, value, self.best):
            self.best, self.position = value, position


def _replaces(kind: Kind, value: Value, best: Value) -> bool:
    """Whether a value is better than the best: the first of equal ones stays, and a NaN."""
    better = value > best if kind in ("max", "argmax") else value < best
    return bool(better or (value != value and best == best))


@dataclass(slots=True)
class Team:
    """The accumulators of the threads that share an iteration: a few, of which the interpreter runs
    one after the other in loops that they share, and only the first elsewhere."""

    rng: random.Random
    kinds: dict[str, tuple[Kind, Element]] = field(default_factory=dict)
    found: dict[str, list[Value]] = field(default_factory=dict)  # of the others

    def declare(self, name: str, kind: Kind, dtype: Element) -> None:
        self.kinds[name], self.found[name] = (kind, dtype), []

    def threads(
        self, env: MutableMapping[str, Value], values: Sequence[int]
    ) -> Iterator[Sequence[int]]:
        """What each of them runs; meanwhile the accumulators are its own."""
        many = self.rng.randint(1, 4)
        mine = [name for name in self.kinds if name in env]
        before = {name: env[name] for name in mine}
        kept = {name: self.found[name][: many - 1] for name in mine}
        for name, others in kept.items():
            others += [self._blank(name) for _ in range(many - 1 - len(others))]
        for thread in range(many):
            if thread:
                env.update({name: kept[name][thread - 1] for name in mine})
            yield values[thread::many]
            if thread:
                for name in mine:
                    kept[name][thread - 1] = env[name]
            else:
                before = {name: env[name] for name in mine}
        for name in mine:
            self.found[name] = [*kept[name], *self.found[name][many - 1 :]]
        env.update(before)

    def total(self, env: MutableMapping[str, Value], name: str) -> Value:
        """What all have found together."""
        kind, _ = self.kinds[name]
        total = env[name]
        for value in self.found[name]:
            if isinstance(total, Extreme):
                if value.position >= 0:
                    total = _first(total, value)
            else:
                total = UPDATE[kind](total, value)
        self.found[name] = []
        return total

    def _blank(self, name: str) -> Value:
        kind, dtype = self.kinds[name]
        return Extreme(kind) if kind in POSITIONS else initial(dtype, kind)


def _first(one: Extreme, other: Extreme) -> Extreme:
    """The better of both, of equal ones that with the lower position."""
    found_any = (found for found in (one, other) if found.position >= 0)
    ordered = sorted(found_any, key=lambda found: found.position)
    best = Extreme(one.kind)
    for found in ordered:
        best.take(found.best, found.position)
    return best


@dataclass(slots=True)
class Registers:
    """Lanes by the value of the group and the lane; ``next`` are to be compared."""

    node: Lanes
    values: dict[tuple[int, int], Value] = field(default_factory=dict)
    next: dict[tuple[int, int], Value] = field(default_factory=dict)
    positions: dict[tuple[int, int], int] = field(default_factory=dict)

    def value(self, at: tuple[int, int]) -> Value:
        node = self.node
        blank = poison if node.form == "row" and not node.compares else initial
        return self.values.get(at, blank(node.dtype, node.kind))

    def compare(self, at: tuple[int, int], position: int) -> None:
        new = self.next.pop(at, poison(self.node.dtype))
        if _replaces(self.node.kind, new, self.value(at)):
            self.values[at], self.positions[at] = new, position

    def total(self) -> Value:
        node = self.node
        if node.kind not in POSITIONS:
            total = initial(node.dtype, node.kind)
            for value in self.values.values():
                total = UPDATE[node.kind](total, value)
            return total
        found = Extreme(node.kind, initial(node.dtype, node.kind), 0)
        for at, position in sorted(self.positions.items(), key=lambda item: item[1]):
            found.take(self.values[at], position)
        return found.position


def is_int(dtype: Element) -> bool:
    return dtype in ("int", "bool")


def initial(dtype: Element, kind: Kind) -> Value:
    return values.initial(kind, is_int(dtype))


def poison(dtype: Element, _: Kind = "set") -> Value:
    return WILD if is_int(dtype) else np.float64(np.nan)
