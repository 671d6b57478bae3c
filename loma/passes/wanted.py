"""What a backward function makes of an adjoint, where that is wanted.

    return reshape(_d_x_1, [3 * N])      # which has no memory, if nobody wants it

is written as

    if _need_x:
        _d_x = reshape(_d_x_1, [3 * N])
    return _d_x
"""

from __future__ import annotations

from loma.core.ir import Assign, Declare, Expr, Function, If, Module, Return, Stmt, Var, replace
from loma.core.names import Names, names_of
from loma.core.sizes import dims_of
from loma.core.walk import map_tensor_functions


def wanted(module: Module) -> Module:
    """The pass on every backward function of a module."""
    return map_tensor_functions(module, lambda f: _wanted(f) if f.half == "backward" else f)


def _wanted(function: Function) -> Function:
    last = function.body[-1]
    if not isinstance(last, Return) or all(isinstance(value, Var) for value in last.values):
        return function
    names = Names(names_of(function))
    needs = function.params[-len(last.values) :]  # which say which results are wanted
    before: list[Stmt] = []
    values: list[Expr] = []
    for value, need in zip(last.values, needs, strict=True):
        if isinstance(value, Var) or not dims_of(value):
            values.append(value)
            continue
        var = Var(names.fresh("_adjoint"), value.type)
        made = Assign(var, "=", value, last.span)
        before += [Declare(var, None), If(Var(need.name, need.type), (made,), ())]
        values.append(var)
    named = replace(last, values=tuple(values))
    return replace(function, body=(*function.body[:-1], *before, named))
