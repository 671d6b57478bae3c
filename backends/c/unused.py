"""Variables that a C compiler would warn about: their values are never used."""

from __future__ import annotations

from collections.abc import Iterator

from loma.ir import (
    ArrayType, AtomicAdd, CallStmt, Expr, Function, Index, Member, Pop, Push, Stmt, Unpack,
)  # fmt: skip
from loma.walk import expressions, statements, variables


def unread(function: Function) -> frozenset[str]:
    """Arguments and variables that the function writes at most.

    A write through a pointer is a use of the pointer.
    """
    mentioned: set[str] = set()
    read: set[str] = set()
    for stmt in statements(function.body):
        for expr in expressions(stmt):
            mentioned.update(variables(expr))
        for expr in _read(stmt):
            read.update(variables(expr))
    for param in function.params:
        if param.name in mentioned and (param.mode == "Out" or isinstance(param.type, ArrayType)):
            read.add(param.name)
        mentioned.add(param.name)
    return frozenset(mentioned - read)


def _read(stmt: Stmt) -> Iterator[Expr]:
    """The statement's expressions without the variables that it only writes."""
    match stmt:
        case Push(_, value):
            yield value
        case Pop(stack, target):
            yield stack
            yield from _subscripts(target)
        case CallStmt(call) | Unpack(_, call):
            yield call
        case AtomicAdd(target, value):
            yield value
            yield from _subscripts(target)
        case _:
            target_ = getattr(stmt, "target", None)
            for expr in expressions(stmt):
                if expr is target_:
                    yield from _subscripts(expr)
                else:
                    yield expr


def _subscripts(place: Expr) -> Iterator[Expr]:
    match place:
        case Index(base, subscripts):
            yield from subscripts
            yield from _subscripts(base)
        case Member(base):
            yield from _subscripts(base)
        case _:
            return
