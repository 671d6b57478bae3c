"""Loops whose statements write one element at a time: plain loops over pointers.

Elsewhere a statement is a parallel loop and a function of its own, which costs more than one
element. A recurrence in ``for`` statements (``R[i + 1, j + 1] = c[i, j] + min(R[i, j + 1],
R[i + 1, j])``) has nothing to share among threads, so its statements stand in the loops as they
are, and tensors are looked up once before the outermost loop.
"""

from __future__ import annotations

from loma.backends.lowering.index_statements import library_call
from loma.backends.schedule.target import Target
from loma.core.ir import For, IndexAssign, Module, Stmt, TensorType, Var, While, is_tensor_function
from loma.core.walk import expressions, statements, walk, without_no_diff
from loma.passes import serial


def is_serial(loop: For | While, module: Module, machine: Target) -> bool:
    """Whether all that the loop does is to write single elements and scalars, none of which a
    library computes. Where a device has loops of its own, it has those of scalars alone from
    elsewhere (:mod:`loma.passes.device`)."""
    on_tensors = frozenset(f.name for f in module.functions if is_tensor_function(f))
    return serial.is_serial(loop, on_tensors, not machine.teams) and not any(
        isinstance(stmt, IndexAssign) and library_call(stmt, machine)
        for stmt in statements(loop.body)
    )


def tensors_in(block: tuple[Stmt, ...]) -> dict[str, Var]:
    """The tensors that statements mention, by name."""
    return {
        node.name: node
        for stmt in statements(block)
        for expr in expressions(stmt)
        for node in walk(without_no_diff(expr))
        if isinstance(node, Var) and isinstance(node.type, TensorType)
    }
