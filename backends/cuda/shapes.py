"""What a tuner may change about a launch (``loma::gpu::Shape`` of ``runtime/gpu.h``).

Sizes say how many threads a launch has and who of them does what (``runtime/gpu_geometry.cpp``).
The choices are relative to that, so that what is best for some sizes is a good start for others: a
number of threads is the usual one, times 2 so many times. What a launch cannot have, it leaves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TypeAlias

from loma.backends.schedule.context import FunctionContext
from loma.backends.schedule.host import Launch, flat
from loma.backends.schedule.ir import AllReduce, Loop, Parallel
from loma.backends.schedule.walk import expressions, nodes
from loma.core import sizes
from loma.core.ir import Expr, Index, IntConst
from loma.core.walk import free_variables, substitute, walk

Shape: TypeAlias = Mapping[str, int | str]  # by member, what is not as usual: its text

_TEAM = (0, 1, -1, 2, -2, 3, -3)
_THREADS = (0, -1, 1, 2, -2)
_SLICES = (0, 1, -1, 2, -2, 3)
# Multiples of what some GPUs have of multiprocessors. Threads that take several iterations in turns
# begin less often.
_BLOCKS = (0, 2112, 1056, 528)
_REGISTERS = (0, 64, 40, 32)
_UNROLL = (0, 4, 8, 32)
_SIDE_BY_SIDE = (0, 2, 1)  # as many as a thread reads at once, or one
_SUMS = (0, 4, 2, 3, 5, 1)
_FEW = 2  # tensors that several statements read along a row
_ONE = IntConst(1)


def of_statement(
    context: FunctionContext,
    name: str,
    steps: tuple[Expr, ...],
    shares: bool,
    splits: bool,
    row: bool,
    several: bool,
) -> Shape:
    """Of the launch of a statement that writes ``name``, in loops of so many ``steps``. ``shares``:
    threads share the steps of an iteration; ``splits``: blocks may, too; ``row``: a thread may take
    iterations side by side; ``several``: it may have several sums."""
    if context.choices is None:
        return {}
    wanted: dict[str, tuple[int, ...]] = {}
    if shares:
        wanted["team"] = _TEAM
    if splits:
        wanted["slices"] = _SLICES
    if several:
        wanted["beside"] = _SUMS
    elif row:
        wanted["beside"] = _SIDE_BY_SIDE
    return _chosen(context, name, steps, wanted | {"threads": _THREADS, "blocks": _BLOCKS})


def of_fused(context: FunctionContext, name: str, steps: tuple[Expr, ...]) -> Shape:
    """The same of a kernel with several statements, for a team an iteration."""
    if context.choices is None:
        return {}
    return _chosen(context, name, steps, {"team": _TEAM, "threads": _THREADS, "blocks": _BLOCKS})


def joins_often(launch: Launch) -> bool:
    """Whether threads that share a row put together what they found more than once, and read few
    tensors of that length again: with more numbers for each thread fewer wait for each other, and
    what they have read is still at hand."""
    trees = [tree for tree in flat(launch.body) if isinstance(tree, Parallel)]
    rows = [tree for tree in trees if tree.team is not None and tree.count == _ONE]
    joins = sum(isinstance(node, AllReduce) for tree in rows for node in nodes(tree.body))
    along: Counter[str] = Counter()
    for tree in trees:
        counters = {tree.counter.name} if tree.count != _ONE else set()
        counters |= {node.counter.name for node in nodes(tree.body) if isinstance(node, Loop)}
        reads = (part for node in nodes(tree.body) for e in expressions(node) for part in walk(e))
        along.update(
            {
                read.tensor.name
                for read in reads
                if isinstance(read, Index) and free_variables(read) & counters
            }
        )
    return joins > 1 and sum(count > 1 for count in along.values()) <= _FEW


def block(context: FunctionContext, name: str, steps: tuple[Expr, ...]) -> int:
    """How many times 2 the usual number of an axis' values make a block."""
    return context.choose("block", name, (0, -1, 1, -2, 2), _work(context, steps))


def _chosen(
    context: FunctionContext, name: str, steps: tuple[Expr, ...], wanted: dict[str, tuple[int, ...]]
) -> Shape:
    work = _work(context, steps)
    wanted |= {"registers": _REGISTERS, "unroll": _UNROLL}
    choices = context.choices
    if choices is not None and choices.left is not None:  # one text for a search among shapes
        left = {kind: choices.leave(kind, name, of, work) for kind, of in wanted.items()}
        return {kind: f"loma::gpu::tried({place})" for kind, place in left.items()}
    found = {kind: context.choose(kind, name, options, work) for kind, options in wanted.items()}
    return {kind: option for kind, option in found.items() if option}


def _work(context: FunctionContext, steps: tuple[Expr, ...]) -> float:
    """What the tuner's model takes for the work of such loops, from the sizes that it tunes for."""
    if context.choices is None:
        return 1.0
    known: dict[str, Expr] = {
        size: IntConst(value) for size, value in context.choices.sizes.items()
    }
    work = 1.0
    for extent in steps:
        work *= max(1, sizes.constant(substitute(extent, known)) or 1)
    return work
