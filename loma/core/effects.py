"""What a statement reads and writes.

Nested blocks are no part of a statement here: :func:`loma.core.walk.statements` goes through them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeGuard, assert_never

from loma.core.ir import (
    INT, Assign, AtomicAdd, Call, CallStmt, Declare, Expr, For, Function, If, Index,
    IndexAssign, Place, Pop, Push, Return, Stmt, TensorType, Unpack, Var, While, Zero,
    remembered,
)  # fmt: skip
from loma.core.walk import is_place, root, statements, subscripts


@dataclass(frozen=True, slots=True)
class Effects:
    """``reads``: the expressions that the statement evaluates, of a place that it writes the
    subscripts. ``writes``: the places that it gives values to; with ``adds`` it adds them to what
    is there. ``declares``: the variables that exist from here on, if they did not before;
    ``counters``: that of the loop; ``stacks``: what it pushes to or pops from.
    """

    reads: tuple[Expr, ...] = ()
    writes: tuple[Place, ...] = ()
    adds: bool = False
    declares: tuple[Var, ...] = ()
    counters: tuple[Var, ...] = ()
    stacks: tuple[Var, ...] = ()


def effects(stmt: Stmt, functions: Mapping[str, Function] | None = None) -> Effects:
    """What the statement itself does; ``functions`` are those that it may call as a statement."""
    if isinstance(stmt, CallStmt) and functions is not None:
        call = stmt.call
        return Effects((call,), tuple(out_places(call, functions[call.function])))
    return _effects(stmt)


@remembered
def _effects(stmt: Stmt) -> Effects:
    match stmt:
        case Declare(target, value):
            return Effects(() if value is None else (value,), declares=(target,))
        case Assign(target, op, value):
            return Effects((value, *subscripts(target)), (target,), op == "+=")
        case IndexAssign(target, op, value, axes):
            reads = (*(axis.extent for axis in axes), value, *subscripts(target))
            return Effects(reads, (target,), op == "+=")
        case AtomicAdd(target, value):
            return Effects((value, *subscripts(target)), (target,), adds=True)
        case Zero(target):
            return Effects(tuple(subscripts(target)), (target,))
        case Push(stack, value):
            return Effects((value,), stacks=(stack,))
        case Pop(stack, target):
            return Effects((stack, *subscripts(target)), (target,), stacks=(stack,))
        case Unpack(targets, call):
            return Effects((call,), targets, declares=targets)
        case CallStmt(call):
            return Effects((call,), tuple(out_places(call, None)))
        case For(counter, extent):
            return Effects((extent,), counters=(Var(counter, INT),))
        case If(cond) | While(cond):
            return Effects((cond,))
        case Return(values):
            return Effects(values)
        case _:
            assert_never(stmt)


def is_blank(stmt: Stmt) -> TypeGuard[Declare]:
    """Whether a statement declares a variable without a value."""
    return isinstance(stmt, Declare) and stmt.value is None


def blanks(body: Iterable[Stmt]) -> dict[str, Var]:
    """The variables that these statements declare without a value, by name."""
    return {stmt.target.name: stmt.target for stmt in body if is_blank(stmt)}


def out_places(call: Call, callee: Function | None) -> Iterator[Place]:
    """The places that a call passes as ``Out``; where the function is not known, those that it may:
    elements of tensors cannot be passed so."""
    for k, arg in enumerate(call.args):
        element = isinstance(arg, Index) and isinstance(arg.base.type, TensorType)
        if is_place(arg) and not element and (callee is None or callee.params[k].mode == "Out"):
            yield arg


def written_places(
    body: tuple[Stmt, ...], functions: Mapping[str, Function] | None = None
) -> Iterator[Place]:
    """The places that statements give values to, nested ones included, declarations aside."""
    return (place for stmt in statements(body) for place in effects(stmt, functions).writes)


def assigned(
    body: tuple[Stmt, ...], functions: Mapping[str, Function] | None = None
) -> Iterator[str]:
    """The variables of these places, with repetition."""
    return map(root, written_places(body, functions))


def written(body: tuple[Stmt, ...], functions: Mapping[str, Function] | None = None) -> set[str]:
    """Variables that statements declare or change, nested ones included, counters aside."""
    every = (effects(stmt, functions) for stmt in statements(body))
    return {root(place) for own in every for place in (*own.declares, *own.writes)}


def declared(body: tuple[Stmt, ...]) -> set[str]:
    """Variables that statements declare, nested ones included, counters aside."""
    return {var.name for stmt in statements(body) for var in effects(stmt).declares}


def counters(body: tuple[Stmt, ...]) -> set[str]:
    """The counters of loops, nested ones included."""
    return {var.name for stmt in statements(body) for var in effects(stmt).counters}
