"""Joined tensors as what they are made of.

``stack([x, x], 1)`` has the elements of x for each of two indices, as a tensor that is broadcast
has them, and ``p = cat([z, x, z], 1)`` with zeros in z is ``p[i, j + 2] = x[i, j]`` in the middle
of zeros: so they are spelled without joining.
"""

from __future__ import annotations

from loma.core import builder as b, sizes
from loma.core.effects import assigned
from loma.core.ir import (
    FLOAT, INT, Axis, Binary, Declare, Expr, Function, Index, IndexAssign, IntConst, Module, Op,
    Stmt, TensorType, Var, replace,
)  # fmt: skip
from loma.core.names import Names, names_of
from loma.core.walk import map_children, map_expressions, map_tensor_functions
from loma.passes.first_write import is_zero


def joins(module: Module) -> Module:
    """The pass on every tensor function of a module."""
    functions = {function.name: function for function in module.functions}
    return map_tensor_functions(
        module, lambda f: _function(f, frozenset(assigned(f.body, functions)))
    )


def _function(function: Function, changed: frozenset[str]) -> Function:
    names = Names(names_of(function))
    zeros: set[str] = set()
    out: list[Stmt] = []
    for stmt in function.body:
        stmt = map_expressions(stmt, _repeated)
        match stmt:
            case Declare(Var(name), Op() as value) if is_zero(value) and name not in changed:
                zeros.add(name)
                out.append(stmt)
            case Declare(Var() as target, Op("cat") as value):
                out += _between_zeros(stmt, target, value, zeros, names) or (stmt,)
            case _:
                out.append(stmt)
    return replace(function, body=tuple(out))


def _repeated(expr: Expr) -> Expr:
    """With tensors that are broadcast for those joined with themselves, along a dimension that they
    have one element of."""
    expr = map_children(expr, _repeated)
    if isinstance(expr, Op) and expr.name == "cat" and len(set(expr.args)) == 1 < len(expr.args):
        dims, dim = sizes.dims_of(expr), _dim(expr)
        own = sizes.dims_of(expr.args[0])
        if dims and dim is not None and sizes.constant(own[dim % len(own)]) == 1:
            return b.operator("expand", expr.args[:1], {"shape": dims}, expr.span)
    return expr


def _between_zeros(
    stmt: Declare, target: Var, value: Op, zeros: set[str], names: Names
) -> list[Stmt]:
    """The statements that fill parts of a tensor; none if it has no zeros beside them."""
    dims, dim = sizes.dims_of(target), _dim(value)
    float_ = isinstance(target.type, TensorType) and target.type.element == "float"
    if not dims or dim is None or not float_:
        return []
    dim %= len(dims)
    filled: list[Stmt] = [Declare(target, None, stmt.span)]
    begin: Expr = IntConst(0)
    for part in value.args:
        own = sizes.dims_of(part)
        if len(own) != len(dims):
            return []
        if not is_zero(part) and not (isinstance(part, Var) and part.name in zeros):
            if not isinstance(part, Var):
                return []
            axes = tuple(Axis(names.fresh(f"_i{k}"), size) for k, size in enumerate(own))
            places: list[Expr] = [Var(axis.name, INT) for axis in axes]
            read = Index(part, tuple(places), FLOAT, part.span)
            places[dim] = Binary("+", places[dim], begin, INT)
            place = Index(target, tuple(places), FLOAT, stmt.span)
            filled.append(IndexAssign(place, "=", read, axes, stmt.span))
        begin = sizes.arith("+", begin, own[dim])
    return filled if len(filled) <= len(value.args) else []


def _dim(value: Op) -> int | None:
    dim = dict(value.attrs)["dim"]
    return sizes.constant(dim) if not isinstance(dim, tuple) else None
