"""Index statements that are a convolution in one or two dimensions, as one call of the runtime.

Such a statement sums the product of two element reads. Of its three tensors one, the image, has
subscripts like ``2*h + p - 1`` in which an axis of the second tensor and one of the third meet;
all other subscripts are axes by themselves, and every two tensors share exactly one of them (batch,
channels, filters); all three may share one (groups). The image may be read, or be the target: that
is the adjoint of the first. Where an axis does not fill a dimension, as in ``x[n, C + c, h + p]``,
the statement is about a part of that tensor, or, under ``zero_pad``, one with zeros around it.
Where a condition keeps the reads of the image inside, what is outside does not count, not even
beside a factor that is not finite.
Without channels to sum over, a generated loop nest is faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from loma.backends.schedule.contraction import Factors
from loma.backends.schedule.host import (
    Allocate, Arranged, Convolve, Cut, HostNode, Meeting, Unit,
)  # fmt: skip
from loma.backends.schedule.ir import Parallel
from loma.core import sizes
from loma.core.bounds import is_never_negative, stays_inside, unsaid_of
from loma.core.ir import FLOAT, Axis, Expr, Index, IndexAssign, Var, ZeroPad

NONE = -1  # for a dimension that a tensor does not have


def match(
    target: Index, found: Factors, axes: tuple[Axis, ...], adds: bool, guard: Expr | None = None
) -> Convolve | None:
    """The statement as a convolution, or None where it is not one. ``adds``: whether an element
    that several steps write gets all that they say, not just what the last one does. Products
    count only where the ``guard`` holds."""
    accesses = [target, *found]
    reads = [access.read if isinstance(access, ZeroPad) else access for access in accesses]
    names = {axis.name: axis for axis in axes}
    roles = [_is_image(read, axes) for read in reads]
    if roles.count(True) != 1:
        return None
    image = roles.index(True)
    if image == 0 and not adds:
        return None
    # Where the image is read, the first of the other two tensors is the statement's target.
    first, second = [k for k in range(3) if k != image]
    if isinstance(accesses[first], ZeroPad) or isinstance(accesses[second], ZeroPad):
        return None
    if guard is not None and (image == 0 or not _keeps_inside(guard, reads[image], axes)):
        return None
    if guard is not None and not _is_inside(reads[second], axes):
        return None  # a call does not ask only where the condition holds
    padded = isinstance(accesses[image], ZeroPad)
    call = _match(reads[image], reads[first], reads[second], names, image == 0, padded)
    return call if call is None or guard is None else replace(call, inside=True)


def with_bias(first: HostNode, second: Sequence[HostNode], views: Iterable[str]) -> Unit | None:
    """A statement that fills a new tensor with a number for each filter, and a convolution that is
    added to it, as one call; None if they are not such. ``views``: tensors that are parts of some.
    """
    if not (isinstance(first, Unit) and len(second) == 1 and isinstance(second[0], Unit)):
        return None
    start, unit = first.source, second[0]
    *checks, call = unit.body or (None,)
    if not isinstance(call, Convolve) or call.assign or call.spreads or call.result.cuts:
        return None
    if not isinstance(start, IndexAssign) or start.op != "=" or first.more or unit.more:
        return None
    target, value, order = start.target, start.value, call.result.order
    if not isinstance(target, Index) or not isinstance(value, Index):
        return None
    names = [place.name for place in target.subscripts if isinstance(place, Var)]
    whole = len(names) == len(target.subscripts) and {*names} == {axis.name for axis in start.axes}
    if not whole or target.base != call.result.tensor or not isinstance(value.base, Var):
        return None
    own = [names[order[k]] for k in (0, 2) if order[k] >= 0]
    of_filters = [place.name for place in value.subscripts if isinstance(place, Var)] == own
    of_filters = of_filters and len(value.subscripts) == len(own) and value.type == FLOAT
    *memory, loop = first.body or (None,)
    new = [node for node in memory if isinstance(node, Allocate) and node.var == target.base]
    plain = isinstance(loop, Parallel) and len(memory) == len(new) == 1 and not new[0].unless
    if not (of_filters and plain) or {value.base.name, target.tensor.name} & {*views}:
        return None
    made = replace(call, assign=True, bias=value.base)
    rest = tuple(node for node in checks if node is not None)
    return replace(unit, body=(*rest, made), more=(start,))


def _match(
    image: Index, first: Index, second: Index, names: dict[str, Axis], spreads: bool, padded: bool
) -> Convolve | None:
    ours, theirs = _alone(first, names), _alone(second, names)
    if ours is None or theirs is None:
        return None
    alone: dict[str, int] = {}
    spatial: list[tuple[int, Meeting]] = []
    for position, subscript in enumerate(image.subscripts):
        name = _moved(subscript, names)
        if name is not None:
            if name in alone:
                return None
            alone[name] = position
            continue
        meeting = _meeting(subscript, tuple(names.values()), ours, theirs)
        if meeting is None:
            return None
        spatial.append((position, meeting))
    met = [name for _, meeting in spatial for name in (meeting.u, meeting.v)]
    batch = [name for name in alone if name in ours and name not in theirs]
    channels = [name for name in alone if name in theirs and name not in ours]
    groups = [name for name in alone if name in ours and name in theirs]
    filters = [name for name in ours if name in theirs and name not in alone]
    lone = [*groups, *batch, *channels, *filters]
    if len(groups) > 1 or len({*lone, *met}) != len(lone) + len(met) or len(spatial) > 2:
        return None
    if not (set(names) == {*lone, *met} and len(batch) == len(channels) == len(filters) == 1):
        return None
    missing = [NONE] * (2 - len(spatial))
    u, v = [ours[m.u] for _, m in spatial], [theirs[m.v] for _, m in spatial]
    places = [position for position, _ in spatial]

    def arranged(
        place: Index, own: dict[str, int], roles: list[str], space: list[int], padded: bool = False
    ) -> Arranged:
        group = own[groups[0]] if groups else NONE
        order = (group, *(own[name] for name in roles), *missing, *space)
        return Arranged(place.tensor, order, _cuts(place, own, names, padded))

    return Convolve(
        arranged(image, alone, [*batch, *channels], places, padded),
        arranged(first, ours, [*batch, *filters], u),
        arranged(second, theirs, [*filters, *channels], v),
        tuple(meeting for _, meeting in spatial),
        spreads,
    )


def _keeps_inside(guard: Expr, image: Index, axes: tuple[Axis, ...]) -> bool:
    """Whether a condition holds where the image has an element, and only there. It may speak of
    dimensions of space alone: the others have no border."""
    left = unsaid_of(image, guard)
    extents = {axis.name: axis.extent for axis in axes}
    known = lambda end: is_never_negative(end, extents, lambda name: False)  # noqa: E731
    return left is not None and all(map(known, left)) and _is_inside(image, axes, alone=True)


def _is_inside(read: Index, axes: tuple[Axis, ...], alone: bool = False) -> bool:
    """Whether subscripts other than an index by itself, which fills its dimension, are provably
    inside; with ``alone``, those that move with one axis."""
    names = {axis.name: axis for axis in axes}
    extents = {axis.name: axis.extent for axis in axes}
    return all(
        isinstance(subscript, Var)
        or (alone and _moved(subscript, names) is None)
        or stays_inside(subscript, dim, extents, lambda name: False)
        for subscript, dim in zip(read.subscripts, sizes.dims_of(read.tensor), strict=True)
    )


def _is_image(access: Index, axes: tuple[Axis, ...]) -> bool:
    forms = [sizes.affine(subscript, axes) for subscript in access.subscripts]
    return any(form is None or len(form[0]) != 1 for form in forms)


def _alone(access: Index, names: dict[str, Axis]) -> dict[str, int] | None:
    """The position of each axis, where every subscript moves with one of its own."""
    found: dict[str, int] = {}
    for position, subscript in enumerate(access.subscripts):
        name = _moved(subscript, names)
        if name is None or name in found:
            return None
        found[name] = position
    return found


def _moved(subscript: Expr, names: dict[str, Axis]) -> str | None:
    """The only axis of a subscript, which goes through neighbours in order."""
    form = sizes.affine(subscript, tuple(names.values()))
    if form is None or len(form[0]) != 1:
        return None
    ((name, step),) = form[0].items()
    return name if sizes.constant(step) == 1 else None


def _cuts(
    place: Index, own: dict[str, int], names: dict[str, Axis], padded: bool
) -> tuple[Cut, ...]:
    """What the axes that move alone leave of a tensor."""
    dims, found = sizes.dims_of(place.tensor), []
    for name, dim in own.items():
        form = sizes.affine(place.subscripts[dim], (names[name],))
        assert form is not None
        whole = sizes.constant(form[1]) == 0 and sizes.equal(names[name].extent, dims[dim])
        if not whole:
            found.append(Cut(dim, form[1], names[name].extent, padded))
    return tuple(found)


def _meeting(
    subscript: Expr, axes: tuple[Axis, ...], ours: dict[str, int], theirs: dict[str, int]
) -> Meeting | None:
    parts = sizes.affine(subscript, axes)
    if parts is None or len(parts[0]) != 2:
        return None
    u = [name for name in parts[0] if name in ours and name not in theirs]
    v = [name for name in parts[0] if name in theirs and name not in ours]
    if len(u) != 1 or len(v) != 1:
        return None
    step, tap = sizes.constant(parts[0][u[0]]), sizes.constant(parts[0][v[0]])
    if not step or not tap:
        return None
    return Meeting(u[0], v[0], step, tap, parts[1])
