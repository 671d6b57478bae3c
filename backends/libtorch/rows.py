"""The loops of one index statement, inside its parallel loop: along rows, or element by element."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loma.backends.libtorch.access import Loop
from loma.backends.libtorch.expressions import element_type, scalar_type, strip
from loma.backends.libtorch.frames import INITIAL, may_throw, update
from loma.backends.libtorch.nest import Nest
from loma.backends.libtorch.plan import Plan
from loma.backends.writer import Writer
from loma.ir import (
    INT, Axis, Expr, Index, IntConst, Reduce, TensorType, Type, ZeroPad,
)  # fmt: skip
from loma.walk import walk

TILES = (16, 8)  # elements of a row that are summed in registers
BLOCK = 64  # steps of a sum before the next tile


def write_rows(
    writer: Writer, nest: Nest, plan: Plan, type_: Type, bounds: tuple[str, str] | None
) -> None:
    """The innermost loop runs along a row of the target."""
    target = plan.stmt.target
    assert isinstance(target, Index)
    assert plan.inner is not None
    access = nest.access(target, False)
    element = element_of(target)
    covers = all(loop.alone for loop in plan.summed if loop.target)

    def place() -> str:
        return f"{nest.pointer(access.base)}[{nest.address(access)}]"

    simple = not any(isinstance(node, Reduce) for node in walk(plan.value)) and not access.loose
    last = plan.summed[-1] if plan.summed else None
    tiled = (
        simple and last is not None and covers and plan.kind == "sum" and not last.target
        and not any(isinstance(node, ZeroPad) for node in walk(plan.value))
        and not may_throw(plan.value, nest.module)
    )  # fmt: skip
    if plan.summed and plan.assign and covers and not (tiled and len(plan.summed) == 1):
        initial = INITIAL[plan.kind].format(t=element)
        nest.innermost(
            writer, plan.inner.axis, IntConst(0), lambda: [f"{place()} = {initial};"], None, bounds
        )
    if tiled:
        nest.loops(
            writer,
            [loop.axis for loop in plan.summed[:-1]],
            lambda: _write_tiles(writer, nest, plan, type_, bounds),
        )
        return

    def step() -> list[str]:
        value = nest.value(plan.value, type_)
        if plan.summed and covers:
            return [update(plan.kind, place(), value, element)]
        if plan.assign or plan.stmt.op == "=":
            return [f"{place()} = {strip(value)};"]
        return [f"{place()} += {strip(value)};"]

    pragma = "#pragma GCC ivdep" if simple else None
    axis = plan.inner.axis
    nest.loops(
        writer,
        [loop.axis for loop in plan.summed],
        lambda: nest.innermost(writer, axis, plan.value, step, pragma, bounds),
    )


def _write_tiles(
    writer: Writer, nest: Nest, plan: Plan, type_: Type, bounds: tuple[str, str] | None
) -> None:
    """A sum into a row of the target, a few elements at a time in registers.

    The summed axis is cut as well, so that a long sum streams through its operands.
    """
    target = plan.stmt.target
    assert isinstance(target, Index)
    assert plan.inner is not None
    access, element = nest.access(target, False), element_of(target)
    row, last = plan.inner.axis, plan.summed[-1].axis
    name, step = nest.axis(row.name), nest.axis(last.name)
    low, high = bounds or ("0", strip(nest.ints(row.extent)))
    count = strip(nest.ints(last.extent))
    starts = plan.assign and len(plan.summed) == 1

    def place() -> str:
        return f"{nest.pointer(access.base)}[{nest.address(access)}]"

    def load() -> str:
        return f"first_ == 0 ? {element}(0) : {place()}" if starts else place()

    def take(accumulator: str) -> list[str]:
        return [update("sum", accumulator, nest.value(plan.value, type_), element)]

    def steps(inside: Callable[[], None]) -> None:
        with writer.block(f"for (int64_t {step} = first_; {step} < last_; ++{step})"):
            inside()

    def lanes(width: int, value: Expr, make: Callable[[], list[str]]) -> None:
        nest.innermost(writer, row, value, make, None, ("tile_", str(width)), tile=True)

    # At least one block, so that a sum of nothing writes its zeros.
    blocks = f"int64_t first_ = 0; first_ == 0 || first_ < {count}; first_ += {BLOCK}"
    with writer.block(f"for ({blocks})"):
        writer.line(f"const int64_t last_ = std::min<int64_t>({count}, first_ + {BLOCK});")
        writer.line(f"int64_t tile_ = {low};")
        for width in TILES:
            with writer.block(f"for (; tile_ + {width} <= {high}; tile_ += {width})"):
                writer.line(f"{element} sums_[{width}];")
                lanes(width, IntConst(0), lambda: [f"sums_[lane_] = {load()};"])
                steps(lambda w=width: lanes(w, plan.value, lambda: take("sums_[lane_]")))  # type: ignore[misc]
                lanes(width, IntConst(0), lambda: [f"{place()} = sums_[lane_];"])
        with writer.block(f"for (int64_t {name} = tile_; {name} < {high}; ++{name})"):
            writer.line(f"{element} sum_ = {load()};")
            steps(lambda: writer.extend(take("sum_")))
            writer.line(f"{place()} = sum_;")


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
        place = f"{nest.pointer(access.base)}[{nest.address(access)}]"
        nest.frame.body.clear()
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
    bounds: tuple[str, str] | None,
    loops: list[Loop],
) -> None:
    """A sum into a scalar: one partial sum for each piece, added up in order by the caller."""
    element = scalar_type(type_, plan.stmt.span)
    accumulator = nest.fresh("acc")
    index = nest.axis(loops[0].name) if loops else "p_"
    writer.line(f"{element} {accumulator} = 0;")

    def step() -> list[str]:
        return [update("sum", accumulator, nest.value(plan.value, type_), element)]

    simple = not any(isinstance(node, Reduce) for node in walk(plan.value))
    simple = simple and not may_throw(plan.value, nest.module)
    pragma = f"#pragma omp simd reduction(+ : {accumulator})" if simple else None

    def inner() -> None:
        if plan.inner is None:
            lines = step()
            writer.extend(nest.frame.body + lines)
            nest.frame.body = []
        else:
            nest.innermost(writer, plan.inner.axis, plan.value, step, pragma, bounds)

    nest.loops(writer, [loop.axis for loop in plan.summed], inner)
    writer.line(f"parts_[{index}] = {accumulator};")


def element_of(target: Index) -> str:
    assert isinstance(target.base.type, TensorType)
    return element_type(target.base.type)
