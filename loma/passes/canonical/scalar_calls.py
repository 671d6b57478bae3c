"""Calls of scalar functions inside index statements, replaced by what the functions compute.

An activation, or any other expression that a program has given a name, is so the same to every pass
as where it is written out. Functions that are a row of definitions and a result are replaced; what
has branches, loops, arrays or structs stays a call, and so does what would compute an argument
twice that is more than a read.
"""

from __future__ import annotations

from collections import Counter

from loma.core.ir import (
    FLOAT, INT, Builtin, Call, Declare, Expr, FloatType, Function, IndexAssign, IntType, Module,
    Return, Stmt, is_tensor_function, replace,
)  # fmt: skip
from loma.core.walk import (
    map_blocks, map_children, map_tensor_functions, substitute, variables, walk,
)  # fmt: skip

_LARGEST = 100  # nodes of an expression that may stand for a call


def scalar_calls(module: Module) -> Module:
    """The pass on every tensor function of a module."""
    own = {function.derivative_of for function in module.functions}
    formulas: dict[str, tuple[Function, Expr]] = {}
    for function in module.functions:
        if not is_tensor_function(function) and function.name not in own:
            value = _formula(function)
            if value is not None:
                formulas[function.name] = function, value

    def written_out(expr: Expr) -> Expr:
        expr = map_children(expr, written_out)
        if isinstance(expr, Call) and expr.function in formulas:
            return _value(expr, *formulas[expr.function])
        return expr

    def block(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return tuple(
            replace(stmt, value=written_out(stmt.value))
            if isinstance(stmt, IndexAssign)
            else map_blocks(stmt, block)
            for stmt in body
        )

    return map_tensor_functions(module, lambda f: replace(f, body=block(f.body)))


def _formula(function: Function) -> Expr | None:
    """What a function returns, in its arguments alone."""
    if function.simd or any(
        param.mode != "In" or not isinstance(param.type, IntType | FloatType)
        for param in function.params
    ):
        return None
    values: dict[str, Expr] = {}
    for stmt in function.body:
        match stmt:
            case Declare(target, value) if value is not None and target.type == value.type:
                values[target.name] = substitute(value, values)
                if sum(1 for _ in walk(values[target.name])) > _LARGEST:
                    return None
            case Return((value,)) if (value.type,) == function.results:
                found = substitute(value, values)
                nodes = list(walk(found))
                plain = all(isinstance(node.type, IntType | FloatType) for node in nodes)
                return found if plain and len(nodes) <= _LARGEST else None
            case _:
                return None
    return None


def _value(call: Call, function: Function, formula: Expr) -> Expr:
    """The formula of a call's arguments, or the call."""
    used = Counter(variables(formula))
    values: dict[str, Expr] = {}
    for param, arg in zip(function.params, call.args, strict=True):
        if param.type == FLOAT and arg.type == INT:
            arg = Builtin("int2float", (arg,), FLOAT, arg.span)
        if arg.type != param.type:
            return call
        if used[param.name] > 1 and any(isinstance(n, Builtin | Call) for n in walk(arg)):
            return call
        values[param.name] = arg
    return substitute(formula, values)
