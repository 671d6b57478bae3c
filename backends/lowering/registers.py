"""Register tiling: a second axis of the target whose sums share a tile's loads.

A tile of ``Z[.., v] = sum(...)`` has an accumulator for each vector along the row axis ``v``, and
each summed step loads every operand anew. Where an operand lacks another axis ``q`` of the target,
a few values of ``q`` in one tile load it once: in ``U[b, i, r, o] += W[i, r, k, o] * X[b, r, k]``
four rows of different ``b`` share each vector of W.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loma import config
from loma.backends.lowering.nest import Nest
from loma.backends.schedule.access import Access, Loop
from loma.backends.schedule.choices import steps_in
from loma.backends.schedule.target import Target
from loma.core import sizes
from loma.core.ir import Axis


_COUNTS = (2, 3, 4, 6, 8, 12, 16)  # of values in a tile, which may be tried
_OFFERED = 6


@dataclass(frozen=True, slots=True)
class Group:
    """``many`` values of an axis of the target in one tile. ``rest``: how many the last tile has
    that is not full, None where the size does not tell."""

    loop: Loop
    many: int
    rest: int | None


def choose(nest: Nest, loops: Sequence[Loop], summed: Sequence[Loop], row: Axis) -> Group | None:
    """The axis, of the loops around the rows, that saves most loads per step of arithmetic.

    Only for rows of known length, which need few kinds of tiles: each kind is code of its own, and
    kernels for sizes that are not known are soon followed by those for the sizes that are seen. Of
    equals one along which an operand lies is best, then the outermost: what lacks it is read
    anew from the farthest.
    """
    operands = [a for a in nest.accesses.values() if a.base.name not in nest.writable]
    machine = nest.context.machine
    extents = [loop.axis.extent for loop in (*loops, *summed)] + [row.extent]
    if "registers" not in config.optimisations():
        return None
    if not summed or any(access.loose for access in operands):
        return None
    length = sizes.constant(row.extent)
    if length is None:
        return None
    vectors = max(1, min(machine.tile, -(-length // machine.lanes)))
    alone = _loads(machine, operands, row.name, "", vectors, 1)
    limit = (machine.gain * alone, False)
    best, least, found = None, limit, list[tuple[tuple[float, bool], Group]]()
    for loop in loops:
        having = [access for access in operands if loop.name in access.coefficients]
        ragged = any(sizes.mentions(extent, {loop.name}) for extent in extents)
        if not loop.alone or ragged or len(having) in (0, len(operands)):
            continue
        if any(_may_leave(nest, access, loop) for access in operands):
            continue
        in_order = any(sizes.constant(access.coefficient(loop.name)) == 1 for access in having)
        for k, group in enumerate(_groups(machine, loop, vectors, loop.name in nest.bounds)):
            loads = _loads(machine, operands, row.name, loop.name, vectors, group.many)
            cost = (loads, not in_order)
            found.append((cost, group))
            if k == 0 and cost < least:
                best, least = group, cost
    return _chosen(nest, loops, summed, row, best, sorted(found, key=lambda pair: pair[0]))


def _chosen(
    nest: Nest,
    loops: Sequence[Loop],
    summed: Sequence[Loop],
    row: Axis,
    usual: Group | None,
    found: Sequence[tuple[tuple[float, bool], Group]],
) -> Group | None:
    """The usual group, or another one, those with the fewest loads first, or none."""
    named = {f"{group.many} of {group.loop.name}": group for _, group in found}
    first = "none" if usual is None else f"{usual.many} of {usual.loop.name}"
    options = (first, *list(named)[:_OFFERED], "none")
    work = steps_in([row.extent, *(loop.axis.extent for loop in (*loops, *summed))])
    return named.get(nest.context.choose("registers", row.name, options, work))


def _may_leave(nest: Nest, access: Access, loop: Loop) -> bool:
    """Whether it depends on the axis which part of a row a padded read finds in its tensor."""
    if not access.padded:
        return False
    return any(sizes.mentions(s.expr, set(loop.parts)) for s in nest.may_leave(access))


def _groups(machine: Target, loop: Loop, vectors: int, is_cut: bool) -> list[Group]:
    """The usual group of values of a loop first, where that is more than one."""
    usual = _group(machine, loop, vectors, is_cut)
    if usual.many < 2:
        return []
    size = None if is_cut else sizes.constant(loop.axis.extent)
    others = (many for many in _COUNTS if many <= machine.accumulators // vectors)
    others = (many for many in others if many != usual.many and (size is None or many <= size))
    return [usual, *(Group(loop, k, None if size is None else size % k) for k in others)]


def _group(machine: Target, loop: Loop, vectors: int, is_cut: bool) -> Group:
    """Short rows leave accumulators for more values; a number that divides the size is best."""
    size = None if is_cut else sizes.constant(loop.axis.extent)
    usual = min(machine.group, machine.accumulators // vectors)
    if size is None:
        return Group(loop, machine.group if vectors == 1 else machine.group // 2, None)
    for many in range(usual, 2, -1):
        if size % many == 0:
            return Group(loop, many, 0)
    many = max(size, 1) if size <= machine.group else usual
    return Group(loop, many, size % many)


def _loads(
    machine: Target, operands: Sequence[Access], row: str, other: str, vectors: int, many: int
) -> float:
    """Loads for each vector of arithmetic in a tile."""
    width = max(1, min(vectors, machine.accumulators // many))
    each = (
        (width if row in access.coefficients else 1) * (many if other in access.coefficients else 1)
        for access in operands
    )
    return sum(each) / (width * many)
