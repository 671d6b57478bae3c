"""What overwrites a view writes a tensor of its own.

After ``z = reshape(x, ...)`` the statement ``z[i, j] = z[i, j] * s`` must not write x, so that z
would have to be a copy, only to be read and overwritten.
"""

from __future__ import annotations

from loma.core.effects import written
from loma.core.ir import Declare, Expr, Function, Index, IndexAssign, Module, Op, Stmt, Var, replace
from loma.core.names import Names, names_of
from loma.core.ops import OPS
from loma.core.sizes import size_variables
from loma.core.walk import map_expressions, map_tensor_functions, reads_of_type, substitute
from loma.passes.liveness import covers


def overwritten(module: Module) -> Module:
    """The pass on every tensor function of a module."""
    return map_tensor_functions(module, _own_tensors)


def _own_tensors(function: Function) -> Function:
    names = Names(names_of(function))
    sizes = set(size_variables(function)) - written(function.body)
    views: set[str] = set()
    new: dict[str, Expr] = {}
    out: list[Stmt] = []
    for old in function.body:
        stmt = map_expressions(old, lambda expr: substitute(expr, new)) if new else old
        match stmt:
            case Declare(target, Op(name)) if OPS[name].shares:
                views.add(target.name)
            case IndexAssign(Index(Var(name) as tensor) as target, "=") if (
                name in views and covers(stmt) and reads_of_type(tensor.type) <= sizes
            ):
                var = replace(tensor, name=names.fresh(name))
                out.append(Declare(var, None, stmt.span))
                stmt = replace(stmt, target=replace(target, base=var))
                new[name] = var
            case _:
                views -= written((stmt,))
        out.append(stmt)
    return replace(function, body=tuple(out)) if new else function
