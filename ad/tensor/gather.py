"""The adjoint of a read that may leave its tensor: what it would scatter may fall outside."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from types import MappingProxyType

from loma.core import builder as b, sizes
from loma.core.axes import standalone
from loma.core.bounds import stays_inside
from loma.core.ir import (
    FLOAT, INT, Axis, Binary, Expr, Index, IntConst, Reduce, Select, TensorType, Unary, Var,
    ZeroPad, replace,
)  # fmt: skip
from loma.core.names import Names
from loma.core.sizes import IsSize
from loma.core.walk import free_variables, map_children, substitute, walk


def gather(
    place: Index,
    value: Expr,
    axes: tuple[Axis, ...],
    names: Names,
    is_size: IsSize = lambda name: False,
    fixed: bool = False,
    ranges: Mapping[str, Expr] = MappingProxyType({}),
) -> tuple[Index, Expr, tuple[Axis, ...]] | None:
    """``dX[h + p] += value`` as a statement over X's own index x, with ``h = x - p``: its target,
    value and axes.

    For each subscript one axis with coefficient 1 or -1 is solved for; what is read at it turns
    into a read inside ``zero_pad``, and the value counts only where the axis is inside its range.
    None when a subscript has no such axis. Those that surely stay inside with an axis of their own
    remain as they are; ``fixed``: subscripts without any axis are inside; ``ranges``: those of
    counters of loops around.
    """
    assert isinstance(place.base.type, TensorType)
    assert place.base.type.dims is not None
    extents = {axis.name: axis.extent for axis in axes}
    if any(free_variables(extent) & set(extents) for extent in extents.values()):
        return None
    dims = place.base.type.dims
    # axes that run over the whole dimension where they stand alone
    whole = {
        name
        for name, size, _ in standalone(value)
        if name in extents and sizes.equal(size, extents[name])
    }
    solved: dict[str, Expr] = {}
    subscripts: list[Expr] = []
    new_axes: list[Axis] = []
    is_dilated = False
    counts = [free_variables(s) for s in place.subscripts]
    stays = [
        (isinstance(s, Var) and (s.name not in extents or sizes.equal(extents[s.name], dim)))
        or (_is_alone(counts, k, extents) and stays_inside(s, dim, {**ranges, **extents}, is_size))
        for k, (s, dim) in enumerate(zip(place.subscripts, dims, strict=True))
    ]
    bare = {name for names, stay in zip(counts, stays, strict=True) if stay for name in names}
    for position, subscript in enumerate(place.subscripts):
        own = counts[position] & set(extents)
        if not own or stays[position]:
            subscripts.append(subscript)
            known = own or fixed
            if not known and not stays_inside(subscript, dims[position], {}, lambda name: False):
                return None
            continue
        form = sizes.affine(subscript, axes)
        if form is None:
            return None
        elsewhere = set().union(*(c for k, c in enumerate(counts) if k != position))
        complete = {name for name, e in extents.items() if sizes.equal(e, dims[position])}
        axis = _solvable(form[0], elsewhere | bare, complete, extents)
        if axis is None:
            return None
        is_dilated = is_dilated or any(sizes.constant(c) not in (1, -1) for c in form[0].values())
        own_index = Var(names.fresh(f"{axis}_x"), INT)
        sign = sizes.constant(form[0][axis])
        term = Binary("*", form[0][axis], Var(axis, INT), INT)
        rest = sizes.simplify(Binary("-", subscript, term, INT))
        solution: Expr = Binary("-", own_index, rest, INT)
        if sign == -1:
            solution = Unary("-", solution, INT)
        solved[axis] = sizes.simplify(solution)
        subscripts.append(own_index)
        new_axes.append(Axis(own_index.name, dims[position]))
    test: Expr | None = None
    for axis, solution in solved.items():
        test = both(test, between(solution, extents[axis]))
    moved = _moved(value, set(solved), solved)
    moved = _padded(moved, {a.name: a.extent for a in new_axes})
    vanishes = _vanishes(value, set(solved)) and not _looks_up(value, set(solved))
    if test is not None and not (vanishes and set(solved) <= whole):
        if is_dilated:  # a condition for each element costs more than scattering
            return None
        moved = b.select(test, moved, b.flt(0))
    kept = tuple(axis for axis in axes if axis.name not in solved)
    target = replace(place, subscripts=tuple(subscripts))
    return target, moved, (*new_axes, *kept)


def _moved(value: Expr, names: Collection[str], solved: Mapping[str, Expr]) -> Expr:
    """The value with what axes are in their place: what was read beside the place, as ``x[c + k]``
    of ``x[c + k] ** 2``, is read where that stands now."""
    match value:
        case Index(_, subscripts) if not free_variables(value).isdisjoint(names):
            moved = (_moved(s, names, solved) for s in subscripts)
            return replace(value, subscripts=tuple(map(sizes.simplify, moved)))
        case Reduce() | Var():
            return substitute(value, dict(solved))
        case _:
            return map_children(value, lambda child: _moved(child, names, solved))


def _is_alone(counts: list[frozenset[str]], position: int, axes: Collection[str]) -> bool:
    """Whether a subscript has one axis, which no other has."""
    own = counts[position] & set(axes)
    return len(own) == 1 and sum(not own.isdisjoint(count) for count in counts) == 1


def _solvable(
    coefficients: dict[str, Expr],
    excluded: set[str],
    complete: set[str],
    extents: Mapping[str, Expr],
) -> str | None:
    """An axis with coefficient 1 or -1 that no other subscript uses: the longest, for all others
    are gone through for each element. ``complete``: those that have as many values as the
    dimension."""
    units = [a for a, c in coefficients.items() if sizes.constant(c) in (1, -1)]
    units = [a for a in units if a not in excluded]
    if len(units) < len(coefficients) and len(coefficients) > 1:
        # The others run over their whole ranges for every element of the dimension. Of a dilation,
        # h + 2 * p, these are as many steps as without; of a stride, 2 * h + p, they would be more.
        units = [a for a in units if a in complete]
    lengths = {a: sizes.constant(extents[a]) for a in units}
    return max(units, key=lambda a: math.inf if (n := lengths[a]) is None else n, default=None)


def _vanishes(value: Expr, solved: set[str]) -> bool:
    """Whether the value is a product with a read at a solved axis as a factor: such a read is zero
    outside, so that no further test is needed."""
    match value:
        case Index(_, subscripts):
            return solved <= {s.name for s in subscripts if isinstance(s, Var)}
        case Binary("*", left, right):
            return (_vanishes(left, solved) and _is_plain(right)) or (
                _vanishes(right, solved) and _is_plain(left)
            )
        case Unary("-", operand):
            return _vanishes(operand, solved)
        case _:
            return False


def _is_plain(expr: Expr) -> bool:
    return all(isinstance(n, Index | ZeroPad | Var | Binary | Unary | IntConst) or (n.type == FLOAT
               and not isinstance(n, Select | Reduce)) for n in walk(expr)) and not any(
        isinstance(n, Binary) and n.op in ("/", "**") and n.type == FLOAT for n in walk(expr)
    )  # fmt: skip


def _looks_up(expr: Expr, axes: set[str]) -> bool:
    """Whether a subscript reads a tensor at one of these axes: outside of them it has no value."""
    return any(
        isinstance(inner, Index) and free_variables(inner) & axes
        for node in walk(expr)
        if isinstance(node, Index)
        for subscript in node.subscripts
        for inner in walk(subscript)
    )


def _padded(expr: Expr, moved: Mapping[str, Expr]) -> Expr:
    """Reads whose subscripts were substituted are put inside ``zero_pad``, but where an index runs
    over the dimension. Those that look their subscripts up are not: they stand under a
    condition."""
    match expr:
        case ZeroPad():
            return expr
        case Index(base, subscripts) if isinstance(base.type, TensorType) and any(
            free_variables(s) & set(moved)
            and not (isinstance(s, Var) and sizes.equal(moved[s.name], dim))
            for s, dim in zip(subscripts, base.type.dims or (), strict=True)
        ):
            return expr if _looks_up(expr, set(moved)) else ZeroPad(expr)
        case _:
            return map_children(expr, lambda child: _padded(child, moved))


def inside_tests(place: Index, axes: tuple[Axis, ...] = ()) -> list[Expr | None]:
    """For each subscript the condition that it is inside its dimension; None where it surely is."""
    extents = {axis.name: axis.extent for axis in axes}
    tests: list[Expr | None] = []
    for subscript, dim in zip(place.subscripts, sizes.dims_of(place.base), strict=True):
        if isinstance(subscript, Var) and sizes.equal(extents.get(subscript.name, subscript), dim):
            tests.append(None)
        else:
            tests.append(between(subscript, dim))
    return tests


def between(value: Expr, end: Expr) -> Expr:
    """The condition that a subscript is inside a dimension."""
    return b.binary("and", b.binary("<=", IntConst(0), value), b.binary("<", value, end))


def both(first: Expr | None, second: Expr | None) -> Expr | None:
    """The condition that both hold; None always holds."""
    if first is None or second is None:
        return second if first is None else first
    return b.binary("and", first, second)
