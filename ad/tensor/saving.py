"""What a backward function computes again instead of having it saved.

``all``: nothing but ints that follow from sizes. ``inputs``: everything; only arguments and results
are kept. ``auto``: what is cheap, which is what an elementwise index statement computes from values
that are kept in any case, without costly functions such as ``exp``, and sums that make a large
tensor of smaller ones, like ``U[b, i, r, o] = sum(W[i, r, o, k] * X[b, r, k] for k in K)``: every
operand lacks one of the target's indices, and some index is common to all. (Without a common one it
is a matrix product, which is worth saving.) Of what is large, as are the weights of an attention,
elementwise results are computed again, too, whatever their functions cost, so that nothing of that
size is kept.
An argument in another shape, order of dimensions or part is made again of the argument: an operator
returns no views of what it is given, so forward parts would copy it.
"""

from __future__ import annotations

import sys

from loma.ad.tensor.joint import Joint
from loma.core.builtins import BUILTINS
from loma.core.effects import assigned, is_blank, written
from loma.core.ir import (
    Builtin, Call, Declare, Expr, Index, IndexAssign, IntType, Op, Reduce, Stmt, TensorType, Var,
    replace,
)  # fmt: skip
from loma.passes.outer import is_outer, summand
from loma.core.saving import Save
from loma.core.walk import free_variables, reads_of_type, subscript_variables, variables, walk
from loma.passes.canonical.views import is_view
from loma.passes.liveness import covers


def recomputed(joint: Joint, live: frozenset[str], sizes: set[str], save: Save) -> tuple[Stmt, ...]:
    """Statements of the forward sweep, declarations first, that the backward function may run
    again; ``live`` is what its adjoint statements read. Those that do not help are among them."""
    writes = [*assigned(joint.forward)]
    writes += [
        s.target.name for s in joint.forward if isinstance(s, Declare) and s.value is not None
    ]
    if save == "inputs":
        chosen = joint.forward
    else:
        params = joint.normal.function.params
        known = sizes | {p.name for p in params if isinstance(p.type, IntType)}
        positions = _ints(joint, known, writes)
        if save == "auto":
            results = {var.name for var in joint.results}
            available = known | {p.name for p in params} | results | live
            positions += _cheap(joint, available, results, writes)
        chosen = tuple(joint.forward[position] for position in sorted(positions))
    made = written(chosen)
    declared = {s.target.name for s in chosen if isinstance(s, Declare)}
    declarations = tuple(
        s
        for s in (*joint.declarations, *joint.forward)
        if is_blank(s) and s.target.name in made - declared
    )
    return (*declarations, *chosen)


def _ints(joint: Joint, known: set[str], writes: list[str]) -> list[int]:
    """Positions of declarations of ints that follow from sizes and int arguments alone."""
    known = set(known)
    out: list[int] = []
    for position, stmt in enumerate(joint.forward):
        if (
            isinstance(stmt, Declare)
            and isinstance(stmt.target.type, IntType)
            and stmt.value is not None
            and writes.count(stmt.target.name) == 1
            and free_variables(stmt.value) <= known
            and not _reads_data(stmt.value)
        ):
            known.add(stmt.target.name)
            out.append(position)
    return out


def _cheap(joint: Joint, available: set[str], results: set[str], writes: list[str]) -> list[int]:
    available, large = set(available), set[str]()
    out: list[int] = []
    last = {  # what is kept of a name is what it holds at the end
        name: position
        for position, around in enumerate(joint.forward)
        for name in written((around,))
    }

    def smaller(others: set[str], name: str) -> bool:
        """Whether tensors have fewer dimensions than one, and are kept rather than that one."""
        types = joint.normal.types
        return all(_rank(types.get(other)) < _rank(types.get(name)) for other in others)

    for position, stmt in enumerate(joint.forward):
        match stmt:
            case Declare(Var(name), value) if value is not None and is_view(value):
                reads = {*free_variables(value), *reads_of_type(stmt.target.type)}
                fits = reads <= available
            case IndexAssign(Index(Var(name))):
                axes = {axis.name for axis in stmt.axes}
                parts = (stmt.value, stmt.target)
                reads = {v for e in parts for v in free_variables(e)} - axes - {name}
                reads |= {v for axis in stmt.axes for v in free_variables(axis.extent)}
                fits = (
                    name not in free_variables(stmt.value)
                    and _writes_all(stmt)
                    and (
                        reads <= available
                        or (bool(large & reads) and smaller(reads - available, name))
                    )
                    and _is_cheap(stmt, large)
                )
            case _:
                continue
        unchanged = all(last.get(read, -1) < position for read in reads)
        if fits and unchanged and writes.count(name) == 1 and name not in results:
            if isinstance(stmt, IndexAssign) and (is_outer(stmt) or large & reads):
                large.add(name)
            available.add(name)
            out.append(position)
    return out


def _rank(type_: object) -> int:
    """How many dimensions a tensor has; more than any where that is not known."""
    dims = type_.dims if isinstance(type_, TensorType) else None
    return sys.maxsize if dims is None else len(dims)


def _writes_all(stmt: IndexAssign) -> bool:
    """Whether the statement gives every element of a declared tensor its value."""
    assert isinstance(stmt.target, Index)
    own = subscript_variables(stmt.target)
    axes = tuple(axis for axis in stmt.axes if axis.name in own)
    return covers(replace(stmt, axes=axes))


def _is_cheap(stmt: IndexAssign, large: set[str]) -> bool:
    """Whether the statement is elementwise, with functions only of what is large, or makes such."""
    summed, body = summand(stmt)
    if any(isinstance(node, Reduce | Call | Op) for node in walk(body)):
        return False
    if summed:
        return is_outer(stmt)
    costly = any(isinstance(n, Builtin) and BUILTINS[n.name].costly for n in walk(body))
    return not costly or bool(large & set(variables(body)))


def _reads_data(expr: Expr) -> bool:
    return any(isinstance(node, Index | Call) for node in walk(expr))
