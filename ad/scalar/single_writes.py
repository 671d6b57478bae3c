"""Proves that elements of an array are overwritten before anything else happens to them.

The adjoint of ``y[i] = e`` sets the adjoint of ``y[i]`` to zero, for the sake of what the element
was before. Where the program never used it before, that may be left out.

The proof is by the form of the program: all accesses have one subscript (or constants), which takes
a new value in every pass of the block that holds them, and in that block no access comes before an
overwriting one.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from loma.ad.scalar.paths import ELEMENT, Path, overlap, path_of, places
from loma.ad.scalar.steps import int_step
from loma.core.effects import assigned, effects
from loma.core.ir import (
    Assign, Binary, Builtin, CallStmt, Declare, Expr, For, Function, If, IntConst, Pop,
    Stmt, Unary, Var, While, Zero,
)  # fmt: skip
from loma.core.walk import (
    blocks, expressions, free_variables, map_children, root, statements, subscripts, walk,
)  # fmt: skip
from loma.passes.liveness import Modes

THREAD = Builtin("thread_id", (), IntConst(0).type)


@dataclass(frozen=True, slots=True)
class _Access:
    subscripts: tuple[Expr, ...]
    path: Path
    overwrites: bool
    loops: tuple[For | While, ...]
    stmt: Stmt


def overwrites_untouched(
    function: Function, name: str, functions: dict[str, Function], modes: Modes
) -> bool:
    """Whether no element of the array ``name`` is used before it is overwritten.

    ``modes`` says how called functions use their arguments.
    """
    return _Proof(function, name, functions, modes).holds()


class _Proof:
    def __init__(
        self, function: Function, name: str, functions: dict[str, Function], modes: Modes
    ) -> None:
        self._function = function
        self._name = name
        self._functions = functions
        self._modes = modes
        self._fixed: set[str] = set()  # In arguments that keep their values
        self._values = self._definitions()

    def holds(self) -> bool:
        accesses = list(self._accesses(self._function.body, ()))
        if len(accesses) == 1:  # one place in the text, reached once for each element
            return self._distinct(accesses[0].subscripts, accesses[0].loops)
        if any(not access.subscripts for access in accesses):
            return False  # the whole array at once
        groups: dict[tuple[tuple[Expr, ...], Path], list[_Access]] = {}
        for access in accesses:
            groups.setdefault((access.subscripts, _element(access.path)), []).append(access)
        if any(_may_meet(one, other) for one, other in combinations(groups, 2)):
            return False
        return all(self._group(subs, group) for (subs, _), group in groups.items())

    def _definitions(self) -> dict[str, Expr]:
        """The values of variables that are assigned once."""
        changed = set(assigned(self._function.body, self._functions))
        params = self._function.params
        self._fixed = {p.name for p in params if p.mode == "In"} - changed
        found: dict[str, Expr] = {}
        for stmt in self._function.body:
            match stmt:
                case Declare(target, value) if value is not None and target.name not in changed:
                    found[target.name] = self._resolved(value, found)
                case _:
                    pass
        return found

    def _resolved(self, expr: Expr, values: dict[str, Expr]) -> Expr:
        if isinstance(expr, Var):
            return values.get(expr.name, expr)
        return map_children(expr, lambda child: self._resolved(child, values))

    # -------------------------------------------------------------------------------- accesses

    def _accesses(self, body: tuple[Stmt, ...], loops: tuple[For | While, ...]) -> list[_Access]:
        found: list[_Access] = []
        for stmt in body:
            for expr in expressions(stmt):
                found += self._in_expression(expr, stmt, loops)
            inner = (*loops, stmt) if isinstance(stmt, For | While) else loops
            for block in blocks(stmt):
                found += self._accesses(block, inner)
        return found

    def _in_expression(
        self, expr: Expr, stmt: Stmt, loops: tuple[For | While, ...]
    ) -> list[_Access]:
        targets = effects(stmt, self._functions).writes
        found: list[_Access] = []
        for place in places(expr):
            if root(place) == self._name:
                written = any(place is target for target in targets)
                subs = [self._resolved(s, self._values) for s in subscripts(place)]
                found.append(
                    _Access(
                        tuple(reversed(subs)),
                        path_of(place),
                        written and self._replaces(stmt, place),
                        loops,
                        stmt,
                    )
                )
        return found

    def _replaces(self, stmt: Stmt, place: Expr) -> bool:
        """Whether the statement gives a place a value that does not depend on the old one."""
        match stmt:
            case Assign(_, "=", value):
                return self._name not in free_variables(value)
            case Zero() | Pop():
                return True
            case CallStmt(call):
                modes = self._modes(call.function)
                return all(
                    mode == "whole" for arg, mode in zip(call.args, modes, strict=True)
                    if arg is place
                )  # fmt: skip
            case _:
                return False

    # ----------------------------------------------------------------------------------- proof

    def _group(self, subs: tuple[Expr, ...], group: list[_Access]) -> bool:
        if not any(access.overwrites for access in group):
            return True
        depth = 0
        while all(
            len(access.loops) > depth and access.loops[depth] is group[0].loops[depth]
            for access in group
        ):
            depth += 1
        around = group[0].loops[:depth]
        block = around[-1].body if around else self._function.body
        return self._distinct(subs, around) and self._first_in_block(block, group, subs)

    def _distinct(self, subs: tuple[Expr, ...], around: tuple[For | While, ...]) -> bool:
        """Whether every pass of the innermost of the loops has subscripts of its own."""
        counters: list[Expr] = []
        for loop in around:
            counter = self._counter(loop, subs)
            if counter is None:
                return False
            counters.append(counter)
        if self._function.simd:
            counters.append(THREAD)
        extents = {c: _extent(loop, c) for c, loop in zip(counters, around, strict=False)}
        covered = {c for sub in subs for c in self._separates(sub, counters, extents)}
        return covered == set(counters)

    def _counter(self, loop: For | While, subs: tuple[Expr, ...]) -> Expr | None:
        if isinstance(loop, For):
            return Var(loop.counter, IntConst(0).type)
        used = {name for sub in subs for name in free_variables(sub)}
        for name in sorted(used):
            steps = [
                stmt for stmt in statements(loop.body)
                if name in map(root, effects(stmt, self._functions).writes)
            ]  # fmt: skip
            step = int_step(steps[0]) if len(steps) == 1 else None
            if step is not None and step[1] > 0 and any(s is steps[0] for s in loop.body):
                return Var(name, IntConst(0).type)
        return None

    def _separates(
        self, sub: Expr, counters: list[Expr], extents: dict[Expr, Expr | None]
    ) -> set[Expr]:
        """Counters whose values can be told from the subscript's."""
        if sub in counters:
            return {sub}
        match sub:
            case Binary("+", Binary("*", left, factor), right) if extents.get(right) == factor:
                return self._separates(left, counters, extents) | {right}
            case Binary("+", Binary("*", factor, left), right) if extents.get(right) == factor:
                return self._separates(left, counters, extents) | {right}
            case Binary("+" | "-", left, right) if self._is_fixed(right):
                return self._separates(left, counters, extents)
            case Binary("+" | "-", left, right) if self._is_fixed(left):
                return self._separates(right, counters, extents)
            case Binary("*", left, IntConst(value)) | Binary("*", IntConst(value), left) if value:
                return self._separates(left, counters, extents)
            case Unary("-", operand):
                return self._separates(operand, counters, extents)
            case _:
                return set()

    def _is_fixed(self, expr: Expr) -> bool:
        """Whether the value is the same all through the function."""
        return all(
            isinstance(node, IntConst | Binary | Unary)
            or (isinstance(node, Var) and node.name in self._fixed)
            for node in walk(expr)
        )

    def _first_in_block(
        self, block: tuple[Stmt, ...], group: list[_Access], subs: tuple[Expr, ...]
    ) -> bool:
        names = {name for sub in subs for name in free_variables(sub)}
        at: dict[int, list[_Access]] = {}  # by number of the statement
        for access in group:
            at.setdefault(access.stmt.number, []).append(access)
        ok = True

        def visit(body: tuple[Stmt, ...], before: frozenset[Path]) -> frozenset[Path]:
            """Goes through a block; the paths that may have been used before its end."""
            nonlocal ok
            for position, stmt in enumerate(body):
                own = effects(stmt, self._functions).writes
                moves_on = before and not names.isdisjoint(map(root, own))
                if moves_on and any(s.number in at for s in statements(body[position + 1 :])):
                    ok = False  # what follows would be another element
                for access in at.get(stmt.number, ()):
                    if access.overwrites and any(overlap(access.path, p) for p in before):
                        ok = False
                before |= {access.path for access in at.get(stmt.number, ())}
                match stmt:
                    case If(_, then, other):
                        before = visit(then, before) | visit(other, before)
                    case For() | While():
                        inside = statements(stmt.body)
                        again = {a.path for s in inside for a in at.get(s.number, ())}
                        before = visit(stmt.body, before | again)
                    case _:
                        pass
            return before

        visit(block, frozenset())
        return ok


def _may_meet(one: tuple[tuple[Expr, ...], Path], other: tuple[tuple[Expr, ...], Path]) -> bool:
    """Whether two accesses may be to one place."""
    if not overlap(one[1], other[1]):
        return False
    constants = all(isinstance(e, IntConst) for e in (*one[0], *other[0]))
    return not (constants and any(a != c for a, c in zip(one[0], other[0], strict=False)))


def _element(path: Path) -> Path:
    """The path up to the last subscript."""
    return path[: len(path) - path[::-1].index(ELEMENT)] if ELEMENT in path else path


def _extent(loop: For | While, counter: Expr) -> Expr | None:
    """What the counter stays below."""
    if isinstance(loop, For):
        return loop.extent
    match loop.cond:
        case Binary("<", left, right) if left == counter:
            return right
        case _:
            return None
