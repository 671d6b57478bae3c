"""Loops whose statements write one element at a time, and leave threads nothing to share.

for i in range(1, M):                    a recurrence: each round needs the one before
    m : float = max(R[i - 1], c[i])
    R[i] = m * x[i]
"""

from __future__ import annotations

import math

from loma.core import sizes
from loma.core.distinct import unproved
from loma.core.ir import (
    Assign, Call, Expr, For, If, Index, IndexAssign, Member, Op, Reduce, Stmt, TensorType, Var,
    While, Zero,
)  # fmt: skip
from loma.core.walk import expressions, statements, subscript_variables, walk


_FEW = 16  # elements that a statement may write as one


def is_serial(loop: For | While, tensor_functions: frozenset[str], reads: bool = False) -> bool:
    """Whether all that the loop does is to write single elements, some at least, and scalars. Their
    values may be sums. ``reads``: elements that scalars are made of do as well, and a few elements
    that one statement writes are single ones."""
    inside = list(statements(loop.body))
    if isinstance(loop, While):
        inside.append(loop)  # whose condition is computed in each round
    some = any(isinstance(stmt, IndexAssign) for stmt in inside)
    if reads and not some:
        parts = (node for stmt in inside for expr in expressions(stmt) for node in walk(expr))
        some = any(isinstance(node, Index) for node in parts)
    most = _FEW if reads else 0
    return some and all(_is_single(stmt, tensor_functions, most) for stmt in inside)


def _is_single(stmt: Stmt, tensor_functions: frozenset[str], most: int) -> bool:
    match stmt:
        case IndexAssign(Index(Var()) as target, axes=axes) if subscript_variables(target) & {
            axis.name for axis in axes
        }:
            counts = [sizes.constant(axis.extent) for axis in axes]
            count = math.prod(most + 1 if count is None else count for count in counts)
            if count > most or any(isinstance(node, Reduce) for node in walk(stmt.value)):
                return False
            if unproved(stmt):  # that each is named once is looked for among all, before
                return False
        case IndexAssign(Index(Var())):
            pass
        case Assign(Var() as target) if not isinstance(target.type, TensorType):
            pass
        case Zero(Var()) | For() | While() | If():
            pass
        case _:
            return False
    nodes = [node for expr in expressions(stmt) for node in walk(expr)]
    # a reduction that is no index statement is a nest with temporaries of its own
    alone = not isinstance(stmt, IndexAssign) and any(isinstance(n, Reduce) for n in nodes)
    return not alone and not any(_is_whole(node, tensor_functions) for node in nodes)


def _is_whole(node: Expr, tensor_functions: frozenset[str]) -> bool:
    """Whether a value is made of whole tensors."""
    match node:
        case Op():
            return True
        case Index(base):
            return not isinstance(base, Var | Index | Member)
        case Call(name):
            return name in tensor_functions
        case _:
            return False
