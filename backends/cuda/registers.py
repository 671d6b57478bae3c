"""Which private tensors of a kernel are variables of each thread.

A private tensor of one element that every thread of a team can compute for itself needs no shared
memory, and no barrier behind it: a sum that the team shares ends in all of its threads, and what
follows from such numbers they compute again.
"""

from __future__ import annotations

from collections.abc import Iterable

from loma.backends.schedule.host import (
    Branch, CheckRange, CheckSome, Clear, Count, Launch, Repeat, Run, Unit, flat,
    single,
)  # fmt: skip
from loma.backends.schedule.ir import Parallel, Store
from loma.backends.schedule.walk import expressions, mentioned, nodes
from loma.core.ir import Index, IntConst
from loma.core.walk import free_variables

_ONE = IntConst(1)


def in_registers(launch: Launch) -> frozenset[str]:
    """The private tensors of a kernel that its threads have in registers, all the same."""
    carried = () if launch.kernel.carried is None else launch.kernel.carried.sums
    found = {var.name for var in single(launch) if var not in carried}
    inside = list(flat(launch.body))
    known = (Branch, CheckRange, CheckSome, Clear, Count, Parallel, Repeat, Run, Unit)
    if not all(isinstance(node, known) for node in inside):
        return frozenset()
    trees = [node for node in inside if isinstance(node, Parallel)]
    while other := [tree for tree in trees if _writes(tree) & found and not _is_alike(tree, found)]:
        for tree in other:
            found -= _writes(tree)
    return frozenset(found)


def _is_alike(tree: Parallel, registers: Iterable[str]) -> bool:
    """Whether all threads of a team may run a loop, one step of it, and find the same: what it
    writes to memory, by one of them, it does not read."""
    if tree.count != _ONE or tree.needs or tree.totals:
        return False
    return not (_writes(tree).difference(registers) & _reads(tree))


def meets(tree: Parallel, shared: frozenset[str]) -> bool:
    """Whether threads that run a loop alike use tensors that others write."""
    return bool(_writes(tree).union(*map(mentioned, tree.body)) & shared)


def _writes(tree: Parallel) -> set[str]:
    return {var.name for var in tree.writes}


def _reads(tree: Parallel) -> set[str]:
    """The names that a loop uses, but for those of elements that it only sets."""
    read: set[str] = set()
    for node in nodes(tree.body):
        for expr in expressions(node):
            is_set = isinstance(node, Store) and expr is node.place and node.kind == "set"
            place = expr.subscripts if is_set and isinstance(expr, Index) else (expr,)
            read |= {name for part in place for name in free_variables(part)}
    return read
