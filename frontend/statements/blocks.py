"""Variables that are declared in a block of a tensor function: the IR declares at the start."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import replace

from loma import errors
from loma.core.ir import (
    Assign, Declare, Expr, FloatConst, FloatType, For, IndexAssign, IntConst, IntType, Stmt,
    TensorType, Unpack, Var, Zero,
)  # fmt: skip
from loma.core.printer import print_type
from loma.core.sizes import dims_of
from loma.core.walk import blocks, free_variables, map_blocks, map_expressions, substitute
from loma.frontend.scope import Scope, Symbol


def declarations(scope: Scope, block: list[Stmt], outer: set[str]) -> dict[str, Var]:
    """What a block declares whenever it runs. What is kept of branches in it ends with it, too, but
    not the names that were kept before, ``outer``."""
    found = {stmt.target.name: stmt.target for stmt in block if isinstance(stmt, Declare)}
    for name in [name for name in scope.kept if name not in outer]:
        symbol = scope.kept.pop(name)
        found[name] = Var(name, symbol.type, symbol.span)
        scope.symbols.pop(name, None)
        scope.ended[name] = "local"
    return found


def keep_common(scope: Scope, then: dict[str, Var], other: dict[str, Var]) -> None:
    """Keeps the floats and tensors that both branches of an ``if`` declare, for statements behind
    it. An int may not be meant where an index can be."""
    for name, target in then.items():
        type_ = target.type
        is_number = isinstance(type_, FloatType)
        if not is_number and not (isinstance(type_, TensorType) and type_.dims is not None):
            continue
        same = name in other and other[name].type == type_
        if same and scope.hoisted.get(name) == target:
            scope.kept[name] = Symbol(name, type_, "local", target.span, inferred=is_number)


def use_kept(scope: Scope, node: ast.stmt) -> None:
    """Declares the kept variables that a statement uses; in a subscript a name is an index."""
    if not scope.kept:
        return
    used, indices = set[str](), set[str]()

    def visit(inner: ast.AST, names: set[str]) -> None:
        match inner:
            case ast.Name(id=name, ctx=ctx):
                if isinstance(ctx, ast.Load) or isinstance(node, ast.AugAssign) or not scope.depth:
                    names.add(name)
            case ast.Subscript(value=base, slice=subscripts):
                visit(base, names)
                visit(subscripts, indices)
            case ast.AnnAssign(value=value):
                visit(value or ast.Pass(), names)
            case ast.If(test=head) | ast.While(test=head) | ast.For(iter=head):
                visit(head, names)
            case ast.comprehension(target=ast.Name(id=name), iter=iter_):
                indices.add(name)
                visit(iter_, names)
            case _:
                for child in ast.iter_child_nodes(inner):
                    visit(child, names)

    visit(node, used)
    for name in sorted(used - indices):
        if name in scope.kept and name not in scope.symbols:
            scope.symbols[name] = scope.kept[name]


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
    taken = target.name in scope.ended or target.name in scope.hoisted
    scope.ended[target.name] = "local"
    for name in {name for dim in dims_of(target) for name in free_variables(dim)}:
        if not scope.is_size(name):
            raise errors.UnknownSizeVariable(
                f"'{target.name}' is {print_type(target.type)}, and '{name}' is not known before "
                "the block",
                target.span,
                hint="sizes of what a block declares are made of sizes and In[int] arguments",
            )
    old = scope.hoisted.get(target.name)
    if old is not None and old.type == target.type:
        if old.name != target.name:
            renamed[target.name] = replace(old, span=target.span)
        return
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
