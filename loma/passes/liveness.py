"""Liveness: which variables' values are still read after each statement.

Size variables and other ints in types, ranges and attributes count as reads, so that what is live
at the start of a body is all that the body needs to be given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeAlias

from loma.core.distinct import fill_together, fills, unproved
from loma.core.effects import effects, written
from loma.core.ir import (
    INT, Assign, Axis, Call, CallStmt, Declare, For, Function, If, Index, IndexAssign, Return, Stmt,
    TensorType, Unpack, Var, While, Zero, remembered, replace,
)  # fmt: skip
from loma.core.sizes import arith, constant
from loma.core.walk import (
    blocks, free_variables, mentioned_names, own_names, reads_of_type, root, subscripts, variables,
    walk,
)  # fmt: skip

Visit = Callable[[Stmt, frozenset[str]], None]
# How a function that is called as a statement uses an argument: an Out argument may be assigned in
# any case before it is read ("whole"), or be read for the sake of its own new value only ("own").
Mode: TypeAlias = Literal["In", "Out", "whole", "own"]
Uses: TypeAlias = tuple[frozenset[str], frozenset[str], frozenset[str]]
Modes: TypeAlias = Callable[[str], tuple[Mode, ...]]


@remembered
def covers(stmt: IndexAssign) -> bool:
    """Whether an index statement writes every element of its target."""
    target = stmt.target
    if not isinstance(target, Index) or not isinstance(target.base.type, TensorType):
        return False
    return fills(target, stmt.axes)


@remembered
def filling(loop: For) -> tuple[IndexAssign, ...]:
    """Statements that write every element of their target in the course of a loop, each of them
    once, where the loop does nothing else with that tensor but read what rounds before wrote."""
    return _filling(loop, (), written(loop.body))


def _filling(loop: For, around: tuple[Axis, ...], changing: set[str]) -> tuple[IndexAssign, ...]:
    counters = (*around, Axis(loop.counter, loop.extent))
    found: list[IndexAssign] = []
    for stmt in loop.body:
        if isinstance(stmt, For):
            found += _filling(stmt, counters, changing)
        if not isinstance(stmt, IndexAssign) or not isinstance(stmt.target, Index):
            continue
        axes = (*counters, *stmt.axes)
        place = {name for subscript in stmt.target.subscripts for name in free_variables(subscript)}
        used = place.union(*(free_variables(axis.extent) for axis in axes))
        once = place.issuperset(axis.name for axis in counters) and used.isdisjoint(changing)
        if once and _reads_back(stmt, loop) and fills(stmt.target, axes):
            found.append(stmt)
    named = Counter(name for stmt in loop.body for name in mentioned_names((stmt,)))
    return tuple(stmt for stmt in found if named[root(stmt.target)] == 1)


def _reads_back(stmt: IndexAssign, loop: For) -> bool:
    """Whether a statement reads nothing of its target but what earlier rounds of the loop wrote."""
    assert isinstance(stmt.target, Index)
    name, counter = root(stmt.target), Var(loop.counter, INT)
    reads = [n for n in walk(stmt.value) if isinstance(n, Index) and n.tensor.name == name]
    if Counter(variables(stmt.value))[name] != len(reads):
        return False
    for read in reads:
        pairs = zip(stmt.target.subscripts, read.subscripts, strict=True)
        moved = [(own, there) for own, there in pairs if own != there]
        if len(moved) != 1 or moved[0][0] != counter:
            return False
        back = constant(arith("-", *(reversed(moved[0]) if loop.backwards else moved[0])))
        if back is None or back < 1:
            return False
    return True


def set_first(name: str, body: tuple[Stmt, ...]) -> bool:
    """Whether a block gives a variable a value before anything looks at it."""
    mentioning = [stmt for stmt in body if name in mentioned_names((stmt,))]
    if not mentioning:
        return True
    match mentioning[0]:
        case Zero(Var()):
            return True
        case Assign(Var(target), "=", value):
            return target == name and name not in free_variables(value)
        case IndexAssign(Index() as target, "=", value) as stmt:
            places = {n for s in target.subscripts for n in free_variables(s)}
            own = target.tensor.name == name and name not in free_variables(value) | places
            return own and (covers(stmt) or _is_set_in_parts(name, mentioning))
        case For() | If() | While() as stmt if name not in own_names(stmt):
            # Where it may leave the variable alone, what comes behind has to set it as well.
            every = isinstance(stmt, If) and all(name in written(block) for block in blocks(stmt))
            inside = all(set_first(name, block) for block in blocks(stmt))
            return inside and (every or set_first(name, tuple(mentioning[1:])))
        case _:
            return False


def _is_set_in_parts(name: str, mentioning: Sequence[Stmt]) -> bool:
    """Whether the first of some statements assign the parts that a tensor consists of."""
    parts = mentioning[: fill_together(mentioning, name)]
    return bool(parts) and all(isinstance(s, IndexAssign) and s.op == "=" for s in parts)


def uses(stmt: Stmt, modes: Modes) -> Uses:
    """(read, wholly written, partly written) of a statement without nested blocks."""
    if isinstance(stmt, CallStmt):
        return _call_uses(stmt.call, modes(stmt.call.function))
    return _uses(stmt)


@remembered
def _uses(stmt: Stmt) -> Uses:
    own = effects(stmt)
    read = {name for expr in own.reads for name in free_variables(expr)}
    # Taking a value off a stack changes it: as long as others are taken, all are.
    whole, part = {var.name for var in own.declares}, {stack.name for stack in own.stacks}
    if isinstance(stmt, Declare):
        read |= reads_of_type(stmt.target.type)
    if isinstance(stmt, IndexAssign):
        read -= {axis.name for axis in stmt.axes}
    for place in own.writes:
        every = not own.adds and (
            isinstance(place, Var) or (isinstance(stmt, IndexAssign) and covers(stmt))
        )
        (whole if every else part).add(root(place))
    return frozenset(read), frozenset(whole), frozenset(part)


def _call_uses(call: Call, modes: tuple[Mode, ...]) -> Uses:
    read: set[str] = set()
    whole: set[str] = set()
    part: set[str] = set()
    for mode, arg in zip(modes, call.args, strict=True):
        if mode in ("In", "Out"):
            read |= free_variables(arg)
        else:
            read |= {name for sub in subscripts(arg) for name in free_variables(sub)}
        if mode != "In":
            (whole if mode == "whole" and isinstance(arg, Var) else part).add(root(arg))
    return frozenset(read), frozenset(whole), frozenset(part)


class CallModes:
    """How functions use their arguments; found out when first asked, and kept."""

    def __init__(self, functions: tuple[Function, ...]) -> None:
        self._functions = {function.name: function for function in functions}
        self._found: dict[str, tuple[Mode, ...]] = {}
        self._asked: set[str] = set()

    def add(self, functions: Iterable[Function]) -> None:
        """More functions, callees first."""
        for function in functions:
            self._functions.setdefault(function.name, function)

    def of(self, name: str) -> tuple[Mode, ...]:
        if name not in self._found:
            # In order, so that a long chain of calls is no deep recursion.
            for function in list(self._functions.values()):
                if function.name not in self._found and function.name not in self._asked:
                    self._asked.add(function.name)
                    self._found[function.name] = self._modes(function)
                if function.name == name:
                    break
        return self._found[name]

    def _modes(self, function: Function) -> tuple[Mode, ...]:
        outs = frozenset(param.name for param in function.params if param.mode == "Out")
        if not outs:
            return tuple("In" for _ in function.params)
        read = Liveness(self).block(function.body, outs)[1]
        found: list[Mode] = []
        for param in function.params:
            if param.mode == "In":
                found.append("In")
            elif param.name not in read:
                found.append("whole")
            else:
                others = Liveness(self).block(function.body, outs - {param.name})[1]
                found.append("Out" if param.name in others else "own")
        return tuple(found)


class Liveness:
    """Backward analysis over statement lists, with dead statements dropped on request."""

    def __init__(
        self, functions: tuple[Function, ...] | CallModes, visit: Visit | None = None
    ) -> None:
        """``functions`` are those that the statements may call, callees first; ``visit`` hears of
        every statement that is kept, and what is live after it."""
        self._modes = functions if isinstance(functions, CallModes) else CallModes(functions)
        self._visit = visit
        self._mentioned: set[str] = set()  # in statements that are kept

    def block(
        self, body: tuple[Stmt, ...], live: frozenset[str]
    ) -> tuple[tuple[Stmt, ...], frozenset[str]]:
        """The body without dead statements, and what is live before it."""
        kept: list[Stmt] = []
        now = set(live)  # one set that changes: copies of it would make long bodies slow
        for stmt in reversed(body):
            new = self._statement(stmt, now)
            if new is not None:
                kept.append(new)
        return tuple(reversed(kept)), frozenset(now)

    def _statement(self, stmt: Stmt, live: set[str]) -> Stmt | None:
        """The statement, if it is not dead; ``live`` becomes what is live before it."""
        match stmt:
            case If(cond, then, other):
                after = frozenset(live)
                new_then, live_then = self.block(then, after)
                new_other, live_other = self.block(other, after)
                if not new_then and not new_other:
                    return None
                self._mentioned |= free_variables(cond)
                live.clear()
                live |= live_then | live_other | free_variables(cond)
                return replace(stmt, then=new_then, other=new_other)
            case For() | While():
                new, before = self._loop(stmt, frozenset(live))
                live |= before
                if isinstance(new, For):
                    live -= {root(inner.target) for inner in filling(new) if inner.op == "="}
                return new
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

    def _leaf(self, stmt: Stmt, live: set[str]) -> Stmt | None:
        read, whole, part = uses(stmt, self._modes.of)
        stays = isinstance(stmt, Return) or (isinstance(stmt, IndexAssign) and unproved(stmt) != ())
        if not stays and live.isdisjoint(whole) and live.isdisjoint(part):
            if isinstance(stmt, Declare) and stmt.target.name in self._mentioned:
                # Its first value is never read, but the variable is written later.
                sizes = reads_of_type(stmt.target.type)
                self._mentioned |= sizes
                live |= sizes
                return replace(stmt, value=None)
            # One that may be the declaration of a variable that is written later has to stay.
            if not (isinstance(stmt, Unpack) and self._mentioned & whole):
                return None
        self._mentioned |= read | whole | part
        if self._visit is not None:
            self._visit(stmt, frozenset(live))
        live -= whole
        live |= read
        return stmt
