"""The two sweeps: the program with what is to be kept, and its reversal.

In the outermost block, and in branches there, an old value is kept in a variable of its own. Inside
a loop it goes on a stack, one for each variable, and the reverse sweep takes it from there: the
order in which values come back is the reverse of that in which they went.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from dataclasses import dataclass

from loma import errors
from loma.ad.scalar.context import Context
from loma.ad.scalar.leaves import Leaves
from loma.ad.scalar.paths import path_of
from loma.ad.scalar.recording import Recording, step_back
from loma.ad.scalar.steps import int_step
from loma.core import builder as b
from loma.core.effects import effects
from loma.core.ir import (
    INT, Assign, Declare, Expr, For, Function, If, IntConst, IntType, Place, Pop, Push, Return,
    StackType, Stmt, Type, Var, While, replace,
)  # fmt: skip
from loma.core.walk import blocks, map_blocks, root, statements
from loma.errors.spans import Span


@dataclass(slots=True)
class Tape:
    """A stack and the number of values that it may hold; None where that is not bounded."""

    var: Var
    capacity: int | None = 0

    def grow(self, count: int | None) -> None:
        both = self.capacity is not None and count is not None
        self.capacity = self.capacity + count if both else None  # type: ignore[operator]

    @property
    def type(self) -> StackType:
        """With the capacity known by now. Where no loop runs it is one; more than an int can count
        is no bound."""
        assert isinstance(self.var.type, StackType)
        if self.capacity is None or self.capacity >= 2**31:
            return replace(self.var.type, capacity=None)
        return replace(self.var.type, capacity=max(1, self.capacity))


class SweepBuilder:
    def __init__(self, context: Context, leaves: Leaves) -> None:
        self._ctx = context
        self._leaves = leaves
        self._adjoints: dict[int, list[Stmt]] = {}  # by number of the statement
        self._tapes: dict[tuple[str, Type], Tape] = {}
        self._bounds: list[int | None] = []  # iterations of the loops around
        self._extents: dict[str, int | None] = {}  # of the counters in scope
        self._counts = trip_counts(context.normal.function.body, context.functions)
        self._recording = Recording(
            self.adjoint, dict(context.normal.types), context.functions, context.structs
        )

    def build(self, restored: frozenset[str] = frozenset()) -> list[Stmt]:
        """Declarations and both sweeps; variables in ``restored`` end as they began."""
        body = self._ctx.normal.function.body
        self._recording.run(body, restored)
        forward, reverse = self._block(body)
        # The capacities of stacks are known now.
        tapes = {t.var.name: replace(t.var, type=t.type) for t in self._tapes.values()}

        def sized(stmt: Stmt) -> Stmt:
            match stmt:
                case Push(stack) | Pop(stack) if stack.name in tapes:
                    return replace(stmt, stack=tapes[stack.name])
                case _:
                    return map_blocks(stmt, lambda body: tuple(map(sized, body)))

        declarations = [*self._ctx.declarations, *(Declare(v, None) for v in tapes.values())]
        return [*declarations, *map(sized, forward), *map(sized, reverse)]

    def adjoint(self, stmt: Stmt) -> list[Stmt]:
        """The adjoint of a statement without nested blocks."""
        if stmt.number not in self._adjoints:
            self._adjoints[stmt.number] = self._leaves.adjoint(stmt)
        return self._adjoints[stmt.number]

    def _block(self, body: tuple[Stmt, ...]) -> tuple[list[Stmt], list[Stmt]]:
        """Forward and reverse code of a block."""
        forward: list[Stmt] = []
        reverse: list[list[Stmt]] = []
        for stmt in body:
            ahead, back = self._statement(stmt)
            forward += ahead
            reverse.append(back)
        return forward, [stmt for back in reversed(reverse) for stmt in back]

    def _statement(self, stmt: Stmt) -> tuple[list[Stmt], list[Stmt]]:
        match stmt:
            case If():
                return self._if(stmt)
            case For() | While():
                keep, restore = self._kept(stmt)
                ahead, back = self._for(stmt) if isinstance(stmt, For) else self._while(stmt)
                return [*keep, *ahead], [*back, *restore]
            case Return():
                return [], self.adjoint(stmt)
            case _:
                keep, restore = self._kept(stmt)
                return [*keep, stmt], [*restore, *self.adjoint(stmt)]

    def _kept(self, stmt: Stmt) -> tuple[list[Stmt], list[Stmt]]:
        """Code that keeps what the statement overwrites, and that puts it back."""
        keep: list[Stmt] = []
        restore: list[Stmt] = []
        for place in self._recording.kept.get(stmt.number, ()):
            save, load = self._saved(place, place, _name(place), stmt.span)
            keep.append(save)
            restore.insert(0, load)
        if stmt.number in self._recording.stepped:
            back = step_back(stmt)
            assert back is not None
            restore.append(back)
        return keep, restore

    def _saved(self, value: Expr, place: Place, name: str, span: Span) -> tuple[Stmt, Stmt]:
        """Statements that keep a value, and that put it into ``place`` again."""
        if self._ctx.is_unbounded(place.type):
            raise errors.NotDifferentiable(
                f"the values of '{root(place)}', an array of unknown length, are overwritten here "
                "and needed by the derivative",
                span,
                hint="give the array a size: Array[float, n]",
                var=root(place),
            )
        if not self._bounds:
            old = self._ctx.declare(f"_{name}_old", place.type)
            return Assign(old, "=", value), Assign(place, "=", old)
        tape = self._tape(name, place.type)
        count: int | None = 1
        for bound in self._bounds:
            count = None if count is None or bound is None else count * bound
        tape.grow(count)
        return Push(tape.var, value), Pop(tape.var, place)

    def _kept_in_loops(self, var: Var, name: str, span: Span) -> tuple[list[Stmt], list[Stmt]]:
        """The same for a variable that gets a value once, unless it is in a loop."""
        if not self._bounds:
            return [], []
        save, load = self._saved(var, var, name, span)
        return [save], [load]

    def _tape(self, name: str, type_: Type) -> Tape:
        if (name, type_) not in self._tapes:
            var = self._ctx.new(f"_tape_{name}", StackType(type_, None))
            self._tapes[name, type_] = Tape(var)
        return self._tapes[name, type_]

    def _if(self, stmt: If) -> tuple[list[Stmt], list[Stmt]]:
        then, then_back = self._block(stmt.then)
        other, other_back = self._block(stmt.other)
        if not then_back and not other_back:
            return [replace(stmt, then=tuple(then), other=tuple(other))], []
        if self._recording.direct[stmt.number]:
            return (
                [replace(stmt, then=tuple(then), other=tuple(other))],
                [_branch(stmt, stmt.cond, then_back, other_back)],
            )
        taken = self._ctx.declare("_taken", INT)
        truth = stmt.cond
        if not isinstance(truth.type, IntType):
            truth = b.binary("!=", truth, b.flt(0))
        # Branches inside may share the stack, so that what is popped first is pushed last.
        keep, back = self._kept_in_loops(taken, "taken", stmt.span)
        branch = replace(stmt, cond=taken, then=tuple(then), other=tuple(other))
        return (
            [Assign(taken, "=", truth), branch, *keep],
            [*back, _branch(stmt, taken, then_back, other_back)],
        )

    def _for(self, stmt: For) -> tuple[list[Stmt], list[Stmt]]:
        bound = self._bound(stmt.extent)
        self._bounds.append(bound)
        self._extents[stmt.counter] = bound
        body, back = self._block(stmt.body)
        self._bounds.pop()
        del self._extents[stmt.counter]
        if not back:
            return [replace(stmt, body=tuple(body))], []
        again = replace(stmt, body=tuple(back), backwards=not stmt.backwards)
        if self._recording.direct[stmt.number]:
            return [replace(stmt, body=tuple(body))], [again]
        count = self._ctx.declare("_count", INT)
        keep, behind = self._kept_in_loops(count, "count", stmt.span)
        return (
            [
                Assign(count, "=", stmt.extent),
                replace(stmt, extent=count, body=tuple(body)),
                *keep,
            ],
            [*behind, replace(again, extent=count)],
        )

    def _while(self, stmt: While) -> tuple[list[Stmt], list[Stmt]]:
        self._bounds.append(stmt.max_iter)
        body, back = self._block(stmt.body)
        self._bounds.pop()
        if not back:
            return [replace(stmt, body=tuple(body))], []
        count = self._ctx.declare("_count", INT)
        body.append(Assign(count, "=", b.binary("+", count, IntConst(1))))
        keep, behind = self._kept_in_loops(count, "count", stmt.span)
        step = self._ctx.new("_step", INT)
        return (
            [Assign(count, "=", IntConst(0)), replace(stmt, body=tuple(body)), *keep],
            [*behind, For(step.name, count, tuple(back), span=stmt.span)],
        )

    def _bound(self, extent: Expr) -> int | None:
        """The most iterations that a range can have, where the text tells."""
        match extent:
            case IntConst(value):
                return max(0, value)
            case Var(name) if name in self._extents:
                return self._extents[name]
            case Var(name):
                return self._counts.get(name)
            case _:
                return None


def trip_counts(body: tuple[Stmt, ...], functions: dict[str, Function]) -> dict[str, int]:
    """The largest values of variables that do nothing but count the iterations of loops.

    Such a variable is set to zero right before a ``while``, and grows by one in it; it may also
    come back from a stack.
    """
    largest: dict[str, int] = {}
    others = Counter(  # how many statements do something else
        root(place)
        for stmt in statements(body)
        if not isinstance(stmt, Pop)
        for place in effects(stmt, functions).writes
    )

    def visit(block: tuple[Stmt, ...]) -> None:
        for before, loop in pairwise(block):
            match before, loop:
                case Assign(Var(name), "=", IntConst(0)), While(_, limit, inner):
                    steps = [s for s in inner if int_step(s) == (before.target, 1)]
                    if len(steps) == 1:
                        others[name] -= 2
                        largest[name] = max(limit, largest.get(name, 0))
                case _:
                    pass
        for stmt in block:
            for inner in blocks(stmt):
                visit(inner)

    visit(body)
    return {name: most for name, most in largest.items() if not others[name]}


def _branch(stmt: If, cond: Expr, then: list[Stmt], other: list[Stmt]) -> If:
    if not then:
        return replace(stmt, cond=b.unary("not", cond), then=tuple(other), other=())
    return replace(stmt, cond=cond, then=tuple(then), other=tuple(other))


def _name(place: Place) -> str:
    """What a kept value is called after: the variable and the members on the way."""
    return "_".join(step for step in path_of(place) if step != "*").lstrip("_") or root(place)
