"""When a kernel's private tensors are alive, so that those that never meet can share memory."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeAlias

from loma.backends.kernels.ir import Kernel
from loma.backends.kernels.sharing import mentions
from loma.core.ir import For, Stmt, While
from loma.core.walk import blocks, expressions, variables
from loma.passes.liveness import Liveness


# from the first to the last statement, both included, in the order of the text
Lifetime: TypeAlias = tuple[int, int]


def lifetimes(kernel: Kernel, runs: Collection[tuple[Stmt, ...]] = ()) -> dict[str, Lifetime]:
    """The lifetime of every private tensor of a kernel. ``runs``: statements that one loop runs.

    One that carries a value from one iteration of a loop to the next lives as long as the loop. All
    that the statements of a run use is alive during all of it: its loop takes them for memory of
    their own, and may read one behind a write to another.
    """
    names = frozenset(var.name for var in kernel.private)
    found: dict[str, Lifetime] = {}
    end = _block(kernel.body, 1, names, mentions(kernel.body), runs, found)
    for name in kernel.zeroed:  # filled before the first statement
        found[name] = (0, found[name][1] if name in found else end)
    found |= {var.name: (0, end) for var in kernel.carried.sums} if kernel.carried else {}
    return found


def _block(
    body: tuple[Stmt, ...],
    start: int,
    names: frozenset[str],
    everywhere: dict[str, int],
    runs: Collection[tuple[Stmt, ...]],
    found: dict[str, Lifetime],
) -> int:
    """Notes the lifetimes in a block whose first statement has number ``start``; the next number.
    ``everywhere``: how often the kernel mentions each name."""
    position = start
    for place, stmt in enumerate(body):
        first = position
        for run in runs:
            if body[place : place + len(run)] == run:
                for name in names & mentions(run).keys():
                    _extend(found, name, position, position + len(run) - 1)
        for expr in expressions(stmt):
            for name in names & set(variables(expr)):
                _extend(found, name, position, position)
        position += 1
        for block in blocks(stmt):
            position = _block(block, position, names, everywhere, runs, found)
        if isinstance(stmt, For | While):
            inside = mentions(stmt.body)
            # What is not private counts as read, else the analysis drops all that leads to it.
            after = frozenset(
                name for name, count in inside.items()
                if name not in names or everywhere[name] != count
            )  # fmt: skip
            for name in _carried(stmt.body, after) & names & inside.keys():
                _extend(found, name, first, position)
    return position


def _carried(body: tuple[Stmt, ...], after: frozenset[str]) -> frozenset[str]:
    """Variables whose value at the start of an iteration may come from the one before; ``after``
    are those that may be read behind the loop."""
    around = after
    while True:
        _, start = Liveness(()).block(body, around)
        if start <= around:
            return start
        around |= start


def _extend(found: dict[str, Lifetime], name: str, first: int, last: int) -> None:
    old = found.get(name, (first, last))
    found[name] = (min(first, old[0]), max(last, old[1]))
