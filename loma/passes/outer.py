"""Sums that make a large tensor of smaller ones, like the scores of an attention."""

from __future__ import annotations

from loma.core.ir import Axis, Builtin, Expr, Index, IndexAssign, Reduce, TensorType
from loma.core.walk import subscript_variables, walk


def is_outer(stmt: IndexAssign) -> bool:
    """Whether the statement is a sum of which each operand lacks an index of the target and all
    share one: its result is larger than all that it is made of."""
    if not isinstance(stmt.target, Index):
        return False
    own = subscript_variables(stmt.element)
    summed, body = summand(stmt)
    operands = [
        subscript_variables(node) & own
        for node in walk(body)
        if isinstance(node, Index) and isinstance(node.base.type, TensorType)
    ]
    if len(summed) != 1 or any(isinstance(node, Builtin) for node in walk(body)):
        return False
    return len(operands) > 1 and own not in operands and bool(frozenset.intersection(*operands))


def summand(stmt: IndexAssign) -> tuple[list[Axis], Expr]:
    """The axes that a statement sums over, and what it sums."""
    own = subscript_variables(stmt.element)
    summed = [axis for axis in stmt.axes if axis.name not in own]
    if isinstance(stmt.value, Reduce) and stmt.value.kind == "sum" and not summed:
        return list(stmt.value.axes), stmt.value.body
    return summed, stmt.value
