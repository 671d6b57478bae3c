"""How an index statement runs: which axes are parallel, and which one is the innermost loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from loma.backends.lowering import kept, registers, squares, tiles
from loma.backends.lowering.nest import Nest
from loma.backends.lowering.registers import Group
from loma.backends.schedule.access import Access, Loop, analyse, joined_name, merge, reads, score
from loma.backends.schedule.choices import steps_in
from loma.backends.schedule.ir import Kind
from loma.core import sizes
from loma.core.distinct import names_once, told_apart
from loma.core.ir import (
    INT, POSITIONS, Axis, Binary, Builtin, Expr, Index, IndexAssign, IntConst, Reduce, Var,
)  # fmt: skip
from loma.core.walk import (
    free_variables, reads_elements, subscript_variables, used_as_value, walk,
)  # fmt: skip


_OFFERED = 4  # axes for the innermost loop, which may be tried


@dataclass(slots=True)
class Plan:
    """How a statement runs: parallel loops, other loops around the innermost, the innermost.

    ``by_rows``: the innermost axis belongs to the target. ``kind``: the reduction over ``summed``.
    ``group``: several values of one more axis of the target run together, inside ``around``.
    ``square``: the axis, of which a strip runs inside them, along which something lies that is read
    across the rows. ``keeps``: the axis that runs around the row, inside of strips of it, for
    which values are kept that it does not change; ``scattered``: the row, where the places that
    are written do not lie in order.
    """

    stmt: IndexAssign
    value: Expr
    kind: Kind
    assign: bool
    parallel: list[Loop]
    around: list[Loop]
    summed: list[Loop]
    inner: Loop | None
    by_rows: bool
    group: Group | None = None
    square: Loop | None = None
    keeps: Loop | None = None
    scattered: Loop | None = None

    @property
    def target(self) -> Index:
        """What it writes, if that is no variable."""
        return self.stmt.element

    @property
    def row(self) -> Axis:
        """The innermost axis, of a plan by rows."""
        assert self.inner is not None
        return self.inner.axis


def target_axes(stmt: IndexAssign) -> frozenset[str]:
    if isinstance(stmt.target, Var):
        return frozenset()
    return subscript_variables(stmt.target) & {axis.name for axis in stmt.axes}


def own_elements(stmt: IndexAssign) -> set[str]:
    """Axes of the target of which different values write different elements, whatever the others
    are: those that stand alone in a subscript, or like i and p in ``i*P + p``; all of them where
    that has been checked."""
    own = target_axes(stmt)
    if names_once(stmt):
        return set(own)
    axes = tuple(axis for axis in stmt.axes if axis.name in own)
    return told_apart(stmt.element.subscripts, axes)


def reads_target(target: Index, body: Expr) -> bool:
    return any(isinstance(n, Index) and n.base == target.base for n in walk(body))


def make_plan(
    nest: Nest,
    stmt: IndexAssign,
    kind: Kind,
    body: Expr,
    axes: tuple[Axis, ...],
    assign: bool,
    beside: tuple[Index, ...],
) -> Plan:
    """``beside``: what other statements read, which have the same loops unless axes are merged that
    they need apart."""
    loops, found, target = merged_loops(nest, stmt, kind, body, axes, beside)
    inner = _innermost(nest, loops, found, target, kind, stmt, body, assign)
    rest = [loop for loop in loops if loop is not inner]
    parallel = [loop for loop in rest if loop.alone]
    others = [loop for loop in rest if not loop.alone]
    by_rows = inner is not None and inner.target
    square: Loop | None = None
    scattered = others[0] if inner is None and target is not None and len(others) == 1 else None
    whole_rows = by_rows and inner is not None and inner.alone and kind not in POSITIONS
    row = inner if whole_rows else scattered
    keeps = None if row is None else kept.choose(nest, loops, row, found)
    if keeps is not None and scattered is not None:
        # Threads have a few values of it each, and go through the whole row.
        few = _cut(nest, keeps, IntConst(nest.context.machine.group))
        parallel = [few if loop is keeps else loop for loop in parallel]
        others = [_cut(nest, scattered, IntConst(nest.context.machine.strip))]
    elif keeps is not None and inner is not None:
        parallel, others = ([o for o in each if o is not keeps] for each in (parallel, others))
        parallel.insert(1, _cut(nest, inner, IntConst(nest.context.machine.strip)))
    elif by_rows and inner is not None:
        if not others:
            square = squares.choose(nest, parallel, inner, body)
        if square is not None:
            size = IntConst(nest.context.machine.square)
            rest = [loop for loop in parallel if loop is not square]
            parallel = [*rest, _cut(nest, inner, size), _cut(nest, square, size)]
        elif not others and _is_across(parallel, inner, found):
            parallel = [_cut(nest, inner, IntConst(nest.context.machine.across)), *parallel]
        else:
            parallel = _in_strips(nest, parallel, inner, found)
    group = None
    whole = not any(loop.target for loop in others) and target is not None and not target.loose
    whole = whole and kind not in POSITIONS and keeps is None
    if by_rows and inner is not None and whole and tiles.in_lanes(nest, body):
        group = registers.choose(nest, parallel, others, inner.axis)
    if group is not None:
        parallel = _in_groups(nest, parallel, group)
    return Plan(
        stmt, body, kind, assign, parallel[:2], parallel[2:],
        others, inner, by_rows, group, square, keeps, scattered if keeps else None,
    )  # fmt: skip


def merged_loops(
    nest: Nest,
    stmt: IndexAssign,
    kind: Kind,
    body: Expr,
    axes: tuple[Axis, ...],
    beside: tuple[Index, ...],
) -> tuple[list[Loop], list[Access], Access | None]:
    """The loops of a statement, those of the target first, with axes merged that every access walks
    through as one; what is accessed, and the target among it."""
    for root in (stmt.target, body):
        for read, scope, padded in reads(root, axes):
            nest.accesses.setdefault((read, padded), analyse(nest.context, read, scope, padded))
    own = target_axes(stmt)
    alone: set[str] = set()
    target: Access | None = None
    if isinstance(stmt.target, Index):
        alone = own_elements(stmt)
        target = nest.access(stmt.target, False)
        nest.writable.add(stmt.target.tensor.name)
    found = list(nest.accesses.values())
    keep = used_as_value(body) | {
        name
        for node in walk(body)
        if isinstance(node, Reduce)
        for axis in node.axes
        for name in used_as_value(axis.extent)
    }
    for axis in axes:
        # What data say of an axis is looked at where the index stands that tells it.
        data = reads_elements(axis.extent)
        keep |= free_variables(axis.extent) if data else set(used_as_value(axis.extent))
    if kind in POSITIONS:
        keep |= {axis.name for axis in axes[len(stmt.axes) :]}
    loops = [Loop(axis, axis.name in own, axis.name in alone, (axis.name,)) for axis in axes]
    if kind == "sum":
        loops = _as_in_memory(loops, found)
    loops.sort(key=lambda loop: (not loop.target, not loop.alone))
    theirs = [analyse(nest.context, read, axes, False) for read in beside]
    loops = merge(loops, [*found, *theirs], keep)
    nest.parts = {loop.name: loop.parts for loop in loops}
    nest.scope[:] = [loop.axis for loop in loops]
    return loops, found, target


def _as_in_memory(loops: list[Loop], found: list[Access]) -> list[Loop]:
    """With summed axes in the order of the dimensions of the first tensor that has all of them, in
    whatever order they are written."""
    summed = {loop.name for loop in loops if not loop.target}
    if any(sizes.mentions(loop.axis.extent, summed) for loop in loops):
        return loops
    for access in found:
        if summed <= access.coefficients.keys():
            parts = [s.parts[0] if s.parts is not None else {} for s in access.subscripts]
            place = {name: k for k, own in enumerate(parts) for name in own}
            return sorted(loops, key=lambda loop: place[loop.name] if not loop.target else -1)
    return loops


def _in_groups(nest: Nest, loops: list[Loop], group: Group) -> list[Loop]:
    """The loops around a tile that holds several values of an axis; of one that would run in
    parallel, the groups do."""
    position, axis = loops.index(group.loop), group.loop.axis
    rest = [loop for loop in loops if loop is not group.loop]
    if position >= 2 or axis.name in nest.bounds:
        return rest
    groups = _cut(nest, group.loop, IntConst(group.many), "groups")
    return [*rest[:position], groups, *rest[position:]]


def _in_strips(nest: Nest, loops: list[Loop], row: Loop, found: list[Access]) -> list[Loop]:
    """The order of the loops around the rows of the target.

    An axis that only some of the tensors have goes inside those that all have, so that what does
    not depend on it is read from memory once. In ``Z[b, c, h, w] += X[b, c, h+p, w+q] *
    K[p, q, b, h, w]`` that is c. Of the last axis that all have, here h, a strip of a few rows
    stays inside: short rows follow each other in memory.
    """
    names = {loop.name for loop in (*loops, row)}
    if any(sizes.mentions(loop.axis.extent, names) for loop in (*loops, row)):
        return loops

    def users(loop: Loop) -> int:
        depends = (a.is_loose_in(loop.name) or loop.name in a.coefficients for a in found)
        return sum(depends)

    counts = [users(loop) for loop in loops]
    most = max(counts, default=0)
    shared = [k for k, count in enumerate(counts) if count == most]
    if not shared or shared == list(range(len(shared))):
        return loops
    last = shared[-1]
    inside = [loop for k, loop in enumerate(loops) if k not in shared[:-1]]
    row_length = [loop.axis.extent for loop in (*loops[last + 1 :], row)]
    row_size = _at_least_one(sizes.product(tuple(row_length)))
    usual = nest.context.machine.strip
    work = steps_in([loop.axis.extent for loop in (*loops, row)])
    options = (usual, usual // 4, usual * 4, usual * 16)
    strip = nest.context.choose("strip", row.name, options, work)
    length = _at_least_one(Binary("//", IntConst(strip), row_size, INT))
    strips = _cut(nest, loops[last], length)
    return [*(loops[k] for k in shared[:-1]), strips, *inside]


def _is_across(loops: list[Loop], row: Loop, found: list[Access]) -> bool:
    """Whether a tensor lies along another axis than the row, as in ``y[j, i] = x[i, j]``: a line of
    memory that is read for one row is then needed again for the next ones."""
    return any(
        sizes.constant(access.coefficient(row.name)) not in (0, 1)
        and any(sizes.constant(access.coefficient(loop.name)) == 1 for loop in loops)
        for access in found
    ) and not any(sizes.mentions(row.axis.extent, {loop.name}) for loop in loops)


def _cut(nest: Nest, loop: Loop, length: Expr, pieces: str = "strips") -> Loop:
    """A loop over strips of an axis, whose own loop will run through the strip only."""
    axis = loop.axis
    above = Binary("+", axis.extent, Binary("-", length, IntConst(1), INT), INT)
    extent = sizes.simplify(Binary("//", above, length, INT))
    strips = Axis(joined_name((*loop.parts, "in", pieces)), extent)
    nest.parts[strips.name] = (*loop.parts, "in", pieces)
    number = Var(strips.name, INT)
    behind = Binary("*", Binary("+", number, IntConst(1), INT), length, INT)
    end = Builtin("min", (axis.extent, behind), INT)
    nest.bounds[axis.name] = (Binary("*", number, length, INT), end)
    return Loop(strips, True, True, loop.parts, axis.name)


def _at_least_one(expr: Expr) -> Expr:
    known = sizes.constant(expr)
    if known is not None:
        return IntConst(max(1, known))
    return Builtin("max", (IntConst(1), expr), INT)


def _innermost(
    nest: Nest,
    loops: list[Loop],
    found: list[Access],
    target: Access | None,
    kind: str,
    stmt: IndexAssign,
    body: Expr,
    assign: bool,
) -> Loop | None:
    """The axis of the innermost loop; rows of the target are preferred where both are as good."""
    if target is None:
        return max(reversed(loops), key=lambda loop: score(loop.name, found)) if loops else None
    summed = [loop for loop in loops if not loop.target]
    rows = [
        loop
        for loop in loops
        if loop.target
        and not target.is_loose_in(loop.name)
        and (loop.alone or (sizes.constant(target.coefficient(loop.name)) or 0) != 0)
    ]
    # Elements of a tile or a vector run through the same steps.
    extents = [loop.axis.extent for loop in loops]
    rows = [row for row in rows if not any(sizes.mentions(e, {*row.parts}) for e in extents)]
    scattered = any(loop.target and not loop.alone for loop in loops)
    if kind in POSITIONS:
        refused = scattered or target.loose or not tiles.in_lanes(nest, body)
    else:
        refused = bool(summed) and (reads_target(stmt.element, body) or (scattered and assign))
    # Where the target's place is computed for each element, a row that everything else is read
    # across has nothing for it: elements in the order in which they are read are better.
    computed = [loop for loop in loops if loop.target and loop not in rows]

    def value(loop: Loop) -> int:
        return kept.score_of(nest, loops, loop, found)

    best = max(map(value, rows), default=0)
    if refused or any(value(loop) > best for loop in computed):
        rows = []

    def total(loop: Loop) -> int:
        return score(loop.name, found)

    usual = _better(_best(rows, value), _best(summed, total), value, total)
    if usual is None:
        return None
    ordered = [*sorted(rows, key=value, reverse=True), *sorted(summed, key=total, reverse=True)]
    named = {loop.name: loop for loop in ordered[:_OFFERED]} | {usual.name: usual}
    options = (usual.name, *named)
    work = steps_in(extents)
    return named[nest.context.choose("innermost", stmt.element.tensor.name, options, work)]


def _better(
    row: Loop | None, other: Loop | None, value: Callable[[Loop], int], total: Callable[[Loop], int]
) -> Loop | None:
    """The best of the target's axes, or the best of those that are summed over."""
    if row is None or other is None:
        return row or other
    if value(row) == total(other) and _is_longer(other.axis, row.axis):
        return other
    return row if value(row) >= total(other) else other


def _best(loops: list[Loop], value: Callable[[Loop], int]) -> Loop | None:
    """The axis that most accesses walk in order; of equals the longer one, or else the last."""
    best: Loop | None = None
    for loop in reversed(loops):
        more = 0 if best is None else value(loop) - value(best)
        if best is None or more > 0 or (more == 0 and _is_longer(loop.axis, best.axis)):
            best = loop
    return best


def _is_longer(axis: Axis, other: Axis) -> bool:
    """Whether the sizes tell that the axis is the longer one, as W - Q + 1 is beside a window Q."""
    a, b = sizes.constant(axis.extent), sizes.constant(other.extent)
    if a is not None and b is not None:
        return a > b
    atoms = {atom for monomial in sizes.polynomial(other.extent) for atom in monomial}
    names = {atom.name for atom in atoms if isinstance(atom, Var)}
    plain = isinstance(axis.extent, Var | IntConst)
    return not plain and sizes.mentions(axis.extent, names)
