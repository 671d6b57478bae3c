"""Elements that lie beside each other, made by one statement.

    y[t, d, 0] = x[t, d, 0] * c[d] - x[t, d, 1] * s[d]
    y[t, d, 1] = x[t, d, 1] * c[d] + x[t, d, 0] * s[d]

as rotations of pairs have them, go through memory twice, by steps of two. One statement with
a choice on the last index goes once, and lowering writes its few values out:

    y[t, d, r] = (x[t, d, 0] * c[d] - x[t, d, 1] * s[d]) if r == 0 else (...)
"""

from __future__ import annotations

from dataclasses import dataclass

from loma.core import builder as b, sizes
from loma.core.bounds import exists
from loma.core.effects import written
from loma.core.ir import (
    INT, Axis, Binary, Call, Expr, Function, Index, IndexAssign, IntConst, Module, Op, Reduce, Stmt,
    Var, replace,
)  # fmt: skip
from loma.core.names import Names, names_of
from loma.core.walk import (
    free_variables, map_blocks, map_tensor_functions, mentioned_names, substitute, walk,
)  # fmt: skip

MOST = 4  # values of the index, which lowering writes out


def interleaving(module: Module) -> Module:
    """The pass on every tensor function of a module."""
    return map_tensor_functions(module, lambda function: _Interleaving(function).run())


@dataclass(frozen=True, slots=True)
class _Part:
    """A statement for the elements at one ``place`` of a last dimension of ``count``."""

    stmt: IndexAssign
    names: tuple[str, ...]  # of its axes, in the order of the subscripts
    fixed: tuple[int | None, ...]  # the other subscripts, where they are numbers
    place: int
    count: int


class _Interleaving:
    def __init__(self, function: Function) -> None:
        self._function = function
        self._is_size = frozenset(sizes.size_variables(function)).__contains__
        self._names: Names | None = None

    def run(self) -> Function:
        return replace(self._function, body=self._block(self._function.body))

    def _block(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        out: list[Stmt | None] = [map_blocks(stmt, self._block) for stmt in body]
        for position, stmt in enumerate(out):
            first = None if stmt is None else self._part(stmt)
            found = None if first is None else self._all(out, position, first)
            if found is not None:
                parts, last = found
                for at, own in enumerate(out):
                    out[at] = None if any(own is part.stmt for part in parts) else own
                out[last] = self._together(parts)
        return tuple(stmt for stmt in out if stmt is not None)

    def _part(self, stmt: Stmt) -> _Part | None:
        match stmt:
            case IndexAssign(Index(Var(name) as tensor, (*before, IntConst(place))), _, value):
                count = sizes.constant(sizes.dims_of(tensor)[-1]) or 0
            case _:
                return None
        names = tuple(s.name for s in before if isinstance(s, Var))
        fixed = tuple(s.value if isinstance(s, IntConst) else None for s in before)
        own = {axis.name for axis in stmt.axes}
        alone = bool(names) and own == set(names) and fixed.count(None) == len(names) == len(own)
        if not alone or not 1 < count <= MOST or name in free_variables(value):
            return None
        extents = {axis.name: axis.extent for axis in stmt.axes}
        for node in walk(value):
            match node:
                case Reduce() | Call() | Op():
                    return None
                case Index() if not exists(node, extents, self._is_size):
                    return None
                case _:
                    continue
        return _Part(stmt, names, fixed, place, count)

    def _all(
        self, block: list[Stmt | None], position: int, first: _Part
    ) -> tuple[list[_Part], int] | None:
        """The statements for all places, from that on, which may as well run where the last of them
        stands, and where that is."""
        tensor = first.stmt.element.tensor
        parts, changed = [first], set[str]()
        for at in range(position + 1, len(block)):
            stmt = block[at]
            if stmt is None:
                continue
            inputs = {n for part in parts for n in free_variables(part.stmt.value)}
            part = self._part(stmt)
            if part is None or part.stmt.element.tensor != tensor:
                changed |= written((stmt,))
                if tensor.name in mentioned_names((stmt,)) or changed & inputs:
                    return None
                continue
            if part.fixed != first.fixed:
                pairs = zip(part.fixed, first.fixed, strict=True)
                if any(own != other and None not in (own, other) for own, other in pairs):
                    continue  # other elements
                return None
            extents = zip(_extents(first), _extents(part), strict=True)
            same = all(sizes.equal(own, other) is True for own, other in extents)
            if part.stmt.op != first.stmt.op or not same:
                return None
            if any(part.place == other.place for other in parts):
                return None
            parts.append(part)
            if len(parts) == first.count:
                return parts, at
        return None

    def _together(self, parts: list[_Part]) -> IndexAssign:
        self._names = self._names or Names(names_of(self._function))
        last = parts[-1]
        index = Var(self._names.fresh("_part"), INT)
        value: Expr | None = None
        for part in sorted(parts, key=lambda part: -part.place):
            names = zip(part.names, last.names, strict=True)
            own = substitute(part.stmt.value, {old: Var(new, INT) for old, new in names})
            here = Binary("==", index, IntConst(part.place), INT)
            value = own if value is None else b.select(here, own, value)
        assert value is not None
        target = last.stmt.element
        target = replace(target, subscripts=(*target.subscripts[:-1], index))
        axes = (*last.stmt.axes, Axis(index.name, IntConst(last.count)))
        return replace(last.stmt, target=target, value=value, axes=axes)


def _extents(part: _Part) -> list[Expr]:
    extents = {axis.name: axis.extent for axis in part.stmt.axes}
    return [extents[name] for name in part.names]
