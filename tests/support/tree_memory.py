"""What trees run on: variables, elements of tensors, and a watch over independent iterations."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

Value = Any


class TreeError(AssertionError):
    """A tree does what none may do: a mistake of lowering."""


@dataclass(slots=True)
class Iterations:
    """An independent loop that runs: which iteration has read and written which element, by its
    address; -1 stands for several that have read it."""

    current: int = 0
    read: dict[int, int] = field(default_factory=dict)
    wrote: dict[int, int] = field(default_factory=dict)

    def touch(self, address: int, writes: bool) -> bool:
        """Whether no other iteration has touched the element, if one of both writes it."""
        others = [self.wrote.get(address, self.current)]
        if writes:
            others.append(self.read.get(address, self.current))
            self.wrote[address] = self.current
        elif self.read.setdefault(address, self.current) != self.current:
            self.read[address] = -1
        return all(other == self.current for other in others)


@dataclass(slots=True)
class Machine:
    """What runs trees: the dice, the independent loops that run, the tensors that these write, and
    the memory of tensors that are parts of others, from their first elements on."""

    rng: random.Random
    loops: list[Iterations] = field(default_factory=list)
    watched: frozenset[str] = frozenset()
    parts: dict[str, NDArray[Any]] = field(default_factory=dict)
    race: str = ""  # the first one

    def shuffled(self, values: Iterable[int]) -> Iterator[int]:
        """The iterations of a loop that are independent, in any order."""
        order = list(values)
        self.rng.shuffle(order)
        loop = Iterations()
        self.loops.append(loop)
        for loop.current in order:
            yield loop.current
        self.loops.pop()

    def pieces(self, low: int, high: int, most: int) -> Iterator[tuple[int, int]]:
        """Where pieces of a stretch begin, and how long they are."""
        while low < high:
            count = min(self.rng.randint(1, most), high - low)
            yield low, count
            low += count


class Elements:
    """A tensor, flat, with what it needs to be read like an array. It looks at places itself, so
    that one which does not exist is no mistake of the program; ``writable`` if a tree may write it,
    or another iteration around it. ``since``: how many loops are around it, whose iterations have
    one of their own each."""

    shape, size = (1 << 62,), 1

    def __init__(
        self, name: str, array: NDArray[Any], machine: Machine, writable: bool, since: int = 0
    ) -> None:
        self.name, self.array, self.machine, self.writable = name, array, machine, writable
        self.address, self.since = array.ctypes.data, since

    def __getitem__(self, places: tuple[int, ...]) -> Value:
        self._touch(places[0], writes=False)
        return self.array[places]

    def __setitem__(self, place: int, value: Value) -> None:
        if not self.writable:
            raise TreeError(f"'{self.name}' is not among what the tree writes")
        self._touch(place, writes=True)
        self.array[place] = value

    def _touch(self, place: int, writes: bool) -> None:
        if not 0 <= place < self.array.size:
            raise TreeError(f"'{self.name}' has {self.array.size} elements: none at {place}")
        address = self.address + int(place) * self.array.itemsize
        for loop in self.machine.loops[self.since :] if self.writable else ():
            if not loop.touch(address, writes) and not self.machine.race:
                self.machine.race = f"independent iterations touch '{self.name}' at {place}"


class Variables(dict[str, Value]):
    """Values by name; ``lazy`` are computed each time that they are read."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        super().__init__(values)
        self.lazy: dict[str, Callable[[], Value]] = {}
        if isinstance(values, Variables):
            self.lazy |= values.lazy

    def __missing__(self, name: str) -> Value:
        if name in self.lazy:
            return self.lazy[name]()
        tensor, _, dim = name.rpartition(" ")  # a size that the tensor knows
        if not tensor:
            raise TreeError(f"'{name}' has no value")
        return self[tensor].shape[int(dim)]
