"""The verifier's part for names and expressions of loop trees."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from loma.backends.schedule import ir
from loma.backends.schedule.ir import Accumulator, InPlace, Node, Parallel, Test, Tiles
from loma.backends.schedule.printer import head, text
from loma.core.builtins import BUILTINS
from loma.core.ir import (
    FLOAT, INT, POSITIONS, Binary, Builtin, Call, Expr, FloatConst, Index, IntConst, Select,
    TensorType, Type, Unary, Var,
)  # fmt: skip
from loma.core.verify_expressions import VerificationError
from loma.core.walk import children, free_variables

# How many arguments the functions of trees take, and which of them is the number of a check.
_ARITY = {
    ir.INSIDE: 2, ir.TESTED: 3, ir.CLAMPED: 3, ir.CEILING: 2, ir.QUOTIENT: 2, ir.REMAINDER: 2,
    ir.STEPS_OF: 2, **dict.fromkeys(ir.OF_TILES, 1),
}  # fmt: skip
_NOTES = (ir.TESTED, ir.CLAMPED)

What: TypeAlias = Literal["constant", "variable", "accumulator", "lanes", "stretch", "part"]


@dataclass(frozen=True, slots=True)
class Name:
    """A name in scope: what it is, the node that declares it, how many loops whose iterations are
    independent are around that, and the tiles that it stands in."""

    what: What
    type: Type
    node: Node | None
    independent: int
    tiles: tuple[Tiles, ...]

    @property
    def finds_position(self) -> bool:
        return isinstance(self.node, Accumulator) and self.node.kind in POSITIONS


@dataclass(slots=True)
class Scope:
    """What is known where the verifier stands in a tree; ``independent`` loops around, ``tiles``
    around, and whether it stands in the value of a lane."""

    tree: Parallel | InPlace
    outside: Callable[[str], bool]
    scope: dict[str, Name] = field(default_factory=dict)
    node: Node | None = None
    independent: int = 0
    tiles: tuple[Tiles, ...] = ()
    in_lanes: bool = False

    def fail(self, what: str) -> VerificationError:
        where = "" if self.node is None else f", `{head(self.node)}`"
        return VerificationError(f"in a loop tree{where}: {what}")

    def require(self, condition: bool, what: str) -> None:
        if not condition:
            raise self.fail(what)

    def declare(self, var: Var, what: What = "constant") -> None:
        self.require(var.name not in self.scope, f"'{var.name}' is declared already")
        is_tensor = isinstance(var.type, TensorType)
        self.require(is_tensor == (what == "part"), f"'{var.name}' is a tensor")
        self.scope[var.name] = Name(what, var.type, self.node, self.independent, self.tiles)

    @contextmanager
    def inner(self, *counters: Var) -> Iterator[None]:
        """A scope of its own, with constants."""
        before = dict(self.scope)
        for counter in counters:
            self.require(counter.type == INT, f"'{counter.name}' is no int")
            self.declare(counter)
        yield
        self.scope = before

    def known(self, var: Var, what: What) -> Name:
        found = self.scope.get(var.name)
        if found is None or found.what != what:
            raise self.fail(f"'{var.name}' is no {what} in scope")
        return found

    def ints(self, *exprs: Expr) -> None:
        for expr in exprs:
            if self.number(expr) != INT:  # to print every expression takes longer than to check it
                raise self.fail(f"`{text(expr)}` is no int")

    def host_ints(self, *exprs: Expr) -> None:
        """Ints that the host computes before the tree, with tensors as the program has them."""
        for expr in exprs:
            missing = sorted(name for name in free_variables(expr) if not self.outside(name))
            self.require(not missing, f"'{', '.join(missing)}' is not declared")
            if expr.type != INT:
                raise self.fail(f"`{text(expr)}` is no int")

    def number(self, expr: Expr) -> Type:
        """Checks an expression; returns its type, int or float."""
        match expr:
            case Var():
                self.variable(expr)
            case Index():
                self.element(expr)
            case Builtin():
                self.builtin(expr)
            case IntConst() | FloatConst() | Unary() | Binary() | Select() | Call():
                for child in children(expr):
                    self.number(child)
            case _:
                raise self.fail(f"a tree has no {type(expr).__name__}")
        if expr.type not in (INT, FLOAT):
            raise self.fail(f"`{text(expr)}` is no number")
        return expr.type

    def variable(self, var: Var) -> None:
        found = self.scope.get(var.name)
        if found is None:
            self.require(self.outside(var.name), f"'{var.name}' is not declared")
            return
        is_value = found.what in ("constant", "variable", "accumulator")
        is_value = is_value and not found.finds_position
        self.require(is_value, f"'{var.name}' is no value")
        self.require(found.type == var.type, f"'{var.name}' is of another type")

    def tensor(self, base: Expr) -> None:
        if not (isinstance(base, Var) and isinstance(base.type, TensorType)):
            raise self.fail(f"`{text(base)}` is no tensor")
        if base.name in self.scope:
            self.known(base, "part")
            return
        tree, known = self.tree, self.outside(base.name)
        own = isinstance(tree, Parallel) and base.name in tree.parts
        self.require(own or known, f"no tensor '{base.name}' is known")

    def element(self, read: Index) -> None:
        self.tensor(read.base)
        self.require(len(read.subscripts) == 1, "an element has more than one offset")
        self.ints(*read.subscripts)

    def builtin(self, expr: Builtin) -> None:
        match expr:
            case Builtin(ir.READ_IF, (condition, Index() as read)):
                self.number(condition)
                self.element(read)
            case Builtin(ir.PICK, args):
                self.require(len(args) == 3, "no choice of two")
                same = args[1].type == args[2].type == expr.type
                for arg in args:
                    self.number(arg)
                self.require(same, "a choice of numbers of two types")
            case Builtin(ir.POSITION, (Var() as accumulator,)):
                found = self.known(accumulator, "accumulator")
                self.require(found.finds_position, "an accumulator without a position")
            case Builtin(ir.WHOLE | ir.IN_STRETCH as name, (Var() as stretch,)):
                found = self.known(stretch, "stretch")
                self.require(found.tiles == self.tiles, "a stretch of another tile")
                own = self.in_lanes or name == ir.WHOLE
                self.require(own, "a test of a lane outside of lanes")
            case Builtin(name, args) if name in _ARITY:
                self.require(len(args) == _ARITY[name], f"'{name}' of {len(args)} arguments")
                self.ints(*args)
                if name in ir.OF_TILES:
                    team = self.tree.team if isinstance(self.tree, Parallel) else None
                    several = team is not None and team.several is not None
                    self.require(several, "several values of an axis of which a thread has one")
                if name in _NOTES:
                    self.check(args[2])
            case Builtin(name, args):
                self.require(name in BUILTINS, f"no function '{name}' of such arguments")
                for arg in args:
                    self.number(arg)

    def check(self, number: Expr) -> None:
        known = isinstance(number, IntConst) and 1 <= number.value <= len(self.tree.checks)
        self.require(known, "there is no such check")

    def tests(self, tests: Sequence[Test]) -> None:
        self.require(bool(tests), "no tests")
        for test in tests:
            self.ints(test.step, test.rest, test.size)
