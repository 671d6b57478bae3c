"""Variables that are declared in a block of a tensor function: the IR declares at the start."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from loma import errors
from loma.frontend.scope import Scope
from loma.ir import (
    Assign, Declare, Expr, FloatConst, FloatType, IntConst, IntType, Stmt, TensorType, Unpack,
    Var, Zero,
)  # fmt: skip
from loma.printer import print_type
from loma.walk import free_variables, map_expressions, substitute


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
    if renamed:
        out = [map_expressions(stmt, lambda e: substitute(e, renamed)) for stmt in out]
    return tuple(out)


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
        return
    name = target.name if old is None else scope.names.fresh(target.name)
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
