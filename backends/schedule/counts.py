"""Quotients of sizes, ``D // H``, are computed once, and not in every round of a loop.

Dividing ints takes as long as ten elements of a sum, and fails for 0, so that no compiler takes it
out of a loop. A tensor whose dimensions have the quotient has divided already: from there on loops
read a number.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from loma.backends.schedule.context import FunctionContext
from loma.backends.schedule.host import Allocate, HostNode, Run, Unit, map_trees
from loma.backends.schedule.walk import map_expressions
from loma.core import sizes
from loma.core.effects import assigned
from loma.core.ir import INT, Binary, Declare, Expr, Var
from loma.core.walk import free_variables, map_children, walk

Tree = TypeVar("Tree")


def with_counts(context: FunctionContext, body: tuple[HostNode, ...]) -> tuple[HostNode, ...]:
    """A function's tree, whose loops divide no sizes that something before them has divided."""
    function = context.function
    steady = {param.name for param in function.params if param.type == INT}
    steady = (steady | set(sizes.size_variables(function))) - set(assigned(function.body))
    names: dict[Expr, Expr] = {}

    def named(expr: Expr) -> Expr:
        return names[expr] if expr in names else map_children(expr, named)

    def changed(tree: Tree) -> Tree:
        return map_expressions(tree, named) if names else tree

    out: list[HostNode] = []
    for node in body:
        for size in _sizes(node):
            for expr in walk(size):
                divides = isinstance(expr, Binary) and expr.op == "//" and expr not in names
                if divides and free_variables(expr) <= steady:
                    var = Var(f"@{context.temporary('count')}", INT)
                    out.append(Run(Declare(var, expr)))
                    names[expr] = var
        out.append(map_trees(node, changed))
    return tuple(out)


def _sizes(node: HostNode) -> Iterator[Expr]:
    """Sizes that a node computes in any case."""
    match node:
        case Unit(_, body):
            for inner in body:
                yield from _sizes(inner)
        case Allocate(var, unless=False, wanted=None) | Run(Declare(var)):
            yield from sizes.dims_of(var)
        case _:
            pass
