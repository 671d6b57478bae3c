"""Liveness: which variables' values are still read after each statement.

Size variables and other ints in types, ranges and attributes count as reads, so that what is live
at the start of a body is all that the body needs to be given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import assert_never

from loma.ir import (
    Assign, AtomicAdd, CallStmt, Declare, Expr, For, Function, If, Index, IndexAssign, Member, Pop,
    Push, Return, Stmt, TensorType, Type, Unpack, Var, While, Zero,
)  # fmt: skip
from loma.sizes import equal
from loma.walk import free_variables, root

Visit = Callable[[Stmt, frozenset[str]], None]


def reads_of_type(type_: Type) -> set[str]:
    """Variables in a tensor type's dimensions."""
    if isinstance(type_, TensorType) and type_.dims is not None:
        return {name for dim in type_.dims for name in free_variables(dim)}
    return set()


def covers(stmt: IndexAssign) -> bool:
    """Whether an index statement writes every element of its target."""
    target = stmt.target
    if not isinstance(target, Index) or not isinstance(target.base.type, TensorType):
        return False
    dims = target.base.type.dims
    extents = {axis.name: axis.extent for axis in stmt.axes}
    bare = [s.name for s in target.subscripts if isinstance(s, Var) and s.name in extents]
    return (
        dims is not None
        and len(set(bare)) == len(target.subscripts)
        and all(equal(extents[n], d) is True for n, d in zip(bare, dims, strict=True))
    )


def effects(stmt: Stmt, out_params: Callable[[str], tuple[bool, ...]]) -> tuple[
    set[str], set[str], set[str]
]:  # fmt: skip
    """(read, wholly written, partly written) of a statement without nested blocks.

    ``out_params(function)`` tells which arguments of a function called as a statement are ``Out``.
    """
    match stmt:
        case Declare(target, value):
            read = reads_of_type(target.type)
            return read | (free_variables(value) if value is not None else set()), {
                target.name
            }, set()  # fmt: skip
        case Assign(target, op, value):
            read = free_variables(value)
            if isinstance(target, Var) and op == "=":
                return read, {target.name}, set()
            return read | _subscript_reads(target), set(), {root(target)}
        case IndexAssign(target, op, value, axes):
            own = {axis.name for axis in axes}
            read = (free_variables(value) | _subscript_reads(target)) - own
            read |= {name for axis in axes for name in free_variables(axis.extent)}
            if op == "=" and covers(stmt) and root(target) not in read:
                return read, {root(target)}, set()
            return read, set(), {root(target)}
        case Unpack(targets, call):
            return free_variables(call), {t.name for t in targets}, set()
        case Zero(target):
            if isinstance(target, Var):
                return set(), {target.name}, set()
            return _subscript_reads(target), set(), {root(target)}
        case AtomicAdd(target, value):
            return free_variables(value) | _subscript_reads(target), set(), {root(target)}
        case Push(stack, value):
            return free_variables(value), set(), {stack.name}
        case Pop(stack, target):
            # Taking a value off changes the stack: as long as others are taken, all are.
            if isinstance(target, Var):
                return {stack.name}, {target.name}, {stack.name}
            return {stack.name} | _subscript_reads(target), set(), {root(target), stack.name}
        case CallStmt(call):
            read, partly = set(), set()
            for is_out, arg in zip(out_params(call.function), call.args, strict=True):
                if is_out:
                    partly.add(root(arg))
                    read |= _subscript_reads(arg)
                else:
                    read |= free_variables(arg)
            return read, set(), partly
        case Return(values):
            return {name for value in values for name in free_variables(value)}, set(), set()
        case If() | For() | While():
            raise AssertionError("has nested blocks")
        case _:
            assert_never(stmt)


def _subscript_reads(place: Expr) -> set[str]:
    match place:
        case Index(base, subscripts):
            own = {name for s in subscripts for name in free_variables(s)}
            return own | _subscript_reads(base)
        case Member(base):
            return _subscript_reads(base)
        case _:
            return set()


class Liveness:
    """Backward analysis over statement lists, with dead statements dropped on request."""

    def __init__(self, functions: tuple[Function, ...], visit: Visit | None = None) -> None:
        self._functions = {function.name: function for function in functions}
        self._visit = visit
        self._mentioned: set[str] = set()  # in statements that are kept

    def _out_params(self, name: str) -> tuple[bool, ...]:
        return tuple(param.mode == "Out" for param in self._functions[name].params)

    def block(
        self, body: tuple[Stmt, ...], live: frozenset[str]
    ) -> tuple[tuple[Stmt, ...], frozenset[str]]:
        """The body without dead statements, and what is live before it."""
        kept: list[Stmt] = []
        for stmt in reversed(body):
            new, live = self._statement(stmt, live)
            if new is not None:
                kept.append(new)
        return tuple(reversed(kept)), live

    def _statement(self, stmt: Stmt, live: frozenset[str]) -> tuple[Stmt | None, frozenset[str]]:
        match stmt:
            case If(cond, then, other):
                new_then, live_then = self.block(then, live)
                new_other, live_other = self.block(other, live)
                if not new_then and not new_other:
                    return None, live
                new: Stmt = replace(stmt, then=new_then, other=new_other)
                self._mentioned |= free_variables(cond)
                return new, live_then | live_other | free_variables(cond)
            case For() | While():
                return self._loop(stmt, live)
            case _:
                return self._leaf(stmt, live)

    def _loop(self, stmt: For | While, live: frozenset[str]) -> tuple[Stmt | None, frozenset[str]]:
        head = stmt.extent if isinstance(stmt, For) else stmt.cond
        own = {stmt.counter} if isinstance(stmt, For) else set()
        around = live
        visit, self._visit = self._visit, None
        while True:
            _, start = self.block(stmt.body, around)
            wider = around | (start - own)
            if isinstance(stmt, While):
                wider |= free_variables(stmt.cond)
            if wider == around:
                break
            around = wider
        self._visit = visit
        body, _ = self.block(stmt.body, around)
        if not body:
            return None, live
        self._mentioned |= free_variables(head)
        return replace(stmt, body=body), around | free_variables(head)

    def _leaf(self, stmt: Stmt, live: frozenset[str]) -> tuple[Stmt | None, frozenset[str]]:
        read, whole, part = effects(stmt, self._out_params)
        if not isinstance(stmt, Return) and not (whole | part) & live:
            if isinstance(stmt, Declare) and stmt.target.name in self._mentioned:
                # Its first value is never read, but the variable is written later.
                self._mentioned |= reads_of_type(stmt.target.type)
                return replace(stmt, value=None), live | reads_of_type(stmt.target.type)
            return None, live
        self._mentioned |= read | whole | part
        if self._visit is not None:
            self._visit(stmt, live)
        return stmt, (live - whole) | read
