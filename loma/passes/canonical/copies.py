"""Copies that need not be made: one name for variables that always have the same value.

Inlining leaves ``y : T = x`` where a value passed between two functions. The copy goes when ``y``
is never written again and ``x`` not either, or when nobody looks at ``x`` any more. So does
``y[i, j] = x[i, j]`` of all elements, which a loop over rows makes of it, if ``y`` had no value and
nobody looks at ``x`` any more. Conditions that are constants go with it.
"""

from __future__ import annotations

from loma.core import sizes
from loma.core.effects import written
from loma.core.ir import (
    Assign, Declare, Function, If, Index, IndexAssign, IntConst, Module, Op, Stmt, TensorType, Var,
    replace,
)  # fmt: skip
from loma.core.ops import OPS
from loma.core.walk import (
    free_variables, map_blocks, map_expressions, map_tensor_functions, mentioned_names, statements,
    substitute,
)  # fmt: skip
from loma.passes.liveness import covers


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
    before, after = body[:position], body[position + 1 :]
    match body[position]:
        case Declare(Var() as target, Var() as source):
            quiet = written(after).isdisjoint((source.name, target.name))
        case IndexAssign(
            Index(Var() as target, here), "=", Index(Var() as source, there)
        ) as stmt if here == there and covers(stmt):
            quiet = False
            fresh, own = _declaration(target, before), _declaration(source, before)
            if fresh is None or fresh.value is not None or own is None or isinstance(own.value, Op):
                return None
            if _is_shared(source, before):
                return None
            before = tuple(s for s in before if s is not fresh)
        case _:
            return None
    if not isinstance(target.type, TensorType) or target.type.dims is None or target.name in kept:
        return None
    if not sizes.same_type(target.type, source.type) or target.name in mentioned_names(before):
        return None
    local = _declaration(source, before) is not None
    if not quiet and not (local and source.name not in mentioned_names(after)):
        return None
    rest = (map_expressions(s, lambda e: substitute(e, {target.name: source})) for s in after)
    return (*before, *rest)


def _declaration(var: Var, body: tuple[Stmt, ...]) -> Declare | None:
    own = (s for s in body if isinstance(s, Declare) and s.target.name == var.name)
    return next(own, None)


def _is_shared(var: Var, body: tuple[Stmt, ...]) -> bool:
    """Whether another variable may be a view of a tensor."""
    values = (s.value for s in statements(body) if isinstance(s, Declare | Assign))
    return any(
        isinstance(value, Op) and OPS[value.name].shares and var.name in free_variables(value)
        for value in values
    )
