"""Extremes of what is computed, for derivatives: the value at the position of the extreme.

    r[n, m] = sum((a[n, k] - b[m, k]) ** 2 for k in K)
    p[n] = min(r[n, m] for m in M)

becomes, where all that is made of ``r`` are extremes,

    at[n] = argmin(r[n, m] for m in M)
    p[n] = sum((a[n, k] - b[at[n], k]) ** 2 for k in K)

Then only what was the least is differentiated: adjoints of all ``r[n, m]``, of which one in a row
is not zero, are none. What has all indices and is read, as x in ``max(2.0 * x[n, m] for m in M)``,
would have them anyway. Extremes that shift exponents need no adjoint in any case.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import partial

from loma import config
from loma.core import sizes
from loma.core.axes import target_axes
from loma.core.effects import blanks, written
from loma.core.ir import (
    FLOAT, INT, Builtin, Declare, Expr, Function, If, Index, IndexAssign, Op, Reduce, ReduceKind,
    Stmt, TensorType, Var, replace,
)  # fmt: skip
from loma.core.names import Names, names_of, with_own_indices
from loma.core.walk import (
    expressions, free_variables, map_blocks, mentioned_names, nodes, root, statements, substitute,
    walk,
)  # fmt: skip
from loma.passes.canonical.recurrences.winners import unravelled
from loma.passes.liveness import covers

_PLACE: dict[str, ReduceKind] = {"max": "argmax", "min": "argmin"}
_FEW = 8  # values, which are written out


def picked(function: Function) -> Function:
    """The function, of which derivatives will be made, with values at positions of extremes."""
    if "reductions" not in config.optimisations():
        return function
    extremes = (
        isinstance(s, IndexAssign) and isinstance(s.value, Reduce) and s.value.kind in _PLACE
        for s in statements(function.body)
    )
    return _Picked(with_own_indices(function)).run() or function if any(extremes) else function


class _Picked:
    def __init__(self, function: Function) -> None:
        self._function = function
        self._names = Names(names_of(function))
        self._sizes = frozenset(sizes.size_variables(function))
        every = tuple(statements(function.body))
        self._local = set(blanks(every))
        self._writes = Counter(root(s.target) for s in every if isinstance(s, IndexAssign))
        self._only_extremes = self._local - self._read_otherwise(every)
        exponents = (n for n in nodes(function.body) if isinstance(n, Builtin) and n.name == "exp")
        self._shifting = {name for node in exponents for name in free_variables(node)}
        self._made: list[Stmt] = []

    def run(self) -> Function | None:
        """None where nothing changes."""
        body = self._block(self._function.body)
        return replace(self._function, body=(*self._made, *body)) if self._made else None

    def _read_otherwise(self, every: tuple[Stmt, ...]) -> set[str]:
        """What is read in another way than as the operand of an extreme."""
        found = set[str]()
        for stmt in every:
            match stmt:
                case Declare(_, None):
                    pass
                case IndexAssign(Index(_, places), _, Reduce(kind, Index(Var() as base, own))) if (
                    kind in _PLACE or kind in _PLACE.values()
                ):
                    found |= {n for s in (*places, *own) for n in free_variables(s)}
                    found |= free_variables(stmt.value) - {base.name}
                case IndexAssign(Index(Var(), places), _, value):
                    found |= {n for e in (*places, value) for n in free_variables(e)}
                case _:
                    found |= {n for e in expressions(stmt) for n in free_variables(e)}
        return found

    def _block(self, body: tuple[Stmt, ...], around: tuple[Stmt, ...] = ()) -> tuple[Stmt, ...]:
        """``around``: what has been done before the block, in any case."""
        out: list[Stmt] = []
        for stmt in body:
            before = (*around, *out)
            made = self._at_position(stmt, before) if isinstance(stmt, IndexAssign) else None
            known = before if isinstance(stmt, If) else ()
            out += [map_blocks(stmt, partial(self._block, around=known))] if made is None else made
        return tuple(out)

    def _at_position(self, stmt: IndexAssign, before: tuple[Stmt, ...]) -> list[Stmt] | None:
        """The position and the value there, in the place of a statement that has an extreme."""
        value, target = stmt.value, stmt.target
        if not isinstance(value, Reduce) or value.kind not in _PLACE or value.type != FLOAT:
            return None
        if stmt.op != "=" or not isinstance(target, Index) or target_axes(stmt) != stmt.axes:
            return None
        if target.tensor.name in self._shifting | free_variables(value):
            return None
        every = (*stmt.axes, *value.axes)
        if not all(free_variables(axis.extent) <= self._sizes for axis in every):
            return None
        lengths = [sizes.constant(axis.extent) for axis in value.axes]
        if None not in lengths and math.prod(n for n in lengths if n is not None) < _FEW:
            return None
        element = self._defined(value.body, before)
        names = {axis.name for axis in every}
        if element is None or any(isinstance(node, Op) for node in walk(element)):
            return None
        reads = [node for node in walk(element) if isinstance(node, Index)]
        if not reads or any(free_variables(read) >= names for read in reads):
            return None
        type_ = TensorType(tuple(axis.extent for axis in stmt.axes), "int")
        at = Var(self._names.fresh("_at"), type_)
        self._made.append(Declare(at, None))
        here = Index(at, tuple(Var(axis.name, INT) for axis in stmt.axes), INT)
        place = Reduce(_PLACE[value.kind], value.body, value.axes, INT, value.span)
        pairs = zip(value.axes, unravelled(here, value.axes), strict=True)
        new = substitute(element, {axis.name: index for axis, index in pairs})
        return [
            replace(stmt, target=here, value=place),
            replace(stmt, value=sizes.simple_subscripts(new)),
        ]

    def _defined(self, body: Expr, before: tuple[Stmt, ...]) -> Expr | None:
        """What the elements are of which there is an extreme, if they are no plain elements."""
        if not isinstance(body, Index):
            return body
        name = root(body)
        if name not in self._only_extremes or self._writes[name] != 1:
            return None
        changed = set[str]()
        for stmt in reversed(before):
            match stmt:
                case IndexAssign(Index(Var(own), places), "=", value, axes) if own == name:
                    plain = [s.name for s in places if isinstance(s, Var)]
                    whole = covers(stmt) and set(plain) == {axis.name for axis in axes}
                    if not whole or changed & free_variables(value) or isinstance(value, Index):
                        return None
                    pairs = zip(plain, body.subscripts, strict=True)
                    return substitute(value, dict(pairs))
                case _ if name in mentioned_names((stmt,)) and name in written((stmt,)):
                    return None
            changed |= written((stmt,))
        return None
