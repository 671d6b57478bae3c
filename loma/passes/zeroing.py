"""Zeros that need not be written: what is set to zero and then added to is assigned instead.

Two cases. ``zero(x)`` whose next use, in the same block, adds to every element of ``x``; and a
temporary that every block leaves at zero after its use, as adjoints in loops are: then it is zero
whenever a block begins to use it, so that the first addition may assign, and no zeros are needed.
"""

from __future__ import annotations

from dataclasses import replace

from loma.core.ir import (
    Declare, Function, If, Index, IndexAssign, Module, Stmt, TensorType, Var, Zero,
    is_tensor_function,
)  # fmt: skip
from loma.core.walk import blocks, free_variables, map_blocks, mentioned_names, statements
from loma.passes.first_write import assigned
from loma.passes.liveness import covers


def zeroing(module: Module) -> Module:
    """The pass on every tensor function of a module."""
    return replace(
        module,
        functions=tuple(
            replace(f, body=_block(_balanced(f))) if is_tensor_function(f) else f
            for f in module.functions
        ),
    )


def _block(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """The first case, in a block and those below it."""
    out: list[Stmt | None] = [map_blocks(stmt, _block) for stmt in body]
    for position, stmt in enumerate(out):
        match stmt:
            case Zero(Var(name)):
                later = _next_use(out, position, name)
                use = None if later is None else out[later]
                if later is not None and use is not None and _fills(use, name):
                    assert isinstance(use, IndexAssign)
                    out[position], out[later] = None, assigned(use)
            case _:
                continue
    return tuple(stmt for stmt in out if stmt is not None)


def _next_use(body: list[Stmt | None], position: int, name: str) -> int | None:
    for k in range(position + 1, len(body)):
        stmt = body[k]
        if stmt is not None and name in mentioned_names((stmt,)):
            return k
    return None


def _fills(stmt: Stmt, name: str) -> bool:
    """Whether a statement adds to every element of a tensor, without looking at it."""
    match stmt:
        case IndexAssign(Index(Var(target)), "+=", value) if target == name:
            if not covers(stmt) or name in free_variables(value):
                return False
            return assigned(stmt).op == "="
        case _:
            return False


# ------------------------------------------------------------------------------ the second case


def _balanced(function: Function) -> tuple[Stmt, ...]:
    body = function.body
    for stmt in function.body:
        match stmt:
            case Declare(Var(name, type_), None) if isinstance(type_, TensorType):
                rest = tuple(s for s in body if s is not stmt)
                if _is_balanced(rest, name):
                    changed = iter(_rewritten(rest, name))
                    body = tuple(s if s is stmt else next(changed) for s in _kept(body, stmt, name))
            case _:
                continue
    return body


def _kept(body: tuple[Stmt, ...], declaration: Stmt, name: str) -> tuple[Stmt, ...]:
    """The statements that stay, by position."""
    return tuple(s for s in body if s is declaration or not _is_zero(s, name))


def _is_zero(stmt: Stmt, name: str) -> bool:
    return isinstance(stmt, Zero) and isinstance(stmt.target, Var) and stmt.target.name == name


def _is_balanced(body: tuple[Stmt, ...], name: str) -> bool:
    """Whether the block, wherever it uses the tensor, first fills and at last clears it."""
    uses = [stmt for stmt in body if name in mentioned_names((stmt,))]
    if not uses:
        return True
    if _fills(uses[0], name):
        return _clears(uses[-1], name) and not any(_clears_inside(s, name) for s in uses[:-1])
    return all(blocks(s) for s in uses) and all(
        _is_balanced(block, name) for s in uses for block in blocks(s)
    )


def _clears(stmt: Stmt, name: str) -> bool:
    """Whether the tensor is zero after the statement, on all its paths."""
    match stmt:
        case If(_, then, other):
            for block in (then, other):
                uses = [s for s in block if name in mentioned_names((s,))]
                if not uses or not _clears(uses[-1], name):
                    return False
                if any(_clears_inside(s, name) for s in uses[:-1]):
                    return False
            return True
        case _:
            return _is_zero(stmt, name)


def _clears_inside(stmt: Stmt, name: str) -> bool:
    return any(_is_zero(inner, name) for inner in statements((stmt,)))


def _rewritten(body: tuple[Stmt, ...], name: str) -> tuple[Stmt, ...]:
    out: list[Stmt] = []
    filled = False
    for stmt in body:
        if _is_zero(stmt, name):
            continue
        if not filled and _fills(stmt, name):
            assert isinstance(stmt, IndexAssign)
            filled = True
            out.append(assigned(stmt))
            continue
        if filled:
            out.append(map_blocks(stmt, lambda block: _without_zeros(block, name)))
        else:
            out.append(map_blocks(stmt, lambda block: _rewritten(block, name)))
    return tuple(out)


def _without_zeros(body: tuple[Stmt, ...], name: str) -> tuple[Stmt, ...]:
    kept = (stmt for stmt in body if not _is_zero(stmt, name))
    return tuple(map_blocks(s, lambda block: _without_zeros(block, name)) for s in kept)
