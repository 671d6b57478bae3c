"""Index statements that are a convolution in one or two dimensions, as one call of the runtime.

Such a statement sums the product of two element reads. Of its three tensors one, the image, has
subscripts like ``2*h + p - 1`` in which an axis of the second tensor and one of the third meet;
all other subscripts are axes by themselves, and every two tensors share exactly one of them (batch,
channels, filters); all three may share one (groups). The image may be read, or be the target: that
is the adjoint of the first.
Without channels to sum over, a generated loop nest is faster.
"""

from __future__ import annotations

from loma.backends.schedule.contraction import Factors, bare
from loma.backends.schedule.host import Arranged, Convolve, Meeting
from loma.core import sizes
from loma.core.axes import runs_over
from loma.core.ir import Axis, Expr, Index, Var, ZeroPad

NONE = -1  # for a dimension that a tensor does not have


def match(target: Index, found: Factors, axes: tuple[Axis, ...], adds: bool) -> Convolve | None:
    """The statement as a convolution, or None where it is not one. ``adds``: whether an element
    that several steps write gets all that they say, not just what the last one does."""
    accesses = [target, *found]
    reads = [access.read if isinstance(access, ZeroPad) else access for access in accesses]
    names = {axis.name: axis for axis in axes}
    roles = [_is_image(read, names) for read in reads]
    if roles.count(True) != 1:
        return None
    image = roles.index(True)
    if image == 0 and not adds:
        return None
    # Where the image is read, the first of the other two tensors is the statement's target.
    first, second = [k for k in range(3) if k != image]
    if isinstance(accesses[first], ZeroPad) or isinstance(accesses[second], ZeroPad):
        return None
    return _match(reads[image], reads[first], reads[second], names, image == 0)


def _match(
    image: Index, first: Index, second: Index, names: dict[str, Axis], spreads: bool
) -> Convolve | None:
    ours, theirs = bare(first, names), bare(second, names)
    if ours is None or theirs is None:
        return None
    dims = sizes.dims_of(image.tensor)
    alone: dict[str, int] = {}
    spatial: list[tuple[int, Meeting]] = []
    for position, subscript in enumerate(image.subscripts):
        if isinstance(subscript, Var):
            if subscript.name in alone or not runs_over(subscript, dims[position], names):
                return None
            alone[subscript.name] = position
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

    def arranged(place: Index, own: dict[str, int], roles: list[str], space: list[int]) -> Arranged:
        group = own[groups[0]] if groups else NONE
        return Arranged(place.tensor, (group, *(own[name] for name in roles), *missing, *space))

    return Convolve(
        arranged(image, alone, [*batch, *channels], places),
        arranged(first, ours, [*batch, *filters], u),
        arranged(second, theirs, [*filters, *channels], v),
        tuple(meeting for _, meeting in spatial),
        spreads,
    )


def _is_image(access: Index, names: dict[str, Axis]) -> bool:
    return any(not isinstance(s, Var) or s.name not in names for s in access.subscripts)


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
