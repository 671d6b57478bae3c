"""Biases of convolutions, added where a statement reads the result: PyTorch adds one on a GPU by a
kernel of its own, which reads and writes all of it.

    t = conv2d(x, w, bias)               t = conv2d(x, w)
    y[b, f, h, v] = relu(t[b, f, h, v])  y[b, f, h, v] = relu(t[b, f, h, v] + bias[f])
"""

from __future__ import annotations

from collections.abc import Mapping

from loma.core import builder as b
from loma.core.effects import assigned
from loma.core.ir import (
    FLOAT, Declare, Expr, Function, Index, IndexAssign, Op, Stmt, Var, replace,
)  # fmt: skip
from loma.core.walk import is_element_of, map_children, map_expressions, nodes, statements, walk

_CONVOLUTIONS = ("conv2d", "conv3d")


def added_later(function: Function, functions: Mapping[str, Function]) -> Function:
    """The function with such biases in the statements behind."""
    changed = {*assigned(function.body, functions)}
    for stmt in function.body:
        match stmt:
            case Declare(Var(name), Op(conv, (x, w, Var() as bias)) as value):
                stays = changed.isdisjoint((name, bias.name))
                if conv in _CONVOLUTIONS and stays and _is_read_once(function, name):
                    alone = replace(stmt, value=replace(value, args=(x, w)))
                    function = _with(function, stmt, alone, name, bias)
    return function


def _is_read_once(function: Function, name: str) -> bool:
    """Whether all that looks at a variable is one statement, at one element for each of its own."""
    mentions = sum(isinstance(node, Var) and node.name == name for node in nodes(function.body))
    reads = [
        (stmt, expr)
        for stmt in statements(function.body)
        if isinstance(stmt, IndexAssign) and stmt.op == "="
        for expr in walk(stmt.value)
        if is_element_of(expr, name)
    ]
    if len(reads) != 1 or mentions != 2:  # it is declared, too
        return False
    stmt, read = reads[0]
    places = {sub.name for sub in read.subscripts if isinstance(sub, Var)}
    return places == {axis.name for axis in stmt.axes} and len(places) == len(read.subscripts)


def _with(function: Function, stmt: Stmt, alone: Stmt, name: str, bias: Var) -> Function:
    def read(expr: Expr) -> Expr:
        match expr:
            case Index(Var(found), (_, place, *_)) if found == name:
                return b.binary("+", expr, Index(bias, (place,), FLOAT))
            case _:
                return map_children(expr, read)

    body = (alone if each is stmt else map_expressions(each, read) for each in function.body)
    return replace(function, body=tuple(body))
