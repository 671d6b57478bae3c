"""Calls of scalar functions inside index statements, replaced by what the functions compute.

An activation, or any other expression that a program has given a name, is so the same to every pass
as where it is written out. Functions are replaced that define numbers one after the other, also in
branches, which are choices then. What has loops, arrays or structs stays a call, and so does what
would sum an argument twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from loma.core import builder as b
from loma.core.ir import (
    FLOAT, INT, Assign, Builtin, Call, Declare, Expr, FloatType, Function, If, IndexAssign,
    IntConst, IntType, Module, Reduce, Return, Stmt, Type, Var, is_tensor_function, replace,
)  # fmt: skip
from loma.core.ops import may_divide_by_zero
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
    if (
        function.simd
        or not function.body
        or any(
            param.mode != "In" or not isinstance(param.type, IntType | FloatType)
            for param in function.params
        )
    ):
        return None
    params = {param.name: param.type for param in function.params}
    *body, last = function.body
    start = {name: Var(name, type_) for name, type_ in params.items()}
    values = _defined(tuple(body), start, dict(params))
    match last:
        case Return((value,)) if values is not None and (value.type,) == function.results:
            found = substitute(value, values)
        case _:
            return None
    nodes = list(walk(found))
    plain = all(isinstance(node.type, IntType | FloatType) for node in nodes)
    fits = plain and len(nodes) <= _LARGEST and set(variables(found)) <= params.keys()
    # Where a branch is taken alone, what another one divides by is not looked at any more.
    chooses = any(isinstance(stmt, If) for stmt in body)
    return found if fits and not (chooses and any(map(may_divide_by_zero, nodes))) else None


def _defined(
    body: tuple[Stmt, ...], values: Mapping[str, Expr], types: dict[str, Type]
) -> dict[str, Expr] | None:
    """What variables of those ``types`` are after some statements; None where one is no
    definition."""
    now = dict(values)
    for stmt in body:
        match stmt:
            case Declare(Var(name, type_), value) if type_ in (FLOAT, INT):
                new = (
                    substitute(value, now)
                    if value is not None
                    else (b.flt(0) if type_ == FLOAT else IntConst(0))
                )
                types[name] = type_
            case Assign(Var(name), op, value) if name in types:
                new = substitute(value, now)
                if op == "+=":
                    new = b.add(now.get(name, stmt.target), new)
            case If(cond, then, other):
                branches = [_defined(block, now, types) for block in (then, other)]
                if branches[0] is None or branches[1] is None:
                    return None
                now = _chosen(substitute(cond, now), branches[0], branches[1])
                continue
            case _:
                return None
        if new.type != types[name] or sum(1 for _ in walk(new)) > _LARGEST:
            return None
        now[name] = new
    return now


def _chosen(cond: Expr, then: Mapping[str, Expr], other: Mapping[str, Expr]) -> dict[str, Expr]:
    """What variables are behind a branch, those that both sides know."""
    found: dict[str, Expr] = {}
    for name in then.keys() & other.keys():
        one, two = then[name], other[name]
        found[name] = one if one == two else b.select(cond, one, two)
    return found


def _value(call: Call, function: Function, formula: Expr) -> Expr:
    """The formula of a call's arguments, or the call."""
    used = Counter(variables(formula))
    values: dict[str, Expr] = {}
    for param, arg in zip(function.params, call.args, strict=True):
        if param.type == FLOAT and arg.type == INT:
            arg = Builtin("int2float", (arg,), FLOAT, arg.span)
        if arg.type != param.type:
            return call
        if used[param.name] > 1 and any(isinstance(n, Call | Reduce) for n in walk(arg)):
            return call
        values[param.name] = arg
    found = substitute(formula, values)
    return found if sum(1 for _ in walk(found)) <= 2 * _LARGEST else call
