"""Loops that the device runs from beginning to end, on one thread, and their own variables.

for i in range(1, M):                    m stays a variable of the loop
    m : float = max(R[i - 1], c[i])
    R[i] = m * x[i]
"""

from __future__ import annotations

from collections.abc import Iterator

from loma.core.effects import effects
from loma.core.ir import (
    Declare, FloatConst, For, Function, IndexAssign, IntConst, Reduce, Stmt, Var, While,
)  # fmt: skip
from loma.core.walk import (
    blocks, expressions, mentioned_names, own_names, root, statements, walk,
)  # fmt: skip
from loma.passes.liveness import Liveness
from loma.passes.serial import is_serial

_NONE: frozenset[str] = frozenset()


def runs_alone(loop: Stmt, tensor_functions: frozenset[str]) -> bool:
    """Whether a loop only computes numbers and single elements of tensors, of which it writes some,
    without sums: these a library may compute."""
    if not isinstance(loop, For | While) or not is_serial(loop, tensor_functions):
        return False
    return not any(
        (isinstance(stmt, IndexAssign) and stmt.axes)
        or any(isinstance(node, Reduce) for expr in expressions(stmt) for node in walk(expr))
        for stmt in statements((loop,))
    )


def loops_alone(body: tuple[Stmt, ...], tensor_functions: frozenset[str]) -> Iterator[For | While]:
    """The outermost such loops."""
    for stmt in body:
        if isinstance(stmt, For | While) and runs_alone(stmt, tensor_functions):
            yield stmt
        else:
            for block in blocks(stmt):
                yield from loops_alone(block, tensor_functions)


def own_variables(function: Function, tensor_functions: frozenset[str]) -> frozenset[str]:
    """Numbers that nothing but one such loop uses, which begins with a value that the host
    knows."""
    found: set[str] = set()

    def visit(body: tuple[Stmt, ...], around: frozenset[str], repeated: bool) -> None:
        for position, stmt in enumerate(body):
            beside = (*body[:position], *body[position + 1 :])
            others = around | mentioned_names(tuple(s for s in beside if not _starts(s)))
            if runs_alone(stmt, tensor_functions):
                own = {
                    root(place)
                    for inner in statements((stmt,))
                    for place in effects(inner).writes
                    if isinstance(place, Var)
                } - others
                if repeated:
                    _, before = Liveness(()).block((stmt,), mentioned_names((stmt,)) - own)
                    own -= before
                found.update(own)
                continue
            for block in blocks(stmt):
                sides = (b for b in blocks(stmt) if b is not block)
                names = others.union(own_names(stmt), *map(mentioned_names, sides))
                visit(block, names, repeated or isinstance(stmt, For | While))

    visit(function.body, _NONE, False)
    return frozenset(found) - {param.name for param in function.params}


def _starts(stmt: Stmt) -> bool:
    """Whether it declares a variable with a value that is known."""
    return isinstance(stmt, Declare) and isinstance(stmt.value, FloatConst | IntConst | None)
