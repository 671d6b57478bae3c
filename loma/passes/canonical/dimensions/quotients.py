"""Additions to quotients as sums of what has that quotient.

    s[i // 4] += x[i]

adds to each element four times, one after the other. Where the range of i is a multiple of four,
``s[i] += sum(x[4 * i + r] for r in range(4))`` says which four they are, so that all elements can
be computed at once. So are adjoints of what is read at ``i // 4``.
"""

from __future__ import annotations

from loma.core import builder as b, sizes
from loma.core.ir import (
    FLOAT, INT, Axis, Binary, Expr, Index, IndexAssign, IntConst, Module, Reduce, Stmt, Var,
    replace,
)  # fmt: skip
from loma.core.names import Names, names_of
from loma.core.walk import (
    free_variables, map_blocks, map_children, map_tensor_functions, reduced_axes,
)  # fmt: skip


def quotients(module: Module) -> Module:
    """The pass on every tensor function of a module."""

    def block(body: tuple[Stmt, ...], names: Names) -> tuple[Stmt, ...]:
        return tuple(
            _statement(map_blocks(s, lambda inner: block(inner, names)), names) for s in body
        )

    return map_tensor_functions(
        module, lambda f: replace(f, body=block(f.body, Names(names_of(f))))
    )


def _statement(stmt: Stmt, names: Names) -> Stmt:
    if not isinstance(stmt, IndexAssign) or stmt.op != "+=" or not isinstance(stmt.target, Index):
        return stmt
    for position, subscript in enumerate(stmt.target.subscripts):
        match subscript:
            case Binary("//", Var(name), IntConst(by)) if by > 1:
                stmt = _summed(stmt, position, name, by, names)
            case _:
                pass
    return stmt


def _summed(stmt: IndexAssign, position: int, name: str, by: int, names: Names) -> IndexAssign:
    """The statement with a sum of those values of an index that have one quotient, if it is known
    how many these are."""
    target, value = stmt.element, stmt.value
    dim = sizes.dims_of(target.base)[position]
    axis = next((axis for axis in stmt.axes if axis.name == name), None)
    rest = target.subscripts[:position] + target.subscripts[position + 1 :]
    every = (*(a for a in stmt.axes if a is not axis), *reduced_axes(value))
    elsewhere = any(name in free_variables(expr) for expr in rest)
    elsewhere = elsewhere or any(name in free_variables(a.extent) or name == a.name for a in every)
    times = b.binary("*", dim, IntConst(by))
    if axis is None or elsewhere or sizes.equal(axis.extent, times) is not True:
        return stmt
    if value.type != FLOAT or target.tensor.name in free_variables(value):
        return stmt
    part = Axis(names.fresh("_r"), IntConst(by))
    value = _at(value, name, by, Var(part.name, INT))
    if isinstance(value, Reduce) and value.kind == "sum":
        value = replace(value, axes=(*value.axes, part))
    else:
        value = Reduce("sum", value, (part,), FLOAT, value.span)
    places = list(target.subscripts)
    places[position] = Var(name, INT)
    axes = tuple(Axis(name, dim) if a is axis else a for a in stmt.axes)
    return replace(stmt, target=replace(target, subscripts=tuple(places)), value=value, axes=axes)


def _at(expr: Expr, name: str, by: int, part: Expr) -> Expr:
    """With quotient and remainder for an index, which goes by the quotient's name."""
    match expr:
        case Binary("//", Var(own), IntConst(divisor)) if own == name and divisor == by:
            return expr.left
        case Binary("%", Var(own), IntConst(divisor)) if own == name and divisor == by:
            return part
        case Var(own) if own == name:
            return b.binary("+", b.binary("*", expr, IntConst(by)), part)
        case _:
            return map_children(expr, lambda child: _at(child, name, by, part))
