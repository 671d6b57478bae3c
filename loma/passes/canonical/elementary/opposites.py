"""Softplus of a number and of its opposite in several statements have one logarithm.

    y[i] = t[i] * softplus(-x[i]);  z[i] = (1 - t[i]) * softplus(x[i])

take two exponentials and two logarithms for each ``i``, and with

    softplus(x) = max(x, 0) + log1p(exp(-abs(x)))

one of each, which neither overflows nor cancels, in a tensor. In one statement compilers see it,
for the runtime's function is made so. Derivatives are made of the name, so this comes behind them.
"""

from __future__ import annotations

from loma.core import builder as b
from loma.core.ir import FLOAT, Binary, Builtin, Expr, FloatConst, Function, Module, Unary, replace
from loma.core.walk import (
    expressions, map_children, map_expressions, map_tensor_functions, statements, walk,
)  # fmt: skip


def opposites(module: Module) -> Module:
    """The pass on every tensor function of a module."""
    return map_tensor_functions(module, _with_common_parts)


def _with_common_parts(function: Function) -> Function:
    places: dict[Expr, set[int]] = {}  # which statements have softplus of what
    for number, stmt in enumerate(statements(function.body)):
        for node in (node for own in expressions(stmt) for node in walk(own)):
            match node:
                case Builtin("softplus", (x,)):
                    places.setdefault(x, set()).add(number)
                case _:
                    continue
    both = ((x, places[x] | places[b.neg(x)]) for x in places if b.neg(x) in places)
    shared = {x for x, here in both if len(here) > 1}
    if not shared:
        return function

    def expr(old: Expr) -> Expr:
        match old:
            case Builtin("softplus", (x,)) if x in shared:
                return _written_out(expr(x))
            case _:
                return map_children(old, expr)

    return replace(function, body=tuple(map_expressions(stmt, expr) for stmt in function.body))


def _written_out(x: Expr) -> Expr:
    size = Builtin("abs", (x.operand if isinstance(x, Unary) else x,), FLOAT)
    rest = Builtin("log1p", (Builtin("exp", (b.neg(size),), FLOAT),), FLOAT)
    return Binary("+", Builtin("max", (x, FloatConst(0.0)), FLOAT), rest, FLOAT)
