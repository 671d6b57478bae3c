"""Sums inside larger expressions become statements of their own.

What recognises sums (steps of products, matrix products, convolutions) so finds all of them, in
inference and where a gradient is wanted alike; see :mod:`loma.passes.canonical.hoisting`. A
reduction stays where a condition guards it that does not just compare indices, and where its
temporary would have another size in each iteration of a loop, or rows of several lengths. A sum of
everything that a statement has summed by rows is one sum.
"""

from __future__ import annotations

from collections import Counter

from loma.core.ir import (
    FLOAT, Axis, Declare, Function, Index, IndexAssign, Module, Reduce, Stmt, Var, replace,
)  # fmt: skip
from loma.core.walk import free_variables, map_blocks, map_tensor_functions
from loma.passes.canonical.hoisting import InBlocks
from loma.passes.canonical.loops import mentions


def reductions(module: Module) -> Module:
    """The pass on every tensor function of a module."""
    functions = {function.name: function for function in module.functions}
    return map_tensor_functions(module, lambda f: _Reductions(_of_all(f), functions).run())


class _Reductions(InBlocks):
    def _index_assign(self, stmt: IndexAssign) -> IndexAssign:
        return self._hoisted_value(stmt)


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
