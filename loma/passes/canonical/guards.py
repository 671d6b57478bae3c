"""What runs over an index needs no condition that the index has a value.

    if S > 0:                                     a[t, s] = sum(q[t, d] * k[s, d] for d in D)
        a[t, s] = sum(q[t, d] * k[s, d]           if S > 0:
                      for d in D)                     m[t] = max(a[t, s] for s in S)
        m[t] = max(a[t, s] for s in S)

The statement stands in front of the condition, where others that compute the same are found.
"""

from __future__ import annotations

from functools import partial

from loma.core import builder as b, sizes
from loma.core.bounds import never_fails
from loma.core.effects import written
from loma.core.ir import (
    Binary, Expr, Function, If, IndexAssign, Module, Reduce, Stmt, replace,
)  # fmt: skip
from loma.core.sizes import IsSize, size_variables
from loma.core.walk import (
    free_variables, map_blocks, map_tensor_functions, mentioned_names,
)  # fmt: skip
from loma.passes.liveness import covers


def guards(module: Module) -> Module:
    """The pass on every tensor function of a module."""
    return map_tensor_functions(module, _without_guards)


def _without_guards(function: Function) -> Function:
    is_size = frozenset(size_variables(function)).__contains__
    return replace(function, body=_block(is_size, function.body))


def _block(is_size: IsSize, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    out: list[Stmt] = []
    for stmt in body:
        stmt = map_blocks(stmt, partial(_block, is_size))
        if isinstance(stmt, If) and (size := _guarded(stmt.cond)) is not None:
            free, then = _without_guard(stmt, size, is_size)
            out += free
            stmt = replace(stmt, then=then)
        out.append(stmt)
    return tuple(out)


def _guarded(condition: Expr) -> Expr | None:
    """The size that is above 0 where the condition holds."""
    match condition:
        case Binary(">", size, zero) if b.is_const(zero, 0):
            return size
        case _:
            return None


def _without_guard(stmt: If, size: Expr, is_size: IsSize) -> tuple[list[Stmt], tuple[Stmt, ...]]:
    """The statements of the branch that need no condition, and what is left of it."""
    free: list[Stmt] = []
    then: list[Stmt] = []
    other = mentioned_names(stmt.other)
    for inner in stmt.then:
        before = tuple(then)
        alone = (
            isinstance(inner, IndexAssign)
            and covers(inner)
            and inner.op == "="
            and any(sizes.equal(axis.extent, size) is True for axis in inner.axes)
            and inner.element.tensor.name not in other | mentioned_names(before)
            and inner.element.tensor.name not in free_variables(stmt.cond)
            and free_variables(inner.value).isdisjoint(written(before))
            and _never_fails(inner, is_size)
        )
        (free if alone else then).append(inner)
    return free, tuple(then)


def _never_fails(stmt: IndexAssign, is_size: IsSize) -> bool:
    """Whether the statement can be no error where there is nothing to compute, either."""
    match stmt.value:
        case Reduce("sum", body, own):
            axes = (*stmt.axes, *own)
        case body:
            axes = stmt.axes
    return never_fails(body, {axis.name: axis.extent for axis in axes}, is_size)
