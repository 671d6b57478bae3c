"""The first or the last round of a short loop apart, where that decides what the others do.

    for t in range(T):                                       for t in range(min(T, 1)):
        y[t] = x[t] + (y[t - 1] if t > 0 else 0.0)               y[0] = x[0] + 0.0
                                                             for t in range(T - 1):
                                                                 y[t + 1] = x[t + 1] + y[t]

Without the condition, what one round hands to the next can stay in a register.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loma.core import sizes
from loma.core.bounds import ONE, ZERO
from loma.core.ir import (
    INT, Builtin, Expr, For, Function, If, IndexAssign, Select, Stmt, Var, replace,
)  # fmt: skip
from loma.core.sizes import IsSize, arith
from loma.core.walk import (
    expressions, free_variables, map_blocks, map_expressions, mentioned_names, statements,
    substitute, variables, walk,
)  # fmt: skip
from loma.passes.canonical.copies import without_constant_conditions
from loma.passes.canonical.recurrences.decided import comparisons, decided, is_equality
from loma.passes.fold import folded
from loma.passes.liveness import filling

LARGEST = 4  # index statements of a loop, of which there are two copies then


def peeled(function: Function) -> Function:
    """The function with such rounds apart."""
    is_size = frozenset(sizes.size_variables(function)).__contains__

    def block(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for stmt in body:
            stmt = map_blocks(stmt, block)
            out += _Loop(stmt, is_size).parts() if isinstance(stmt, For) else [stmt]
        return tuple(out)

    return replace(function, body=block(function.body))


def fill_together(first: Stmt, second: Stmt, name: str) -> bool:
    """Whether two loops, as they are made here, write every element of a tensor before they read
    it."""
    for once, others in ((first, second), (second, first)):
        match once, others:
            case For(_, Builtin("min", (extent, _))), For(_, rest) if rest == arith(
                "-", extent, ONE
            ):
                pass
            case _:
                continue
        assert isinstance(once, For)
        assert isinstance(others, For)
        apart, stmt = (
            [s for s in loop.body if name in mentioned_names((s,))] for loop in (once, others)
        )
        if len(apart) == len(stmt) == 1 and _fill(
            apart[0], replace(others, extent=extent, body=tuple(stmt)), name
        ):
            return True
    return False


def _fill(apart: Stmt, others: For, name: str) -> bool:
    """The same for the statement of the round that is apart, and that of the others in a loop over
    all rounds."""
    if not isinstance(apart, IndexAssign) or name in variables(apart.value) or apart.op != "=":
        return False
    here = Var(others.counter, INT)
    for round_, before in ((ZERO, arith("-", here, ONE)), (arith("-", others.extent, ONE), here)):
        loop = replace(others, body=_replaced(others.body, here.name, before))
        same = _replaced(loop.body, here.name, round_)[0]
        if isinstance(same, IndexAssign) and same.target == apart.target and filling(loop):
            return True
    return False


def _replaced(body: tuple[Stmt, ...], counter: str, value: Expr) -> tuple[Stmt, ...]:
    def new(expr: Expr) -> Expr:
        return sizes.simple_subscripts(substitute(expr, {counter: value}), counter)

    return tuple(map_expressions(stmt, new) for stmt in body)


@dataclass(frozen=True, slots=True)
class _Loop:
    loop: For
    is_size: IsSize

    def parts(self) -> list[Stmt]:
        """The loop, or the round that is apart and the others, in the order in which they run."""
        loop = self.loop
        body = list(statements(loop.body))
        simple = all(isinstance(stmt, IndexAssign | If) for stmt in body)
        count = sum(isinstance(stmt, IndexAssign) for stmt in body)
        if not simple or count > LARGEST or not sizes.is_arithmetic(loop.extent):
            return [loop]
        if not self._questions(loop.body):
            return [loop]
        here, last = Var(loop.counter, INT), arith("-", loop.extent, ONE)
        for apart, other in ((ZERO, arith("+", here, ONE)), (last, here)):
            rest = self._with(other, {loop.counter: last})
            if self._questions(rest):
                continue
            at_most_one = Builtin("min", (loop.extent, ONE), INT)
            once = For(loop.counter, at_most_one, self._with(apart, {}), False, loop.span)
            others = replace(loop, extent=last, body=rest)
            return [others, once] if (apart == ZERO) == loop.backwards else [once, others]
        return [loop]

    def _questions(self, body: tuple[Stmt, ...]) -> bool:
        """Whether conditions of a body compare the counter with something."""
        conditions = [stmt.cond for stmt in statements(body) if isinstance(stmt, If)]
        for stmt in statements(body):
            for expr in expressions(stmt):
                conditions += (node.cond for node in walk(expr) if isinstance(node, Select))
        return any(
            self.loop.counter in free_variables(node)
            and (comparisons(node) is not None or is_equality(node))
            for cond in conditions
            for node in walk(cond)
        )

    def _with(self, place: Expr, extents: Mapping[str, Expr]) -> tuple[Stmt, ...]:
        """The body with a value for the counter, which has those ranges."""
        here = {self.loop.counter: place}

        def value(expr: Expr) -> Expr:
            new = folded(decided(substitute(expr, here), extents, self.is_size))
            return sizes.simple_subscripts(new, self.loop.counter)

        body = tuple(map_expressions(stmt, value) for stmt in self.loop.body)
        return without_constant_conditions(body)
