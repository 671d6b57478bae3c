"""The adjoint of an index statement is index statements.

``T[l] += e`` with adjoint ``g = dT[l]`` gives, for every read ``X[s]`` in ``e``,

    dX[s] += g * (partial derivative of e with respect to that read)

summed over the indices that ``s`` does not have. After ``T[l] = e`` the old values of ``T`` are
gone, so ``dT`` is set to zero there. A read inside ``zero_pad`` is turned around into a gather over
the tensor's own index, because what it would scatter may fall outside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from loma import builder as b
from loma import sizes
from loma.axes import index_statement, standalone
from loma.ad.expressions import Contribution, PartialName, contributions
from loma.ir import (
    FLOAT, INT, Axis, Binary, Expr, Index, IndexAssign, IntConst, Reduce, ReduceKind, Select, Stmt,
    TensorType, Unary, Var, Zero, ZeroPad,
)  # fmt: skip
from loma.names import Names
from loma.passes.liveness import covers
from loma.walk import free_variables, map_children, substitute, walk


@dataclass(frozen=True, slots=True)
class Adjoints:
    """What the adjoint of a statement is written with."""

    adjoint: Callable[[str], Var]  # the adjoint variable of a primal variable's version
    active: Callable[[str], bool]
    partial_name: PartialName
    names: Names
    temporary: Callable[[TensorType | None, str], Var]  # a declared tensor (or float) variable


def first_extreme(stmt: IndexAssign, temporary: Callable[[TensorType, str], Var]) -> Stmt | None:
    """For ``T[l] = max(...)`` or ``min``: the statement that records the position of the first
    extreme element, to stand beside it in the forward sweep."""
    value = stmt.value
    if not isinstance(value, Reduce) or value.kind not in ("max", "min"):
        return None
    place = temporary(TensorType(tuple(a.extent for a in stmt.axes), "int"), "_at")
    kind: ReduceKind = "argmax" if value.kind == "max" else "argmin"
    where = Reduce(kind, value.body, value.axes, INT)
    return IndexAssign(Index(place, _counters(stmt.axes), INT), "=", where, stmt.axes)


def _counters(axes: tuple[Axis, ...]) -> tuple[Expr, ...]:
    return tuple(Var(axis.name, INT) for axis in axes)


def adjoint_statements(stmt: IndexAssign, extreme: Var | None, use: Adjoints) -> list[Stmt]:
    """The adjoint of one index statement.

    ``extreme`` is the tensor of :func:`first_extreme` for a ``max`` or ``min``.
    """
    target = stmt.target
    name = target.name if isinstance(target, Var) else _name(target)
    out: list[Stmt] = []
    g: Expr = _adjoint_place(target, use)
    value, axes = stmt.value, stmt.axes
    summed = len(axes) > len({*_target_axes(target, axes)}) or isinstance(value, Reduce)
    reads_itself = any(isinstance(n, Var) and n.name == name for n in walk(value))
    if reads_itself and use.active(name) and summed:
        g = _copy_of(g, target, axes, use, out)
    where: Expr | None = None
    if isinstance(value, Reduce):
        value, axes, g, where = _inside(value, stmt.axes, g, extreme)
    found = contributions(value, g, use.active, use.partial_name, where)
    own = [c for c in found if c.place == target and not summed]
    for one in found:
        if one not in own:
            out.append(_contribute(one, axes, use))
    if own:
        # The target's own old element: read, then replaced, in one statement.
        place = _adjoint_place(target, use)
        total = own[0].value
        for other in own[1:]:
            total = b.add(total, other.value)
        out.append(index_statement(place, stmt.op, total, axes))
    elif stmt.op == "=":
        cleared = _clear(stmt, use)
        # With the adjoint copied away above, the target is cleared before it is added to.
        out.insert(1 if g != _adjoint_place(target, use) and summed and reads_itself else len(out),
                   cleared)  # fmt: skip
    return out


def _name(place: Index) -> str:
    assert isinstance(place.base, Var)
    return place.base.name


def _adjoint_place(place: Index | Var, use: Adjoints) -> Index | Var:
    if isinstance(place, Var):
        return use.adjoint(place.name)
    return replace(place, base=use.adjoint(_name(place)))


def _target_axes(target: Index | Var, axes: tuple[Axis, ...]) -> set[str]:
    return free_variables(target) & {axis.name for axis in axes}


def _copy_of(
    g: Expr, target: Index | Var, axes: tuple[Axis, ...], use: Adjoints, out: list[Stmt]
) -> Expr:
    own = tuple(axis for axis in axes if axis.name in _target_axes(target, axes))
    copy = use.temporary(TensorType(tuple(axis.extent for axis in own)), "_g")
    place = Index(copy, _counters(own), FLOAT)
    out.append(index_statement(place, "=", g, own))
    return place


def _inside(
    value: Reduce, axes: tuple[Axis, ...], g: Expr, extreme: Var | None
) -> tuple[Expr, tuple[Axis, ...], Expr, Expr | None]:
    """A reduction's body, all axes, the adjoint of the body, and where that adjoint counts."""
    inner = axes + value.axes
    match value.kind:
        case "sum":
            return value.body, inner, g, None
        case "max" | "min":
            assert extreme is not None
            position: Expr = IntConst(0)
            for axis in value.axes:
                step = b.binary("*", position, axis.extent)
                position = b.binary("+", step, Var(axis.name, INT))
            position = sizes.simplify(position)
            here = b.binary("==", position, Index(extreme, _counters(axes), INT))
            return value.body, inner, g, here
        case "prod":
            return value.body, inner, b.mul(g, _product_of_others(value)), None
        case _:
            return b.flt(0), inner, g, None


def _product_of_others(value: Reduce) -> Expr:
    """The product over all elements but one: exact to any order, also where elements are 0."""
    taken = free_variables(value.body) | {axis.name for axis in value.axes}
    names = Names(taken)
    others = tuple(Axis(names.fresh(f"{axis.name}_other"), axis.extent) for axis in value.axes)
    swap: dict[str, Expr] = {
        axis.name: Var(other.name, INT) for axis, other in zip(value.axes, others, strict=True)
    }
    differs: Expr | None = None
    for axis in value.axes:
        here = b.binary("!=", swap[axis.name], Var(axis.name, INT))
        differs = here if differs is None else b.binary("or", differs, here)
    assert differs is not None
    body = b.select(differs, substitute(value.body, swap), b.flt(1))
    return Reduce("prod", body, others, FLOAT)


def _contribute(one: Contribution, axes: tuple[Axis, ...], use: Adjoints) -> Stmt:
    assert isinstance(one.place, Var | Index)
    place = _adjoint_place(one.place, use)
    if not one.padded:
        return index_statement(place, "+=", one.value, axes)
    assert isinstance(place, Index)
    return _gather(place, one.value, axes, use.names) or _guarded(place, one.value, axes)


def _clear(stmt: IndexAssign, use: Adjoints) -> Stmt:
    """Sets the adjoint of an overwritten target to zero, as a whole where it is all overwritten."""
    place = _adjoint_place(stmt.target, use)
    assert isinstance(place, Index)
    assert isinstance(place.base, Var)
    if covers(stmt):
        return Zero(place.base)
    return index_statement(place, "=", b.flt(0), stmt.axes)


# ---------------------------------------------------------------------------- reads in zero_pad


def _gather(place: Index, value: Expr, axes: tuple[Axis, ...], names: Names) -> Stmt | None:
    """``dX[h + p] += value`` as a statement over X's own index x, with ``h = x - p``.

    For each subscript one axis with coefficient 1 or -1 is solved for; what is read at it turns
    into a read inside ``zero_pad``, and the value counts only where the axis is inside its range.
    None when a subscript has no such axis.
    """
    assert isinstance(place.base.type, TensorType)
    assert place.base.type.dims is not None
    extents = {axis.name: axis.extent for axis in axes}
    if any(free_variables(extent) & set(extents) for extent in extents.values()):
        return None
    # axes that run over the whole dimension where they stand alone
    whole = {
        name
        for name, size, _ in standalone(value)
        if name in extents and sizes.equal(size, extents[name])
    }
    solved: dict[str, Expr] = {}
    subscripts: list[Expr] = []
    new_axes: list[Axis] = []
    bare = {s.name for s in place.subscripts if isinstance(s, Var)}
    counts = [free_variables(s) for s in place.subscripts]
    for position, subscript in enumerate(place.subscripts):
        own = counts[position] & set(extents)
        if not own or (isinstance(subscript, Var) and subscript.name in extents):
            subscripts.append(subscript)
            if not own and sizes.constant(subscript) is None:
                return None
            continue
        form = sizes.affine(subscript, axes)
        if form is None:
            return None
        elsewhere = set().union(*(c for k, c in enumerate(counts) if k != position))
        axis = _solvable(form[0], value, elsewhere | bare)
        if axis is None:
            return None
        own_index = Var(names.fresh(_own_name(axis)), INT)
        sign = sizes.constant(form[0][axis])
        rest = sizes.simplify(Binary("-", subscript, _times(form[0][axis], Var(axis, INT)), INT))
        solution: Expr = Binary("-", own_index, rest, INT)
        if sign == -1:
            solution = Unary("-", solution, INT)
        solved[axis] = sizes.simplify(solution)
        subscripts.append(own_index)
        new_axes.append(Axis(own_index.name, place.base.type.dims[position]))
    inside: Expr | None = None
    for axis, solution in solved.items():
        low = b.binary("<=", IntConst(0), solution)
        high = b.binary("<", solution, extents[axis])
        both = b.binary("and", low, high)
        inside = both if inside is None else b.binary("and", inside, both)
    moved = _padded(substitute(value, solved), {a.name for a in new_axes})
    if inside is not None and not (_vanishes(value, set(solved)) and set(solved) <= whole):
        moved = b.select(inside, moved, b.flt(0))
    kept = tuple(axis for axis in axes if axis.name not in solved)
    target = replace(place, subscripts=tuple(subscripts))
    return index_statement(target, "+=", moved, (*new_axes, *kept))


def _own_name(axis: str) -> str:
    return f"{axis}_x"


def _times(coefficient: Expr, axis: Expr) -> Expr:
    return Binary("*", coefficient, axis, INT)


def _solvable(coefficients: dict[str, Expr], value: Expr, excluded: set[str]) -> str | None:
    """An axis with coefficient 1 or -1 that no other subscript uses; one that the value's reads
    have as a bare subscript first, since those stay unit-stride reads."""
    del value
    units = [a for a, c in coefficients.items() if sizes.constant(c) in (1, -1)]
    units = [a for a in units if a not in excluded]
    if len(units) < len(coefficients) and len(coefficients) > 1:
        # A strided axis would have to run over its whole range for every element: scatter instead.
        return None
    return units[0] if units else None


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


def _padded(expr: Expr, moved: set[str]) -> Expr:
    """Reads whose subscripts were substituted are put inside ``zero_pad``."""
    match expr:
        case ZeroPad():
            return expr
        case Index(_, subscripts) if any(
            free_variables(s) & moved and not isinstance(s, Var) for s in subscripts
        ):
            return ZeroPad(expr)
        case _:
            return map_children(expr, lambda child: _padded(child, moved))


def _guarded(place: Index, value: Expr, axes: tuple[Axis, ...]) -> Stmt:
    """A scatter that adds zero at the border for what falls outside the tensor."""
    assert isinstance(place.base.type, TensorType)
    assert place.base.type.dims is not None
    inside: Expr | None = None
    subscripts: list[Expr] = []
    for subscript, dim in zip(place.subscripts, place.base.type.dims, strict=True):
        extents = {axis.name: axis.extent for axis in axes}
        if isinstance(subscript, Var) and sizes.equal(extents.get(subscript.name, subscript), dim):
            subscripts.append(subscript)
            continue
        low, high = IntConst(0), b.binary("-", dim, IntConst(1))
        subscripts.append(b.builtin("max", (low, b.builtin("min", (subscript, high)))))
        both = b.binary("and", b.binary("<=", low, subscript), b.binary("<", subscript, dim))
        inside = both if inside is None else b.binary("and", inside, both)
    if inside is not None:
        value = b.select(inside, value, b.flt(0))
    return index_statement(replace(place, subscripts=tuple(subscripts)), "+=", value, axes)
