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
    if not isinstance(first, For) or not isinstance(second, For):
        return False
    once, others = (first, second) if _is_once(first, second) else (second, first)
    apart, rest = (
        [s for s in loop.body if name in mentioned_names((s,))] for loop in (once, others)
    )
    if not _is_once(once, others) or not (len(apart) == len(rest) == 1):
        return False
    stmt = apart[0]
    if not isinstance(stmt, IndexAssign) or name in variables(stmt.value) or stmt.op != "=":
        return False
    here, last = Var(others.counter, INT), others.extent
    every = replace(others, extent=arith("+", last, ONE))
    for place, other in ((ZERO, arith("-", here, ONE)), (last, here)):
        # The others read what rounds before them wrote: the first one of all must not be behind.
        if once is second and (place == ZERO) != others.backwards:
            continue
        whole = replace(every, body=_replaced(tuple(rest), here.name, other))
        (same,) = _replaced(whole.body, here.name, place)
        if isinstance(same, IndexAssign) and same.target == stmt.target and filling(whole):
            return True
    return False


def _is_once(loop: For, others: For) -> bool:
    """Whether a loop runs the one round that another one lacks."""
    match loop.extent:
        case Builtin("min", (extent, end)):
            return end == ONE and others.extent == arith("-", extent, ONE)
        case _:
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
