"""Sums inside larger expressions become statements of their own.

What recognises sums (steps of products, matrix products, convolutions) so finds all of them, in
inference and where a gradient is wanted alike; see :mod:`loma.passes.canonical.hoisting`. A
reduction stays where a condition guards it that does not just compare indices, and where its
temporary would have another size in each iteration of a loop, or rows of several lengths. A sum of
everything that a statement has summed by rows is one sum. One that lacks an index of its target,
``d[k, j] = sum(g[n, k] for n in N)``, is worked out once for all values of that. So is a product
of matrices that is added where data say, ``y[to[e], o] += u[o, k] * h[e, k]``, before that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set as AbstractSet
from itertools import combinations

from loma.core import sizes
from loma.core.axes import FEW, runs_over
from loma.core.ir import (
    FLOAT, INT, Axis, Binary, Declare, Function, If, Index, IndexAssign, IntConst, Module, Reduce,
    Stmt, Var, replace,
)  # fmt: skip
from loma.core.walk import (
    free_variables, map_blocks, map_tensor_functions, reads_elements, reduced_axes,
)  # fmt: skip
from loma.passes.canonical.costly import factors
from loma.passes.canonical.hoisting import InBlocks, shadows
from loma.passes.canonical.loops import mentions
from loma.passes.outer import summand


def reductions(module: Module) -> Module:
    """The pass on every tensor function of a module."""
    functions = {function.name: function for function in module.functions}
    return map_tensor_functions(module, lambda f: _Reductions(_of_all(f), functions).run())


class _Reductions(InBlocks):
    def _statement(self, stmt: Stmt) -> Stmt:
        new = super()._statement(stmt)
        if not isinstance(stmt, IndexAssign) or not isinstance(new, IndexAssign):
            return new
        own = {axis.name for axis in new.axes}
        gone = tuple(axis.extent for axis in stmt.axes if axis.name not in own)
        if not _is_told(stmt) or all((sizes.constant(extent) or 0) > 0 for extent in gone):
            return new
        # Without anything to sum the place need not exist.
        some = Binary(">", sizes.product(gone), IntConst(0), INT)
        return If(some, (new,), (), stmt.span)

    def _index_assign(self, stmt: IndexAssign) -> IndexAssign:
        axes = _without_others(stmt)
        if axes is None:
            return self._hoisted_value(stmt)
        scope = {axis.name: axis for axis in stmt.axes if axis not in axes}
        value = stmt.value
        if axes:
            value = Reduce("sum", value, axes, FLOAT, stmt.span)
        return replace(stmt, value=self._hoist(value, scope), axes=tuple(scope.values()))


def _without_others(stmt: IndexAssign) -> tuple[Axis, ...] | None:
    """The axes that a statement sums over, if what it sums, or its value, a reduction, is the same
    for all of a long axis of its target: it is worked out once."""
    if not isinstance(stmt.target, Index) or stmt.value.type != FLOAT:
        return None
    own = free_variables(stmt.target)
    inner = tuple(axis for axis in stmt.axes if axis.name not in own)
    outer = {axis.name: axis for axis in stmt.axes if axis.name in own}
    if not inner and not (isinstance(stmt.value, Reduce) and not shadows(stmt.value, outer)):
        return None
    if _is_told(stmt):
        return inner if _is_product(stmt, outer.keys()) else None
    if inner:
        pairs = zip(stmt.target.subscripts, sizes.dims_of(stmt.target.tensor), strict=True)
        whole = all(runs_over(subscript, dim, outer) for subscript, dim in pairs)
        if not whole or any(reduced_axes(stmt.value)):
            return None
    used = free_variables(stmt.value).union(*(free_variables(axis.extent) for axis in inner))
    lacking = [axis for axis in outer.values() if axis.name not in used]
    long = any(not 0 < (sizes.constant(axis.extent) or 0) < FEW for axis in lacking)
    return inner if long and len(lacking) < len(outer) else None


def _is_told(stmt: IndexAssign) -> bool:
    """Whether data say where a statement writes."""
    return isinstance(stmt.target, Index) and any(map(reads_elements, stmt.target.subscripts))


def _is_product(stmt: IndexAssign, outer: AbstractSet[str]) -> bool:
    """Whether a statement sums products of two factors, along an axis that both have, each of which
    lacks an index of the target that the other one has: a product of matrices."""
    summed, body = summand(stmt)
    if any(reduced_axes(body)) or any(0 < (sizes.constant(a.extent) or 0) < FEW for a in summed):
        return False
    names = {axis.name for axis in summed}
    parts = [free_variables(factor) & (outer | names) for factor in factors(body)]
    return any(
        bool(one & other & names) and bool(one - other & outer) and bool(other - one & outer)
        for one, other in combinations(parts, 2)
    )


def _of_all(function: Function) -> Function:
    """With sums of all sums of rows as one."""
    uses = mentions(function.body)

    def block(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for stmt in body:
            new = map_blocks(stmt, block)
            whole = _joined(out[-1], new, uses) if out else None
            at = -1
            if whole is None and len(out) > 1 and isinstance(out[-1], Declare):
                at, whole = -2, _joined(out[-2], new, uses)  # the number's own declaration
            if whole is not None:
                del out[at]
            out.append(new if whole is None else whole)
        return tuple(out)

    return replace(function, body=block(function.body))


def _joined(rows: Stmt, total: Stmt, uses: Counter[str]) -> IndexAssign | None:
    """A sum of what another statement has summed for it alone, as one."""
    match rows, total:
        case (
            IndexAssign(Index(Var(name)) as made, "=", Reduce("sum", body, inner), own),
            IndexAssign(Var(sum_, number), "+=", Index(Var(read)) as place, axes),
        ) if (
            number == FLOAT
            and name == read
            and uses[name] == 2
            and sum_ not in free_variables(body)
        ):
            pass
        case _:
            return None
    names = [axis.name for axis in own]
    there = [s.name if isinstance(s, Var) else "" for s in place.subscripts]
    here = [s.name if isinstance(s, Var) else "" for s in made.subscripts]
    ragged = any(free_variables(axis.extent) & set(names) for axis in inner)
    if ragged or sorted(here) != sorted(names) or sorted(there) != sorted(a.name for a in axes):
        return None
    extents = {axis.name: axis.extent for axis in axes}
    if any(extents[t] != a.extent for t, a in zip(there, _in_order(here, own), strict=True)):
        return None
    return replace(total, value=body, axes=(*_in_order(here, own), *inner))


def _in_order(names: list[str], axes: tuple[Axis, ...]) -> list[Axis]:
    known = {axis.name: axis for axis in axes}
    return [known[name] for name in names]
