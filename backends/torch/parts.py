"""Which functions of a module are compiled together, and when.

A newcomer waits for what the first call needs: the functions that a program calls and what autograd
runs for them, in one floating type, of which several compilers have a share each. All else is
compiled when it is first called: derivatives that are asked for by name, functions that others have
inlined, the other floating type.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from loma.backends.cfamily.names import cpp_name
from loma.core.ir import Function
from loma.core.walk import calls

if TYPE_CHECKING:
    from loma.core.saving import SplitPair

Real: TypeAlias = Literal["float", "double"]
REALS: tuple[Real, ...] = ("float", "double")

# Of so many characters of C++ a compiler's share is at least: of half a second, an eighth of which
# it takes to begin.
_SHARE = 20_000


@dataclass(frozen=True, slots=True)
class Parts:
    """Functions by their numbers in the module's C++ file.

    ``first`` are compiled with the module, ``None`` for the whole file in all types. ``together``
    leads from an operator to what is compiled when it is called. ``flags``: what the compiler is
    told besides. ``prelude``: the header that the file begins with when it is compiled in parts.
    ``units`` are functions that call no others' functions, with the length of their C++.
    """

    first: tuple[int, ...] | None
    together: dict[str, tuple[int, ...]]
    flags: tuple[str, ...] = ()
    prelude: str = "prelude.h"
    units: tuple[tuple[tuple[int, ...], int], ...] = ()

    def _is_first(self, numbers: tuple[int, ...]) -> bool:
        return self.first is None or set(numbers) <= set(self.first)

    def behind(self, first: bool) -> tuple[int, ...]:
        """What all operators need, but those that are compiled ``first``, if these are."""
        groups = (n for n in self.together.values() if not (first and self._is_first(n)))
        return tuple(sorted({k for numbers in groups for k in numbers}))

    def asked_for(self, operator: str, made: Collection[int]) -> tuple[int, ...]:
        """What is compiled when the operator is called, ``made`` being compiled behind the first:
        what it needs, and as much of what comes after it as that already is, so that who calls
        many functions waits for few compilations."""
        group = self.together[operator]
        others = [n for n in self.together.values() if self._is_first(n) == self._is_first(group)]
        start = others.index(group)
        found = set(group)
        for numbers in (*others[start:], *others[:start]):
            if len(found) >= len(made):
                break
            if not set(numbers) <= set(made):
                found |= set(numbers)
        return tuple(sorted(found))

    def shares(self, numbers: Sequence[int], most: int) -> list[tuple[int, ...]]:
        """The functions, which are all that they call, shared among compilers: ``most`` at most."""
        units = [(set(unit) & set(numbers), length) for unit, length in self.units]
        units = sorted((unit for unit in units if unit[0]), key=lambda unit: -unit[1])
        count = min(most, len(units), sum(length for _, length in units) // _SHARE)
        shares: list[list[int]] = [[] for _ in range(max(1, count))]
        lengths = [0] * len(shares)
        for unit, length in units:
            shortest = lengths.index(min(lengths))
            shares[shortest] += unit
            lengths[shortest] += length
        return [tuple(sorted(share)) for share in shares]

    @staticmethod
    def of(record: dict[str, Any]) -> Parts:
        """From what :func:`dataclasses.asdict` gave, as JSON."""
        first, together = record["first"], record["together"]
        return Parts(
            None if first is None else tuple(first),
            {operator: tuple(numbers) for operator, numbers in together.items()},
            tuple(record["flags"]),
            record["prelude"],
            tuple((tuple(numbers), length) for numbers, length in record["units"]),
        )


def parts(
    functions: Sequence[Function],
    lengths: Sequence[int],
    pairs: Sequence[SplitPair],
    first: Collection[str] | None,
    flags: tuple[str, ...],
    prelude: str,
) -> Parts:
    """``functions`` are the module's tensor functions in order, with the ``lengths`` of their C++,
    ``first`` those that a program is expected to call."""
    numbers = {function.name: k for k, function in enumerate(functions)}
    called = {f.name: {call.function for call in calls(f.body)} & numbers.keys() for f in functions}
    group = {name: {name} for name in numbers}
    expected = dict(group)
    for pair in pairs:  # with autograd these two are called, without it the function itself
        halves = {pair.forward, pair.backward} & numbers.keys()
        group |= dict.fromkeys(halves, halves)
        expected |= {pair.primal: {pair.primal, *halves} & numbers.keys()}

    def with_callees(names: Collection[str]) -> tuple[int, ...]:
        found, waiting = set[str](), list(names)
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += called[name]
        return tuple(sorted(numbers[name] for name in found))

    together = {cpp_name(name): with_callees(names) for name, names in group.items()}
    apart: list[set[int]] = []
    for name in numbers:
        unit = set(with_callees({name}))
        apart, others = [u for u in apart if u.isdisjoint(unit)], [u for u in apart if u & unit]
        apart.append(unit.union(*others))
    units = tuple((tuple(sorted(unit)), sum(lengths[k] for k in unit)) for unit in apart)
    start = {name for wanted in first or () if wanted in expected for name in expected[wanted]}
    numbers_first = None if first is None else with_callees(start)
    return Parts(numbers_first, together, flags, prelude, units)
