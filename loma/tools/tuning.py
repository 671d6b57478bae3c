"""Which form of a computation was measured to be the fastest, for which sizes.

The runtime measures at first use and writes one file for each problem into the folder ``tuning`` of
the cache (``runtime/convolution/tuning.h``). Where it cannot write, what a process has chosen
is known only in that process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from loma.cache import roots as cache_roots
from loma.errors import CacheError

_FIRST_LINE = "loma tuning 1"


@dataclass(frozen=True, slots=True)
class Choice:
    """A problem and what was chosen for it. Forms that were not worth measuring take ``inf``."""

    operator: str
    dtype: str
    shapes: dict[str, tuple[int, ...]]  # images, weights, stride, padding, dilation, groups
    form: str
    seconds: dict[str, float]
    threads: int
    machine: str
    torch: str
    path: Path | None = field(compare=False)  # None: known in this process only

    def __str__(self) -> str:
        shapes = ", ".join(f"{name} {'x'.join(map(str, v))}" for name, v in self.shapes.items())
        order = sorted(self.seconds, key=lambda form: self.seconds[form])
        times = ", ".join(f"{form} {1e3 * self.seconds[form]:.2f}" for form in order)
        return f"{self.operator} {self.dtype} ({shapes}): {self.form}  [ms: {times}]"


def choices() -> list[Choice]:
    """What is in the cache for any machine, and what this process has chosen beside it."""
    found = [choice for path in _files() if (choice := _read(path)) is not None]
    for module in modules():
        for record in module.tuning_records():
            choice = parse(record)
            if choice is not None and choice not in found:
                found.append(choice)
    return sorted(found, key=str)


def clear() -> int:
    """Forgets every choice, on disk and in this process; returns how many files there were.

    Those in a folder that is only read stay.
    """
    count = 0
    for path in _files():
        with contextlib.suppress(OSError):
            path.unlink()
            count += 1
    for module in modules():
        module.forget_tuning()
    return count


def parse(record: str, path: Path | None = None) -> Choice | None:
    """A record as the runtime writes it; None for one that is not whole."""
    lines = record.split("\n")
    if lines[0] != _FIRST_LINE or lines[-2:] != ["end", ""]:
        return None
    values: dict[str, str] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    seconds: dict[str, float] = {}
    try:
        for line in lines[1:-2]:
            name, _, value = line.partition(" ")
            if name == "seconds":
                form, _, number = value.partition(" ")
                seconds[form] = float(number)
            elif name in ("machine", "torch", "operator", "dtype", "threads", "choice"):
                values[name] = value
            else:
                shapes[name] = tuple(map(int, value.split()))
        return Choice(
            operator=values["operator"],
            dtype=values["dtype"],
            shapes=shapes,
            form=values["choice"],
            seconds=seconds,
            threads=int(values["threads"]),
            machine=values["machine"],
            torch=values["torch"],
            path=path,
        )
    except (KeyError, ValueError):
        return None


def _read(path: Path) -> Choice | None:
    try:
        return parse(path.read_text("utf-8", errors="replace"), path)
    except OSError:
        return None


def _files() -> Iterator[Path]:
    try:
        roots = cache_roots.roots().read
    except CacheError:  # the runtime does not use it either
        roots = ()
    return (path for root in roots for path in sorted((root / "tuning").glob("*.txt")))


def modules() -> list[ModuleType]:
    """Those with convolutions."""
    from loma import compiler

    return [module for module in compiler.natives() if hasattr(module, "tuning_records")]
