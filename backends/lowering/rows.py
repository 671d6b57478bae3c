"""The loops of one index statement, inside its parallel loop: along rows, or element by element."""

from __future__ import annotations

from collections.abc import Sequence

from loma.backends.lowering import kept, squares, tiles
from loma.backends.lowering.nest import Bounds, own_pads
from loma.backends.lowering.plan import Plan
from loma.backends.lowering.reductions import StatementNest
from loma.backends.schedule.access import ZERO
from loma.backends.schedule.access import steps as step_count
from loma.backends.schedule.choices import steps_in
from loma.backends.schedule.ir import (
    PARTS, STEPS_OF, Accumulator, Blocks, Compare, Fill, If, Kind, Lanes, Let, Node, Store, Tiles,
    UpdateLanes, builtin, dtype_of,
)  # fmt: skip
from loma.core import sizes
from loma.core.ir import (
    FLOAT, INT, POSITIONS, Axis, Binary, Element, Index, IntConst, Reduce, TensorType, Var,
)  # fmt: skip
from loma.core.walk import free_variables, walk

FIRST, LAST = Var("@first_", INT), Var("@last_", INT)  # a block's first step, and that behind it


def rows(nest: StatementNest, plan: Plan, bounds: Bounds | None) -> list[Node]:
    """The innermost loop runs along a row of the target."""
    if plan.square is not None:
        write = lambda: _store(nest, plan)  # noqa: E731
        return squares.rows(nest, plan.row, plan.square.axis, plan.value, write)
    access = nest.access(plan.target, False)
    covers = all(loop.alone for loop in plan.summed if loop.target)
    sums = bool(plan.summed) or (plan.keeps is not None and not plan.keeps.target)
    axis = plan.row
    bounds = bounds or nest.bounds.get(axis.name)
    simple = not any(isinstance(node, Reduce) for node in walk(plan.value)) and not access.loose
    steps = list(_steps(plan))
    tiled = bool(steps) and covers and not access.loose and plan.keeps is None
    tiled = tiled and tiles.in_lanes(nest, plan.value)
    outside = [loop.axis for loop in plan.summed[: len(plan.summed) - tiled * len(steps)]]
    if plan.kind in POSITIONS:
        return _positions(nest, plan, bounds, steps)
    before: list[Node] = []
    if sums and plan.assign and covers and not (tiled and not outside):

        def start() -> list[Node]:
            return [Fill(nest.place(plan.target), plan.kind)]

        before = nest.innermost(axis, ZERO, start, bounds)
    if tiled:
        starts = plan.assign and not outside
        return before + nest.loops(outside, lambda: _tiles(nest, plan, bounds, steps, starts))

    def step() -> list[Node]:
        return _store(nest, plan, plan.kind if sums and covers else None)

    def row() -> list[Node]:
        own = nest.bounds.get(axis.name) or bounds
        return nest.innermost(axis, plan.value, step, own, independent=simple)

    if plan.keeps is not None and bounds is not None:
        other = plan.keeps.axis
        return before + nest.loops(outside, lambda: kept.rows(nest, axis, other, bounds, row))
    return before + nest.loops(outside, row)


def _store(nest: StatementNest, plan: Plan, kind: Kind | None = None) -> list[Node]:
    value = nest.value(plan.value)
    found: Kind = "set" if plan.assign or plan.stmt.op == "=" else "sum"
    return [Store(nest.place(plan.target), kind or found, value)]


def _steps(plan: Plan) -> Sequence[Axis]:
    """The summed axes that may run inside a tile: those behind the last one of the target's."""
    own = [k for k, loop in enumerate(plan.summed) if loop.target]
    return [loop.axis for loop in plan.summed[own[-1] + 1 if own else 0 :]]


def _tiles(
    nest: StatementNest, plan: Plan, bounds: Bounds | None, steps: list[Axis], starts: bool
) -> list[Node]:
    """A reduction into a row of the target, a tile at a time in registers.

    The first summed axis is cut as well, unless a row is one tile, or all steps are one block.
    ``starts``: what the target held does not count.
    """
    row, dtype, machine = plan.row, _dtype(plan), nest.context.machine
    low, high = bounds or (ZERO, nest.value(row.extent))
    length = None if bounds else sizes.constant(row.extent)
    total = sizes.constant(sizes.product(tuple(axis.extent for axis in steps)))
    grouped = plan.group is not None
    wide = plan.kind == "sum" and not grouped and _is_streamed(nest, plan, steps)

    def inside() -> list[Node]:
        short = length is not None and length <= machine.short
        usual, work = machine.block, steps_in([row.extent, *(axis.extent for axis in steps)])
        options = (usual, usual * 4, usual // 4, usual * 16)
        most = (
            usual if short else nest.context.choose("block", plan.target.tensor.name, options, work)
        )
        if short or (total is not None and total <= most):
            sums = tuple(_sums(nest, plan, steps, starts, False))
            return [Tiles(low, high, dtype, sums, length, grouped, wide)]
        count = nest.value(steps[0].extent)
        rest = sizes.product(tuple(axis.extent for axis in steps[1:]))
        before: list[Node] = []
        size: IntConst | Var = IntConst(most)
        if rest != IntConst(1):
            size = Var("@block_", INT)
            before = [Let(size, builtin(STEPS_OF, IntConst(most), nest.value(rest)))]
        nest.bounds[steps[0].name] = (FIRST, LAST)
        sums = tuple(_sums(nest, plan, steps, starts, True))
        del nest.bounds[steps[0].name]
        # At least one block, so that a sum of nothing writes its zeros.
        whole = Tiles(low, high, dtype, sums, length, grouped, wide)
        return [*before, Blocks(FIRST, LAST, count, size, (whole,))]

    return tiles.groups(nest, plan.group, inside)


def _is_streamed(nest: StatementNest, plan: Plan, steps: Sequence[Axis]) -> bool:
    """Whether a tile has nothing but its sums to keep from one step to the next, and little to
    compute: rows are read one after the other then, each as far as there are registers."""
    names = {name for axis in steps for name in nest.parts.get(axis.name, (axis.name,))}
    row = {*nest.parts.get(plan.row.name, (plan.row.name,))}
    reads = (free_variables(node) for node in walk(plan.value) if isinstance(node, Index))
    kept = any(names.isdisjoint(read) and not row.isdisjoint(read) for read in reads)
    return not own_pads(plan.value) and not kept and step_count(plan.value) == 1


def _sums(
    nest: StatementNest, plan: Plan, steps: list[Axis], starts: bool, blocks: bool
) -> list[Node]:
    """The sums of one tile, from what the target holds or, in the first block of steps, from the
    initial value. ``blocks``: whether there are several of them."""
    row, group, dtype = plan.row, plan.group, _dtype(plan)
    sums = Lanes(Var("@sums_", FLOAT), plan.kind, dtype, "row", group is not None)
    nodes: list[Node] = [sums]
    if starts:
        fill = Fill(sums, plan.kind)
        nodes.append(If(Binary("==", FIRST, ZERO, INT), (fill,)) if blocks else fill)
    if blocks or not starts:
        held = tiles.load(nest, row, sums, plan.target, group)
        nodes += [If(Binary(">", FIRST, ZERO, INT), tuple(held))] if starts else held

    def step() -> list[Node]:
        counter = Var(row.name, INT)
        take = lambda: UpdateLanes(sums, counter, nest.value(plan.value))  # noqa: E731
        return tiles.update(nest, row, plan.value, take, group=group)

    nodes += nest.loops(steps, step)
    return nodes + tiles.each(group, tiles.store(nest, row, sums, plan.target))


def _positions(
    nest: StatementNest, plan: Plan, bounds: Bounds | None, steps: list[Axis]
) -> list[Node]:
    """The positions of extreme elements into a row of the target, a tile at a time in registers."""
    row = plan.row
    dtype: Element = "int" if plan.value.type == INT else "float"
    best = Lanes(Var("@best_", INT), plan.kind, dtype, "row")

    def take() -> Node:
        value = nest.value(plan.value)
        return UpdateLanes(best, Var(row.name, INT), value, load=True)

    def step() -> list[Node]:
        found = tiles.update(nest, row, plan.value, take)
        return [*found, Compare(best, nest.position(steps))]

    low, high = bounds or (ZERO, nest.value(row.extent))
    inside = nest.loops(steps, step)
    stored = tiles.store(nest, row, best, plan.target)
    return [Tiles(low, high, dtype, (best, *inside, *stored))]


def elements(nest: StatementNest, plan: Plan) -> list[Node]:
    """One element of the target at a time; the summed axes run inside."""
    inner = [plan.inner] if plan.inner is not None else []
    own = [loop.axis for loop in plan.summed if loop.target]
    summed = [loop.axis for loop in [*plan.summed, *inner] if not loop.target]

    def write() -> list[Node]:
        nest.frame.body.clear()
        place = nest.place(plan.target)
        nodes, nest.frame.body = nest.frame.body, []  # reductions in subscripts
        kind: Kind = "set" if plan.assign else "sum"
        if not summed:
            value = nest.value(plan.value)
            nodes += nest.frame.body
            nest.frame.body = []
            return [*nodes, Store(place, kind, value)]
        accumulator = nest.fresh("acc", plan.value.type)
        del nest.scope[len(nest.scope) - len(summed) :]
        inside, found = nest.reduction(plan.kind, plan.value, summed, accumulator)
        nest.scope.extend(summed)
        return [*nodes, *inside, Store(place, kind, found)]

    nest.scope[:] = [axis for axis in nest.scope if axis not in summed] + summed
    if plan.scattered is not None and plan.keeps is not None:
        row, other = plan.scattered.axis, plan.keeps.axis
        inside = lambda: nest.loops([row], write)  # noqa: E731
        return nest.loops(own, lambda: kept.rows(nest, row, other, nest.bounds[row.name], inside))
    return nest.loops(own, write)


def partial_sum(
    nest: StatementNest, plan: Plan, bounds: Bounds | None, index: Var | None
) -> list[Node]:
    """A sum into a scalar: one partial sum for each piece of a parallel loop, or the sum itself
    where there is no ``index`` of one. Without an axis it is a value that the scalar gets."""
    type_ = plan.stmt.target.type
    if index is None and plan.inner is None and not plan.summed:
        value = nest.value(plan.value)
        nodes, nest.frame.body = nest.frame.body, []
        return [*nodes, Store(plan.stmt.target, "set" if plan.assign else "sum", value)]
    accumulator = nest.fresh("acc", type_)
    own = [loop.axis for loop in plan.summed]
    inner = plan.inner.axis if plan.inner is not None else None
    dtype: Element = "int" if type_ == INT else "float"
    part = Store(plan.stmt.target, "sum", accumulator)
    if index is not None:
        parts = Var(PARTS, TensorType((IntConst(1),), dtype))
        part = Store(Index(parts, (index,), type_), "set", accumulator)
    if inner is not None and tiles.in_lanes(nest, plan.value, inner.name):
        axes = [*own, inner]
        found = tiles.reduction(nest, "sum", plan.value, axes, accumulator, dtype, bounds)
        return [*found, part]

    def step() -> list[Node]:
        return [Store(accumulator, "sum", nest.value(plan.value))]

    def inside() -> list[Node]:
        if inner is not None:
            return nest.innermost(inner, plan.value, step, bounds)
        last = step()
        nodes, nest.frame.body = [*nest.frame.body, *last], []
        return nodes

    return [Accumulator(accumulator, "sum", dtype), *nest.loops(own, inside), part]


def _dtype(plan: Plan) -> Element:
    """The type in which the target's elements are computed."""
    dtype = dtype_of(plan.target.tensor)
    return "int" if dtype == "bool" else dtype
