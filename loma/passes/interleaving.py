"""Elements that lie beside each other, made by one statement.

    y[t, d, 0] = x[t, d, 0] * c[d] - x[t, d, 1] * s[d]
    y[t, d, 1] = x[t, d, 1] * c[d] + x[t, d, 0] * s[d]

as rotations of pairs have them, go through memory twice, by steps of two. One statement with
a choice on the last index goes once, and lowering writes its few values out:

    y[t, d, r] = (x[t, d, 0] * c[d] - x[t, d, 1] * s[d]) if r == 0 else (...)

Where they say the same but for places that move on by as much, as where pixels are shuffled, no
choice is needed, and the dimension may be any:

    y[n, c, 0, j] = x[n, 4 * c, j] + b[0];  y[n, c, 1, j] = x[n, 4 * c + 1, j] + b[1]

is ``y[n, c, r, j] = x[n, 4 * c + r, j] + b[r]``.
"""

from __future__ import annotations

from collections.abc import Iterable
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
    children, free_variables, map_blocks, map_children, map_tensor_functions, mentioned_names,
    substitute, walk,
)  # fmt: skip

MOST = 4  # values of the index, which lowering writes out


def interleaving(module: Module, chosen: bool = True) -> Module:
    """The pass on every tensor function of a module; ``chosen``: also with choices."""
    return map_tensor_functions(module, lambda function: _Interleaving(function, chosen).run())


@dataclass(frozen=True, slots=True)
class _Part:
    """A statement for the elements at one ``place`` of a dimension of ``count``, the last but
    ``behind`` of them."""

    stmt: IndexAssign
    names: tuple[str, ...]  # of its axes, in the order of the subscripts
    fixed: tuple[int | None, ...]  # the other subscripts, where they are numbers
    place: int
    count: int
    behind: int


class _Interleaving:
    def __init__(self, function: Function, chosen: bool) -> None:
        self._function, self._chosen = function, chosen
        self._is_size = frozenset(sizes.size_variables(function)).__contains__
        self._names: Names | None = None

    def run(self) -> Function:
        return replace(self._function, body=self._block(self._function.body))

    def _block(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        out: list[Stmt | None] = [map_blocks(stmt, self._block) for stmt in body]
        rank = max((_rank(stmt) for stmt in out), default=0)
        for behind in range(rank):
            self._joined(out, behind)
        return tuple(stmt for stmt in out if stmt is not None)

    def _joined(self, out: list[Stmt | None], behind: int) -> None:
        for position, stmt in enumerate(out):
            first = None if stmt is None else self._part(stmt, behind)
            found = None if first is None else self._all(out, position, first)
            if found is None:
                continue
            parts, last = found
            if not self._chosen and self._is_written_besides(out, parts):
                continue
            made = self._together(parts)
            if made is not None:
                for at, own in enumerate(out):
                    out[at] = None if any(own is part.stmt for part in parts) else own
                out[last] = made

    def _is_written_besides(self, block: list[Stmt | None], parts: list[_Part]) -> bool:
        """Whether others write the tensor, too, which may be one with a part of these each."""
        name = parts[0].stmt.element.tensor.name
        others = (s for s in block if s is not None and all(s is not p.stmt for p in parts))
        return any(name in written((s,)) for s in others)

    def _part(self, stmt: Stmt, behind: int) -> _Part | None:
        match stmt:
            case IndexAssign(Index(Var(name) as tensor, subscripts), _, value):
                along = len(subscripts) - 1 - behind
                own_place = subscripts[along] if along >= 0 else None
                if not isinstance(own_place, IntConst):
                    return None
                place, count = own_place.value, sizes.constant(sizes.dims_of(tensor)[along]) or 0
                others = (*subscripts[:along], *subscripts[along + 1 :])
            case _:
                return None
        names = tuple(s.name for s in others if isinstance(s, Var))
        fixed = tuple(s.value if isinstance(s, IntConst) else None for s in others)
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
        return _Part(stmt, names, fixed, place, count, behind)

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
            part = self._part(stmt, first.behind)
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

    def _together(self, parts: list[_Part]) -> IndexAssign | None:
        self._names = self._names or Names(names_of(self._function))
        last = parts[-1]
        index = Var(self._names.fresh("_part"), INT)
        values: list[Expr] = []
        for part in sorted(parts, key=lambda part: part.place):
            names = zip(part.names, last.names, strict=True)
            values.append(substitute(part.stmt.value, {o: Var(n, INT) for o, n in names}))
        value = _in_steps(values, index)
        if value is None and (last.behind or not self._chosen):
            return None
        if value is None:
            value = values[-1]
            for place in reversed(range(last.count - 1)):
                here = Binary("==", index, IntConst(place), INT)
                value = b.select(here, values[place], value)
        target, along = last.stmt.element, len(last.stmt.element.subscripts) - 1 - last.behind
        places = (*target.subscripts[:along], index, *target.subscripts[along + 1 :])
        axes = (*last.stmt.axes, Axis(index.name, IntConst(last.count)))
        return replace(last.stmt, target=replace(target, subscripts=places), value=value, axes=axes)


def _rank(stmt: Stmt | None) -> int:
    """Of what a statement is for elements at one place of; 0 if for none."""
    match stmt:
        case IndexAssign(Index(_, places)) if any(isinstance(p, IntConst) for p in places):
            return len(places)
        case _:
            return 0


def _in_steps(values: list[Expr], index: Var) -> Expr | None:
    """One value for all of an index, where those for each of its values differ by nothing but
    places that move on by as much; None where they differ otherwise."""
    first = values[0]
    if all(value == first for value in values):
        return first
    if first.type == INT:
        return _place_in_steps(values, index)
    if isinstance(first, Index):
        bases = {value.base if isinstance(value, Index) else None for value in values}
        if len(bases) != 1:
            return None
        columns = zip(*(v.subscripts for v in values if isinstance(v, Index)), strict=True)
        places = [_in_steps(list(column), index) for column in columns]
        if any(place is None for place in places):
            return None
        return replace(first, subscripts=tuple(p for p in places if p is not None))
    if any(type(value) is not type(first) for value in values) or not children(first):
        return None
    own = [tuple(children(value)) for value in values]
    if len({len(each) for each in own}) != 1:
        return None
    made = [_in_steps(list(column), index) for column in zip(*own, strict=True)]
    if any(new is None for new in made):
        return None
    if any(_with(value, own[0]) != first for value in values):
        return None  # they are other operations
    return _with(first, [new for new in made if new is not None])


def _with(expr: Expr, parts: Iterable[Expr]) -> Expr:
    left = iter(parts)
    return map_children(expr, lambda _: next(left))


def _place_in_steps(places: list[Expr], index: Var) -> Expr | None:
    if not all(map(sizes.is_arithmetic, places)):
        return None
    step = sizes.constant(sizes.arith("-", places[1], places[0]))
    for k, place in enumerate(places):
        if step is None or sizes.constant(sizes.arith("-", place, places[0])) != k * step:
            return None
    moved = b.binary("*", IntConst(step or 0), index)
    return sizes.simplify(b.binary("+", places[0], moved))


def _extents(part: _Part) -> list[Expr]:
    extents = {axis.name: axis.extent for axis in part.stmt.axes}
    return [extents[name] for name in part.names]
