"""Ints that follow from counters are written out where they are read.

    for i in range(N):
        for j in range(W):
            k : int = i - j
            if k >= 0:
                y[k] += x[i] * w[j]

adds to ``y[i - j]`` where ``i - j >= 0``: what looks for places, ranges and conditions of indices
finds them, and no round keeps a number for its derivative. An int that is assigned in two places,
or is made of elements, stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial

from loma.core import sizes
from loma.core.effects import assigned, written
from loma.core.ir import INT, Assign, Declare, Expr, For, Function, Module, Stmt, Var, replace
from loma.core.names import axes_of
from loma.core.walk import (
    expressions, free_variables, map_blocks, map_expressions, map_tensor_functions, nodes,
    reads_of_type, statements, substitute,
)  # fmt: skip


def places(module: Module) -> Module:
    """The pass on every tensor function of a module."""
    functions = {function.name: function for function in module.functions}
    return map_tensor_functions(module, lambda function: _Places(function, functions).run())


class _Places:
    def __init__(self, function: Function, functions: Mapping[str, Function]) -> None:
        self._function = function
        self._writes = Counter(assigned(function.body, functions))
        for stmt in statements(function.body):
            if isinstance(stmt, Declare) and stmt.value is not None:
                self._writes[stmt.target.name] += 1
        ints = {param.name for param in function.params if param.type == INT}
        sized = set(sizes.size_variables(function))
        self._fixed = frozenset((sized | ints) - written(function.body, functions))
        # What sizes of tensors are made of keeps its name, which types have.
        self._sized = {n for node in nodes(function.body) for n in reads_of_type(node.type)}
        self._gone = set[str]()

    def run(self) -> Function:
        body = self._block(self._function.body, self._fixed)
        left = {name for stmt in statements(body) for name in _read(stmt)}
        return replace(self._function, body=_without(body, self._gone - left))

    def _block(self, body: tuple[Stmt, ...], known: frozenset[str]) -> tuple[Stmt, ...]:
        """``known``: ints that do not change while the block runs."""
        out: list[Stmt] = []
        rest = list(body)
        while rest:
            stmt = rest.pop(0)
            match stmt:
                case Assign(Var(name), "=", value) | Declare(Var(name), value) if value is not None:
                    if self._follows(name, value, known) and not _hides(rest, value):
                        rest = _with_value(rest, name, value)
                        self._gone.add(name)
                case For():
                    stmt = map_blocks(stmt, partial(self._block, known=known | {stmt.counter}))
                case _:
                    stmt = map_blocks(stmt, partial(self._block, known=known))
            out.append(stmt)
        return tuple(out)

    def _follows(self, name: str, value: Expr, known: frozenset[str]) -> bool:
        """Whether a variable is assigned once, an int that is made of those known."""
        plain = value.type == INT and sizes.is_arithmetic(value) and free_variables(value) <= known
        return plain and self._writes[name] == 1 and name not in self._sized


def _with_value(body: list[Stmt], name: str, value: Expr) -> list[Stmt]:
    """The statements with a value for a variable."""
    return [map_expressions(stmt, lambda expr: substitute(expr, {name: value})) for stmt in body]


def _hides(body: list[Stmt], value: Expr) -> bool:
    """Whether an index has the name of a variable that a value is made of."""
    names = free_variables(value)
    return any(not names.isdisjoint(axes_of(stmt)) for stmt in statements(tuple(body)))


def _read(stmt: Stmt) -> set[str]:
    """The variables that a statement reads."""
    own = list(expressions(stmt))
    if isinstance(stmt, Assign | Declare) and isinstance(stmt.target, Var):
        own.remove(stmt.target)
    return {name for expr in own for name in free_variables(expr)}


def _without(body: tuple[Stmt, ...], names: set[str]) -> tuple[Stmt, ...]:
    """The statements without those that assign one of the names."""
    kept = (
        stmt for stmt in body
        if not (isinstance(stmt, Assign | Declare) and isinstance(stmt.target, Var)
                and stmt.target.name in names)
    )  # fmt: skip
    return tuple(map_blocks(stmt, lambda block: _without(block, names)) for stmt in kept)
