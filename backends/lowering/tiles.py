"""Reductions in registers: what a loop over one axis adds to the lanes of a tile of vectors.

The lanes are elements of a row of the target, for each of which something is summed, or partial
results along the row, which are put together at the end. Reads that may leave their tensor take a
tile at its border lane by lane, under a mask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loma.backends.lowering.frames import Frame, may_throw
from loma.backends.lowering.nest import Bounds, Nest, own_pads, some
from loma.backends.lowering.registers import Group
from loma.backends.schedule.access import ZERO
from loma.backends.schedule.ir import (
    TILE, WHOLE, Compare, Each, Form, Groups, If, Kind, Lanes, Node, StoreLanes, Stretch, Test,
    Tiles, Total, UpdateLanes, builtin,
)  # fmt: skip
from loma.core import builder as b
from loma.core import sizes
from loma.core.ir import INT, POSITIONS, Axis, Element, Expr, Index, Reduce, Var
from loma.core.walk import free_variables, walk


def in_lanes(nest: Nest, body: Expr, axis: str = "") -> bool:
    """Whether lanes along an axis can take the values of an expression: none of them ends in an
    error, reads that may leave their tensor are affine, and what has loops of its own does not
    change along the axis, so that it is computed before. Not if the machine has no lanes."""
    if not nest.context.machine.lanes:
        return False
    own = set(nest.parts.get(axis, (axis,)))
    for node in walk(body):
        if isinstance(node, Reduce) and (not axis or own & free_variables(node)):
            return False
    if may_throw(body, nest.context.module):
        return False
    return all(not nest.access(pad.read, True).loose for pad in own_pads(body))


def groups(nest: Nest, group: Group | None, inside: Callable[[], list[Node]]) -> list[Node]:
    """A loop over the groups of values of a second axis; what is inside alone without one."""
    if group is None:
        return inside()
    axis = group.loop.axis
    low, high = nest.bounds.get(axis.name) or (ZERO, nest.value(axis.extent))
    return [Groups(low, high, group.many, group.rest, tuple(inside()))]


def each(group: Group | None, nodes: Sequence[Node]) -> list[Node]:
    """All values of a group, unrolled; what is inside stands as it is without one."""
    return list(nodes) if group is None else [Each(Var(group.loop.name, INT), tuple(nodes))]


def update(
    nest: Nest,
    axis: Axis,
    value: Expr,
    make: Callable[[], Node],
    bounds: Bounds | None = None,
    dtype: Element = "float",
    group: Group | None = None,
    then: Callable[[], list[Node]] = list,
) -> list[Node]:
    """Each lane takes what ``make`` gives, in terms of ``value``.

    Inside a tile, or with ``bounds`` for all tiles of this stretch, each followed by ``then``. All
    of a ``group`` are updated under one test of whether padded reads stay inside: only then they
    share what they load.
    """
    frame = Frame(axis.name)
    nest.frames.append(frame)
    padded = nest.splittable(value)
    stretches: dict[tuple[Test, ...], Var] = {}
    for access in padded:
        tests = tuple(nest.tests(access, axis.name))
        stretches.setdefault(tests, Var(f"@inside{len(stretches) + 1}_", INT))
    frame.variant = "inside" if padded else "plain"
    node = make()
    body = (*frame.body, node)
    masked: tuple[Node, ...] = ()
    if padded:
        frame.start_variant("masked")
        frame.masks = [(a, stretches[tuple(nest.tests(a, axis.name))]) for a in padded]
        node = make()
        masked = (*frame.body, node)
    nest.frames.pop()
    head = frame.head
    if group is not None:
        body, masked, head = (*head, *body), (*head, *masked), []
    inside = each(group, body)
    if padded:
        whole = [builtin(WHOLE, stretch) for stretch in stretches.values()]
        declared = [Stretch(stretch, tests) for tests, stretch in stretches.items()]
        inside = [*declared, If(b.every(whole), tuple(inside), tuple(each(group, masked)))]
    if bounds is None:
        return [*head, *inside]
    return some(frame, *bounds, (*head, Tiles(*bounds, dtype, (*inside, *then()))))


def reduction(
    nest: Nest,
    kind: Kind,
    body: Expr,
    axes: Sequence[Axis],
    result: Var,
    dtype: Element,
    bounds: Bounds | None = None,
    form: Form = "sum",
) -> list[Node]:
    """Reduces ``body`` over the axes, the last of them in lanes, to the constant ``result``."""
    if kind in ("max", "min") and dtype == "float":
        form = "best"
    lanes = Lanes(Var(f"{result.name}in_", result.type), kind, dtype, form)
    inner, counter = axes[-1], Var(axes[-1].name, INT)

    take = nest.operand if kind == "sum" else nest.value

    def make() -> Node:
        return UpdateLanes(lanes, counter, take(body), load=lanes.compares)

    def then() -> list[Node]:
        if not lanes.compares:
            return []
        return [Compare(lanes, nest.position(axes, Var(TILE, INT)) if kind in POSITIONS else None)]

    def inside() -> list[Node]:
        whole = bounds or (ZERO, nest.value(inner.extent))
        return update(nest, inner, body, make, whole, dtype, then=then)

    return [lanes, *nest.loops(axes[:-1], inside), Total(result, lanes)]


def position(
    nest: Nest, kind: Kind, body: Expr, axes: Sequence[Axis], result: Var, dtype: Element
) -> list[Node]:
    """The position of an extreme element, the last of the axes in lanes, as a constant."""
    form: Form = "joint"
    if len(axes) == 1 and dtype != "int":
        # As many vectors as a row has, at two elements or more each.
        length = sizes.constant(axes[0].extent)
        form = "wide" if length is None or length >= 1 << 32 else "narrow"
    return reduction(nest, kind, body, axes, result, dtype, form=form)


def load(nest: Nest, axis: Axis, lanes: Lanes, place: Index, group: Group | None) -> list[Node]:
    """Each lane becomes what its element holds."""
    counter = Var(axis.name, INT)
    make = lambda: UpdateLanes(lanes, counter, nest.place(place), load=True)  # noqa: E731
    return update(nest, axis, ZERO, make, group=group)


def store(nest: Nest, axis: Axis, lanes: Lanes, place: Index) -> list[Node]:
    """The lanes go to the target."""
    frame = Frame(axis.name)
    nest.frames.append(frame)
    found = nest.place(place)
    nest.frames.pop()
    return [*frame.head, StoreLanes(lanes, Var(axis.name, INT), found)]
