"""Variables that are declared in a block of a tensor function: the IR declares at the start."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from loma import errors
from loma.core.ir import (
    Assign, Declare, Expr, FloatConst, FloatType, For, IndexAssign, IntConst, IntType, Stmt,
    TensorType, Unpack, Var, Zero,
)  # fmt: skip
from loma.core.printer import print_type
from loma.core.walk import blocks, free_variables, map_blocks, map_expressions, substitute
from loma.frontend.scope import Scope


def hoisted(scope: Scope, block: list[Stmt], known: Iterable[str]) -> tuple[Stmt, ...]:
    """A block whose declarations are assignments to variables that the function declares at its
    start, each starting anew; ``known`` are the names that were there before the block.

    A name that another block has declared with the same type is the same variable again.
    """
    before = set(known)
    renamed: dict[str, Expr] = {}
    out: list[Stmt] = []
    for stmt in block:
        match stmt:
            case Declare(target, value):
                _hoist(scope, target, renamed)
                if value is not None:
                    out.append(Assign(target, "=", value, stmt.span))
                elif not (isinstance(target.type, TensorType) and target.type.dims is None):
                    out.append(_start(target))
            case Unpack(targets):
                for target in targets:
                    if target.name not in before and target.name in scope.symbols:
                        _hoist(scope, target, renamed)
                out.append(stmt)
            case _:
                out.append(stmt)
    return tuple(_with_names(stmt, renamed) for stmt in out) if renamed else tuple(out)


def _with_names(stmt: Stmt, renamed: dict[str, Expr]) -> Stmt:
    """The statement with other variables, but where a name is that of an index or a counter."""
    inner = dict(renamed)
    if isinstance(stmt, For):
        inner.pop(stmt.counter, None)
    elif isinstance(stmt, IndexAssign):
        for axis in stmt.axes:
            inner.pop(axis.name, None)
    bodies = iter([tuple(_with_names(s, inner) for s in body) for body in blocks(stmt)])
    values = renamed if blocks(stmt) else inner
    head = map_expressions(map_blocks(stmt, lambda _: ()), lambda e: substitute(e, values))
    return map_blocks(head, lambda _: next(bodies))


def _hoist(scope: Scope, target: Var, renamed: dict[str, Expr]) -> None:
    symbol = scope.symbols.pop(target.name, None)
    if symbol is None:
        return  # two results of one call, or a second one
    scope.ended[target.name] = "local"
    dims = target.type.dims or () if isinstance(target.type, TensorType) else ()
    for name in {name for dim in dims for name in free_variables(dim)}:
        size = scope.symbols.get(name)
        if size is None or size.kind not in ("size", "In") or name in scope.reassigned:
            raise errors.UnknownSizeVariable(
                f"'{target.name}' is {print_type(target.type)}, and '{name}' is not known before "
                "the block",
                target.span,
                hint="sizes of what a block declares are made of sizes and In[int] arguments",
                var=target.name,
            )
    old = scope.hoisted.get(target.name)
    if old is not None and old.type == target.type:
        if old.name != target.name:
            renamed[target.name] = replace(old, span=target.span)
        return
    taken = old is not None or target.name in scope.bound
    name = scope.names.fresh(target.name) if taken else target.name
    new = replace(target, name=name)
    scope.hoisted.setdefault(target.name, new)
    scope.start.append(Declare(new, None, target.span))
    if name != target.name:
        renamed[target.name] = new


def _start(target: Var) -> Stmt:
    """Sets a variable to zero."""
    match target.type:
        case IntType():
            return Assign(target, "=", IntConst(0), target.span)
        case FloatType():
            return Assign(target, "=", FloatConst(0.0), target.span)
        case _:
            return Zero(target, target.span)
