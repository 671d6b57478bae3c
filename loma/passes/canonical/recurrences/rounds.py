"""What only the next round of a loop reads is not computed in the last one.

    for t in range(n):                          for t in range(n):
        V[i] = sum(U[i, j] * L[j] for j)            V[i] = sum(U[i, j] * L[j] for j)
        L[j] += U[i, j] * V[i]                      if t + 1 < n:
                                                        L[j] += U[i, j] * V[i]

is for an L that nobody reads behind the loop. Only statements at a round's end are taken, or such
as may as well stand there, some of which add up and none of which can fail: an error in the last
round is one of the program's. Where such statements begin a round,
:mod:`~loma.passes.canonical.recurrences.rotation` has them end the one before.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from loma.core import builder as b, sizes
from loma.core.bounds import exists
from loma.core.effects import written
from loma.core.ir import (
    INT, Call, Declare, Expr, For, Function, If, Index, IndexAssign, IntConst, Module, Op, Reduce,
    Stmt, Var, While, replace,
)  # fmt: skip
from loma.core.walk import (
    blocks, expressions, free_variables, map_blocks, map_tensor_functions, mentioned_names,
    needed_places, statements, subscript_variables, walk,
)  # fmt: skip
from loma.passes.canonical.recurrences.rotation import rotated
from loma.passes.liveness import CallModes, Liveness


def rounds(module: Module, last: bool = False) -> Module:
    """The pass on every tensor function of a module; those that derivatives are made of before they
    are, and derivatives ``last``, since the adjoint of a round begins with zeros that other passes
    take away."""
    modes = CallModes(module.functions)
    functions = {function.name: function for function in module.functions}

    def changed(function: Function) -> Function:
        if not any(isinstance(stmt, For) for stmt in statements(function.body)):
            return function
        if function.primal is not None and not last:
            return function
        outs = frozenset(param.name for param in function.params if param.mode == "Out")
        known = frozenset(sizes.size_variables(function))
        body = _Rounds(functions, modes, known, rotates=not last).block(function.body, outs)
        return replace(function, body=body)

    return map_tensor_functions(module, changed)


class _Rounds:
    def __init__(
        self,
        functions: Mapping[str, Function],
        modes: CallModes,
        known: frozenset[str],
        rotates: bool,
    ) -> None:
        """``known``: the sizes of the function."""
        self._functions = functions
        self._modes = modes
        self._known = known
        self._rotates = rotates
        self._extents: dict[str, Expr] = {}  # of the counters of loops around

    def block(self, body: tuple[Stmt, ...], live: frozenset[str]) -> tuple[Stmt, ...]:
        """The statements; ``live`` is what is read behind them."""
        out: list[Stmt] = []
        for stmt in reversed(body):
            before = self._alive(stmt, live)[1]
            if isinstance(stmt, For):
                self._extents[stmt.counter] = stmt.extent
                inner = replace(stmt, body=self.block(stmt.body, live | before))
                first: tuple[Stmt, ...] = ()
                if self._rotates:
                    first, inner = rotated(
                        inner, live, self._functions, self._modes, self._known.__contains__
                    )
                out += [self._loop(inner, live), *first]
                del self._extents[stmt.counter]
            else:
                behind = live | before if isinstance(stmt, While) else live
                out.append(map_blocks(stmt, partial(self.block, live=behind)))
            live = before
        return tuple(reversed(out))

    def _alive(self, stmt: Stmt, live: frozenset[str]) -> tuple[tuple[Stmt, ...], frozenset[str]]:
        return Liveness(self._modes).block((stmt,), live)

    def _loop(self, loop: For, live: frozenset[str]) -> For:
        """The loop, ``live`` being what is read behind it."""
        first: list[Stmt] = []
        rest: list[Stmt] = []
        mentioned, changing = set[str](), set[str]()  # by the statements that stay, so far
        for stmt in reversed(loop.body):
            kept, before = self._alive(stmt, live)
            names, writes = mentioned_names((stmt,)), written((stmt,), self._functions)
            apart = writes.isdisjoint(mentioned) and names.isdisjoint(changing)
            if not kept and apart and self._may_not_run(stmt):
                live = before
                rest.insert(0, stmt)
            else:
                live = before if kept else before | names
                first.insert(0, stmt)
                mentioned |= names
                changing |= writes
        changed = written(loop.body, self._functions)
        if (
            not first
            or not any(_adds_up(stmt, loop.counter) for stmt in rest)
            or not sizes.is_arithmetic(loop.extent)
            or free_variables(loop.extent) & changed
        ):
            return loop
        counter = Var(loop.counter, INT)
        if loop.backwards:
            follows = b.binary(">", counter, IntConst(0))
        else:
            follows = b.binary("<", b.binary("+", counter, IntConst(1)), loop.extent)
        return replace(loop, body=(*first, If(follows, tuple(rest), (), rest[0].span)))

    def _may_not_run(self, stmt: Stmt) -> bool:
        return not isinstance(stmt, Declare) and self._is_safe(stmt, self._extents)

    def _is_safe(self, stmt: Stmt, around: Mapping[str, Expr]) -> bool:
        """Whether a statement cannot fail: all elements are there, and it calls nothing."""
        own = list(expressions(stmt))
        inside = [node for expr in own for node in walk(expr)]
        axes = [axis for node in inside if isinstance(node, Reduce) for axis in node.axes]
        axes += stmt.axes if isinstance(stmt, IndexAssign) else ()
        extents = {**around, **{axis.name: axis.extent for axis in axes}}
        if isinstance(stmt, For):
            extents[stmt.counter] = stmt.extent
        return (
            not any(isinstance(node, Call | Op) for node in inside)
            and all(
                exists(place, extents, self._known.__contains__)
                for expr in own
                for place in needed_places(expr)
            )
            and all(self._is_safe(one, extents) for block in blocks(stmt) for one in block)
        )


def _adds_up(stmt: Stmt, counter: str) -> bool:
    """Whether a statement may take more time than it has results, in each round alike."""
    if isinstance(stmt, If) and counter in free_variables(stmt.cond):
        return False
    if isinstance(stmt, IndexAssign):
        target = stmt.target
        own = subscript_variables(target) if isinstance(target, Index) else frozenset[str]()
        if any(axis.name not in own for axis in stmt.axes):
            return True
    nodes = (node for expr in expressions(stmt) for node in walk(expr))
    inner = (one for block in blocks(stmt) for one in block)
    return any(isinstance(node, Reduce) for node in nodes) or any(
        _adds_up(one, counter) for one in inner
    )
