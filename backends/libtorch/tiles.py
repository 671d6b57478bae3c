"""Sums in registers: what a loop over one axis adds to the lanes of a tile of vectors.

``runtime/tiles.h`` cuts an axis into tiles. The lanes are elements of a row of the target, for each
of which something is summed, or partial sums along the row, which are added up at the end. Reads
that may leave their tensor take a tile at its border lane by lane, under a mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from loma.backends.libtorch.expressions import strip
from loma.backends.libtorch.frames import COMBINE, INITIAL, Frame, may_throw, update
from loma.backends.writer import Writer
from loma.core import sizes
from loma.core.ir import FLOAT, INT, Axis, Expr, IntConst, Reduce
from loma.core.walk import free_variables, walk

if TYPE_CHECKING:
    from loma.backends.libtorch.nest import Nest
    from loma.backends.libtorch.registers import Group

Bounds = tuple[str, str]


def in_lanes(nest: Nest, body: Expr, axis: str = "") -> bool:
    """Whether lanes along an axis can take the values of an expression: none of them ends in an
    error, reads that may leave their tensor are affine, and what has loops of its own does not
    change along the axis, so that it is computed before."""
    from loma.backends.libtorch.nest import own_pads

    own = set(nest.parts.get(axis, (axis,)))
    for node in walk(body):
        if isinstance(node, Reduce) and (not axis or own & free_variables(node)):
            return False
    if may_throw(body, nest.module):
        return False
    return all(not nest.access(pad.read, True).loose for pad in own_pads(body))


@contextmanager
def groups(writer: Writer, nest: Nest, group: Group | None) -> Iterator[None]:
    """A loop over the groups of values of a second axis; nothing without one."""
    if group is None:
        yield
        return
    axis = group.loop.axis
    low, high = nest.bounds.get(axis.name) or ("0", strip(nest.ints(axis.extent)))
    size = f"{group.many}" if group.rest is None else f"{group.many}, {group.rest}"
    head = "[&](auto values_, const int64_t group_) LOMA_INLINE"
    with writer.block(f"loma::groups<{size}>({low}, {high}, {head}", ");"):
        writer.line("constexpr int many_ = values_;")
        yield


@contextmanager
def each(writer: Writer, nest: Nest, group: Group | None) -> Iterator[None]:
    """All values of a group, unrolled; what is inside stands as it is without one."""
    if group is None:
        yield
        return
    with writer.block("loma::each<many_>([&](const int value_) LOMA_INLINE", ");"):
        writer.line(f"const int64_t {nest.axis(group.loop.name)} = group_ + value_;")
        yield


@contextmanager
def tiles(
    writer: Writer,
    element: str,
    bounds: Bounds,
    length: int | None = None,
    group: Group | None = None,
) -> Iterator[None]:
    """A loop over the tiles of a stretch, or of a row whose ``length`` the compiler knows."""
    many = "1" if group is None else "many_"
    head = "[&](auto vectors_, const int64_t tile_, const auto count_) LOMA_INLINE"
    if length is not None:
        start = f"loma::known_tiles<{element}, {many}, {length}>({head}"
    else:
        more = "" if group is None else f", {many}"
        start = f"loma::tiles<{element}{more}>({bounds[0]}, {bounds[1]}, {head}"
    with writer.block(start, ");"):
        yield


def write_update(
    writer: Writer,
    nest: Nest,
    axis: Axis,
    value: Expr,
    element: str,
    lanes: str,
    make: Callable[[], list[str]],
    bounds: Bounds | None = None,
    group: Group | None = None,
    then: Callable[[], list[str]] | None = None,
) -> None:
    """Each lane becomes what ``make`` says: lines that change ``sum_``, in terms of ``value``.

    Inside a tile, or with ``bounds`` for all tiles of this stretch, each followed by ``then``. All
    of a ``group`` are updated under one test of whether padded reads stay inside: only then they
    share what they load.
    """
    name = nest.axis(axis.name)
    frame = Frame(axis.name)
    nest.frames.append(frame)
    padded = nest.splittable(value)
    stretches: dict[tuple[str, ...], str] = {}
    for access in padded:
        tests = tuple(nest.tests(access, axis.name))
        stretches.setdefault(tests, f"inside{len(stretches) + 1}_")
    frame.variant = "inside" if padded else "plain"
    lines = make()
    body = frame.body + lines
    masked: list[str] = []
    if padded:
        frame.start_variant("masked")
        frame.masks = [(a, stretches[tuple(nest.tests(a, axis.name))]) for a in padded]
        lines = make()
        masked = frame.body + lines
    nest.frames.pop()

    def write(loop: list[str]) -> None:
        arguments = f"{lanes}, vectors_, tile_, count_"
        params = f"int lane_, int64_t {name}, {element} sum_"
        start = f"loma::update<{element}>({arguments}, [&]({params}) LOMA_INLINE"
        with each(writer, nest, group):
            if group is not None:
                writer.extend(frame.head)
            with writer.block(start, ");"):
                writer.extend([*loop, "return sum_;"])

    def inside() -> None:
        for tests, stretch in stretches.items():
            writer.line(f"loma::Stretch {stretch}(tile_, count_);")
            writer.extend([f"{stretch}.narrow({test});" for test in tests])
        if not padded:
            write(body)
            return
        with writer.block(f"if ({' && '.join(f'{s}.whole()' for s in stretches.values())})"):
            write(body)
        with writer.block("else"):
            write(masked)

    if bounds is None:
        if group is None:
            writer.extend(frame.head)
        inside()
        return
    guard = f"if ({bounds[0]} < {bounds[1]})" if frame.loads else ""
    with writer.block(guard):
        writer.extend(frame.head)
        with tiles(writer, element, bounds):
            inside()
            writer.extend(then() if then else [])


def write_reduction(
    writer: Writer,
    nest: Nest,
    kind: str,
    body: Expr,
    axes: Sequence[Axis],
    result: str,
    element: str,
    bounds: Bounds | None = None,
) -> None:
    """Reduces ``body`` over the axes, the last of them in lanes, to the constant ``result``."""
    type_ = INT if element == "int64_t" else FLOAT
    initial = INITIAL[kind].format(t=element)
    lanes = f"{result}in_"
    if kind in ("max", "min") and type_ == FLOAT:
        struct = f"Extreme<{element}>"
        place = (element, result)
        _write_extreme(writer, nest, struct, kind, body, axes, place, element, bounds=bounds)
        return
    writer.line(f"loma::Accumulators<{element}> {lanes}({initial});")

    def make() -> list[str]:
        return [update(kind, "sum_", nest.value(body, type_), element)]

    _write_over(writer, nest, body, axes, element, f"{lanes}.lanes", make, bounds=bounds)
    total = f"loma::total<{element}>({lanes}.lanes, {COMBINE[kind]})"
    writer.line(f"const {element} {result} = {total};")


def _write_over(
    writer: Writer,
    nest: Nest,
    body: Expr,
    axes: Sequence[Axis],
    element: str,
    lanes: str,
    make: Callable[[], list[str]],
    bounds: Bounds | None = None,
    then: Callable[[], list[str]] | None = None,
) -> None:
    """:func:`write_update` along the last axis, all of it unless ``bounds`` say less, in loops over
    the others."""
    inner = axes[-1]

    def inside() -> None:
        whole = bounds or ("0", strip(nest.ints(inner.extent)))
        write_update(writer, nest, inner, body, element, lanes, make, whole, then=then)

    nest.loops(writer, axes[:-1], inside)


def _write_extreme(
    writer: Writer,
    nest: Nest,
    struct: str,
    kind: str,
    body: Expr,
    axes: Sequence[Axis],
    result: tuple[str, str],
    element: str,
    start: str = "",
    bounds: Bounds | None = None,
) -> None:
    """``struct`` of runtime/tiles.h: the largest or smallest float, or its position in a row, as
    a constant; ``result`` is its type and name. ``start``: of a tile, where that matters."""
    found = f"{result[1]}in_"
    writer.line(f"loma::{struct} {found}({INITIAL[kind].format(t=element)});")
    taken = ", ".join(filter(None, ["vectors_", start, COMBINE[kind]]))

    def make() -> list[str]:
        return [f"sum_ = {strip(nest.value(body, FLOAT))};"]

    then = lambda: [f"{found}.take({taken});"]  # noqa: E731
    _write_over(writer, nest, body, axes, element, f"{found}.next", make, bounds, then)
    writer.line(f"const {result[0]} {result[1]} = {found}.all({COMBINE[kind]});")


def write_position(
    writer: Writer,
    nest: Nest,
    kind: str,
    body: Expr,
    axes: Sequence[Axis],
    result: str,
    element: str,
) -> None:
    """The position of an extreme element, the last of the axes in lanes, as a constant."""
    if len(axes) == 1 and element != "int64_t":
        # As many vectors as a row has, at two elements or more each.
        length = sizes.constant(axes[0].extent)
        number = "int64_t" if length is None or length >= 1 << 32 else "int32_t"
        struct, place = f"ExtremePosition<{element}, {number}>", ("int64_t", result)
        kind = kind.removeprefix("arg")
        _write_extreme(writer, nest, struct, kind, body, axes, place, element, "tile_")
        return
    type_ = INT if element == "int64_t" else FLOAT
    best, better = f"{result}in_", f"loma::{kind.capitalize()}Lanes()"
    worst = INITIAL[kind.removeprefix("arg")].format(t=element)
    writer.line(f"loma::Best<{element}, loma::kTile> {best}({worst});")

    def make() -> list[str]:
        return [f"sum_ = {strip(nest.value(body, type_))};"]

    def taken() -> list[str]:
        position = nest.position(axes, "tile_")
        return [f"{best}.take_row(vectors_, {position}, {better});"]

    _write_over(writer, nest, body, axes, element, f"{best}.next", make, then=taken)
    writer.line(f"const int64_t {result} = {best}.total({better});")


def write_lanes(
    writer: Writer,
    nest: Nest,
    axis: Axis,
    element: str,
    lanes: str,
    make: Callable[[], list[str]],
    group: Group | None = None,
) -> None:
    """Each lane becomes what ``make`` says, which reads nothing of the statement's value."""
    write_update(writer, nest, axis, IntConst(0), element, lanes, make, group=group)


def write_store(
    writer: Writer,
    nest: Nest,
    axis: Axis,
    element: str,
    lanes: str,
    place: Callable[[], str],
    stored: str | None = None,
) -> None:
    """The lanes go to the target; ``stored``: their type if it is not that of the tile."""
    frame = Frame(axis.name)
    nest.frames.append(frame)
    text = place()
    nest.frames.pop()
    writer.extend(frame.head)
    params = f"int64_t {nest.axis(axis.name)}, {stored or element} sum_"
    head = f"loma::store<{element}>({lanes}, vectors_, tile_, count_, [&]({params}) LOMA_INLINE"
    with writer.block(head, ");"):
        writer.line(f"{text} = sum_;")
