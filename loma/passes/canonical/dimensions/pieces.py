"""Statements about tensors in pieces are a statement for each piece.

    r = cat([p, q], 1);  y[n, d] = r[n, d] * s[d]       # p has D columns, q has E

is ``y[n, d + 0] = p[n, d] * s[d + 0]`` for d in D and ``y[n, D + d] = q[n, d] * s[D + d]`` for d in
E: nothing is joined, and what p and q are made of may stand in their place. So is a choice between
two ranges of an index, ``y[n, d] = a[n, d] if d < D else b[n, d - D]``: the loops of pieces have no
condition, read nothing that may lie outside, and know more of remainders. Of pieces of a few
elements, as the first one, one statement stays. So does one that makes a temporary by a choice:
where that is read, it may be a part of the value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loma.arithmetic.integers import COMPARISONS
from loma.core import builder as b, sizes
from loma.core.axes import index_statement
from loma.core.bounds import facts, is_never_negative, last_places
from loma.core.effects import declared, is_blank, written
from loma.core.ir import (
    FLOAT, INT, Axis, Binary, Declare, Expr, Function, Index, IndexAssign, IntConst, Module, Op,
    Reduce, Return, Select, Stmt, TensorType, Var, replace,
)  # fmt: skip
from loma.core.names import Names, names_of
from loma.core.sizes import IsSize, arith
from loma.core.walk import (
    free_variables, map_blocks, map_children, map_tensor_functions, mentioned_names, reduced_axes,
    statements, walk,
)  # fmt: skip
from loma.passes.canonical.views import element, is_inside, is_view

Block = tuple[Stmt, ...]
ZERO, ONE = IntConst(0), IntConst(1)
_SHORTEST = 8  # elements of a piece


def pieces(module: Module, temporaries: bool = False) -> Module:
    """The pass on every tensor function of a module; ``temporaries``: on statements that make these
    as well."""
    return map_tensor_functions(module, lambda function: _Pieces(function, temporaries).run())


@dataclass(frozen=True, slots=True)
class _Joined:
    """A tensor that is made of others along a dimension, each of which begins at a place there."""

    along: int
    parts: tuple[Expr, ...]
    begins: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class _Cut:
    """Where the range of an index begins anew."""

    index: str
    begins: tuple[Expr, ...]


class _Pieces:
    def __init__(self, function: Function, temporaries: bool) -> None:
        self._function = function
        own = declared(function.body) - _returned(function)
        self._local = set[str]() if temporaries else own
        self._names = Names(names_of(function))
        self._is_size: IsSize = frozenset(sizes.size_variables(function)).__contains__
        self._joined: dict[str, _Joined] = {}
        # What sums and other operators make: parts that are convolutions, say, may be one.
        self._sums = {name for s in statements(function.body) if _adds(s) for name in written((s,))}

    def run(self) -> Function:
        body = tuple(new for k in range(len(self._function.body)) for new in self._at(k))
        body = tuple(new for stmt in body for new in self._statement(stmt))
        out: list[Stmt] = []
        for position, stmt in enumerate(body):
            name = stmt.target.name if isinstance(stmt, Declare) else ""
            if name in self._joined and name not in mentioned_names(body[position + 1 :]):
                continue
            out.append(stmt)
        return replace(self._function, body=tuple(out))

    def _at(self, position: int) -> list[Stmt]:
        """A statement of the function's own block; tensors that are joined from what it computes,
        as statements that copy."""
        body = self._function.body
        stmt, after = body[position], body[position + 1 :]
        match stmt:
            case Declare(Var(name) as target, Op("cat") as value):
                found = self._join(value)
                if found is None or written(after) & mentioned_names((stmt,)):
                    return [stmt]
                self._joined[name] = found
                using = [s for s in after if name in mentioned_names((s,))]
                returned = all(isinstance(s, Return) for s in using)
                if returned and self._is_computed(found, body[:position], after):
                    made = Var(self._names.fresh(name), target.type)
                    self._joined[made.name] = self._joined.pop(name)
                    return [Declare(made, value, stmt.span), *self._copy(target, made)]
                return [stmt]
            case Return(values):
                out: list[Stmt] = []
                kept: list[Expr] = []
                for returned_value in values:
                    joined = self._join(returned_value)
                    if joined is None or not self._is_computed(joined, body[:position], ()):
                        kept.append(returned_value)
                        continue
                    wishes = "_result", "_t"
                    names = (self._names.fresh(wish) for wish in wishes)
                    to, made = (Var(own, returned_value.type) for own in names)
                    self._joined[made.name] = joined
                    out += [Declare(made, returned_value, stmt.span), *self._copy(to, made)]
                    kept.append(to)
                return [*out, replace(stmt, values=tuple(kept))]
            case _:
                return [stmt]

    def _join(self, value: Expr) -> _Joined | None:
        """None where the pieces are not known, or have no elements to read."""
        if not isinstance(value, Op) or value.name != "cat":
            return None
        dim = dict(value.attrs)["dim"]
        number = None if isinstance(dim, tuple) else sizes.constant(dim)
        type_ = value.type
        if number is None or not isinstance(type_, TensorType) or type_.dims is None:
            return None
        if type_.element != "float":
            return None
        along = number % len(type_.dims)
        begin: Expr = ZERO
        begins: list[Expr] = []
        for part in value.args:
            own = sizes.dims_of(part) if isinstance(part.type, TensorType) else ()
            if len(own) != len(type_.dims) or not is_inside(part, self._is_size):
                return None
            if isinstance(part, Var) and part.name in self._sums:
                return None
            begins.append(begin)
            begin = arith("+", begin, own[along])
        return _Joined(along, value.args, tuple(begins))

    def _is_computed(self, joined: _Joined, before: Block, after: Block) -> bool:
        """Whether a part is a local tensor that nothing else reads."""
        for part in joined.parts:
            if not isinstance(part, Var) or part.name in mentioned_names(after):
                continue
            using = [s for s in before if part.name in mentioned_names((s,))]
            using = [s for s in using if not is_blank(s)]
            if using and all(
                isinstance(s, IndexAssign) and part.name in written((s,)) for s in using
            ):
                return True
        return False

    def _copy(self, target: Var, source: Var) -> list[Stmt]:
        dims = sizes.dims_of(target)
        axes = tuple(Axis(self._names.fresh(f"_i{k}"), dim) for k, dim in enumerate(dims))
        places = tuple(ZERO if a.extent == ONE else Var(a.name, INT) for a in axes)
        moving = tuple(axis for axis in axes if axis.extent != ONE)
        here, there = Index(target, places, FLOAT), Index(source, places, FLOAT)
        return [Declare(target, None), IndexAssign(here, "=", there, moving)]

    # ------------------------------------------------------------------------------ statements

    def _statement(self, stmt: Stmt) -> Block:
        if not isinstance(stmt, IndexAssign):
            return (map_blocks(stmt, self._block),)
        cut = self._cut(stmt)
        if cut is None:
            return (stmt,)
        return tuple(new for made in self._made(stmt, cut) for new in self._statement(made))

    def _block(self, body: Block) -> Block:
        return tuple(new for stmt in body for new in self._statement(stmt))

    def _cut(self, stmt: IndexAssign) -> _Cut | None:
        """The first index whose range consists of pieces."""
        axes = {axis.name: axis for axis in stmt.axes}
        target = stmt.target
        if not isinstance(target, Index) or target.tensor.name in free_variables(stmt.value):
            return None
        own = [s.name for s in target.subscripts if isinstance(s, Var)]
        used = [n for s in target.subscripts for n in free_variables(s)]
        inner = {axis.name for axis in reduced_axes(stmt.value)}
        for node in walk(stmt.value):
            match node:
                case Index(Var(name), places) if name in self._joined:
                    place = places[self._joined[name].along]
                    begins = self._joined[name].begins
                case Select(cond, then, other) if target.tensor.name not in self._local and not any(
                    b.is_const(value, 0) for value in (then, other)
                ):
                    found = _edge(cond, stmt.axes)
                    if found is None:
                        continue
                    place, begins = Var(found[0], INT), (ZERO, found[1])
                case _:
                    continue
            if not isinstance(place, Var) or place.name not in axes or place.name in inner:
                continue
            if used.count(place.name) != 1 or place.name not in own:
                continue
            if self._are_pieces(begins, axes[place.name].extent):
                return _Cut(place.name, begins)
        return None

    def _are_pieces(self, begins: tuple[Expr, ...], extent: Expr) -> bool:
        """Whether pieces begin there in any case, and sizes alone say how long they are."""
        ends = (*begins[1:], extent)
        lengths = [arith("-", end, begin) for begin, end in zip(begins, ends, strict=True)]
        return len(begins) > 1 and all(
            not _is_short(length)
            and all(map(self._is_size, free_variables(length)))
            and is_never_negative(length, {}, self._is_size)
            for length in lengths
        )

    def _made(self, stmt: IndexAssign, cut: _Cut) -> list[Stmt]:
        """A statement for each piece."""
        axis = next(a for a in stmt.axes if a.name == cut.index)
        out: list[Stmt] = []
        for number, begin in enumerate(cut.begins):
            end = cut.begins[number + 1] if number + 1 < len(cut.begins) else axis.extent
            axes = tuple(
                Axis(a.name, arith("-", end, begin)) if a is axis else a for a in stmt.axes
            )
            ranges = {a.name: a.extent for a in axes}
            target, value = (
                self._moved(expr, cut, number, begin) for expr in (stmt.target, stmt.value)
            )
            value = self._with_places(value, ranges)
            assert isinstance(target, Index)
            new = index_statement(target, stmt.op, value, axes, {axis.name}, self._is_size)
            if isinstance(new, IndexAssign):
                new = replace(new, distinct=stmt.distinct)
            out.append(replace(new, span=stmt.span))
        return out

    def _with_places(self, expr: Expr, ranges: Mapping[str, Expr]) -> Expr:
        """Without remainders of what surely is less than the divisor, or less than twice that."""
        inner = {a.name: a.extent for a in expr.axes} if isinstance(expr, Reduce) else {}
        ranges = {**ranges, **inner}
        old, expr = expr, map_children(expr, lambda child: self._with_places(child, ranges))
        if isinstance(expr, Index) and isinstance(old, Index) and expr != old:
            dims = sizes.dims_of(expr.base)
            triples = zip(expr.subscripts, old.subscripts, dims, strict=True)
            return replace(expr, subscripts=tuple(_place(*each, ranges) for each in triples))
        match expr:
            case Binary("%", place, size) if self._is_never_negative(arith("-", size, ONE), ranges):
                for _ in range(2):
                    if not self._is_never_negative(place, ranges):
                        break
                    room = arith("-", arith("-", size, ONE), place)
                    if self._is_never_negative(room, ranges):
                        return place
                    place = arith("-", place, size)
            case _:
                pass
        return expr

    def _is_never_negative(self, expr: Expr, ranges: Mapping[str, Expr]) -> bool:
        return is_never_negative(expr, ranges, self._is_size, last_places(ranges))

    def _moved(self, expr: Expr, cut: _Cut, number: int, begin: Expr) -> Expr:
        """An expression in the piece of that number."""
        here = Var(cut.index, INT)
        match expr:
            case Index(Var(name), places) if name in self._joined and (
                _same(self._joined[name].begins, cut.begins)
                and places[self._joined[name].along] == here
            ):
                joined = self._joined[name]
                places = tuple(
                    p if k == joined.along else self._moved(p, cut, number, begin)
                    for k, p in enumerate(places)
                )
                read = element(joined.parts[number], places)
                assert read is not None
                return replace(read, span=expr.span)
            case Index(base, places):
                moved = (self._moved(place, cut, number, begin) for place in places)
                return replace(expr, base=base, subscripts=tuple(map(sizes.simplify, moved)))
            case Select(cond, then, other):
                found = _edge(cond, (Axis(cut.index, ZERO),))
                if found is not None and _same((ZERO, found[1]), cut.begins):
                    holds = found[2] == (number == 0)
                    return self._moved(then if holds else other, cut, number, begin)
            case Var(name) if name == cut.index:
                return here if begin == ZERO else Binary("+", begin, here, INT)
            case _:
                pass
        return map_children(expr, lambda child: self._moved(child, cut, number, begin))


def _place(place: Expr, old: Expr, dim: Expr, ranges: Mapping[str, Expr]) -> Expr:
    """A subscript; an index alone would run over the whole dimension."""
    if not isinstance(place, Var) or isinstance(old, Var) or place.name not in ranges:
        return place
    whole = sizes.equal(ranges[place.name], dim) is True
    return place if whole else Binary("+", place, ZERO, INT)


def _is_short(length: Expr) -> bool:
    number = sizes.constant(length)
    return number is not None and number < _SHORTEST


def _returned(function: Function) -> set[str]:
    ends = (stmt for stmt in function.body if isinstance(stmt, Return))
    return {value.name for end in ends for value in end.values if isinstance(value, Var)}


def _adds(stmt: Stmt) -> bool:
    """Whether a statement makes more of a tensor than a value for each element."""
    match stmt:
        case IndexAssign(Index() as target, _, value, axes):
            own = free_variables(target)
            return any(reduced_axes(value)) or any(axis.name not in own for axis in axes)
        case Declare(_, value):
            return isinstance(value, Op) and not is_view(value)
        case _:
            return True


def _same(one: tuple[Expr, ...], other: tuple[Expr, ...]) -> bool:
    return len(one) == len(other) and all(
        sizes.equal(a, c) is True for a, c in zip(one, other, strict=True)
    )


def _edge(cond: Expr, axes: tuple[Axis, ...]) -> tuple[str, Expr, bool] | None:
    """The index that a condition compares with a bound, the bound, and whether the condition holds
    below that, not from there on."""
    if not isinstance(cond, Binary) or cond.op not in COMPARISONS:
        return None
    ends = facts(cond)
    form = sizes.affine(ends[0], axes) if len(ends) == 1 else None
    if form is None or len(form[0]) != 1:
        return None
    ((name, slope),) = form[0].items()
    match sizes.constant(slope):
        case -1:  # rest - index >= 0
            return name, arith("+", form[1], ONE), True
        case 1:
            return name, arith("-", ZERO, form[1]), False
        case _:
            return None
