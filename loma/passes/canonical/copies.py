"""Copies that need not be made: one name for variables that always have the same value.

Inlining leaves ``y : T = x`` where a value passed between two functions. The copy goes when ``y``
is never written again and ``x`` not either, or when nobody looks at ``x`` any more. Conditions that
are constants go with it.
"""

from __future__ import annotations

from loma.core import sizes
from loma.core.effects import written
from loma.core.ir import Declare, Function, If, IntConst, Module, Stmt, TensorType, Var, replace
from loma.core.walk import (
    map_blocks, map_expressions, map_tensor_functions, mentioned_names, substitute,
)  # fmt: skip


def copies(module: Module) -> Module:
    """The pass on every tensor function of a module."""
    return map_tensor_functions(module, without_copies)


def without_copies(function: Function, kept: frozenset[str] = frozenset()) -> Function:
    """The pass on a function; variables that are ``kept`` go on having a name of their own."""
    body = without_constant_conditions(function.body)
    position = 0
    while position < len(body):
        if (new := _without_copy(body, position, kept)) is None:
            position += 1
        else:
            body = new
    return replace(function, body=body)


def without_constant_conditions(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """Statements without branches on constants."""
    out: list[Stmt] = []
    for stmt in body:
        match stmt:
            case If(IntConst(value), then, other):
                out += without_constant_conditions(then if value else other)
            case _:
                out.append(map_blocks(stmt, without_constant_conditions))
    return tuple(out)


def _without_copy(
    body: tuple[Stmt, ...], position: int, kept: frozenset[str]
) -> tuple[Stmt, ...] | None:
    """The body with the copy at that position gone, if it may go."""
    match body[position]:
        case Declare(Var(_, TensorType(dims)) as target, Var() as source) if (
            dims is not None and target.name not in kept
        ):
            pass
        case _:
            return None
    before, after = body[:position], body[position + 1 :]
    if not sizes.same_type(target.type, source.type) or target.name in mentioned_names(before):
        return None
    quiet = written(after).isdisjoint((source.name, target.name))
    local = any(isinstance(s, Declare) and s.target.name == source.name for s in before)
    if not quiet and not (local and source.name not in mentioned_names(after)):
        return None
    rest = (map_expressions(s, lambda e: substitute(e, {target.name: source})) for s in after)
    return (*before, *rest)
