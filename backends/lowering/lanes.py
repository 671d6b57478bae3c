"""Inner loops of a kernel (``kernels/inner.py``), whose values a few lanes have each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from loma.backends.kernels.ir import Inner
from loma.backends.schedule.host import (
    Branch, CheckRange, CheckSome, HostNode, Lanes, Unit, flat,
)  # fmt: skip
from loma.backends.schedule.ir import AllReduce, Loop, Parallel
from loma.backends.schedule.walk import mentioned, nodes
from loma.core import sizes
from loma.core.ir import POSITIONS, Expr, IntConst

_ZERO = IntConst(0)


def loop(inner: Inner, body: Sequence[HostNode]) -> list[HostNode]:
    """The loop with such a body, the checks of which stand in front of it."""
    checks, rest = _apart(body)
    return [*checks, Lanes(inner, rest, _few(inner, rest))]


def can_share(node: Lanes) -> bool:
    """Whether lanes can run the statements of a loop: those that share a sum have the axis for it
    that the rows have, and elements that belong to one of them are in order along it."""
    inner = node.inner
    rows = {var.name: var for var in inner.rows}
    apart = rows | {each.own.name: each.own for each in inner.sums}
    for found in flat(node.body):
        if isinstance(found, Unit | Branch):
            continue
        if not isinstance(found, Parallel) or found.checks or found.totals or found.needs:
            return False
        shares = found.team is not None and found.team.extent == inner.lanes
        if shares and not _is_one_sum(found, inner.lanes):
            return False
        target = next((apart[var.name] for var in found.writes if var.name in apart), None)
        reads = any(name in mentioned(part) for name in rows for part in found.body)
        if target is not None:
            dims = sizes.dims_of(target)
            if found.team is not None or (dims and found.row != dims[-1]):
                return False
        elif reads and not shares:
            return False
    return True


def _is_one_sum(tree: Parallel, length: Expr) -> bool:
    """Whether threads share one loop in it, over so many numbers, for what it writes."""
    inside = list(nodes(tree.body))
    joined = [node for node in inside if isinstance(node, AllReduce)]
    shared = [node for node in inside if isinstance(node, Loop) and node.role == "shared"]
    ranges = all(node.low == _ZERO and node.high == length for node in shared)
    kinds = all(node.kind not in POSITIONS for node in joined)
    return len(joined) == len(shared) == len(tree.writes) == 1 and ranges and kinds


def _apart(nodes: Sequence[HostNode]) -> tuple[list[HostNode], tuple[HostNode, ...]]:
    """Checks that are made in any case, and what is left."""
    checks: list[HostNode] = []
    rest: list[HostNode] = []
    for node in nodes:
        match node:
            case CheckRange() | CheckSome():
                checks.append(node)
            case Unit(body=body):
                found, left = _apart(body)
                checks += found
                rest.append(replace(node, body=left))
            case _:
                rest.append(node)
    return checks, tuple(rest)


def _few(inner: Inner, body: Sequence[HostNode]) -> tuple[Expr, ...]:
    """How many numbers statements have that a lane goes through by itself: first those that it has
    in registers."""
    apart = {var.name for var in inner.rows} | {each.own.name for each in inner.sums}
    trees = [node for node in flat(body) if isinstance(node, Parallel)]
    counts = [tree.count for tree in trees if {var.name for var in tree.writes}.isdisjoint(apart)]
    private = [sizes.product(sizes.dims_of(var)) for var in inner.private]
    counts = [count for count in dict.fromkeys(counts) if count not in private]
    return tuple(count for count in (*private, *counts) if sizes.constant(count) != 1)
