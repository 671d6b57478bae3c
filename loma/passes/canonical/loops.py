"""Loops whose iterations do not meet, as index statements.

``for n in range(N):`` around statements of row n says what the statements say with n for an index:
each then runs for every n before the next one begins. That is the same where iterations share
nothing that is written but sums: a tensor is accessed at one subscript that tells the counter, or
only added to. A variable that every iteration sets before it looks at it gets a dimension; one that
holds a group's part of a convolution goes, where one call does all groups.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from loma.core import builder as b, sizes
from loma.core.axes import ranged, shifted_places
from loma.core.bounds import ONE, exists, is_never_negative, last_places
from loma.core.distinct import never_meet, told_apart
from loma.core.effects import blanks, counters, is_blank, written
from loma.core.ir import (
    FLOAT, INT, Assign, Axis, Call, Declare, Expr, FloatType, For, Function, If, Index, IndexAssign,
    IntType, Module, Op, Reduce, Stmt, TensorType, Var, Zero, replace,
)  # fmt: skip
from loma.core.names import Names, axes_of, names_of
from loma.core.sizes import size_variables
from loma.core.walk import (
    blocks, exchanged, expressions, free_variables, map_blocks, map_children, map_tensor_functions,
    needed_places, nodes, own_names, reads_elements, reads_of_type, statements,
    subscript_variables, substitute, variables, walk,
)  # fmt: skip
from loma.passes.canonical.branches import Facts, without_branches
from loma.passes.canonical.groups import copied, in_groups, with_groups
from loma.passes.canonical.recurrences.decided import tells_one_round
from loma.passes.canonical.recurrences.keepers import apart
from loma.passes.canonical.views import element
from loma.passes.liveness import set_first


def loops(module: Module, every: bool = False) -> Module:
    """The pass on every tensor function of a module; ``every``: also on statements that the
    language has no text for without the loop, as no index stands alone that says the range."""
    return map_tensor_functions(module, lambda f: without_loops(f, every))


def without_loops(function: Function, every: bool = False) -> Function:
    """The pass on a function."""
    return _Loops(function, every).run()


_FEW = 32  # elements: of a window of 5 by 5


class _Refused(Exception):
    """The loop stays one."""


@dataclass(frozen=True, slots=True)
class _Access:
    """An element that a statement reads or writes; ``adds``: only adds to. ``axes`` are those of
    the statement and of the loops around it inside the one that is looked at, ``inner`` the names
    of these and of the reductions of the statement."""

    place: Index
    writes: bool
    adds: bool
    axes: tuple[Axis, ...]
    inner: frozenset[str]


class _Loops:
    def __init__(self, function: Function, every: bool) -> None:
        self._function, self._every = function, every
        self._names = Names(names_of(function))
        self._sizes = frozenset(size_variables(function))
        # Sizes of arguments and results are not negative, or the call fails.
        types = [*(param.type for param in function.params), *function.results]
        self._counts = {size for type_ in types for size in sizes.dims_in(type_)}
        self._written = written(function.body)
        self._changed = self._written | counters(function.body)
        self._declared = blanks(function.body)
        self._mentions = mentions(function.body)
        self._new: dict[str, Var] = {}  # variables for conditions
        self._around: tuple[Axis, ...] = ()  # the counters of loops around what is looked at

    def run(self) -> Function:
        body = self._block(self._function.body)
        used = mentions(body)
        new = tuple(Declare(var, None) for name, var in self._new.items() if used[name])
        return replace(self._function, body=tuple(map(self._declaration, (*new, *body))))

    def _declaration(self, stmt: Stmt) -> Stmt:
        if is_blank(stmt):
            return replace(stmt, target=self._declared.get(stmt.target.name, stmt.target))
        return stmt

    def _block(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        around = self._around
        for stmt in body:
            if isinstance(stmt, For):
                self._around = (*around, Axis(stmt.counter, stmt.extent))
            stmt = map_blocks(stmt, self._block)
            self._around = around
            if isinstance(stmt, For):
                stmt = self._with_first_rounds(stmt)
                made = self._tried(stmt)
                made = self._apart(stmt) if made is None else made
                if made is None and (plain := self._without_branches(stmt)) is not None:
                    before, self._mentions = self._mentions, self._mentions.copy()
                    self._mentions.subtract(mentions(stmt.body))
                    self._mentions.update(mentions(plain.body))
                    made = self._tried(plain)
                    made = self._apart(plain) if made is None else made
                    self._mentions = before if made is None else self._mentions
                if made is not None:
                    out += made
                    continue
            out.append(stmt)
        return tuple(out)

    def _tried(self, loop: For) -> tuple[Stmt, ...] | None:
        try:
            return self._statements(loop)
        except _Refused:
            return None

    def _apart(self, loop: For) -> tuple[Stmt, ...] | None:
        """What the loop does, without it, where it does without what it keeps of its rounds."""
        found = apart(loop, self._count(loop), self._changed, _rank_of(loop), self._names)
        if found is None:
            return None
        before, declared = self._mentions, self._declared
        new = {var.name: var for var in found.variables}
        self._declared = declared | new
        self._mentions = before.copy()
        self._mentions.subtract(mentions(loop.body))
        self._mentions.update(mentions((*found.loop.body, *found.behind)))
        made = self._tried(found.loop)
        if made is None:
            self._mentions, self._declared = before, declared
            return None
        self._new |= new
        return (*made, *found.behind)

    def _without_branches(self, loop: For) -> For | None:
        """The loop with choices between values for its branches; None where it has none or some
        stay."""
        body = without_branches(loop.body, self._facts(loop))
        return None if body is None or body == loop.body else replace(loop, body=body)

    def _with_first_rounds(self, loop: For) -> For:
        """The loop with choices for branches of its first or its last round, and of the others,
        that give the same elements a value."""
        body: list[Stmt] = []
        for stmt in loop.body:
            one = isinstance(stmt, If) and tells_one_round(
                stmt.cond, loop, self._sizes.__contains__
            )
            chosen = without_branches((stmt,), self._facts(loop)) if one else None
            body.append(stmt if chosen is None or len(chosen) != 1 else chosen[0])
        return replace(loop, body=tuple(body))

    def _facts(self, loop: For) -> Facts:
        around = (*self._around, Axis(loop.counter, loop.extent))

        def is_there(place: Index, axes: tuple[Axis, ...]) -> bool:
            extents = {axis.name: axis.extent for axis in (*around, *axes)}
            return exists(place, extents, self._sizes.__contains__, last_places(extents))

        return Facts(is_there, self._private, self._variable)

    def _variable(self) -> Var:
        var = Var(self._names.fresh("_taken"), INT)
        self._new[var.name] = self._declared[var.name] = var
        return var

    def _statements(self, loop: For) -> tuple[Stmt, ...]:
        """What the loop does, without it."""
        if not self._keeps_value(loop):
            raise _Refused
        changed = written(loop.body)
        body = tuple(self._elementwise(stmt, changed) for stmt in loop.body)
        loop = replace(loop, body=body)
        if (groups := self._groups(loop)) is not None:
            return groups
        private = self._private(loop.body)
        self._check(loop, private)
        taken = {name for stmt in statements(loop.body) for name in axes_of(stmt)}
        name = self._names.fresh(loop.counter) if loop.counter in taken else loop.counter
        wider = self._widened(loop, private)
        axis = Axis(name, self._count(loop) if wider else loop.extent)
        # Of loops in each other, as over triangles, other passes know more.
        nested = bool(self._around) or any(isinstance(s, For) for s in statements(loop.body))
        every = self._every and not nested and free_variables(loop.extent) <= self._sizes
        rows = _Rows(axis, loop.counter, wider, self._sizes, self._names, every)
        body = tuple(map(rows.statement, loop.body))
        self._declared |= wider
        return body

    def _keeps_value(self, loop: For) -> bool:
        """Whether a range is known before the loops around it run; one that data say belongs to
        sums alone."""
        if not reads_elements(loop.extent):
            return sizes.keeps_value(loop.extent, self._written)
        sums = all(
            isinstance(s, Assign | IndexAssign) and s.op == "+=" and s.target.type == FLOAT
            and loop.counter not in free_variables(s.target) for s in loop.body
        )  # fmt: skip
        return sums and self._written.isdisjoint(free_variables(loop.extent))

    def _elementwise(self, stmt: Stmt, changed: set[str]) -> Stmt:
        """The assignment of a part of a tensor, such as ``x[n]``, or of one that the loop leaves
        alone, as an index statement."""
        match stmt:
            case Assign(_, _, Var(source)) if source in changed:
                return stmt
            case Assign(Var(_, TensorType(tuple() as dims)) as target, "=", Op() | Var() as part):
                axes = tuple(Axis(self._names.fresh(f"_i{k}"), d) for k, d in enumerate(dims))
                places = tuple(Var(axis.name, INT) for axis in axes)
                value, own = element(part, places), element(target, places)
                if value is None or own is None or value.type != own.type:
                    return stmt
                return IndexAssign(own, "=", value, axes, stmt.span)
            case _:
                return stmt

    def _groups(self, loop: For) -> tuple[Stmt, ...] | None:
        """One convolution of all groups of channels, where the loop has one of a group each, with
        what is made of its elements."""
        body = [stmt for stmt in loop.body if isinstance(stmt, IndexAssign)]
        if self._around or not 1 < len(body) == len(loop.body):
            return None
        for stmt in body[:-1]:
            name = stmt.element.tensor.name if isinstance(stmt.target, Index) else ""
            if name not in self._declared or self._mentions[name] != 2:
                return None
        while len(body) > 1 and (joined := copied(body[-2], body[-1])) is not None:
            body[-2:] = [joined]
        group = Axis(loop.counter, loop.extent)
        if len(body) == 1 and isinstance(body[0].value, Reduce):
            whole = replace(body[0], axes=(group, *body[0].axes))
            return in_groups(self._function, whole, self._names)
        if len(body) == 1 and (apart := self._sum_apart(body[0])) is not None:
            body = list(apart)
        if len(body) != 2 or not all(isinstance(s, Var) for s in body[0].element.subscripts):
            return None
        return with_groups(self._function, body[0], body[1], group, self._names)

    def _sum_apart(self, stmt: IndexAssign) -> tuple[IndexAssign, IndexAssign] | None:
        """A statement with the only sum in its value as a statement of its own."""
        sums = [node for node in walk(stmt.value) if isinstance(node, Reduce)]
        if len(sums) != 1:
            return None
        axes = tuple(a for a in stmt.axes if a.name in free_variables(sums[0]))
        places = tuple(Var(axis.name, INT) for axis in axes)
        type_ = TensorType(tuple(axis.extent for axis in axes))
        read = Index(Var(self._names.fresh("_r"), type_), places, FLOAT)
        total = replace(stmt, target=read, value=sums[0], axes=axes)
        return total, replace(stmt, value=exchanged(stmt.value, sums[0], read))

    def _private(self, block: tuple[Stmt, ...]) -> set[str]:
        """Variables of a block alone, which it sets before it looks at them."""
        found = {
            name
            for name, times in mentions(block).items()
            if name in self._declared and times == self._mentions[name]
        }
        return {name for name in found if set_first(name, block)}

    def _widened(self, loop: For, private: set[str]) -> dict[str, Var]:
        """The private variables with a dimension for the counter, none of which takes many times as
        much memory as a tensor that has one for it, too."""
        rank = _rank_of(loop)
        count = self._count(loop)
        found = {}
        for name in sorted(private):
            var = self._declared[name]
            match var.type:
                case TensorType(tuple() as own, element):
                    dims: tuple[Expr, ...] = _with_counter(own, count, own)
                case FloatType() | IntType():
                    dims, element = (count,), "float" if var.type == FLOAT else "int"
                case _:
                    raise _Refused
            fixed = all(sizes.keeps_value(dim, self._changed) for dim in dims)
            if not fixed or _rank(dims) > rank:
                raise _Refused
            found[name] = replace(var, type=TensorType(dims, element))
        return found

    def _count(self, loop: For) -> Expr:
        """How many rounds a loop has, which is no negative number."""
        whole = any(sizes.equal(loop.extent, size) is True for size in self._counts)
        return loop.extent if whole else sizes.count(loop.extent, self._sizes.__contains__)

    def _check(self, loop: For, private: set[str]) -> None:
        """_Refused where iterations may meet, or where what the loop does has no indices."""
        local = {loop.counter, *private}
        accesses: dict[str, list[_Access]] = {}
        for stmt, around in _with_counters(loop.body):
            if not all(map(_is_scalar, expressions(stmt))):
                raise _Refused
            if self._needs_some(stmt, around, loop):
                raise _Refused
            match stmt:
                case For(_, size) | If(size):
                    if not sizes.keeps_value(size, self._written | local):
                        raise _Refused
                case Assign(Var(name, TensorType()), "=", Var(source)):
                    if not {name, source} <= private:
                        raise _Refused
                case Assign(Var(_, TensorType())):
                    raise _Refused
                case Zero(Var(name)) | Assign(Var(name)) | IndexAssign(Var(name)):
                    if name not in private and not self._sums(stmt, loop):
                        raise _Refused
                case IndexAssign(Index()):
                    pass
                case _:
                    raise _Refused
            for access in _accesses(stmt, around):
                accesses.setdefault(access.place.tensor.name, []).append(access)
        for name, found in accesses.items():
            if name not in private and any(access.writes for access in found):
                _check_apart(loop, found, local, self._sizes.__contains__)

    def _needs_some(self, stmt: Stmt, around: tuple[Axis, ...], loop: For) -> bool:
        """Whether a statement may fail where a range that the counter tells is empty: places are
        checked for the longest one, but for ranges that data say. What a loop adds to one place is
        a sum, which writes there without a round, too."""
        is_size = self._sizes.__contains__
        inner = [*around, *(stmt.axes if isinstance(stmt, IndexAssign) else ())]
        inner += [a for n in nodes((stmt,)) if isinstance(n, Reduce) for a in n.axes]
        told = [axis.extent for axis in inner if loop.counter in free_variables(axis.extent)]
        counters = (*self._around, Axis(loop.counter, loop.extent), *inner)
        extents = {axis.name: axis.extent for axis in counters}
        match stmt:
            case IndexAssign(Index() as target) if loop.counter not in free_variables(target):
                some = sizes.is_nonnegative(loop.extent, is_size)
                if not some and not exists(target, extents, is_size):
                    return True
        if all(map(reads_elements, told)):
            return False  # without a round an index statement looks at no place
        places = [place for expr in expressions(stmt) for place in needed_places(expr)]
        return any(not exists(place, extents, is_size) for place in places)

    def _sums(self, stmt: Stmt, loop: For) -> bool:
        """Whether a statement only adds to a number, as do all in the loop that look at it."""

        def adds(name: str, other: Stmt) -> bool:
            match other:
                case Assign(Var(own), "+=", value) | IndexAssign(Var(own), "+=", value):
                    return own == name and name not in free_variables(value)
                case _:
                    return False

        match stmt:
            case Assign(Var(name, type_), "+=") | IndexAssign(Var(name, type_), "+="):
                own = (s for s in statements(loop.body) if name in own_names(s))
                return type_ == FLOAT and all(adds(name, other) for other in own)
            case _:
                return False


def _check_apart(loop: For, found: list[_Access], local: set[str], is_size: sizes.IsSize) -> None:
    """_Refused where an iteration may look at an element that another one writes."""
    axis = Axis(loop.counter, loop.extent)
    inner = {name for access in found for name in access.inner} | (local - {loop.counter})

    def apart(one: _Access, other: _Access) -> bool:
        places = one.place.subscripts, other.place.subscripts
        for first, second in zip(*places, strict=True):
            same = sizes.equal(first, second) is True and sizes.keeps_value(first, inner)
            if same and loop.counter in told_apart((first,), (axis,)):
                return True
        if one is other:
            return loop.counter in told_apart(places[0], (axis, *one.axes))
        ways = (axis, *one.axes), (axis, *other.axes)
        if never_meet(one.place, other.place, *ways, inner):
            return True
        return _is_behind(one, other, axis, is_size) or _is_behind(other, one, axis, is_size)

    for k, one in enumerate(found):
        for other in found[k:]:
            harmless = (one.adds and other.adds) or not (one.writes or other.writes)
            if not harmless and not apart(one, other):
                raise _Refused


def _is_behind(one: _Access, other: _Access, axis: Axis, is_size: sizes.IsSize) -> bool:
    """Whether one place lies behind the other one in some dimension, in whichever iterations."""
    own = (axis, *other.axes)
    names: dict[str, Expr] = {a.name: Var(f"${a.name}", INT) for a in own}  # no program's names
    extents = {a.name: a.extent for a in (axis, *one.axes)}
    extents |= {f"${a.name}": substitute(a.extent, names) for a in own}
    for last, first in zip(one.place.subscripts, other.place.subscripts, strict=True):
        room = sizes.arith("-", sizes.arith("-", last, substitute(first, names)), ONE)
        free = free_variables(last) | free_variables(first)
        inside = {a.name for a in (*own, *one.axes)}
        fixed = free - inside <= {n for n in free if is_size(n)}
        if fixed and is_never_negative(room, extents, is_size):
            return True
    return False


def _is_scalar(expr: Expr) -> bool:
    """Whether an expression can stand in an index statement."""
    whole = (isinstance(node, Op) or _takes_tensors(node) for node in walk(expr))
    return not any(whole)


def _takes_tensors(expr: Expr) -> bool:
    if not isinstance(expr, Call):
        return False
    return any(isinstance(part.type, TensorType) for part in (expr, *expr.args))


def _accesses(stmt: Stmt, around: tuple[Axis, ...]) -> Iterator[_Access]:
    axes = (*around, *stmt.axes) if isinstance(stmt, IndexAssign) else around
    own = frozenset(axes_of(stmt) | {axis.name for axis in around})
    match stmt:
        case IndexAssign(Index() as target, op, value):
            yield _Access(target, True, op == "+=", axes, own)
            roots: tuple[Expr, ...] = (value, *target.subscripts)
        case Assign(_, _, value) | IndexAssign(_, _, value):
            roots = (value,)
        case _:
            roots = ()
    ranges = (axis.extent for axis in stmt.axes) if isinstance(stmt, IndexAssign) else ()
    for expr in (*roots, *ranges):
        for node in walk(expr):
            if isinstance(node, Index):
                yield _Access(node, False, False, axes, own)


def _with_counters(
    body: tuple[Stmt, ...], around: tuple[Axis, ...] = ()
) -> Iterator[tuple[Stmt, tuple[Axis, ...]]]:
    """The statements with the counters of loops around them."""
    for stmt in body:
        yield stmt, around
        inner = (*around, Axis(stmt.counter, stmt.extent)) if isinstance(stmt, For) else around
        for block in blocks(stmt):
            yield from _with_counters(block, inner)


def _with_counter(parts: tuple[Expr, ...], own: Expr, dims: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Sizes or subscripts with that of a loop's counter: in front, but behind those of a window, so
    that neighbours of a place in the window are as many lanes as the loop has rounds."""
    window = bool(dims) and all(sizes.constant(dim) is not None for dim in dims)
    return (*parts, own) if window else (own, *parts)


def _rank_of(loop: For) -> int:
    """How many dimensions tensors have that a loop goes along."""
    along = (
        len(node.subscripts)
        for node in nodes(loop.body)
        if isinstance(node, Index) and loop.counter in subscript_variables(node)
    )
    return max(along, default=0)


def _rank(dims: tuple[Expr, ...]) -> int:
    """How many dimensions there are but for constants that multiply the elements by a few."""
    constants = [size for size in map(sizes.constant, dims) if size is not None]
    return len(dims) - len(constants) if math.prod(constants) <= _FEW else len(dims)


def mentions(body: tuple[Stmt, ...]) -> Counter[str]:
    """How many statements mention each variable, declarations without a value aside."""
    found: Counter[str] = Counter()
    for stmt in statements(body):
        if is_blank(stmt):
            found.update(reads_of_type(stmt.target.type))
        else:
            found.update(own_names(stmt))
    return found


@dataclass(frozen=True, slots=True)
class _Rows:
    """Makes statements for all iterations of those of one: ``counter`` becomes ``axis``."""

    axis: Axis
    counter: str
    private: dict[str, Var]
    sizes: frozenset[str]
    names: Names
    every: bool

    def statement(self, stmt: Stmt) -> Stmt:
        match stmt:
            case Zero(Var() as target):
                return replace(stmt, target=self.private[target.name])
            case Assign(Var(name, TensorType()), "=", Var(source)):
                return replace(stmt, target=self.private[name], value=self.private[source])
            case Assign(Var() as target, op, value):
                return self._index_statement(stmt, self._expr(target), op, self._expr(value), ())
            case IndexAssign(target, op, value, axes):
                return self._index_statement(stmt, self._expr(target), op, self._expr(value), axes)
            case For(_, _, (IndexAssign(Index()) as only,)) if both := self._joined(stmt, only):
                return both
            case _:
                return map_blocks(stmt, lambda block: tuple(map(self.statement, block)))

    def _joined(self, loop: For, stmt: IndexAssign) -> IndexAssign | None:
        """The statement of a loop inside over ``c``, if it writes ``y[n*C + c]`` for all of both:
        with one index for the place, of which ``n`` and ``c`` are quotient and remainder."""
        own, inner = Var(self.counter, INT), Var(loop.counter, INT)
        place = b.binary("+", b.binary("*", own, loop.extent), inner)
        target = stmt.element
        for dim, subscript in zip(sizes.dims_of(target.tensor), target.subscripts, strict=True):
            both = b.binary("*", self.axis.extent, loop.extent)
            if sizes.equal(subscript, place) and sizes.equal(dim, both):
                row = Var(self.names.fresh(loop.counter), INT)
                values: dict[str, Expr] = {
                    own.name: b.binary("//", row, loop.extent),
                    inner.name: b.binary("%", row, loop.extent),
                }
                parts = (self._expr(target), self._expr(stmt.value))
                new, value = (substitute(_replaced(e, place, row), values) for e in parts)
                assert isinstance(new, Index)
                every = (Axis(row.name, dim), *stmt.axes)
                made, around = ranged(new, stmt.op, value, every, (), self.sizes.__contains__)
                return None if around else replace(made, span=stmt.span, distinct=stmt.distinct)
        return None

    def _index_statement(
        self, stmt: Assign | IndexAssign, target: Expr, op: str, value: Expr, axes: tuple[Axis, ...]
    ) -> IndexAssign:
        renaming: dict[str, Expr] = {self.counter: Var(self.axis.name, INT)}
        target, value = substitute(target, renaming), substitute(value, renaming)
        assert isinstance(target, Var | Index)
        every = (self.axis, *axes)
        mentioned = free_variables(target) | (free_variables(value) if op == "+=" else set())
        if self.axis.name not in mentioned:
            raise _Refused
        made, around = ranged(target, op, value, every, {self.axis.name}, self.sizes.__contains__)
        if {axis.name for axis in around} == {self.axis.name}:
            # Without a place where it stands alone, only a sum says how far an index runs.
            if self.axis.name in free_variables(target):
                if not self.every or not isinstance(target, Index):
                    raise _Refused
                return self._with_range(stmt, target, made)
            summed: tuple[Axis, ...] = (self.axis,)
            if isinstance(value, Reduce) and value.kind == "sum":
                ranges = (free_variables(axis.extent) for axis in value.axes)
                # A range that the counter tells belongs to a sum of its own, inside.
                if not any(self.axis.name in names for names in ranges):
                    summed, value = (*summed, *value.axes), value.body
            made, around = ranged(target, op, Reduce("sum", value, summed, value.type), axes)
        if around:
            raise _Refused
        distinct = stmt.distinct if isinstance(stmt, IndexAssign) else False
        return replace(made, span=stmt.span, distinct=distinct)

    def _with_range(
        self, stmt: Assign | IndexAssign, target: Index, made: IndexAssign
    ) -> IndexAssign:
        """The statement for all iterations, whose axis it names itself."""
        if any(self.axis.name in free_variables(axis.extent) for axis in made.axes):
            raise _Refused
        first = list(dict.fromkeys(v for s in target.subscripts for v in variables(s)))
        own = [axis for axis in (self.axis, *made.axes) if axis.name in first]
        own.sort(key=lambda axis: first.index(axis.name))
        rest = (axis for axis in made.axes if axis.name not in first)
        distinct = stmt.distinct if isinstance(stmt, IndexAssign) else False
        ranges = {self.axis.name: self.axis.extent}
        places, value = shifted_places(target, ranges), shifted_places(made.value, ranges)
        assert isinstance(places, Index)
        return IndexAssign(places, made.op, value, (*own, *rest), stmt.span, distinct)

    def _expr(self, expr: Expr) -> Expr:
        """With the elements of private variables that belong to the iteration."""
        own: Expr = Var(self.counter, INT)
        match expr:
            case Index(Var(name), subscripts, type_) if name in self.private:
                inner = tuple(map(self._expr, subscripts))
                dims = sizes.dims_of(expr.base)
                return Index(self.private[name], _with_counter(inner, own, dims), type_, expr.span)
            case Var(name, type_) if name in self.private:
                return Index(self.private[name], (own,), type_, expr.span)
            case _:
                return map_children(expr, self._expr)


def _replaced(expr: Expr, old: Expr, new: Var) -> Expr:
    """With ``new`` for subscripts that are equal to ``old``."""
    expr = map_children(expr, lambda child: _replaced(child, old, new))
    if not isinstance(expr, Index):
        return expr
    subscripts = (new if sizes.equal(s, old) else s for s in expr.subscripts)
    return replace(expr, subscripts=tuple(subscripts))
