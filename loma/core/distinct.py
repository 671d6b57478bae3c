"""Which indices a target tells apart: whether an index statement names each element once.

That is proved from the subscripts (``i*P + p``, ``(i + 1) % N``, ``i // P`` beside ``i % P``), or
checked when the statement runs (``p[i]``).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from loma.core import sizes
from loma.core.axes import runs_over, target_axes
from loma.core.ir import (
    INT, Axis, Binary, Expr, Index, IndexAssign, IntConst, Stmt, TensorType, Unary, Var, remembered,
    replace,
)  # fmt: skip
from loma.core.walk import free_variables, map_blocks, map_children, walk

ONE = IntConst(1)


def told_apart(subscripts: tuple[Expr, ...], axes: tuple[Axis, ...]) -> set[str]:
    """Axes whose values the subscripts determine: where these differ, so do the subscripts, for any
    values of the other axes.

    The element tells the subscripts, and a value that it tells may tell others: all terms of a sum
    in mixed radix, as in ``i*P + p`` with ``p`` below ``P``; what is below M from its remainder by
    M; what a quotient and a remainder by one divisor were made of.
    """
    names = {axis.name for axis in axes}
    told = {s.name for s in subscripts if isinstance(s, Var) and s.name in names}
    values: list[Expr] = [sizes.simplify(s) for s in subscripts if sizes.mentions(s, names - told)]
    done = 0
    while told < names and done < len(values):
        rest = tuple(axis for axis in axes if axis.name not in told)
        found = [*_terms(values[done], rest), *_joined(values, values[done])]
        done += 1
        before = len(told)
        told |= {v.name for v in found if isinstance(v, Var) and v.name in names}
        values += [v for v in found if not isinstance(v, Var) and v not in values]
        if len(told) > before:  # with fewer axes left, an earlier value may tell more
            done = 0
    return told


def _tells_all(subscripts: tuple[Expr, ...], axes: tuple[Axis, ...]) -> bool:
    return told_apart(subscripts, axes) >= {axis.name for axis in axes}


def _terms(value: Expr, axes: tuple[Axis, ...]) -> list[Expr]:
    """What a value tells of the terms that it is the sum of."""
    if isinstance(value, Binary) and value.op == "%":
        return _from_remainder(value.left, value.right, axes)
    found = _mixed_radix(value, axes)
    return [] if found is None else found[0]


def _from_remainder(value: Expr, divisor: Expr, axes: tuple[Axis, ...]) -> list[Expr]:
    """What the remainder of a value tells: the value, if no two of its values are so far apart."""
    found = _mixed_radix(value, axes)
    if found is not None and _at_least(divisor, found[1]):
        return found[0]
    parts = sizes.affine(value, axes)
    size = sizes.constant(divisor)
    if parts is None or size is None or len(parts[0]) != 1:
        return []
    ((name, coefficient),) = parts[0].items()
    step = sizes.constant(coefficient)
    extent = next(axis.extent for axis in axes if axis.name == name)
    once = step is not None and math.gcd(step, size) == 1 and _at_least(divisor, extent)
    return [Var(name, INT)] if once else []


def _mixed_radix(value: Expr, axes: tuple[Axis, ...]) -> tuple[list[Expr], Expr | None] | None:
    """The terms of a sum that its value determines, all of them, and how many values from the
    smallest to the largest there may be; None if that cannot be proved."""
    places: dict[str, Expr] = {axis.name: Var(axis.name, INT) for axis in axes}
    extents: dict[str, Expr | None] = {axis.name: axis.extent for axis in axes}
    value = _with_terms(value, set(extents), places)
    for name in places.keys() - extents.keys():
        extents[name] = _values_of(places[name], axes)
    parts = sizes.affine(value, tuple(Axis(name, ONE) for name in places))
    if parts is None:
        return None
    left = {name: _magnitude(coefficient) for name, coefficient in parts[0].items()}
    found = [places[name] for name in left]
    radix: Expr | None = ONE
    while left:
        excesses = {name: _excess(coefficient, radix) for name, coefficient in left.items()}
        fitting = [(e, name) for name, e in excesses.items() if e is not None and e >= 0]
        if radix is None or not fitting:
            return None
        _, name = min(fitting)
        extent, coefficient = extents[name], left.pop(name)
        if extent is None:
            radix = None
        else:
            last = Binary("-", extent, ONE, INT)
            radix = sizes.total((radix, Binary("*", coefficient, last, INT)))
    return found, radix


def _with_terms(value: Expr, names: set[str], places: dict[str, Expr]) -> Expr:
    """The value with a variable for each term that is not affine, which is noted in ``places``."""
    match value:
        case Binary("+" | "-" | "*") | Unary("-"):
            return map_children(value, lambda child: _with_terms(child, names, places))
        case Var() | IntConst():
            return value
        case _ if not sizes.mentions(value, names):
            return value
    known = next((name for name, term in places.items() if term == value), None)
    name = known or f"@{len(places)}"  # no variable of a program has such a name
    places[name] = value
    return Var(name, INT)


def _values_of(term: Expr, axes: tuple[Axis, ...]) -> Expr | None:
    """How many values a remainder by a positive number may have; None for other terms."""
    if not (isinstance(term, Binary) and term.op == "%"):
        return None
    size = sizes.constant(term.right)
    positive = size > 0 if size is not None else any(
        sizes.equal(axis.extent, term.right) for axis in axes
    )  # fmt: skip
    return term.right if positive else None


def _excess(size: Expr, other: Expr | None) -> int | None:
    """By how much one is larger, where that is known."""
    return None if other is None else sizes.constant(Binary("-", size, other, INT))


def _at_least(size: Expr, other: Expr | None) -> bool:
    excess = _excess(size, other)
    return excess is not None and excess >= 0


def _magnitude(coefficient: Expr) -> Expr:
    value = sizes.constant(coefficient)
    return coefficient if value is None else IntConst(abs(value))


def _joined(values: Sequence[Expr], one: Expr) -> list[Expr]:
    """What a remainder tells together with other values: beside the quotient the number itself, and
    beside the remainder of the quotient that by both divisors."""
    found: list[Expr] = []
    remainders = [v for v in values if isinstance(v, Binary) and v.op == "%"]
    for remainder in remainders:
        number, divisor = sizes.simplify(remainder.left), remainder.right
        quotient = Binary("//", number, divisor, INT)
        if any(sizes.equal(v, quotient) for v in values if one is v or one is remainder):
            found.append(number)
        for other in remainders:
            if (one is other or one is remainder) and sizes.equal(other.left, quotient):
                both = sizes.product((divisor, other.right))
                found.append(Binary("%", number, both, INT))
    return found


def never_meet(
    first: Index, second: Index, axes: tuple[Axis, ...],
    others: tuple[Axis, ...] | None = None, moving: Collection[str] = (),
) -> bool:  # fmt: skip
    """Whether two places in a tensor, the first one at any point of the axes and the second one at
    any of the ``others``, by default of the same, are never one: a subscript goes in equal steps,
    between which that of the other one lies, as in ``x[2 * i]`` and ``x[2 * i + 1]``. ``moving``:
    variables that need not have one value."""
    for one, two in zip(first.subscripts, second.subscripts, strict=True):
        forms = sizes.affine(one, axes), sizes.affine(two, axes if others is None else others)
        if forms[0] is None or forms[1] is None:
            continue
        (steps, begin), (more, end) = forms[0], forms[1]
        off = sizes.constant(sizes.arith("-", begin, end))
        numbers = [sizes.constant(step) for step in (*steps.values(), *more.values())]
        if off is None or None in numbers:
            continue
        if not (sizes.keeps_value(begin, moving) and sizes.keeps_value(end, moving)):
            continue
        gap = math.gcd(*(number or 0 for number in numbers))
        if off % gap if gap else off:
            return True
    return False


def fills(place: Index, axes: tuple[Axis, ...]) -> bool:
    """Whether each element of a tensor is the place for one point of the axes: different points
    have different places, and there are as many as elements. No place is outside the tensor."""
    assert isinstance(place.base.type, TensorType)
    own = free_variables(place)
    kept = tuple(axis for axis in axes if axis.name in own)
    dims = place.base.type.dims
    if dims is None or not _tells_all(place.subscripts, kept):
        return False
    points = sizes.product(tuple(sizes.uncounted(axis.extent) for axis in kept))
    return sizes.equal(points, sizes.product(tuple(map(sizes.uncounted, dims)))) is True


def fill_together(statements: Sequence[Stmt], name: str) -> int:
    """How many of the first statements it takes until each element of a tensor was named once: they
    cut one dimension into parts, in any order, and name all of the others. 0 if they do not, or one
    of them reads the tensor."""
    parts: list[tuple[Expr, Expr]] = []  # where one begins, and how long it is
    cut: Expr | None = None
    for count, stmt in enumerate(statements, 1):
        part = _part(stmt, name)
        if part is None:
            return 0
        dim, size, first, length = part
        if cut is not None and dim != cut:
            return 0
        cut = dim
        parts.append((first, length))
        if _make_up(parts, size):
            return count
    return 0


def _make_up(parts: Sequence[tuple[Expr, Expr]], size: Expr) -> bool:
    """Whether parts, put in a row, go from 0 to a size."""
    left = list(parts)
    filled: Expr = IntConst(0)
    while left:
        behind = next((part for part in left if sizes.equal(part[0], filled) is True), None)
        if behind is None:
            return False
        left.remove(behind)
        filled = Binary("+", filled, behind[1], INT)
    return sizes.equal(filled, size) is True


def _part(stmt: Stmt, name: str) -> tuple[Expr, Expr, Expr, Expr] | None:
    """The dimension of a tensor that a statement names a part of, its size, where the part begins,
    and how long it is."""
    if not isinstance(stmt, IndexAssign) or not isinstance(stmt.target, Index):
        return None
    target, axes = stmt.target, {axis.name: axis for axis in stmt.axes}
    dims = target.base.type.dims if isinstance(target.base.type, TensorType) else None
    used = [n for s in target.subscripts for n in free_variables(s) if n in axes]
    reads = name in free_variables(stmt.value) or stmt.op not in ("=", "+=")
    if target.base != target.tensor or target.tensor.name != name or dims is None or reads:
        return None
    if len(used) != len(set(used)) or set(used) != set(axes) or len(axes) != len(dims):
        return None
    found: list[tuple[Expr, Expr, Expr, Expr]] = []
    for k, (subscript, dim) in enumerate(zip(target.subscripts, dims, strict=True)):
        if runs_over(subscript, dim, axes):
            continue
        parts = sizes.affine(subscript, stmt.axes)
        if parts is None or [sizes.constant(c) for c in parts[0].values()] != [1]:
            return None
        found.append((IntConst(k), dim, parts[1], axes[next(iter(parts[0]))].extent))
    return found[0] if len(found) == 1 else None


def surely_repeats(subscripts: tuple[Expr, ...], axes: tuple[Axis, ...]) -> bool:
    """Whether some element is named twice whenever two of these axes have more than one value: an
    axis that moves no subscript, two that move each other's, as in ``i + j``."""
    moves: list[tuple[int, ...]] = []
    for axis in axes:
        steps = [_step(sizes.simplify(s), axis) for s in subscripts]
        known = tuple(step for step in steps if step is not None)
        if len(known) == len(steps):
            moves.append(known)
    back = [tuple(-step for step in move) for move in moves]
    return any(
        not any(move) or move in moves[:k] or move in back[:k] for k, move in enumerate(moves)
    )


def _step(subscript: Expr, axis: Axis) -> int | None:
    """By how much a subscript grows with an axis, where that is the same everywhere."""
    parts = sizes.affine(subscript, (axis,))
    return None if parts is None else sizes.constant(parts[0].get(axis.name, IntConst(0)))


@dataclass(frozen=True, slots=True)
class Part:
    """Dimensions of a target whose subscripts depend on these axes, while others do not."""

    dims: tuple[int, ...]
    axes: tuple[Axis, ...]


@remembered
def unproved(stmt: IndexAssign) -> tuple[Part, ...]:
    """Of what an assignment has to check, when it runs, that it names each element once.

    Nothing where the right side is a number, as in ``y[p[i]] = 0.0``.
    """
    target = stmt.target
    if stmt.op != "=" or stmt.distinct or not isinstance(target, Index) or is_constant(stmt.value):
        return ()
    axes, subscripts = target_axes(stmt), target.subscripts
    if _tells_all(subscripts, axes):
        return ()
    return tuple(
        part
        for part in _parts(subscripts, axes)
        if not _tells_all(tuple(subscripts[d] for d in part.dims), part.axes)
    )


def checked_elsewhere(stmt: Stmt) -> Stmt:
    """The statement, with its blocks, without checks: others check the places it assigns to."""
    if isinstance(stmt, IndexAssign):
        return replace(stmt, distinct=True) if unproved(stmt) else stmt
    return map_blocks(stmt, lambda body: tuple(map(checked_elsewhere, body)))


@remembered
def names_once(stmt: IndexAssign) -> bool:
    """Whether no two points of the target's axes name one element: by proof, or by a check."""
    target = stmt.target
    if stmt.distinct or not isinstance(target, Index):
        return True
    if stmt.op == "=" and not is_constant(stmt.value):
        return True
    return _tells_all(target.subscripts, target_axes(stmt))


def is_constant(value: Expr) -> bool:
    """Whether a right side is a number: it may be assigned to an element more than once."""
    return not any(isinstance(node, Var) for node in walk(value))


def _parts(subscripts: tuple[Expr, ...], axes: tuple[Axis, ...]) -> list[Part]:
    """Dimensions and axes that hang together: points name other elements if those of parts do."""
    found: list[Part] = []
    for dim, subscript in enumerate(subscripts):
        own = tuple(axis for axis in axes if sizes.mentions(subscript, {axis.name}))
        if not own:
            continue
        met = [part for part in found if set(part.axes) & set(own)]
        found = [part for part in found if part not in met]
        dims = sorted({dim, *(d for part in met for d in part.dims)})
        names = {axis.name for part in met for axis in part.axes} | {axis.name for axis in own}
        found.append(Part(tuple(dims), tuple(axis for axis in axes if axis.name in names)))
    return found
