"""Additions to the same elements taken together, so that a tensor is read and written only once.

Reverse mode adds to an adjoint for every use of a variable. ``T[i] += a`` is dropped, and a later
``T[i] += b`` becomes ``T[i] += a + b``, when nothing in between looks at ``T`` or changes what
``a`` is made of. A first one under a condition becomes ``a if condition else 0``. Its operands must
not have to be kept for it in full size: each is smaller than ``T``, or is needed later anyway.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from loma.core import sizes
from loma.core.axes import runs_over
from loma.core.effects import written
from loma.core.ir import (
    INT, Binary, Call, Expr, FloatConst, Function, If, Index, IndexAssign, IntConst,
    Module, Op, Reduce, Select, Stmt, TensorType, Var,
)  # fmt: skip
from loma.core.walk import (
    free_variables, map_blocks, map_tensor_functions, mentioned_names, substitute, walk,
)  # fmt: skip


def additions(module: Module) -> Module:
    """The pass on every tensor function of a module."""

    def joined(function: Function) -> Function:
        params = {param.name for param in function.params}
        return replace(function, body=_block(function.body, params))

    return map_tensor_functions(module, joined)


@dataclass(frozen=True, slots=True)
class _Addition:
    """``tensor[axes] += value``, under a condition or not, that a statement of a block makes."""

    stmt: IndexAssign
    condition: Expr | None
    rest: Stmt | None  # what stays of the statement of the block

    @property
    def inputs(self) -> set[str]:
        found = free_variables(self.stmt.value) - {axis.name for axis in self.stmt.axes}
        return found | (free_variables(self.condition) if self.condition is not None else set())


def _block(body: tuple[Stmt, ...], params: set[str]) -> tuple[Stmt, ...]:
    out: list[Stmt | None] = [map_blocks(stmt, lambda b: _block(b, params)) for stmt in body]
    for position in range(len(out)):
        while (found := _moved(out, position, params)) is not None:
            rest, later, joined = found
            out[position], out[later] = rest, joined
    return tuple(stmt for stmt in out if stmt is not None)


def _moved(
    block: list[Stmt | None], position: int, params: set[str]
) -> tuple[Stmt | None, int, IndexAssign] | None:
    """What is left of a statement, and which later one makes its addition as well."""
    stmt = block[position]
    if stmt is None:
        return None
    for addition in _additions(stmt):
        name = _target(addition.stmt).name
        inputs, between = addition.inputs, set[str]()
        for later in range(position + 1, len(block)):
            other = block[later]
            if other is None:
                continue
            if name not in mentioned_names((other,)):
                between |= written((other,))
                continue
            joined = _joined(addition, other)
            after = tuple(s for s in block[later:] if s is not None)
            kept = params | mentioned_names(after)
            if joined is not None and not inputs & between and _fits(addition, kept):
                return addition.rest, later, joined
            break
    return None


def _additions(stmt: Stmt) -> list[_Addition]:
    """The additions of a statement that may be made after it as well."""
    if (plain := _plain(stmt)) is not None:
        return [_Addition(plain, None, None)]
    if not isinstance(stmt, If) or stmt.other or not isinstance(stmt.cond, Var):
        return []
    found: list[_Addition] = []
    for k, step in enumerate(stmt.then):
        inner = _plain(step)
        if inner is None or not _reads_whole(inner):
            continue
        others = stmt.then[:k] + stmt.then[k + 1 :]
        addition = _Addition(inner, stmt.cond, replace(stmt, then=others))
        quiet = addition.inputs.isdisjoint(written(stmt.then[k:]))
        if inner.op == "+=" and quiet and _target(inner).name not in mentioned_names(others):
            found.append(addition)
    return found


def _target(stmt: IndexAssign) -> Var:
    assert isinstance(stmt.target, Index)
    assert isinstance(stmt.target.base, Var)
    return stmt.target.base


def _plain(stmt: Stmt) -> IndexAssign | None:
    """The statement, if it gives each element of a tensor a value or adds one, without loops or
    calls and without looking at the tensor."""
    match stmt:
        case IndexAssign(Index(Var(name), subscripts), "=" | "+=", value):
            axes = [s.name for s in subscripts if isinstance(s, Var)]
            plain = (
                sorted(axes) == sorted(axis.name for axis in stmt.axes)
                and len(axes) == len(subscripts)
                and name not in free_variables(value)
                and not any(isinstance(node, Reduce | Call | Op) for node in walk(value))
            )
            return stmt if plain else None
        case _:
            return None


def _joined(first: _Addition, later: Stmt) -> IndexAssign | None:
    """The later statement with the addition, if it adds to the same elements."""
    stmt = _plain(later)
    if stmt is None or stmt.op != "+=" or _target(stmt) != _target(first.stmt):
        return None
    assert isinstance(stmt.target, Index)
    assert isinstance(first.stmt.target, Index)
    extents = {axis.name: axis.extent for axis in first.stmt.axes}
    others = {axis.name: axis.extent for axis in stmt.axes}
    names: dict[str, Expr] = {}
    for own, other in zip(first.stmt.target.subscripts, stmt.target.subscripts, strict=True):
        assert isinstance(own, Var)
        assert isinstance(other, Var)
        if sizes.equal(extents[own.name], others[other.name]) is not True:
            return None
        names[own.name] = Var(other.name, INT)
    if first.inputs & others.keys():
        return None
    value = substitute(first.stmt.value, names)
    if first.condition is not None:
        zero = IntConst(0) if value.type == INT else FloatConst(0.0)
        value = Select(first.condition, value, zero, value.type)
    both = Binary("+", value, stmt.value, stmt.target.type)
    return replace(stmt, op=first.stmt.op, value=both)


def _fits(addition: _Addition, kept: set[str]) -> bool:
    """Whether the operands are there anyway, or smaller than the tensor."""
    assert isinstance(addition.stmt.target, Index)
    rank = len(addition.stmt.target.subscripts)
    return all(
        node.name in kept or len(node.type.dims or ()) < rank
        for node in walk(addition.stmt.value)
        if isinstance(node, Var) and isinstance(node.type, TensorType)
    )


def _reads_whole(stmt: IndexAssign) -> bool:
    """Whether every element that is read surely exists, so that a condition needs not guard it."""
    axes = {axis.name: axis for axis in stmt.axes}
    for node in walk(stmt.value):
        if isinstance(node, Index):
            assert isinstance(node.base.type, TensorType)
            if node.base.type.dims is None:
                return False
            for subscript, dim in zip(node.subscripts, node.base.type.dims, strict=True):
                if not runs_over(subscript, dim, axes):
                    return False
    return True
