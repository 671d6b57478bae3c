"""Which ``Out`` arguments' values on entry a derivative needs.

The derivative that a program asks for is not given them. What it may read of an ``Out`` argument is
therefore only what the function itself has written before. The proof goes through the function in
its own order with *facts*: places that have been written in any case. An element's subscript is a
constant or a variable plus a constant, so that loops that fill an array are understood::

    y[0] = x
    for i in range(3):
        y[i + 1] = y[i] * y[i]      # y[i] holds by induction: y[0] before, y[i + 1] at the end
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from loma.ad.scalar.paths import places
from loma.ad.scalar.steps import int_step
from loma.core.effects import effects, out_places, written
from loma.core.ir import (
    ArrayType, Assign, AtomicAdd, Binary, Builtin, CallStmt, Declare, Expr, For, Function, If,
    Index, IntConst, IntType, Member, Place, Pop, Stmt, Struct, StructType, Unpack, Var, Type,
    While, Zero,
)  # fmt: skip
from loma.core.walk import root
from loma.passes.liveness import Modes

# A variable plus a constant; the variable is "" for a constant alone, and a work item's number
# counts as one.
Subscript: TypeAlias = tuple[str, int]
# From the variable: members, and subscripts.
Written: TypeAlias = tuple[str | Subscript, ...]
Matters: TypeAlias = Callable[[Stmt], Iterable[Expr]]
THREAD = "thread_id()"


@dataclass(slots=True)
class _Facts:
    """Places that have been written, and int variables whose values are known."""

    written: set[Written] = field(default_factory=set)
    constants: dict[str, int] = field(default_factory=dict)

    def copy(self) -> _Facts:
        return _Facts(set(self.written), dict(self.constants))

    def meet(self, other: _Facts) -> None:
        self.written &= other.written
        self.constants = dict(self.constants.items() & other.constants.items())


def needed_on_entry(
    function: Function,
    functions: Mapping[str, Function],
    structs: Mapping[str, Struct],
    modes: Modes,
    matters: Matters,
) -> list[str]:
    """The ``Out`` arguments whose values on entry may be needed.

    ``function`` is in normal form; ``modes`` says how called functions use their arguments;
    ``matters(stmt)`` gives the expressions that a derivative evaluates in the state before a
    statement.
    """
    outs = {p.name: p.type for p in function.params if p.mode == "Out"}
    proof = _Proof(outs, functions, structs, modes, matters)
    proof.block(function.body, _Facts())
    return [name for name in outs if name in proof.needed]


@dataclass(slots=True)
class _Proof:
    outs: Mapping[str, Type]
    functions: Mapping[str, Function]
    structs: Mapping[str, Struct]
    modes: Modes
    matters: Matters
    needed: set[str] = field(default_factory=set)

    # ------------------------------------------------------------------------------ statements

    def block(self, body: tuple[Stmt, ...], facts: _Facts) -> None:
        for stmt in body:
            self._statement(stmt, facts)

    def _statement(self, stmt: Stmt, facts: _Facts) -> None:
        for expr in self.matters(stmt):
            self._read(expr, facts)
        match stmt:
            case If(_, then, other):
                second = facts.copy()
                self.block(then, facts)
                self.block(other, second)
                facts.meet(second)
            case For() | While():
                self._loop(stmt, facts)
            case Declare(target, value):
                self._set(target, value, facts)
            case Assign():
                self._assign(stmt, facts)
            case AtomicAdd():
                pass
            case Zero(target):
                self._set(target, IntConst(0), facts)
            case Pop() | Unpack():
                for place in effects(stmt).writes:
                    self._set(place, None, facts)
            case CallStmt(call):
                modes = [mode for mode in self.modes(call.function) if mode != "In"]
                places = out_places(call, self.functions[call.function])
                for place, mode in zip(places, modes, strict=True):
                    if mode == "whole":
                        self._set(place, None, facts)
                    else:
                        self._forget(root(place), facts)
            case _:
                pass

    def _assign(self, stmt: Assign, facts: _Facts) -> None:
        step = int_step(stmt)
        if step is not None:
            var, by = step
            _shift(var.name, by, facts)
        elif stmt.op == "=":
            self._set(stmt.target, stmt.value, facts)
        elif isinstance(stmt.target.type, IntType):
            self._forget(root(stmt.target), facts)

    def _set(self, target: Place, value: Expr | None, facts: _Facts) -> None:
        if isinstance(target.type, IntType):
            self._forget(root(target), facts)
            if isinstance(target, Var) and isinstance(value, IntConst):
                facts.constants[target.name] = value.value
        if root(target) in self.outs:
            place = self._path(target, facts)
            if place is not None:
                facts.written.add(place)
                self._complete(place, facts)

    def _forget(self, name: str, facts: _Facts) -> None:
        """An int variable has a new value, of which nothing is known."""
        facts.constants.pop(name, None)
        facts.written = {p for p in facts.written if not _mentions(p, name)}

    # ----------------------------------------------------------------------------------- loops

    def _loop(self, loop: For | While, facts: _Facts) -> None:
        """The body is walked with what holds before every pass: what is not undone inside, and what
        holds by induction."""
        counter = loop.counter if isinstance(loop, For) else None
        moved = written(loop.body, self.functions)
        start = facts.copy()
        guesses: set[Written] = set()
        names = [(counter, 0)] if counter is not None else sorted(
            (name, start.constants[name]) for name in moved if name in start.constants
        )  # fmt: skip
        backwards = isinstance(loop, For) and loop.backwards
        for name, first in names if not backwards else []:
            assert name is not None
            for place in start.written:
                if _mentions(place, ""):  # in terms of the variable, which has that value
                    guesses.add(_moved(place, "", -first, name))
        for name in moved:
            self._forget(name, start)
        # A guess that the body does not bring about for the next pass is dropped, and what hung on
        # it with it.
        needed = set(self.needed)
        while True:
            inside = start.copy()
            inside.written |= guesses
            self.needed = set(needed)
            self.block(loop.body, inside)
            if counter is not None:
                _shift(counter, 1, inside)
            held = {guess for guess in guesses if self._covered(guess, inside)}
            if held == guesses:
                break
            guesses = held
        facts.written, facts.constants = start.written, start.constants
        if counter is None:
            facts.written |= guesses
        else:
            assert isinstance(loop, For)
            self._swept(loop, inside, facts)

    def _swept(self, loop: For, end: _Facts, facts: _Facts) -> None:
        """After a loop over a constant range: what each pass wrote, for all passes."""
        if not isinstance(loop.extent, IntConst) or loop.extent.value <= 0:
            return
        for place in end.written:
            if not _mentions(place, loop.counter):
                facts.written.add(place)
                continue
            for value in range(min(loop.extent.value, 4096)):
                # the facts at the end of a pass are in terms of the next pass's counter
                facts.written.add(_moved(place, loop.counter, value + 1, ""))
        for place in sorted(facts.written, key=str):
            self._complete(place, facts)

    # --------------------------------------------------------------------------------- places

    def _path(self, place: Expr, facts: _Facts) -> Written | None:
        """A place as members and subscripts; None where a subscript is anything else."""
        match place:
            case Var(name):
                return (name,)
            case Member(base, name):
                before = self._path(base, facts)
                return None if before is None else (*before, name)
            case Index(base, (subscript,)):
                before = self._path(base, facts)
                position = _subscript(subscript, facts)
                return None if before is None or position is None else (*before, position)
            case _:
                return None

    def _complete(self, place: Written, facts: _Facts) -> None:
        """A struct or an array all of whose parts have been written has been written itself."""
        while len(place) > 1:
            place = place[:-1]
            type_ = self._type(place)
            parts: list[Written] = []
            match type_:
                case StructType(name):
                    parts = [(*place, member) for member, _ in self.structs[name].members]
                case ArrayType(_, int(size)) if size <= 4096:
                    parts = [(*place, ("", k)) for k in range(size)]
                case _:
                    return
            if not all(part in facts.written for part in parts):
                return
            facts.written.add(place)

    def _type(self, place: Written) -> Type:
        type_ = self.outs[str(place[0])]
        for step in place[1:]:
            if isinstance(type_, StructType) and isinstance(step, str):
                type_ = dict(self.structs[type_.name].members)[step]
            elif isinstance(type_, ArrayType):
                type_ = type_.element
        return type_

    def _covered(self, place: Written, facts: _Facts) -> bool:
        return any(place[:length] in facts.written for length in range(1, len(place) + 1))

    def _read(self, expr: Expr, facts: _Facts) -> None:
        """Notes what an expression reads of Out arguments before it has been written."""
        for place in places(expr):
            if root(place) in self.outs and not self._holds(place, facts):
                self.needed.add(root(place))

    def _holds(self, place: Expr, facts: _Facts) -> bool:
        """Whether a place, or something that it is a part of, has been written."""
        while True:
            path = self._path(place, facts)
            if path is not None and self._covered(path, facts):
                return True
            if not isinstance(place, Index | Member):
                return False
            place = place.base


def _subscript(expr: Expr, facts: _Facts) -> Subscript | None:
    match expr:
        case IntConst(value):
            return ("", value)
        case Var(name):
            return (name, 0)
        case Builtin("thread_id"):
            return (THREAD, 0)
        case Binary("+", left, IntConst(value)) | Binary("+", IntConst(value), left):
            inner = _subscript(left, facts)
            return None if inner is None else (inner[0], inner[1] + value)
        case Binary("-", left, IntConst(value)):
            inner = _subscript(left, facts)
            return None if inner is None else (inner[0], inner[1] - value)
        case _:
            return None


def _mentions(place: Written, name: str) -> bool:
    return any(isinstance(step, tuple) and step[0] == name for step in place[1:])


def _shift(name: str, by: int, facts: _Facts) -> None:
    """The variable has grown: an element at ``name + k`` is now at ``name + k - by``."""
    facts.written = {_moved(place, name, -by) for place in facts.written}
    if name in facts.constants:
        facts.constants[name] += by


def _moved(place: Written, name: str, by: int, to: str | None = None) -> Written:
    """A place with other subscripts for those at ``name``: larger ones, at ``to`` if that is
    given."""
    return tuple(
        (name if to is None else to, step[1] + by)
        if isinstance(step, tuple) and step[0] == name
        else step
        for step in place
    )
