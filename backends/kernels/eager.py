"""Choices between numbers of which both may be computed before one is taken.

    v[i, d] = s[i, d] / n[i] if n[i] > 0.0 else 0.0

A compiler that must not read s where the condition does not hold masks every read, or gives up
vectors; where several choices are nested it makes a mask for each of the values. A choice between
two numbers that are there is one instruction, and functions that there are for vectors are not
called under a condition. So it is where what both sides read exists, nothing in them fails or
takes long, and the condition asks data: one on indices may leave out most of a
tensor, as below a diagonal. Several conditions are choices inside choices then, for ``and`` asks
the second one, and reads what that reads, only where the first one holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Set as AbstractSet

from loma.core.bounds import counted, exists
from loma.core.builtins import BUILTINS
from loma.core.ir import (
    FLOAT, INT, Binary, Builtin, Expr, FloatConst, For, Function, Index, IndexAssign, IntConst,
    NoDiff, Reduce, Select, Stmt, TensorType, Unary, Var, replace,
)  # fmt: skip
from loma.core.sizes import size_variables
from loma.core.walk import certain_reads, children, map_blocks, map_children, walk

_SHORT = 3  # nodes
_LARGEST = 200  # nodes of a choice

Extents = Mapping[str, Expr]


def with_eager_choices(function: Function) -> Function:
    """The function with such choices marked."""
    is_size = frozenset(size_variables(function)).__contains__

    def block(body: tuple[Stmt, ...], counters: Extents) -> tuple[Stmt, ...]:
        return tuple(statement(stmt, counters) for stmt in body)

    def statement(stmt: Stmt, counters: Extents) -> Stmt:
        if isinstance(stmt, IndexAssign):
            extents = {**counters, **{axis.name: axis.extent for axis in stmt.axes}}
            known = frozenset(certain_reads(stmt.value))
            return replace(stmt, value=marked(stmt.value, extents, known))
        inside = counted(stmt, counters, is_size) if isinstance(stmt, For) else counters
        return map_blocks(stmt, lambda body: block(body, inside))

    def marked(expr: Expr, extents: Extents, known: AbstractSet[Expr]) -> Expr:
        if isinstance(expr, Reduce):
            extents = {**extents, **{axis.name: axis.extent for axis in expr.axes}}
            known = frozenset(certain_reads(expr.body))
        new = map_children(expr, lambda child: marked(child, extents, known))
        if not isinstance(new, Select) or not _asks_data(new) or not _is_short(new):
            return new
        eager = all(is_there(side, extents, known) for side in (new.then, new.other))
        new = replace(new, eager=eager)
        return one_by_one(new, extents, known) if eager else new

    def one_by_one(choice: Select, extents: Extents, known: AbstractSet[Expr]) -> Select:
        """A choice by several conditions as choices by one of them each, where all may be asked,
        and what would stand twice is short."""
        match choice.cond:
            case Binary("or") if sum(1 for _ in walk(choice.then)) > _SHORT:
                return choice
            case Binary("and" | "or" as op, left, right) if is_there(right, extents, known):
                inner = one_by_one(replace(choice, cond=right), extents, known)
                then, other = (inner, choice.other) if op == "and" else (choice.then, inner)
                both = replace(choice, cond=left, then=then, other=other)
                return one_by_one(both, extents, known) if _is_short(both) else choice
            case _:
                return choice

    def is_there(expr: Expr, extents: Extents, known: AbstractSet[Expr]) -> bool:
        """Whether the expression may be computed, soon, at any point of those ranges."""
        match expr:
            case Index():
                return expr in known or exists(expr, extents, is_size)
            case IntConst() | FloatConst() | Var():
                return not isinstance(expr.type, TensorType)
            case Binary("/" | "//" | "%" | "**") if expr.type == INT:
                return False
            case Binary("**", base, power):
                quick = isinstance(power, IntConst | FloatConst)
                return quick and is_there(base, extents, known)
            case Builtin(name) if BUILTINS[name].rounds:
                return False
            case Unary() | Binary() | Builtin() | Select() | NoDiff():
                return all(is_there(child, extents, known) for child in children(expr))
            case _:
                return False

    return replace(function, body=block(function.body, {}))


def _asks_data(choice: Select) -> bool:
    nodes = walk(choice.cond)
    return choice.type == FLOAT and any(
        isinstance(node, Index) or (isinstance(node, Var) and node.type == FLOAT) for node in nodes
    )


def _is_short(expr: Expr) -> bool:
    return sum(1 for _ in walk(expr)) <= _LARGEST
