"""What the two sweeps of reverse mode share: versions of variables, adjoints, declarations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import TypeVar

from loma.ad.activity import zeros_like
from loma.ad.contributions import PartialName
from loma.ad.tensor.pairs import CallPlan
from loma.ad.tensor.products import Scope
from loma.ad.tensor.settled import Accesses
from loma.ad.tensor.trips import Trips
from loma.core.effects import assigned
from loma.core.ir import (
    FLOAT, Assign, Call, Declare, Expr, For, Function, IndexAssign, Stmt, TensorType, TupleType,
    Type, Unpack, Var, replace,
)  # fmt: skip
from loma.core.sizes import size_variables
from loma.core.walk import free_variables, statements, substitute
from loma.errors.spans import NOWHERE, Span

S = TypeVar("S", bound=Stmt)
Env = dict[str, str]  # primal variable -> the version that holds its value


@dataclass(frozen=True, slots=True)
class Record:
    """A statement of the forward sweep as its adjoint needs it: in terms of versions."""

    stmt: Stmt
    env: Env
    result: tuple[Var, ...] = ()  # the versions that it wrote
    saved: tuple[Var, ...] = ()  # what a called function's forward part handed over
    extreme: Var | None = None  # position of the first extreme of a max or min reduction
    tape: tuple[tuple[str, Var], ...] = ()  # for a loop: (variable, its tape)
    # For a loop: (tensor, its version after the loop, the statements that overwrite parts of it,
    # each with the tape of what was there).
    undone: tuple[tuple[str, str, tuple[tuple[IndexAssign, Var], ...]], ...] = ()
    settled: tuple[tuple[str, str], ...] = ()  # for a loop: (tensor, its version after the loop)
    sums: tuple[tuple[int, Var], ...] = ()  # for a loop: (number of a statement, its results' tape)
    kept: bool = False  # what the statement wrote is in the version that its adjoint reads


@dataclass(slots=True)
class Sweeps:
    """The two sweeps of one function, still with separate versions.

    ``merges`` are (old version, new version, number of the statement that starts the new one),
    ``rows`` tensors of which each iteration is given the rows that it looks at.
    """

    declarations: list[Stmt] = field(default_factory=list)
    forward: list[Stmt] = field(default_factory=list)
    adjoint: list[Stmt] = field(default_factory=list)
    adjoint_declarations: list[Stmt] = field(default_factory=list)
    merges: list[tuple[str, str, int]] = field(default_factory=list)
    rows: set[str] = field(default_factory=set)
    results: tuple[Var, ...] = ()


@dataclass(slots=True)
class Block:
    """A block while its adjoint is made: the versions at its end, the variables that are assigned
    in it alone, and statements to stand between its code and its adjoint."""

    env: Env
    own: frozenset[str]
    starts: list[Stmt] = field(default_factory=list)


class SweepContext:
    """Names, types and versions while the sweeps of one function in normal form are built."""

    def __init__(
        self,
        trips: Trips,
        active: set[str],
        adjoints: dict[str, Var],
        partial_name: PartialName,
        plan: Callable[[str], CallPlan],
        functions: tuple[Function, ...],
    ) -> None:
        """``adjoints`` has the adjoint variables that already exist (the arguments')."""
        normal = trips.normal
        self.lengths = trips.lengths
        self.repeats = trips.repeats
        self.types = normal.types
        self.names = normal.names
        self.active = active
        self.partial_name = partial_name
        self.plan = plan
        self.functions = functions
        self.primal: dict[str, str] = {}  # version -> primal variable
        self.adjoints = adjoints
        self.assigned = set(assigned(normal.function.body))
        self.depth = 0  # of nested blocks: only at depth 0 can a variable be declared
        self.is_size = set(size_variables(normal.function)).__contains__
        self.fixed = normal.fixed_ints()
        self.loops: list[For] = []  # around
        # In the body of a loop that is run again: tensors that are read as they are after the loop
        # (see settled.py), and the numbers of statements whose results stay that long.
        self.settled: frozenset[str] = frozenset()
        self.kept: set[int] = set()
        # Of tapes of tensors that a loop looks at in rows alone: their subscripts, by dimension.
        self.rows: dict[str, dict[int, Var]] = {}
        # There, too: the tapes of statements' results, by the statement's number.
        self.sums: dict[int, tuple[Var, For]] = {}
        # Numbers of statements that write to elements to which nothing has been written.
        accesses = Accesses(normal.function.body, (), self.assigned, self.is_size)
        self.first = accesses.first_writes()
        self.sweeps = Sweeps()
        self.env: Env = {}  # the versions at the end of the forward sweep
        self.blocks: list[Block] = []  # nested blocks whose adjoint is being made
        self._writes = Counter(assigned(normal.function.body))
        self._numbers = count(1 + max(stmt.number for stmt in statements(normal.function.body)))

    def block(self, body: tuple[Stmt, ...], env: Env) -> Block:
        """A nested block of the function; ``env`` are the versions at its end."""
        inside = Counter(assigned(body))
        return Block(env, frozenset(n for n, count in inside.items() if count == self._writes[n]))

    def function(self, name: str) -> Function:
        return next(function for function in self.functions if function.name == name)

    def ranges(self) -> dict[str, Expr]:
        """The ranges of the loop counters around, as far as nothing changes them."""
        return {
            loop.counter: loop.extent
            for loop in self.loops
            if not free_variables(loop.extent) & self.assigned
        }

    def scope(self) -> Scope:
        return Scope(self.names, self.temporary, self.fixed, self.is_size, self.depth > 0)

    def version(self, name: str, env: Env) -> Var:
        return Var(env.get(name, name), self.types[name])

    def rename(self, expr: Expr, env: Env) -> Expr:
        used = {n: v for n, v in env.items() if n != v}
        return substitute(expr, {n: Var(v, self.types[n]) for n, v in used.items()})

    def base(self, name: str) -> str:
        return self.primal.get(name, name)

    def is_active(self, name: str) -> bool:
        return self.base(name) in self.active

    def adjoint(self, name: str) -> Var:
        """The adjoint variable of a variable or of one of its versions."""
        name = self.base(name)
        if name not in self.adjoints:
            type_ = self.types[name]
            var = Var(self.names.fresh(f"_d_{name.lstrip('_')}"), type_)
            self._start(name, var)
            self.adjoints[name] = var
            self.types[var.name] = type_
        return self.adjoints[name]

    def _start(self, name: str, adjoint: Var) -> None:
        """Declares the adjoint of a variable; one of unknown rank is shaped like the variable,
        where that has got its value."""
        declarations = self.sweeps.adjoint_declarations
        around = next((block for block in self.blocks if name in block.own), None)
        zeros = zeros_like(self.version(name, self.env if around is None else around.env))
        declarations.append(Declare(adjoint, zeros if around is None else None))
        if around is not None and zeros is not None:
            around.starts.append(Assign(adjoint, "=", zeros))

    def starting(self, stmt: S, *versions: tuple[str, str]) -> S:
        """The statement as the one that starts these versions: (old, new) of each."""
        stmt = replace(stmt, number=next(self._numbers))
        self.sweeps.merges += [(old, new, stmt.number) for old, new in versions]
        return stmt

    def new(self, wish: str, type_: Type) -> Var:
        var = Var(self.names.fresh(wish), type_)
        self.types[var.name] = type_
        return var

    def new_version(self, name: str, wish: str) -> Var:
        """A name for another version of a variable."""
        var = self.new(wish, self.types[name])
        self.primal[var.name] = self.base(name)
        return var

    def declare(self, var: Var, code: list[Stmt]) -> None:
        """Declares a variable that a statement is about to write: there, or at the top."""
        (code if self.depth == 0 else self.sweeps.declarations).append(Declare(var, None))

    def called(self, targets: tuple[Var, ...], call: Call, span: Span = NOWHERE) -> Stmt:
        """The statement that gives variables the results of a call."""
        if len(targets) != 1:
            call = replace(call, type=TupleType(tuple(var.type for var in targets)))
            return Unpack(targets, call, span)
        (target,) = targets
        call = replace(call, type=target.type)
        outermost = self.depth == 0
        return Declare(target, call, span) if outermost else Assign(target, "=", call, span)

    def temporary(self, type_: TensorType | None, wish: str) -> Var:
        """A variable declared at the top of the function."""
        var = self.new(wish, FLOAT if type_ is None else type_)
        self.sweeps.declarations.append(Declare(var, None))
        return var
