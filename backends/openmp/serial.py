"""Loops whose statements write one element at a time: plain C++ loops over pointers.

Elsewhere a statement is a parallel loop and a function of its own, which costs more than one
element. A recurrence in ``for`` statements (``R[i + 1, j + 1] = c[i, j] + min(R[i, j + 1],
R[i + 1, j])``) has nothing to share among threads, so its statements stand in the loops as they
are, and tensors are looked up once before the outermost loop.
"""

from __future__ import annotations

from loma.backends.openmp.index_statements import library_call
from loma.backends.openmp.plan import target_axes
from loma.backends.schedule.access import without_no_diff
from loma.backends.schedule.target import Target
from loma.core.ir import (
    Assign, Call, Expr, For, If, Index, IndexAssign, Member, Module, Op, Reduce, Stmt, TensorType,
    Var, While, Zero, is_tensor_function,
)  # fmt: skip
from loma.core.walk import expressions, statements, walk


def is_serial(loop: For | While, module: Module, machine: Target) -> bool:
    """Whether all that the loop does is to write single elements and scalars."""
    inside = list(statements(loop.body))
    if isinstance(loop, While) and not _is_serial(loop, module, machine):
        return False  # the condition is made of more
    return any(isinstance(stmt, IndexAssign) for stmt in inside) and all(
        _is_serial(stmt, module, machine) for stmt in inside
    )


def _is_serial(stmt: Stmt, module: Module, machine: Target) -> bool:
    match stmt:
        case IndexAssign(Index(Var())):
            if target_axes(stmt) or library_call(stmt, machine):
                return False
        case Assign(Var() as target) if not isinstance(target.type, TensorType):
            pass
        case Zero(Var()) | For() | While() | If():
            pass
        case _:
            return False
    nodes = [node for expr in expressions(stmt) for node in walk(expr)]
    # a reduction that is no index statement is a nest with temporaries of its own
    alone = not isinstance(stmt, IndexAssign) and any(isinstance(n, Reduce) for n in nodes)
    return not alone and not any(_is_whole(node, module) for node in nodes)


def _is_whole(node: Expr, module: Module) -> bool:
    """Whether a value is made of whole tensors."""
    match node:
        case Op():
            return True
        case Index(base):
            return not isinstance(base, Var | Index | Member)
        case Call(name):
            return is_tensor_function(module.function(name))
        case _:
            return False


def tensors_in(block: tuple[Stmt, ...]) -> dict[str, Var]:
    """The tensors that statements mention, by name."""
    return {
        node.name: node
        for stmt in statements(block)
        for expr in expressions(stmt)
        for node in walk(without_no_diff(expr))
        if isinstance(node, Var) and isinstance(node.type, TensorType)
    }
