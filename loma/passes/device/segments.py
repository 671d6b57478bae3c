"""Loops over segments whose places data say, side by side.

    for b in range(B):
        for l in range(start[b + 1] - start[b]):
            y[start[b] + l, d] += g[b, d]        the adjoint of sum(x[l, d] for l in range(...))

Data say whether two segments have an element in common. Where none have, each element belongs to
one segment at most, which a tensor of the elements' owners tells: a statement runs over elements
then. The device finds out whether that holds, and nobody waits for the answer: where it does not
hold the statements do nothing, and otherwise the loops.

    owner[start[b] + l] = b + 1 for all b, l
    shared = sum of all lengths - number of elements that have an owner
    y[r, d] += g[owner[r] - 1, d] if shared == 0 and owner[r] > 0 else 0.0
    for b in range(0 if shared == 0 else B): ...

Sums of what a segment has are sums, ``s[b, d] += sum(x[start[b] + l, d] for l in range(...))``;
loops of these alone need no owners. So are those that an iteration keeps for itself, as the sum of
a softmax: they have a row for each segment.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass, replace as with_fields

from loma.core import builder as b, sizes
from loma.core.axes import shifted_places
from loma.core.builtins import BUILTINS
from loma.core.effects import counters, written
from loma.core.ir import (
    FLOAT, INT, Axis, Binary, Builtin, Declare, Element, Expr, FloatConst, For, Function, Index,
    IndexAssign, IntConst, NoDiff, Reduce, Select, Stmt, TensorType, Unary, Var, While, Zero,
    replace,
)  # fmt: skip
from loma.core.names import Names, names_of
from loma.core.walk import (
    children, declared_and_used, free_variables, map_blocks, map_children, mentioned_names,
    reads_elements, subscripts, substitute, walk,
)  # fmt: skip
from loma.errors.spans import Span
from loma.passes.device.elements import in_order, of_element, statement
from loma.passes.device.overlaps import Overlap, may_meet, overlap
from loma.passes.device.segment_loops import Belongings, Item, Iteration, Refused

# Elements that get their owner side by side: of one of many segments, and of all.
_FEW, _MANY = IntConst(32), IntConst(1 << 16)
_ZERO, _ONE = IntConst(0), IntConst(1)


def segments(function: Function) -> Function:
    """The function with statements for such loops."""
    return _Segments(function).run()


@dataclass(frozen=True, slots=True)
class _Owners:
    """``owner[r]`` is one more than the number of the segment that has the element r of ``size``,
    or 0; ``shared[()]`` is 0 if no element has two, and all are there. Segments begin at
    ``first``. ``there``: what else has to hold, which the sizes of tensors tell. ``moves``: what
    all that follows from may change between loops."""

    owner: Var
    shared: Var
    first: Expr
    size: Expr
    there: tuple[Expr, ...] = ()
    moves: bool = False

    def of(self, element: Var) -> Expr:
        return Index(self.owner, (b.binary("+", element, _ZERO),), INT)

    def are_alone(self) -> Expr:
        return b.every((Binary("==", Index(self.shared, (), INT), _ZERO, INT), *self.there))


class _Segments:
    def __init__(self, function: Function) -> None:
        self._function = function
        self._names = Names(names_of(function))
        self._changed = written(function.body) | counters(function.body)
        self._declared, self._uses = declared_and_used(function.body)
        self._owners: dict[tuple[Expr, ...], _Owners] = {}  # of what does not change
        self._overlaps: dict[str, Overlap] = {}  # of owners, by what says whether these share
        self._before: list[Stmt] = []  # in front of the outermost statement
        self._inside: frozenset[str] = frozenset()  # what that changes
        self._outermost: Stmt | None = None
        self._later: frozenset[str] = frozenset()  # what the statements behind that mention
        self._here: list[Stmt] = []  # in front of the loop at hand
        self._moving: list[tuple[Expr, ...]] = []  # owners of what may change behind it
        self._seen: set[str] = set()  # what the statements before mention
        self._is_repeated = False

    def run(self) -> Function:
        out: list[Stmt] = []
        body = self._function.body
        for position, stmt in enumerate(body):
            self._inside = frozenset(written((stmt,)) | counters((stmt,)))
            self._outermost, self._later = stmt, mentioned_names(body[position + 1 :])
            new = self._block((stmt,))
            out += [*self._before, *new]
            self._before = []
        return replace(self._function, body=tuple(out))

    def _block(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for stmt in body:
            made = self._tried(stmt) if isinstance(stmt, For) else None
            if made is None:
                around, inside = self._is_repeated, isinstance(stmt, For | While)
                self._is_repeated = around or inside
                made = [map_blocks(stmt, self._block)]
                self._is_repeated = around
            if not isinstance(stmt, Declare) or stmt.value is not None:
                self._seen |= mentioned_names((stmt,))
            out += made
        return tuple(out)

    def _tried(self, loop: For) -> list[Stmt] | None:
        before, owners = list(self._before), dict(self._owners)
        self._here, self._moving = [], []
        try:
            made = self._side_by_side(loop)
        except Refused:
            self._before, self._owners = before, owners
            return None
        for key in self._moving:
            del self._owners[key]
        return [*self._here, *made]

    def _side_by_side(self, loop: For) -> list[Stmt]:
        """What a loop over segments does."""
        _, inside = declared_and_used((loop,))
        outside = {name for name, count in self._uses.items() if count > inside[name]}
        outside |= {param.name for param in self._function.params}
        iteration = Iteration(loop, outside, self._names)
        items = iteration.items
        lengths = [item.along.extent for item in items if item.along is not None]
        own = Axis(loop.counter, loop.extent)
        if not any(map(reads_elements, lengths)):
            raise Refused
        found = Belongings(own, items)
        by_elements = [item for item in items if found.size(item) is not None]
        rows = iteration.rows
        fixed = (loop.extent, *lengths, *map(found.first, by_elements))
        self._check(fixed, written(loop.body) | rows.keys())
        # What is declared in front of everything has these sizes.
        self._check(tuple(d for row in rows.values() for d in sizes.dims_of(row)), self._inside)
        self._before[:0] = [Declare(row, None) for row in rows.values()]
        self._inside |= rows.keys()
        out: list[Stmt] = [Zero(row) for row in iteration.sums if self._is_repeated]
        if not by_elements:
            return [*out, *(self._by_segments(own, item, None) for item in items)]
        ranges = [axis.extent for item in by_elements for axis in item.stmt.axes]
        dims = (found.size(item) for item in by_elements)
        self._check((loop.extent, *ranges, *(d for d in dims if d is not None)), self._inside)
        conditions = (c for i in by_elements for c in _has_places(own, found, i))
        there = tuple(dict.fromkeys(conditions))
        owners = {item.position: self._found(own, found, item, there) for item in by_elements}
        every = next(iter(owners.values()))
        if any(each.shared != every.shared for each in owners.values()):
            raise Refused
        met = self._overlap(own, every, found, by_elements, items)
        apart = every.are_alone() if met is None else b.some((every.are_alone(), met.holds))
        before: set[str] = set()
        for item in items:
            if self._is_dead(loop, item, items):
                continue
            if item.position in owners:
                mine = owners[item.position]
                blank = self._is_blank(item, before)
                if met is None:
                    out += self._over_elements(own, item, mine, blank)
                else:
                    out.append(met.statement(own, item, mine.first, mine.size, blank, self._names))
            else:
                alone = None if item.target in rows else apart
                out.append(self._by_segments(own, item, alone))
            before |= mentioned_names((item.stmt,))
        rounds = Select(apart, _ZERO, loop.extent, INT)
        return [*out, replace(loop, extent=rounds, body=iteration.body)]

    def _check(self, fixed: tuple[Expr, ...], changed: AbstractSet[str]) -> None:
        """Places and lengths are the same whenever they are looked at."""
        if any(not changed.isdisjoint(free_variables(expr)) for expr in fixed):
            raise Refused

    def _is_dead(self, loop: For, item: Item, items: Sequence[Item]) -> bool:
        """Whether nothing reads what the statement for all iterations makes."""
        params = {param.name for param in self._function.params}
        if self._outermost is not loop or item.target in self._later | params:
            return False
        return not any(item.target in _reads(other) for other in items[item.position + 1 :])

    def _is_blank(self, item: Item, before: set[str]) -> bool:
        """Whether the target is all zero, and the statement does not read it."""
        name = item.target
        read = (*subscripts(item.stmt.target), item.stmt.value)
        return (
            name in self._declared
            and name not in self._seen | before
            and not self._is_repeated
            and not any(name in free_variables(expr) for expr in read)
        )

    # ---------------------------------------------------------------------------------- owners

    def _found(self, own: Axis, found: Belongings, item: Item, there: tuple[Expr, ...]) -> _Owners:
        """The owners of the elements that a statement runs over."""
        size = found.size(item)
        assert item.along is not None
        assert size is not None
        first, length = found.first(item), item.along.extent
        same: dict[str, Expr] = {own.name: Var("@", INT)}
        whole = (first, length, own.extent, size)
        key = tuple(
            sizes.simple_subscripts(substitute(sizes.simplify(expr), same)) for expr in whole
        )
        moves = any(not self._changed.isdisjoint(free_variables(expr) - {"@"}) for expr in key)
        if key not in self._owners:
            before = self._here if moves else self._before
            self._owners[key] = self._made(own, first, length, size, before)
            if moves:
                self._moving.append(key)
        return with_fields(self._owners[key], first=first, there=there, moves=moves)

    def _made(
        self, own: Axis, first: Expr, length: Expr, size: Expr, before: list[Stmt]
    ) -> _Owners:
        owner = Var(self._names.fresh("_owner"), TensorType((b.binary("+", size, _ONE),), "int"))
        shared = Var(self._names.fresh("_shared"), TensorType((), "int"))
        segment, lane, step, element = (
            Var(self._names.fresh(wish), INT) for wish in ("_segment", "_lane", "_step", "_element")
        )
        new: dict[str, Expr] = {own.name: segment}
        ranges = {segment.name: own.extent}
        first, length = (shifted_places(substitute(e, new), ranges) for e in (first, length))
        many = Builtin("max", (length, _ZERO), INT)
        count = Builtin("max", (own.extent, _ONE), INT)
        lanes = Var(self._names.fresh("_lanes"), INT)
        usual = Builtin("max", (b.binary("//", size, count), _ONE), INT)
        some = Builtin("min", (usual, _FEW), INT)
        side_by_side = Builtin("max", (b.binary("//", _MANY, count), some), INT)
        steps = b.binary("//", b.binary("+", many, b.binary("-", lanes, _ONE)), lanes)
        at = b.binary("+", b.binary("*", step, lanes), lane)
        last = b.binary("-", length, _ONE)  # which several lanes name
        place = b.binary("+", first, Builtin("min", (at, last), INT))
        inside = b.every((Binary("<=", _ZERO, place, INT), Binary("<", place, size, INT)))
        # What is not there is one more element, which does not count.
        target = Index(owner, (Select(inside, place, size, INT),), INT)
        every = Axis(segment.name, own.extent)
        axes = (every, Axis(lane.name, lanes), Axis(step.name, steps))
        total = Index(shared, (), INT)
        found = _Owners(owner, shared, first, size)
        has = Binary(">", found.of(element), _ZERO, INT)
        less = Select(has, IntConst(-1), _ZERO, INT)
        self._before += [Declare(owner, None), Declare(shared, None), Declare(lanes, side_by_side)]
        before += [
            Zero(owner),
            in_order(IndexAssign(target, "=", b.binary("+", segment, _ONE), axes, distinct=True)),
            IndexAssign(total, "=", Reduce("sum", many, (every,), INT), ()),
            IndexAssign(total, "+=", less, (Axis(element.name, size),)),
        ]
        return found

    # ------------------------------------------------------------------------------ statements

    def _by_segments(self, own: Axis, item: Item, holds: Expr | None) -> IndexAssign:
        """The statement for all segments, each of which has elements of its own, if that holds."""
        stmt, along, value = item.stmt, item.along, item.stmt.value
        if along is not None:
            extent = along.extent
            if holds is not None:
                extent = Select(holds, extent, _ZERO, INT)
            value = Reduce("sum", value, (Axis(along.name, extent),), value.type)
        elif holds is not None:
            other = stmt.target if stmt.op == "=" else b.zero(value)
            value = b.select(holds, value, other)
        return statement(stmt, stmt.element, value, own)

    def _over_elements(self, own: Axis, item: Item, owners: _Owners, blank: bool) -> list[Stmt]:
        """The statement for all elements; ``blank``: what has no owner is zero."""
        stmt, along = item.stmt, item.along
        assert along is not None
        element = Var(self._names.fresh("_element"), INT)
        number = owners.of(element)
        segment = b.binary("-", number, _ONE)
        moved = of_element(own.name, segment, along.name, owners.first, element)
        # That no number is larger holds anyway; so nothing that segments have is looked for.
        some = (Binary(">", number, _ZERO, INT), Binary("<=", number, own.extent, INT))
        holds = b.every((owners.are_alone(), *some))
        names = {own.name, along.name}

        def subscript(old: Expr) -> Expr:
            new = moved(old)
            elsewhere = sizes.mentions(old, names) and new != element
            return Select(holds, new, _ZERO, INT) if elsewhere else new

        target = replace(stmt.element, subscripts=tuple(map(subscript, stmt.element.subscripts)))
        blank = blank or stmt.op == "+="
        # The place that stands for none has to exist.
        count = owners.size
        if owners.there:
            count = Select(b.every(owners.there), count, _ZERO, INT)
        every = Axis(element.name, count)
        before: list[Stmt] = []
        chosen = Select(holds, number, _ZERO, INT)

        def read(part: Expr) -> Expr:
            """What a segment has, read from a table."""
            places = tuple(axis for axis in stmt.axes if axis.name in free_variables(part))
            made, table = self._with_none(own, part, places, stmt.span)
            before.extend(made)
            return Index(table, (chosen, *(Var(axis.name, INT) for axis in places)), part.type)

        if blank and not sizes.mentions(stmt.value, {along.name}):
            value = read(stmt.value)
            return [*before, statement(stmt, target, value, every)]
        value = moved(stmt.value)
        extents = {axis.name: axis.extent for axis in stmt.axes} | {element.name: owners.size}
        parts = dict.fromkeys(_of_segments(stmt.value, own.name, along.name))
        there = set(walk(value))
        known = {new: part for part in parts if (new := moved(part)) in there}
        if blank and _is_there(value, extents, known):
            value = _with_tables(value, {old: read(part) for old, part in known.items()})
            return [*before, statement(stmt, target, _taken(holds, value), every)]
        value = b.select(holds, value, b.zero(value) if blank else target)
        return [statement(stmt, target, value, every)]

    def _overlap(
        self, own: Axis, owners: _Owners, found: Belongings, some: Sequence[Item],
        items: Sequence[Item],
    ) -> Overlap | None:  # fmt: skip
        """What is known of segments that meet, if each of those statements adds to the segment's
        elements, or is all that gives them a value, and no statement reads these."""
        targets = [item.target for item in some]
        if any(not _reads(item).isdisjoint(targets) for item in items):
            return None
        for item in some:
            assert item.along is not None
            same = own.name, found.first(item), item.along
            if not _is_place(same, item) or (
                item.stmt.op == "=" and targets.count(item.target) > 1
            ):
                return None
        item = some[0]
        assert item.along is not None
        if not may_meet(own, found.first(item), item.along.extent):
            return None
        if owners.shared.name not in self._overlaps:
            first, length = found.first(item), item.along.extent
            declared, done, met = overlap(
                own, first, length, owners.size, owners.are_alone(), owners.owner, self._names
            )
            self._before += declared
            (self._here if owners.moves else self._before).extend(done)
            self._overlaps[owners.shared.name] = met
        return self._overlaps[owners.shared.name]

    def _with_none(
        self, own: Axis, part: Expr, axes: tuple[Axis, ...], span: Span
    ) -> tuple[list[Stmt], Var]:
        """What a segment has, in a table, of which the first row is that of none and zero: what
        elements read of it needs no condition, so that four neighbours are one read."""
        k = Var(self._names.fresh("_segment"), INT)
        dims = (b.binary("+", own.extent, _ONE), *(axis.extent for axis in axes))
        element: Element = "int" if part.type == INT else "float"
        table = Var(self._names.fresh("_of_segment"), TensorType(dims, element))
        values: dict[str, Expr] = {own.name: b.binary("-", k, _ONE)}
        value = substitute(part, values)
        value = b.select(Binary(">", k, _ZERO, INT), value, b.zero(value))
        places = tuple(Var(axis.name, INT) for axis in axes)
        every = (Axis(k.name, dims[0]), *axes)
        ranges = {axis.name: axis.extent for axis in every}
        value = shifted_places(value, ranges)
        made = IndexAssign(Index(table, (k, *places), part.type), "=", value, every, span)
        if self._inside.isdisjoint(free_variables(value)):
            # Not beside what reads it, as the two would be one kernel of blocks of columns.
            self._before[:0] = [Declare(table, None), made]
            return [], table
        self._before.append(Declare(table, None))
        return [made], table


def _is_place(same: tuple[str, Expr, Axis], item: Item) -> bool:
    """Whether a statement goes to the segment's elements, and nowhere else along them."""
    own, first, along = same
    element = b.binary("+", first, Var(along.name, INT))
    told = [s for s in item.stmt.element.subscripts if sizes.mentions(s, {own, along.name})]
    return len(told) == 1 and sizes.equal(told[0], element) is True


def _has_places(own: Axis, found: Belongings, item: Item) -> Iterator[Expr]:
    """Where a statement goes elsewhere than to the segment's elements: that there are places."""
    assert item.along is not None
    element = b.binary("+", found.first(item), Var(item.along.name, INT))
    target = item.stmt.element
    for subscript, dim in zip(target.subscripts, sizes.dims_of(target.base), strict=True):
        mentions = sizes.mentions(subscript, {own.name, item.along.name})
        if mentions and not isinstance(dim, IntConst) and not sizes.equal(subscript, element):
            yield Binary(">", dim, _ZERO, INT)


def _of_segments(value: Expr, own: str, along: str) -> Iterator[Index]:
    """The elements that a value reads of what segments have."""
    match value:
        case Reduce():
            return
        case Index() if sizes.mentions(value, {own}) and not sizes.mentions(value, {along}):
            yield value
        case _:
            for child in children(value):
                yield from _of_segments(child, own, along)


def _is_there(value: Expr, extents: Mapping[str, Expr], known: Collection[Expr]) -> bool:
    """Whether a value can be computed for any element, wherever it is: what it reads exists."""
    match value:
        case _ if value in known:
            return value.type == FLOAT
        case Index(base, places):
            dims = sizes.dims_of(base) if isinstance(base.type, TensorType) else ()
            return len(dims) == len(places) and all(
                isinstance(place, Var) and sizes.equal(extents.get(place.name, _ZERO), dim)
                for place, dim in zip(places, dims, strict=True)
            )
        case FloatConst():
            return True
        case Var(type=type_) | NoDiff(type=type_):
            return type_ == FLOAT
        case Binary(type=type_) | Unary(type=type_) | Select(type=type_) if type_ == FLOAT:
            return all(_is_there(child, extents, known) for child in children(value))
        case Builtin(name, type=type_) if type_ == FLOAT and not BUILTINS[name].rounds:
            return all(_is_there(child, extents, known) for child in children(value))
        case _:
            return False


def _with_tables(value: Expr, tables: Mapping[Expr, Expr]) -> Expr:
    if value in tables:
        return tables[value]
    return map_children(value, lambda child: _with_tables(child, tables))


def _reads(item: Item) -> frozenset[str]:
    """What a statement reads, but for the elements that it adds to."""
    read = (*subscripts(item.stmt.target), item.stmt.value)
    return frozenset[str]().union(*map(free_variables, read))


def _taken(holds: Expr, value: Expr) -> Expr:
    """The value or zero, of numbers that are both there."""
    return Select(holds, value, b.zero(value), value.type, eager=True)
