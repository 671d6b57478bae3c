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

from loma.core import sizes
from loma.core.effects import effects, written
from loma.core.ir import (
    INT, Assign, Axis, Declare, Expr, For, Index, IndexAssign, Stmt, TensorType, Var, replace,
)  # fmt: skip
from loma.core.names import axes_of
from loma.core.walk import (
    children, free_variables, map_children, map_expressions, reads_elements, reduced_axes, root,
    statements, substitute, walk,
)  # fmt: skip


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
    elsewhere."""

    def __init__(self, loop: For, outside: set[str]) -> None:
        self._outside = outside
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
        self.items: list[Item] = []
        self.body = self._visit(loop.body, None)
        if any(self._own & names for item in self.items for names in _mentioned(item)):
            raise Refused  # of another iteration

    def _visit(self, body: Sequence[Stmt], along: Axis | None) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for stmt in body:
            match stmt:
                case Declare(_, None):
                    pass
                case Assign(Var(name), "=", value) if self._is_own(name):
                    self._values[name] = self._fixed(value)
                case Declare(Var(name), value) if value is not None and self._is_own(name):
                    self._values[name] = self._fixed(value)
                case IndexAssign(Index(Var(name)), "=") if self._is_own(name):
                    self._keep(stmt)
                case IndexAssign(Index(Var())):
                    new = map_expressions(stmt, self._expr)
                    assert isinstance(new, IndexAssign)
                    self.items.append(Item(new, along, self._number, len(self.items)))
                    out.append(new)
                case For(counter, extent, inner) if along is None:
                    extent = sizes.uncounted(self._expr(extent))
                    before = dict(self._values), dict(self._tensors)
                    self._number += 1
                    new_body = self._visit(inner, Axis(counter, extent))
                    self._values, self._tensors = before
                    out.append(replace(stmt, extent=extent, body=new_body))
                case _:
                    raise Refused
        return tuple(out)

    def _is_own(self, name: str) -> bool:
        """Whether it has one value in an iteration, and none outside."""
        return name not in self._outside and self._writes.count(name) == 1

    def _fixed(self, value: Expr) -> Expr:
        """A value that may be computed where it is read."""
        value = self._expr(value)
        changed = not free_variables(value).isdisjoint(self._written)
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
                self._own.add(name)
                return self._values[name]
            case Index(Var(name), places) if name in self._tensors:
                axes, value = self._tensors[name]
                return substitute(value, dict(zip(axes, map(self._expr, places), strict=True)))
            case _:
                return map_children(expr, self._expr)


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
