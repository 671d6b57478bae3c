"""Functions for sizes and int arguments that are known: each becomes a constant wherever it occurs.

What follows from the constants is done, too: int expressions are computed, also through variables
that hold them; branches are chosen, loops that never run are dropped. Later stages then know every
extent, and which dimensions are equal.
"""

from __future__ import annotations

from collections.abc import Mapping

from loma.core.axes import without_idle_axes
from loma.core.effects import counters, written
from loma.core.ir import (
    Assign, Axis, Declare, Expr, For, Function, If, IndexAssign, IntConst, IntType, Stmt, Type,
    Var, While, replace,
)  # fmt: skip
from loma.core.names import axis_names
from loma.core.walk import (
    map_blocks, map_expressions, nodes, reads_of_type, substitute_type,
    substitute_typed,
)  # fmt: skip
from loma.passes.fold import folded, folded_type, size


def specialise(function: Function, values: Mapping[str, int]) -> Function:
    """The function for calls with those values, by names of size variables and int parameters.

    The parameters keep their names, order and number: a caller passes the same arguments. Names
    that the function has no such variable for are ignored, and an int parameter that the function
    assigns stays a variable.
    """
    names = set(values) & _constants(function)
    constants: dict[str, Expr] = {name: IntConst(values[name]) for name in names}

    def expression(expr: Expr) -> Expr:
        return folded(substitute_typed(expr, constants))

    def type_of(type_: Type) -> Type:
        return folded_type(substitute_type(type_, constants))

    body = tuple(_simple_extents(map_expressions(s, expression)) for s in function.body)
    return replace(
        function,
        params=tuple(replace(param, type=type_of(param.type)) for param in function.params),
        results=tuple(map(type_of, function.results)),
        body=_Propagation(_sizes_of_variables(body)).block(body, {}),
    )


def _constants(function: Function) -> set[str]:
    """The size variables and int parameters that have one value during a call."""
    found: set[str] = set()
    changed: set[str] = set()
    for param in function.params:
        match param.type:
            case IntType() if param.mode == "In":
                found.add(param.name)
            case _:
                found |= reads_of_type(param.type)
                changed.add(param.name)
    changed |= written(function.body) | counters(function.body)
    return found - changed - axis_names(function)


def _simple_extents(stmt: Stmt) -> Stmt:
    if isinstance(stmt, IndexAssign):
        return replace(stmt, axes=tuple(Axis(a.name, size(a.extent)) for a in stmt.axes))
    if isinstance(stmt, For):
        stmt = replace(stmt, extent=size(stmt.extent))
    return map_blocks(stmt, lambda block: tuple(map(_simple_extents, block)))


def _sizes_of_variables(body: tuple[Stmt, ...]) -> set[str]:
    """Variables in the types of others: those keep the size that they were declared with."""
    return set().union(*(reads_of_type(node.type) for node in nodes(body)))


class _Propagation:
    """Int variables that hold a constant wherever control comes by become that constant."""

    def __init__(self, left_alone: set[str]) -> None:
        self._left_alone = left_alone

    def block(self, body: tuple[Stmt, ...], known: dict[str, Expr]) -> tuple[Stmt, ...]:
        """The block; ``known`` is what holds before it, and then what holds behind it."""
        out: list[Stmt] = []
        for stmt in body:
            out += self._statement(stmt, known)
        return tuple(out)

    def _statement(self, stmt: Stmt, known: dict[str, Expr]) -> tuple[Stmt, ...]:
        match stmt:
            case If(cond, then, other):
                cond = folded(substitute_typed(cond, known))
                if isinstance(cond, IntConst):
                    return self.block(then if cond.value else other, known)
                left, right = dict(known), dict(known)
                then, other = self.block(then, left), self.block(other, right)
                known.clear()
                known.update((name, v) for name, v in left.items() if right.get(name) == v)
                return (replace(stmt, cond=cond, then=then, other=other),)
            case For(_, IntConst(count)) if count <= 0:
                return ()
            case For() | While():
                for name in written(stmt.body):
                    known.pop(name, None)
                if isinstance(stmt, For):
                    stmt = replace(stmt, extent=size(substitute_typed(stmt.extent, known)))
                    known.pop(stmt.counter, None)
                else:
                    stmt = replace(stmt, cond=folded(substitute_typed(stmt.cond, known)))
                    if stmt.cond == IntConst(0):
                        return ()
                return (replace(stmt, body=self.block(stmt.body, dict(known))),)
            case _:
                changed = written((stmt,))
                readable = {n: v for n, v in known.items() if n not in changed}
                if isinstance(stmt, Assign) and stmt.op == "=":
                    stmt = replace(stmt, value=folded(substitute_typed(stmt.value, known)))
                stmt = map_expressions(stmt, lambda e: folded(substitute_typed(e, readable)))
                stmt = without_idle_axes(stmt)
                for name in changed:
                    known.pop(name, None)
                self._learn(stmt, known)
                return (stmt,)

    def _learn(self, stmt: Stmt, known: dict[str, Expr]) -> None:
        match stmt:
            case Declare(Var(name, IntType()), None):
                value: Expr = IntConst(0)
            case Declare(Var(name, IntType()), IntConst() as value):
                pass
            case Assign(Var(name, IntType()), "=", IntConst() as value):
                pass
            case _:
                return
        if name not in self._left_alone:
            known[name] = value
