"""Zeros that need not be written: what is set to zero and then added to is assigned instead.

Two cases. ``zero(x)`` whose next use, in the same block, adds to every element of ``x``; and a
temporary that every block leaves at zero after its use, as adjoints in loops are: then it is zero
whenever a block begins to use it, so that the first addition may assign, and no zeros are needed.
"""

from __future__ import annotations

from functools import partial

from loma.core.ir import (
    Declare, If, Index, IndexAssign, Module, Stmt, TensorType, Var, Zero, replace,
)  # fmt: skip
from loma.core.walk import (
    blocks, free_variables, map_blocks, map_tensor_functions, mentioned_names, statements,
)  # fmt: skip
from loma.passes.first_write import assigned
from loma.passes.liveness import covers


def zeroing(module: Module) -> Module:
    """The pass on every tensor function of a module."""
    return map_tensor_functions(module, lambda f: replace(f, body=_block(_balanced(f.body))))


def _block(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """The first case, in a block and those below it."""
    out: list[Stmt | None] = [map_blocks(stmt, _block) for stmt in body]
    for position, stmt in enumerate(out):
        match stmt:
            case Zero(Var(name)):
                later = ((k, s) for k, s in enumerate(out) if k > position and s is not None)
                uses = ((k, s) for k, s in later if name in mentioned_names((s,)))
                at, use = next(uses, (position, stmt))
                if (new := _filling(use, name)) is not None:
                    out[position], out[at] = None, new
            case _:
                continue
    return tuple(stmt for stmt in out if stmt is not None)


def _filling(stmt: Stmt, name: str) -> IndexAssign | None:
    """The assignment that may stand for a statement which adds to every element of a tensor."""
    match stmt:
        case IndexAssign(Index(Var(target)), "+=", value) if target == name:
            fills = covers(stmt) and name not in free_variables(value)
            return new if fills and (new := assigned(stmt)).op == "=" else None
        case _:
            return None


def _balanced(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    for stmt in body:
        match stmt:
            case Declare(Var(name, type_), None) if isinstance(type_, TensorType):
                if _is_balanced(tuple(s for s in body if s is not stmt), name):
                    body = _rewritten(body, name)
            case _:
                continue
    return body


def _is_zero(stmt: Stmt, name: str) -> bool:
    return isinstance(stmt, Zero) and isinstance(stmt.target, Var) and stmt.target.name == name


def _is_balanced(body: tuple[Stmt, ...], name: str) -> bool:
    """Whether the block, wherever it uses the tensor, first fills and at last clears it."""
    uses = [stmt for stmt in body if name in mentioned_names((stmt,))]
    if not uses:
        return True
    if _filling(uses[0], name):
        return _clears(uses, name)
    return all(blocks(s) for s in uses) and all(
        _is_balanced(block, name) for s in uses for block in blocks(s)
    )


def _clears(uses: list[Stmt], name: str) -> bool:
    """Whether the last of the statements clears the tensor, on all its paths, and none before."""
    if any(_is_zero(inner, name) for inner in statements(tuple(uses[:-1]))):
        return False
    match uses[-1:]:
        case [If(_, then, other)]:
            below = ([s for s in block if name in mentioned_names((s,))] for block in (then, other))
            return all(_clears(part, name) for part in below)
        case last:
            return any(_is_zero(stmt, name) for stmt in last)


def _rewritten(body: tuple[Stmt, ...], name: str, filled: bool = False) -> tuple[Stmt, ...]:
    """The block without zeros; what fills the tensor first assigns, unless it is ``filled``."""
    out: list[Stmt] = []
    for stmt in body:
        if _is_zero(stmt, name):
            continue
        if not filled and (new := _filling(stmt, name)):
            filled = True
            out.append(new)
        else:
            inside = partial(_rewritten, name=name, filled=filled)
            out.append(map_blocks(stmt, inside))
    return tuple(out)
