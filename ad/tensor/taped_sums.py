"""Sums of a loop's iterations that stand on a tape beside the state, instead of being run again.

The adjoint of an iteration begins with the state on the tape and runs the statements again. A sum
over a tensor that has more dimensions than the sum and is the same in all iterations, such as
``S[b, i, o] = sum(C[b, i, r] * U[b, i, r, o] for r in R)``, would read all of that tensor once
more, for a result that takes no more memory than the state.
"""

from __future__ import annotations

from collections import Counter

from loma.core.effects import assigned
from loma.core.ir import For, Index, IndexAssign, TensorType, Var
from loma.core.walk import free_variables, subscript_variables, walk
from loma.passes.liveness import covers
from loma.passes.outer import summand


def taped_sums(loop: For, most: int) -> dict[int, IndexAssign]:
    """Such statements of a loop's body by position, of results of up to ``most`` dimensions."""
    writes = Counter(assigned(loop.body))
    return {
        position: stmt
        for position, stmt in enumerate(loop.body)
        if isinstance(stmt, IndexAssign)
        and isinstance(stmt.target, Index)
        and isinstance(stmt.target.base, Var)
        and writes[stmt.target.base.name] == 1
        and len(stmt.target.subscripts) <= most
        and stmt.op == "="
        and covers(stmt)
        and _reads_more(stmt, loop.counter, set(writes))
    }


def _reads_more(stmt: IndexAssign, counter: str, changing: set[str]) -> bool:
    summed, body = summand(stmt)
    own = subscript_variables(stmt.element)
    names = {axis.name for axis in summed}
    for node in walk(body):
        if not (isinstance(node, Index) and isinstance(node.base.type, TensorType)):
            continue
        read = subscript_variables(node)
        if own < read and names & read and not free_variables(node) & (changing | {counter}):
            return True
    return False
