"""What is written round a dimension, for each of its elements once, is read round it.

    y[(i + 1) % N] = x[i]        # for all i in N

is ``y[i] = x[(i - 1) % N]``, whose elements are written in order, as those of any other statement.
So are adjoints of what is read at ``(i + 1) % N``.
"""

from __future__ import annotations

from loma.core import builder as b, sizes
from loma.core.ir import (
    INT, Axis, Binary, Expr, Index, IndexAssign, Module, Stmt, Unary, Var, replace,
)  # fmt: skip
from loma.core.walk import (
    free_variables, map_blocks, map_children, map_tensor_functions, reduced_axes, substitute,
)  # fmt: skip


def turns(module: Module) -> Module:
    """The pass on every tensor function of a module."""

    def block(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return tuple(_statement(map_blocks(stmt, block)) for stmt in body)

    return map_tensor_functions(module, lambda f: replace(f, body=block(f.body)))


def _statement(stmt: Stmt) -> Stmt:
    if not isinstance(stmt, IndexAssign) or not isinstance(stmt.target, Index):
        return stmt
    target = stmt.target
    for position, (subscript, dim) in enumerate(
        zip(target.subscripts, sizes.dims_of(target.base), strict=True)
    ):
        found = _turn(subscript, dim, stmt)
        if found is not None:
            axis, place = found
            places = list(target.subscripts)
            places[position] = Var(axis.name, INT)
            value = _plain(substitute(stmt.value, {axis.name: place}), stmt.axes)
            new = replace(target, subscripts=tuple(places))
            return _statement(replace(stmt, target=new, value=value))
    return stmt


def _turn(subscript: Expr, dim: Expr, stmt: IndexAssign) -> tuple[Axis, Expr] | None:
    """The axis that a subscript takes round a whole dimension, and its value at an element that
    goes by the axis' name; None where it is something else."""
    match subscript:
        case Binary("%", place, size) if sizes.equal(size, dim) is True:
            parts = sizes.affine(place, stmt.axes)
        case _:
            return None
    if parts is None or len(parts[0]) != 1:
        return None
    ((name, step),) = parts[0].items()
    (axis,) = (axis for axis in stmt.axes if axis.name == name)
    others = [s for s in stmt.element.subscripts if s is not subscript]
    others += [a.extent for a in (*stmt.axes, *reduced_axes(stmt.value))]
    own = any(name in free_variables(expr) for expr in others)
    sign = sizes.constant(step)
    if own or sign not in (1, -1) or sizes.equal(axis.extent, dim) is not True:
        return None
    index, rest = Var(name, INT), parts[1]
    back = b.binary("-", index, rest) if sign == 1 else b.binary("-", rest, index)
    return axis, Binary("%", sizes.simplify(back), dim, INT)


def _plain(expr: Expr, axes: tuple[Axis, ...]) -> Expr:
    """Without remainders inside of remainders by the same size, and of an index below it."""
    expr = map_children(expr, lambda child: _plain(child, axes))
    match expr:
        case Binary("%", place, size):
            place = sizes.simplify(_without(place, size))
            extents = [a.extent for a in axes if place == Var(a.name, INT)]
            whole = any(sizes.equal(extent, size) is True for extent in extents)
            return place if whole else replace(expr, left=place)
        case _:
            return expr


def _without(place: Expr, size: Expr) -> Expr:
    """A sum without remainders by that size among its terms."""
    match place:
        case Binary("+" | "-") | Unary("-"):
            return map_children(place, lambda child: _without(child, size))
        case Binary("%", inner, by) if by == size:
            return inner
        case _:
            return place
