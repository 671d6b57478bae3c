"""What lowering may do in several ways that compute the same, as far as rounding goes.

A rewrite that knows several good ways asks which one to take, and names the one that it would take
itself first. Lowering alone takes the first; a tuner (:mod:`loma.tuning`) learns from a lowering
what there was to choose, has others lowered, and measures. It knows none of them: a rewrite that
asks is tuned.

What is offered keeps to what results promise: the same bits for any number of threads and from run
to run, and no choice that depends on how many threads there are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from loma.core import sizes
from loma.core.ir import Expr

Option: TypeAlias = int | str
Taken: TypeAlias = Mapping[str, Option]

WHOLE = math.inf  # the work of what is about a whole function

_O = TypeVar("_O", int, str)


def steps_in(extents: Iterable[Expr]) -> float:
    """The steps of loops of these extents, where a size that is not known counts as 1."""
    return math.prod(max(1, sizes.constant(extent) or 1) for extent in extents)


@dataclass(frozen=True, slots=True)
class Choice:
    """``kind``: what is chosen; ``options``: the ways, the usual one first, then those that the
    rewrite expects most of. ``work``: about how many steps of arithmetic it is about."""

    kind: str
    options: tuple[Option, ...]
    work: float


@dataclass(slots=True)
class Choices:
    """The choices of one lowering. ``taken``: by name, what is wanted other than the usual;
    ``found``: all that came up, by names like "strip of y", or "strip of y 2" for the second.
    ``sizes``: what a function is lowered for, where its own sizes do not say that. ``left``: by
    name, the choices that the code leaves to its caller, in the order in which it asks for them;
    None: it leaves none."""

    taken: Taken = field(default_factory=dict)
    found: dict[str, Choice] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    left: list[str] | None = None

    def take(self, kind: str, of: str, options: Sequence[_O], work: float = 1.0) -> _O:
        """The way to go; ``of``: the name of what is written."""
        options = tuple(dict.fromkeys(options))
        if len(options) == 1:
            return options[0]
        wanted = self.taken.get(self._add(kind, of, options, work))
        return next((option for option in options if option == wanted), options[0])

    def leave(self, kind: str, of: str, options: Sequence[int], work: float = 1.0) -> int:
        """The same, of what the text need not know: its place among those that are ``left``."""
        assert self.left is not None
        self.left.append(self._add(kind, of, tuple(options), work))
        return len(self.left) - 1

    def _add(self, kind: str, of: str, options: tuple[_O, ...], work: float) -> str:
        first = name = f"{kind} of {of}"
        count = 1
        while name in self.found:
            count += 1
            name = f"{first} {count}"
        self.found[name] = Choice(kind, options, work)
        return name
