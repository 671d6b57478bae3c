"""Access paths: which stretch of a variable a place stands for, as far as the text tells.

A path is the variable's name and the steps from there: a member's name, or ``*`` for an element,
whichever it is. Two paths overlap when one is a prefix of the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from loma.core.ir import Expr, Index, Member, Place, Var
from loma.core.walk import children, is_place, subscripts

Path: TypeAlias = tuple[str, ...]
ELEMENT = "*"


def path_of(place: Expr) -> Path:
    """The path of a place."""
    match place:
        case Var(name):
            return (name,)
        case Index(base):
            return (*path_of(base), ELEMENT)
        case Member(base, name):
            return (*path_of(base), name)
        case _:
            raise AssertionError(place)


def overlap(one: Path, other: Path) -> bool:
    shared = min(len(one), len(other))
    return one[:shared] == other[:shared]


def is_definite(path: Path) -> bool:
    """Whether writing the place always writes all that the path stands for."""
    return ELEMENT not in path


def places(expr: Expr) -> Iterator[Place]:
    """The places whose values an expression needs; each is followed by those in its subscripts."""
    if is_place(expr):
        yield expr
    for inner in subscripts(expr) if is_place(expr) else children(expr):
        yield from places(inner)


def reads(expr: Expr) -> Iterator[Path]:
    """The paths of these places."""
    return map(path_of, places(expr))


def target_reads(place: Place) -> Iterator[Path]:
    """What must be known to write to a place: its subscripts."""
    for subscript in subscripts(place):
        yield from reads(subscript)


class PathSet:
    """Paths by variable."""

    def __init__(self, paths: Iterable[Path] = ()) -> None:
        self._paths: dict[str, set[Path]] = {}
        self.update(paths)

    def update(self, paths: Iterable[Path]) -> None:
        for path in paths:
            self._paths.setdefault(path[0], set()).add(path)

    def merge(self, other: PathSet) -> None:
        self.update(other._items())

    def copy(self) -> PathSet:
        new = PathSet()
        new._paths = {name: set(paths) for name, paths in self._paths.items()}
        return new

    def touches(self, path: Path) -> bool:
        return any(overlap(path, own) for own in self._paths.get(path[0], ()))

    def remove_below(self, path: Path) -> None:
        """Drops the paths that are parts of ``path``, itself included."""
        own = self._paths.get(path[0])
        if own:
            self._paths[path[0]] = {p for p in own if p[: len(path)] != path}

    def sorted(self) -> list[Path]:
        return sorted(self._items())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PathSet) and self._items() == other._items()

    def _items(self) -> set[Path]:
        return {path for paths in self._paths.values() for path in paths}
