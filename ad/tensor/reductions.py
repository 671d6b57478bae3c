"""What the normal form of reverse mode does with reductions that stand inside expressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise

from loma.core import builder as b
from loma.core.bounds import stays_inside
from loma.core.ir import (
    FLOAT, INT, OF_NOTHING, Axis, Call, Expr, Index, IntConst, Reduce, TensorType, Var, ZeroPad,
)  # fmt: skip
from loma.core.names import Names
from loma.core.ops import divisor
from loma.core.sizes import constant
from loma.core.walk import free_variables, substitute, walk


def may_fail(reduce: Reduce, scope: Mapping[str, Axis], is_size: Callable[[str], bool]) -> bool:
    """Whether a reduction may end in an error; the axes in ``scope`` run over dimensions."""
    extents = {axis.name: axis.extent for axis in scope.values()}
    reductions = [node for node in walk(reduce) if isinstance(node, Reduce)]
    own = {axis.name: axis.extent for node in reductions for axis in node.axes}
    for above, node in pairwise((reduce, *walk(reduce))):  # what comes after a ZeroPad is its read
        by = divisor(node)
        if by is not None and not constant(by):
            return True
        match node:
            case Index(base, subscripts) if not isinstance(above, ZeroPad):
                dims = base.type.dims if isinstance(base.type, TensorType) else None
                for sub, dim in zip(subscripts, dims or subscripts, strict=True):
                    runs_over = isinstance(sub, Var) and sub.name in extents
                    if not runs_over and not stays_inside(sub, dim, extents | own, is_size):
                        return True
            case Reduce(kind, _, axes) if kind not in OF_NOTHING:
                if any((constant(axis.extent) or 0) <= 0 for axis in axes):
                    return True
            case Call():
                return True
            case _:
                continue
    return False


def where_holds(reduce: Reduce, guard: Expr, names: Names) -> Reduce:
    """The reduction of what counts where the guard holds, which knows nothing of its axes."""
    taken = free_variables(guard)
    clash = {axis.name: names.fresh(axis.name) for axis in reduce.axes if axis.name in taken}
    renamed: dict[str, Expr] = {old: Var(new, INT) for old, new in clash.items()}
    axes = tuple(Axis(clash.get(axis.name, axis.name), axis.extent) for axis in reduce.axes)
    zero: Expr = b.flt(0) if reduce.body.type == FLOAT else IntConst(0)
    return replace(reduce, body=b.select(guard, substitute(reduce.body, renamed), zero), axes=axes)


def with_numbered_axes(reduce: Reduce) -> Reduce:
    """Equal for two reductions that differ in the names of their own axes only."""
    names = [f"${k}" for k in range(len(reduce.axes))]  # no name of a program
    numbers: dict[str, Expr] = {
        axis.name: Var(name, INT) for axis, name in zip(reduce.axes, names, strict=True)
    }
    axes = tuple(replace(axis, name=name) for axis, name in zip(reduce.axes, names, strict=True))
    return replace(reduce, body=substitute(reduce.body, numbers), axes=axes)


def shadows(reduce: Reduce, scope: dict[str, Axis]) -> bool:
    return any(axis.name in scope for axis in reduce.axes)
