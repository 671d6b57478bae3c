"""Copies of operands in another order of dimensions, so that a loop over rows reads them in order.

In ``U[b, i, r, o] += W[i, r, o, k] * X[b, r, k]`` the rows of U run along ``o``, where W has stride
K. W lacks ``b``, so each of its elements is read many times, and one permuted copy pays where there
are vectors.
"""

from __future__ import annotations

from dataclasses import replace

from loma.backends.schedule.access import analyse, reads
from loma.backends.schedule.context import FunctionContext
from loma.backends.schedule.host import Permute
from loma.backends.schedule.ir import dtype_of
from loma.core import sizes
from loma.core.ir import Axis, Expr, Index, TensorType, Var, ZeroPad
from loma.core.walk import map_children


def packed(
    context: FunctionContext, target: Index, kind: str, body: Expr, axes: tuple[Axis, ...]
) -> tuple[list[Permute], Expr]:
    """Permuted copies of operands, and the summed expression with these."""
    if not context.machine.lanes:
        return [], body
    own = [s.name if isinstance(s, Var) else None for s in target.subscripts]
    names = {axis.name for axis in axes}
    if kind != "sum" or not own or own[-1] not in names or None in own:
        return [], body
    row = own[-1]
    assert row is not None
    if len(set(own)) != len(own) or names <= set(own):
        return [], body
    across: list[Index] = []
    for read, scope, padded in reads(body, axes):
        if scope != axes or not isinstance(read.base, Var):
            return [], body
        access = analyse(context, read, scope, padded)
        if access.is_loose_in(row):
            return [], body
        if sizes.constant(access.coefficient(row)) in (0, 1):
            continue
        if not _may_copy(read, target, padded, own, names):
            return [], body
        across.append(read)
    copies = {read: _copy(context, read, row) for read in dict.fromkeys(across)}
    replacements = {
        read: replace(read, base=copy.var, subscripts=tuple(read.subscripts[k] for k in copy.order))
        for read, copy in copies.items()
    }

    def swap(expr: Expr) -> Expr:
        if isinstance(expr, Index) and expr in replacements:
            return replacements[expr]
        return expr if isinstance(expr, ZeroPad) else map_children(expr, swap)

    return list(copies.values()), swap(body)


def _may_copy(
    read: Index, target: Index, padded: bool, own: list[str | None], names: set[str]
) -> bool:
    """Whether the read is of distinct axes by themselves and lacks one of the target's."""
    subscripts = [s.name if isinstance(s, Var) else None for s in read.subscripts]
    return (
        not padded
        and read.base != target.base
        and all(name in names for name in subscripts)
        and len(set(subscripts)) == len(subscripts)
        and any(name in names and name not in subscripts for name in own)
    )


def _copy(context: FunctionContext, read: Index, row: str) -> Permute:
    position = next(
        k for k, s in enumerate(read.subscripts) if isinstance(s, Var) and s.name == row
    )
    order = (*(k for k in range(len(read.subscripts)) if k != position), position)
    dims = context.part_dims(read.tensor)  # the copy has nothing of what the panel lacks
    type_ = TensorType(tuple(dims[k] for k in order), dtype_of(read.tensor))
    return Permute(context.temporary_tensor("packed", type_), read.tensor, order)
