"""Where a kernel's private tensors lie: those that are never alive at the same time share memory,
and those that end in a tensor which outlives the kernel are made in that one's:

    e[n, d] = exp(x[n, d] - m[n])            y[n, d] = exp(x[n, d] - m[n])
    z[n] = sum(e[n, i] for i in D)           z[n] = sum(y[n, i] for i in D)
    y[n, d] = e[n, d] / z[n]                 y[n, d] = y[n, d] / z[n]

So what is written last comes to the cache while there is something to compute, and a row takes less
of it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TypeAlias

from loma.backends.kernels.ir import Kernel
from loma.backends.kernels.sharing import mentions
from loma.core.ir import Expr, For, Index, IndexAssign, Stmt, TensorType, Var, While
from loma.core.walk import (
    blocks, expressions, is_element_of, map_children, map_expressions, nodes, variables, walk,
)  # fmt: skip
from loma.passes.liveness import Liveness, covers


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


def in_place(kernel: Kernel, local: Collection[str]) -> Kernel:
    """The kernel with such tensors in the memory of those that follow from them; ``local`` are the
    function's own, which share none with others."""
    for var in kernel.private:
        if var.name not in kernel.zeroed and (end := _end(kernel, var, local)) is not None:
            kernel = _made_in(kernel, var, *end)
    return kernel


def _end(
    kernel: Kernel, var: Var, local: Collection[str]
) -> tuple[int, Index, tuple[int, ...]] | None:
    """The position of the statement that a tensor ends in, its target, in whose memory the tensor
    may be made, and the target's dimensions that the tensor lacks."""
    body, name, names = kernel.body, var.name, mentions(kernel.body)
    last = max((k for k, stmt in enumerate(body) if name in mentions((stmt,))), default=0)
    match body[last] if body else None:
        case IndexAssign(Index(Var() as found, subscripts) as target, "=", value) as stmt:
            pass
        case _:
            return None
    # Dimensions that an iteration has one value of are those that a private tensor lacks.
    fixed = {axis.name for axis in kernel.axes} if kernel.count is None else set[str]()
    lacks = tuple(k for k, s in enumerate(subscripts) if isinstance(s, Var) and s.name in fixed)
    own = tuple(s for k, s in enumerate(subscripts) if k not in lacks)
    reads = [node for node in walk(value) if is_element_of(node, name)]
    may_be_one = (
        _is_alike(kernel, var, found)
        and found.name in local
        and found.name not in {other.name for other in kernel.private}
        and found.name not in mentions(body[:last])
        and mentions((stmt,))[found.name] == 1
        and _fills(kernel, stmt)
        and all(read.subscripts == own for read in reads)
        and (kernel.count is not None or dict(kernel.dropped).get(name) == lacks)
    )
    elements = sum(is_element_of(node, name) for node in nodes(body))
    return (last, target, lacks) if reads and may_be_one and elements == names[name] else None


def _made_in(kernel: Kernel, var: Var, last: int, target: Index, lacks: tuple[int, ...]) -> Kernel:
    name = var.name

    def moved(expr: Expr) -> Expr:
        expr = map_children(expr, moved)
        if not is_element_of(expr, name):
            return expr
        rest = iter(expr.subscripts)
        places = (s if k in lacks else next(rest) for k, s in enumerate(target.subscripts))
        return replace(expr, base=target.base, subscripts=tuple(places))

    body = tuple(
        map_expressions(stmt, moved) if k <= last else stmt for k, stmt in enumerate(kernel.body)
    )
    kept = tuple(own for own in kernel.private if own.name != name)
    dropped = tuple(entry for entry in kernel.dropped if entry[0] != name)
    return replace(kernel, private=kept, dropped=dropped, body=body, gone=(*kernel.gone, name))


def _is_alike(kernel: Kernel, var: Var, target: Var) -> bool:
    """Whether a private tensor has the elements of an iteration's part of another one, and rows."""
    type_, other = var.type, target.type
    if not isinstance(type_, TensorType) or not isinstance(other, TensorType):
        return False
    dims = list(other.dims or ())
    if kernel.count is None:
        for axis in kernel.axes:
            if axis.extent in dims:
                dims.remove(axis.extent)
    rows = len(dims) > (kernel.count is not None)
    return type_.dims == tuple(dims) and type_.element == other.element and rows


def _fills(kernel: Kernel, stmt: IndexAssign) -> bool:
    """Whether a statement names every element of an iteration's part of its target."""
    subscripts = stmt.element.subscripts
    names = [s.name for s in subscripts if isinstance(s, Var)]
    whole = len(names) == len(subscripts) == len(set(names))
    own = stmt.axes if kernel.count is not None else (*stmt.axes, *kernel.axes)
    return whole and covers(replace(stmt, axes=own)) and set(names) == {axis.name for axis in own}
