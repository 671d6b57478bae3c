"""``s = s + x`` is ``s += x``, and ``s = s - x`` is ``s += -x``: what is added to a place says so.

Loops may then add in any order (:mod:`loma.passes.canonical.loops`), and the adjoint of what was
there before is that of the sum.
"""

from __future__ import annotations

from collections.abc import Iterator

from loma.core import builder as b
from loma.core.distinct import told_apart
from loma.core.ir import (
    Assign, Binary, Expr, FloatType, Index, IndexAssign, IntType, Module, Stmt, Var, replace,
)  # fmt: skip
from loma.core.walk import free_variables, map_blocks, map_tensor_functions, root


def increments(module: Module) -> Module:
    """The pass on every tensor function of a module."""
    return map_tensor_functions(module, lambda f: replace(f, body=_block(f.body)))


def _block(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    return tuple(_statement(map_blocks(stmt, _block)) for stmt in body)


def _statement(stmt: Stmt) -> Stmt:
    match stmt:
        case Assign(Var(_, FloatType() | IntType()) as place, "=", Binary("+" | "-") as total):
            pass
        case IndexAssign(Index() as place, "=", Binary("+" | "-") as total, axes):
            # Elements that are named twice are an error of an assignment, not of an addition.
            if {axis.name for axis in axes} - told_apart(place.subscripts, axes):
                return stmt
        case _:
            return stmt
    terms = list(_terms(total))
    if place not in terms:
        return stmt
    terms.remove(place)
    if any(root(place) in free_variables(term) or term.type != place.type for term in terms):
        return stmt
    added = terms[0]
    for term in terms[1:]:
        added = b.binary("+", added, term)
    return replace(stmt, op="+=", value=added)


def _terms(expr: Expr) -> Iterator[Expr]:
    match expr:
        case Binary("+", left, right):
            yield from _terms(left)
            yield from _terms(right)
        case Binary("-", left, right):
            yield from _terms(left)
            yield b.unary("-", right, expr.span)
        case _:
            yield expr
