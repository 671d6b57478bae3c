"""The loops of one index statement, inside its parallel loop: along rows, or element by element."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from loma.backends.libtorch import tiles
from loma.backends.libtorch.access import Loop
from loma.backends.libtorch.expressions import scalar_type, strip, value_type
from loma.backends.libtorch.frames import INITIAL, update
from loma.backends.libtorch.nest import Nest
from loma.backends.libtorch.plan import Plan
from loma.backends.libtorch.registers import SHORT
from loma.backends.libtorch.tiles import Bounds
from loma.backends.writer import Writer
from loma.core import sizes
from loma.core.ir import INT, POSITIONS, Axis, Index, IntConst, Reduce, TensorType, Type, Var
from loma.core.walk import walk

BLOCK = 64  # steps of a sum before the next tile, so that a long sum streams through its operands


def write_rows(writer: Writer, nest: Nest, plan: Plan, type_: Type, bounds: Bounds | None) -> None:
    """The innermost loop runs along a row of the target."""
    target = plan.stmt.target
    assert isinstance(target, Index)
    assert plan.inner is not None
    access = nest.access(target, False)
    element = element_of(target)
    covers = all(loop.alone for loop in plan.summed if loop.target)
    axis = plan.inner.axis
    bounds = bounds or nest.bounds.get(axis.name)

    def place() -> str:
        return f"{nest.pointer(access.base)}[{nest.address(access)}]"

    simple = not any(isinstance(node, Reduce) for node in walk(plan.value)) and not access.loose
    steps = list(_steps(plan))
    tiled = bool(steps) and covers and not access.loose and tiles.in_lanes(nest, plan.value)
    outside = [loop.axis for loop in plan.summed[: len(plan.summed) - tiled * len(steps)]]
    if plan.kind in POSITIONS:
        _write_positions(writer, nest, plan, bounds, steps)
        return
    if plan.summed and plan.assign and covers and not (tiled and not outside):
        initial = INITIAL[plan.kind].format(t=element)
        nest.innermost(writer, axis, IntConst(0), lambda: [f"{place()} = {initial};"], None, bounds)
    if tiled:
        starts = plan.assign and not outside
        inside = lambda: _write_tiles(writer, nest, plan, type_, bounds, steps, starts)  # noqa: E731
        nest.loops(writer, outside, inside)
        return

    def step() -> list[str]:
        value = nest.value(plan.value, type_)
        if plan.summed and covers:
            return [update(plan.kind, place(), value, element)]
        if plan.assign or plan.stmt.op == "=":
            return [f"{place()} = {strip(value)};"]
        return [f"{place()} += {strip(value)};"]

    pragma = "#pragma GCC ivdep" if simple else None
    nest.loops(
        writer, outside, lambda: nest.innermost(writer, axis, plan.value, step, pragma, bounds)
    )


def _steps(plan: Plan) -> Sequence[Axis]:
    """The summed axes that may run inside a tile: those behind the last one of the target's."""
    own = [k for k, loop in enumerate(plan.summed) if loop.target]
    return [loop.axis for loop in plan.summed[own[-1] + 1 if own else 0 :]]


def _write_tiles(
    writer: Writer,
    nest: Nest,
    plan: Plan,
    type_: Type,
    bounds: Bounds | None,
    steps: list[Axis],
    starts: bool,
) -> None:
    """A reduction into a row of the target, a tile at a time in registers.

    The first summed axis is cut as well, unless a row is one tile. ``starts``: what the target held
    does not count.
    """
    assert plan.inner is not None
    row, element = plan.inner.axis, element_of(plan.stmt.target)
    whole = bounds or ("0", strip(nest.ints(row.extent)))
    length = None if bounds else sizes.constant(row.extent)
    with tiles.groups(writer, nest, plan.group):
        if length is not None and length <= SHORT:
            with tiles.tiles(writer, element, whole, length, plan.group):
                _write_sums(writer, nest, plan, type_, steps, starts, False)
            return
        count = strip(nest.ints(steps[0].extent))
        rest = strip(nest.ints(sizes.product(tuple(axis.extent for axis in steps[1:]))))
        size = str(BLOCK)
        if rest != "1":
            size = "block_"
            writer.line(f"const int64_t block_ = loma::steps_of({BLOCK}, {rest});")
        # At least one block, so that a sum of nothing writes its zeros.
        blocks = f"int64_t first_ = 0; first_ == 0 || first_ < {count}; first_ += {size}"
        nest.bounds[steps[0].name] = ("first_", "last_")
        with writer.block(f"for ({blocks})"):
            writer.line(f"const int64_t last_ = std::min<int64_t>({count}, first_ + {size});")
            with tiles.tiles(writer, element, whole, length, plan.group):
                _write_sums(writer, nest, plan, type_, steps, starts, True)
        del nest.bounds[steps[0].name]


def _write_sums(
    writer: Writer,
    nest: Nest,
    plan: Plan,
    type_: Type,
    steps: list[Axis],
    starts: bool,
    blocks: bool,
) -> None:
    """The sums of one tile, from what the target holds or, in the first block of steps, from the
    initial value. ``blocks``: whether there are several of them."""
    target = plan.stmt.target
    assert isinstance(target, Index)
    assert plan.inner is not None
    access, element, row = nest.access(target, False), element_of(target), plan.inner.axis
    lanes, shape = ("sums_", "") if plan.group is None else ("sums_[value_]", "[many_]")
    initial = INITIAL[plan.kind].format(t=element)

    def place() -> str:
        return f"{nest.pointer(access.base)}[{nest.address(access)}]"

    def load() -> list[str]:
        return [f"sum_ = {place()};"]

    def take() -> list[str]:
        return [update(plan.kind, "sum_", nest.value(plan.value, type_), element)]

    def step() -> None:
        tiles.write_update(writer, nest, row, plan.value, element, lanes, take, group=plan.group)

    writer.line(f"loma::Lanes<{element}> sums_{shape}[vectors_];")
    if starts:
        first = "if (first_ == 0) " if blocks else ""
        writer.line(f"{first}loma::fill<{element}>(sums_, vectors_, {initial});")
    if blocks or not starts:
        with writer.block("if (first_ > 0)") if starts else nullcontext():
            tiles.write_lanes(writer, nest, row, element, lanes, load, plan.group)
    nest.loops(writer, steps, step)
    with tiles.each(writer, nest, plan.group):
        tiles.write_store(writer, nest, row, element, lanes, place)


def _write_positions(
    writer: Writer, nest: Nest, plan: Plan, bounds: Bounds | None, steps: list[Axis]
) -> None:
    """The positions of extreme elements into a row of the target, a tile at a time in registers."""
    target = plan.stmt.target
    assert isinstance(target, Index)
    assert plan.inner is not None
    access, row = nest.access(target, False), plan.inner.axis
    number = "int64_t" if plan.value.type == INT else "real"
    worst = INITIAL[plan.kind.removeprefix("arg")].format(t=number)

    def place() -> str:
        return f"{nest.pointer(access.base)}[{nest.address(access)}]"

    def take() -> list[str]:
        return [f"sum_ = {strip(nest.value(plan.value, plan.value.type))};"]

    def step() -> None:
        tiles.write_update(writer, nest, row, plan.value, number, "best_.next", take)
        better, position = f"loma::{plan.kind.capitalize()}Lanes()", nest.position(steps)
        writer.line(f"best_.take({position}, {better});")

    whole = bounds or ("0", strip(nest.ints(row.extent)))
    with tiles.tiles(writer, number, whole):
        writer.line(f"loma::Best<{number}, vectors_> best_({worst});")
        nest.loops(writer, steps, step)
        tiles.write_store(writer, nest, row, number, "best_.positions", place, "int64_t")


def write_element(writer: Writer, nest: Nest, plan: Plan, type_: Type) -> None:
    """One element of the target at a time; the summed axes run inside."""
    target = plan.stmt.target
    assert isinstance(target, Index)
    access = nest.access(target, False)
    element = element_of(target)
    inner = [plan.inner] if plan.inner is not None else []
    own = [loop.axis for loop in plan.summed if loop.target]
    summed = [loop.axis for loop in [*plan.summed, *inner] if not loop.target]

    def write() -> None:
        nest.frame.body.clear()
        place = f"{nest.pointer(access.base)}[{nest.address(access)}]"
        before, nest.frame.body = nest.frame.body, []
        writer.extend(before)  # reductions in subscripts
        op = "=" if plan.assign else "+="
        if not summed:
            value = nest.value(plan.value, type_)
            lines, nest.frame.body = nest.frame.body, []
            writer.extend(lines)
            writer.line(f"{place} {op} {strip(value)};")
            return
        body = "int64_t" if plan.value.type == INT else "real"
        accumulator = nest.fresh("acc")
        del nest.scope[len(nest.scope) - len(summed) :]
        order = _inner_last(summed, plan.inner)
        found = nest.reduction(writer, plan.kind, plan.value, order, accumulator, body)
        nest.scope.extend(summed)
        if body != element:
            found = f"static_cast<{element}>({found})"
        writer.line(f"{place} {op} {found};")

    ordered = [axis for axis in nest.scope if all(axis != other for other in summed)]
    nest.scope[:] = ordered + summed
    nest.loops(writer, own, write)


def _inner_last(axes: Sequence[Axis], inner: Loop | None) -> list[Axis]:
    if inner is None or inner.target:
        return list(axes)
    return [axis for axis in axes if axis != inner.axis] + [inner.axis]


def write_partial_sum(
    writer: Writer,
    nest: Nest,
    plan: Plan,
    type_: Type,
    bounds: Bounds | None,
    loops: list[Loop],
) -> None:
    """A sum into a scalar: one partial sum for each piece, added up in order by the caller."""
    element = scalar_type(type_, plan.stmt.span)
    accumulator = nest.fresh("acc")
    index = nest.axis(loops[0].name) if loops else "p_"
    own = [loop.axis for loop in plan.summed]
    inner = plan.inner.axis if plan.inner is not None else None
    if inner is not None and tiles.in_lanes(nest, plan.value, inner.name):
        axes = [*own, inner]
        tiles.write_reduction(writer, nest, "sum", plan.value, axes, accumulator, element, bounds)
        writer.line(f"parts_[{index}] = {accumulator};")
        return
    writer.line(f"{element} {accumulator} = 0;")

    def step() -> list[str]:
        return [update("sum", accumulator, nest.value(plan.value, type_), element)]

    def inside() -> None:
        if inner is None:
            lines = step()
            writer.extend(nest.frame.body + lines)
            nest.frame.body = []
        else:
            nest.innermost(writer, inner, plan.value, step, None, bounds)

    nest.loops(writer, own, inside)
    writer.line(f"parts_[{index}] = {accumulator};")


def element_of(target: Index | Var) -> str:
    assert isinstance(target, Index)
    assert isinstance(target.base.type, TensorType)
    return value_type(target.base.type)
