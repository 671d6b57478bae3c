"""What a loop over segments does in an iteration, and which of it belongs to whom.

for b in range(B):
    m : float = scale[b]                    a value of the iteration: written where it is read
    for l in range(start[b + 1] - start[b]):
        y[start[b] + l] += m * g[b]         an element of the segment, which begins at start[b]
        s[b] += g[start[b] + l]             what the segment has of its own
        t[p[start[b] + l]] += g[b]          what all segments only add to
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from loma.core import builder as b, sizes
from loma.core.effects import effects, written
from loma.core.ir import (
    FLOAT, INT, Assign, Axis, Binary, Declare, Element, Expr, For, If, Index, IndexAssign, IntConst,
    Reduce, Select, Stmt, TensorType, Type, Var, While, Zero, replace,
)  # fmt: skip
from loma.core.names import Names, axes_of
from loma.core.walk import (
    children, free_variables, map_children, map_expressions, own_names, reads_elements,
    reduced_axes, root, statements, substitute, walk,
)  # fmt: skip

_ELEMENTS: dict[Type, Element] = {FLOAT: "float", INT: "int"}


class Refused(Exception):
    """The loop stays one."""


@dataclass(frozen=True, slots=True)
class Item:
    """A statement of an iteration; ``along``: the loop over the segment's elements around it, the
    ``number``-th of the iteration. ``position``: of the statement among all of them."""

    stmt: IndexAssign
    along: Axis | None
    number: int
    position: int

    @property
    def target(self) -> str:
        return root(self.stmt.target)


class Iteration:
    """``items`` are the statements of an iteration without the variables that it has for itself,
    ``body`` is the loop's with these statements. ``outside`` is what the function mentions
    elsewhere. What an iteration has for itself and is no value that may be computed where it is
    read has a row for each iteration, in one of the tensors ``rows``."""

    def __init__(self, loop: For, outside: set[str], names: Names) -> None:
        self._outside = outside
        self._loop, self._names = loop, names
        self._rows: dict[str, Var] = {}
        self._sums: set[str] = set()  # what has rows that statements add to
        self._left: dict[str, int] = {}  # how many statements that write rows are still to come
        self._kept: set[str] = set()  # rows of what an iteration clears in the end
        self._is_along = False
        self._written = written(loop.body)
        self._writes = [root(p) for s in statements(loop.body) for p in effects(s).writes]
        self._writes += [
            s.target.name
            for s in statements(loop.body)
            if isinstance(s, Declare) and s.value is not None
        ]
        self._values: dict[str, Expr] = {}
        self._tensors: dict[str, tuple[tuple[str, ...], Expr]] = {}
        self._own: set[str] = set()
        self._number = 0
        self._cond: Expr | None = None  # that the statements at hand stand under
        self.items: list[Item] = []
        self.body = self._visit(loop.body, None)
        if any(self._own & names for item in self.items for names in _mentioned(item)):
            raise Refused  # of another iteration

    @property
    def rows(self) -> dict[str, Var]:
        """What is kept for all iterations, by name."""
        return {var.name: var for var in self._rows.values()}

    @property
    def sums(self) -> list[Var]:
        """Those of ``rows`` to which statements add."""
        return [var for name, var in self._rows.items() if name in self._sums]

    def _visit(self, body: Sequence[Stmt], along: Axis | None) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        self._is_along = along is not None
        for stmt in body:
            match stmt:
                case Declare(target, None):
                    out += [stmt] * self._has_row(target)
                case Assign(Var(name), "=", value) if self._is_value(name, value):
                    self._define(name, value)
                case Declare(Var(name), value) if value and self._is_value(name, value):
                    self._define(name, value)
                case IndexAssign(Index(Var(name)), "=", value) if self._is_value(name, value):
                    self._keep(stmt)
                case Zero(Var() as target) if self._has_row(target):
                    self._kept.discard(self._rows[target.name].name)
                    out.append(stmt)
                case Declare(Var() as target, value) if value and self._has_row(target):
                    self._add(IndexAssign(target, "=", value, (), stmt.span), along, out)
                case Assign(Var() as target, op, value) if self._has_row(target):
                    self._add(IndexAssign(target, op, value, (), stmt.span), along, out)
                case IndexAssign(Var() as target) if self._has_row(target):
                    self._add(stmt, along, out)
                case IndexAssign(Index(Var() as target)):
                    self._has_row(target)
                    self._add(stmt, along, out)
                case For(counter, extent, inner) if along is None:
                    extent = sizes.uncounted(self._expr(extent))
                    before = dict(self._values), dict(self._tensors)
                    self._number += 1
                    new_body = self._visit(inner, Axis(counter, self._guarded(extent)))
                    self._values, self._tensors = before
                    self._is_along = False
                    out.append(replace(stmt, extent=extent, body=new_body))
                case If(cond, then, ()) if along is None and self._cond is None:
                    before = dict(self._values), dict(self._tensors)
                    self._cond = self._fixed(cond)
                    out.append(replace(stmt, cond=self._cond, then=self._visit(then, None)))
                    self._values, self._tensors = before
                    self._cond = None
                case _:
                    raise Refused
        return tuple(out)

    def _define(self, name: str, value: Expr) -> None:
        self._values[name] = self._fixed(value)
        self._own.add(name)  # what has read it before has read another iteration's

    def _add(self, stmt: IndexAssign, along: Axis | None, out: list[Stmt]) -> None:
        new = map_expressions(stmt, self._expr)
        assert isinstance(new, IndexAssign)
        item = replace(new, value=self._where_taken(new)) if along is None else new
        self.items.append(Item(item, along, self._number, len(self.items)))
        if root(new.target) in self._left:
            self._left[root(new.target)] -= 1
        if isinstance(stmt.target, Var) and not stmt.axes:
            value = self._alone(new.value)
            out.append(Assign(stmt.target, stmt.op, value, stmt.span))
        else:
            out.append(map_expressions(new, self._alone))

    def _guarded(self, extent: Expr) -> Expr:
        """A range that is empty where the condition at hand does not hold."""
        if self._cond is None or _is_of_some(self._cond, extent):
            return extent
        return Select(self._cond, extent, IntConst(0), INT)

    def _where_taken(self, stmt: IndexAssign) -> Expr:
        """The value of a statement for all iterations, which stands under the condition at hand."""
        value = stmt.value
        if self._cond is None:
            return value
        is_row = root(stmt.target) in self.rows
        match value:
            case Reduce("sum", _, (first, *rest)) if is_row or stmt.op == "+=":
                first = Axis(first.name, self._guarded(sizes.uncounted(first.extent)))
                return replace(value, axes=(first, *rest))
            case Reduce(_, body, axes) if is_row:  # of one number, which nobody reads, elsewhere
                body = Select(self._cond, body, b.zero(body), body.type)
                one = (Select(self._cond, axis.extent, IntConst(1), INT) for axis in axes)
                ranges = (Axis(a.name, extent) for a, extent in zip(axes, one, strict=True))
                return replace(value, body=body, axes=tuple(ranges))
            case _:
                other = b.zero(value) if is_row or stmt.op == "+=" else stmt.target
                return Select(self._cond, value, other, value.type)

    def _alone(self, expr: Expr) -> Expr:
        """With what an iteration has for itself in the place of its row."""
        of = {row.name: name for name, row in self._rows.items()}
        match expr:
            case Index(Var(name), (_, *places), type_) if name in of and not places:
                return Var(of[name], type_)
            case Index(Var(name, TensorType(dims, element)), (_, *places), type_) if name in of:
                own = Var(of[name], TensorType((dims or ())[1:], element))
                return Index(own, tuple(map(self._alone, places)), type_, expr.span)
            case _:
                return map_children(expr, self._alone)

    def _is_value(self, name: str, value: Expr) -> bool:
        """Whether it is worked out where it is read."""
        if not self._is_own(name) or isinstance(value.type, TensorType):
            return False
        try:
            self._fixed(value)
        except Refused:
            return False
        return True

    def _has_row(self, var: Var) -> bool:
        """Whether each iteration has a row for what it keeps there, as it has from now on if each
        begins with nothing there."""
        name = var.name
        if name in self._rows:
            return True
        type_ = var.type
        dims = type_.dims if isinstance(type_, TensorType) else ()
        if name in self._outside or dims is None or (isinstance(type_, TensorType) and not dims):
            return False
        element = type_.element if isinstance(type_, TensorType) else _ELEMENTS.get(type_)
        events = [s for s in statements(self._loop.body) if name in _own_names(s)]
        if element is None or not events or not self._begins_anew(var, events):
            return False
        row = TensorType((self._loop.extent, *dims), element)
        self._rows[name] = Var(self._names.fresh(name), row)
        writes = [s for s in events if not isinstance(s, Zero) and name in _targets(s)]
        if any(effects(s).adds for s in writes):
            self._sums.add(name)
        self._left[self._rows[name].name] = len(writes)
        if isinstance(events[-1], Zero):
            self._kept.add(self._rows[name].name)
        self._own.add(name)
        return True

    def _begins_anew(self, var: Var, events: Sequence[Stmt]) -> bool:
        """Whether a variable is zero, or has another value, at the start of each iteration."""
        inside = (s.then for s in self._loop.body if isinstance(s, If))
        whole = (block for block in inside if _all_in(events, block))
        outer = next(whole, self._loop.body)
        clears = [s for s in events if isinstance(s, Zero)]
        first = events[0] if any(s is events[0] for s in outer) else None
        last = events[-1] if any(s is events[-1] for s in outer) else None
        at_start, at_end = isinstance(first, Zero | Declare), isinstance(last, Zero)
        if len(clears) > 1 or (clears and not (at_start or at_end)):
            return False
        return at_start or at_end or (first is not None and _fills(first, var))

    def _counter(self) -> Expr:
        return Var(self._loop.counter, INT)

    def _is_own(self, name: str) -> bool:
        """Whether it has one value in an iteration, and none outside."""
        return name not in self._outside and self._writes.count(name) == 1

    def _fixed(self, value: Expr) -> Expr:
        """A value that may be computed where it is read."""
        value = self._expr(value)
        moving = {name for name, left in self._left.items() if left > 0}
        if not self._is_along:
            moving |= self._kept  # what is read may come behind
        changed = not free_variables(value).isdisjoint(self._written | moving)
        if changed or any(reduced_axes(value)) or isinstance(value.type, TensorType):
            raise Refused
        return value

    def _keep(self, stmt: IndexAssign) -> None:
        target = stmt.element
        axes = tuple(axis.name for axis in stmt.axes)
        extents = tuple(axis.extent for axis in stmt.axes)
        alone = tuple(s.name if isinstance(s, Var) else "" for s in target.subscripts) == axes
        if not alone or not sizes.same(extents, sizes.dims_of(target.base)):
            raise Refused
        self._tensors[target.tensor.name] = axes, self._fixed(stmt.value)
        self._own.add(target.tensor.name)

    def _expr(self, expr: Expr) -> Expr:
        match expr:
            case Var(name) if name in self._values:
                return self._values[name]
            case Index(Var(name), places) if name in self._tensors:
                axes, value = self._tensors[name]
                return substitute(value, dict(zip(axes, map(self._expr, places), strict=True)))
            case Index(Var(name), places) if name in self._rows:
                inside = map(self._expr, places)
                return Index(self._rows[name], (self._counter(), *inside), expr.type, expr.span)
            case Var(name) if name in self._rows and not isinstance(expr.type, TensorType):
                return Index(self._rows[name], (self._counter(),), expr.type, expr.span)
            case _:
                return map_children(expr, self._expr)


def _all_in(some: Sequence[Stmt], block: tuple[Stmt, ...]) -> bool:
    every = list(statements(block))
    return all(any(stmt is each for each in every) for stmt in some)


def _is_of_some(cond: Expr, extent: Expr) -> bool:
    """Whether a condition says no more than that a range is not empty."""
    match cond:
        case Binary(">", more, less) | Binary("<", less, more):
            return bool(sizes.equal(sizes.arith("-", more, less), extent))
        case _:
            return False


def _own_names(stmt: Stmt) -> frozenset[str]:
    """Variables that a statement without blocks mentions, or declares."""
    if isinstance(stmt, For | While | If):
        return frozenset()
    declares = {stmt.target.name} if isinstance(stmt, Declare) else set()
    return own_names(stmt) | declares


def _targets(stmt: Stmt) -> set[str]:
    """Variables to which a statement gives a value."""
    found = {root(place) for place in effects(stmt).writes}
    if isinstance(stmt, Declare) and stmt.value is not None:
        found.add(stmt.target.name)
    return found


def _fills(stmt: Stmt, var: Var) -> bool:
    """Whether a statement gives all elements of a variable a value that does not follow from it."""
    match stmt:
        case Assign(Var(name), "=", value) | IndexAssign(Var(name), "=", value):
            return name == var.name and name not in free_variables(value)
        case IndexAssign(Index(Var(name)) as target, "=", value, axes) if name == var.name:
            alone = [s.name if isinstance(s, Var) else "" for s in target.subscripts]
            extents = {axis.name: axis.extent for axis in axes}
            dims = sizes.dims_of(target.base)
            return (
                sorted(alone) == sorted(extents)
                and all(sizes.equal(extents[n], d) for n, d in zip(alone, dims, strict=True))
                and name not in free_variables(value)
            )
        case _:
            return False


def _mentioned(item: Item) -> Iterator[frozenset[str]]:
    yield free_variables(item.stmt.target)
    yield free_variables(item.stmt.value)
    for axis in (*item.stmt.axes, *((item.along,) if item.along is not None else ())):
        yield free_variables(axis.extent)


class Belongings:
    """What belongs to whom. ``own`` is the loop's counter; :exc:`Refused` where iterations share
    something else."""

    def __init__(self, own: Axis, items: Sequence[Item]) -> None:
        self._own, self._items = own, items
        self._firsts: dict[int, Expr] = {}
        self._sizes: dict[int, Expr] = {}
        elements: dict[str, Expr] = {}
        for item in items:
            names = {own.name, *(() if item.along is None else (item.along.name,))}
            if any(sizes.mentions(axis.extent, names) for axis in item.stmt.axes):
                raise Refused
            if names & axes_of(item.stmt):
                raise Refused
        for name in sorted({item.target for item in items}):
            size = self._of_segments(name)
            if size is not None:
                elements[name] = size
            elif not self._is_only_added_to(name) and not self._is_own(name):
                raise Refused
        for item in items:
            self._place(item, elements)

    def first(self, item: Item) -> Expr:
        """The number of the segment's first element."""
        return self._firsts[item.position]

    def size(self, item: Item) -> Expr | None:
        """How many elements a statement runs over; None where it runs over segments."""
        return self._sizes.get(item.position)

    def _place(self, item: Item, elements: dict[str, Expr]) -> None:
        stmt, own = item.stmt, {self._own.name}
        if item.along is None:
            if not sizes.mentions(stmt.target, own) and not sizes.mentions(stmt.value, own):
                raise Refused
        elif item.target in elements:
            self._sizes[item.position] = elements[item.target]
        elif sizes.mentions(stmt.target, {item.along.name}) or not sizes.mentions(stmt.target, own):
            self._sizes[item.position] = self._domain(item)

    def _accesses(self, name: str) -> Iterator[tuple[Item, Index, bool]]:
        """The elements of a tensor that statements name, and whether they write them."""
        for item in self._items:
            stmt = item.stmt
            if item.target == name:
                yield item, stmt.element, True
            for expr in (*stmt.element.subscripts, stmt.value):
                for place in _places(expr, name):
                    yield item, place, False
            ranges = [axis.extent for axis in stmt.axes]
            ranges += [] if item.along is None else [item.along.extent]
            if any(name in free_variables(extent) for extent in ranges):
                raise Refused

    def _of_segments(self, name: str) -> Expr | None:
        """The size of the dimension in which all that is accessed are the segment's elements."""
        common: set[int] | None = None
        size: tuple[Expr, ...] = ()
        same: Expr | None = None
        for item, place, _ in self._accesses(name):
            size = sizes.dims_of(place.base)
            found: set[int] = set()
            for k, subscript in enumerate(place.subscripts):
                first = self._begin(item, subscript)
                if first is None:
                    continue
                mine = self._firsts.setdefault(item.position, first)
                same = mine if same is None else same
                if sizes.equal(first, mine) and sizes.equal(mine, same):
                    found.add(k)
            common = found if common is None else common & found
        return size[min(common)] if common else None

    def _begin(self, item: Item, subscript: Expr) -> Expr | None:
        """Where the segment begins whose elements a subscript goes through."""
        along = item.along
        if along is None or not sizes.mentions(subscript, {along.name}):
            return None
        first = sizes.arith("-", subscript, Var(along.name, INT))
        others = {along.name, *(axis.name for axis in item.stmt.axes)}
        if sizes.mentions(first, others) or not sizes.mentions(first, {self._own.name}):
            return None
        return first if reads_elements(first) else None

    def _is_only_added_to(self, name: str) -> bool:
        return all(writes and item.stmt.op == "+=" for item, _, writes in self._accesses(name))

    def _is_own(self, name: str) -> bool:
        """Whether all that is accessed belongs to the iteration, and no loop along a segment reads
        what it adds to."""
        own = Var(self._own.name, INT)
        dims: set[int] | None = None
        reads: set[int] = set()
        writes: set[int] = set()
        for item, place, writing in self._accesses(name):
            found = {k for k, subscript in enumerate(place.subscripts) if subscript == own}
            dims = found if dims is None else dims & found
            if item.along is not None:
                (writes if writing else reads).add(item.number)
                if writing and item.stmt.op != "+=":
                    return False
        return bool(dims) and not reads & writes

    def _domain(self, item: Item) -> Expr:
        """How many elements there are, as what the statement reads of them tells."""
        stmt = item.stmt
        for node in (n for e in (stmt.value, *stmt.element.subscripts) for n in walk(e)):
            if not isinstance(node, Index) or not isinstance(node.base.type, TensorType):
                continue
            dims = sizes.dims_of(node.base)
            for subscript, dim in zip(node.subscripts, dims, strict=True):
                first = self._begin(item, subscript)
                if first is not None:
                    self._firsts.setdefault(item.position, first)
                    return dim
        raise Refused


def _places(expr: Expr, name: str) -> Iterator[Index]:
    """The elements of a tensor that an expression reads."""
    if isinstance(expr, Index) and isinstance(expr.base, Var):
        if expr.base.name == name:
            yield expr
        parts = expr.subscripts
    elif isinstance(expr, Var) and expr.name == name:
        raise Refused
    else:
        parts = children(expr)
    for part in parts:
        yield from _places(part, name)
