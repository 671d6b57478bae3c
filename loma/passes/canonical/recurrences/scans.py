"""Running reductions, from element to element.

``y[b, t] = sum(x[b, q] for q in range(t + 1))`` adds every element to all that come behind it. In a
loop over t it takes one step for each element:

    y[b, 0] = x[b, 0]
    for t in range(T - 1):
        y[b, t + 1] = y[b, t] + x[b, t + 1]

So does any range that grows by one along an index; values are taken in the order in which they come
in. What reads the sums of one value of t at a time, and nothing else does, may stand in the loop:

    for t in range(T):
        s[b] += x[b, t]
        z[b, t] = a[b, t] * s[b]

Factors that depend on t leave the sum. Where they have an index that is summed over, as in
``sum(a[t, d] * k[q, d] * v[q] for q in range(t + 1) for d in D)``, the loop keeps a state,
``s[d] += k[t, d] * v[t]``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import takewhile

from loma.core import bounds, builder as b, sizes
from loma.core.axes import runs_over
from loma.core.bounds import ONE, ZERO
from loma.core.ir import (
    INT, OF_NOTHING, Axis, Binary, Builtin, Declare, Element, Expr, FloatConst, For, Function, If,
    Index, IndexAssign, IntConst, Reduce, Select, Stmt, TensorType, Type, Var, Zero, replace,
)  # fmt: skip
from loma.core.sizes import arith
from loma.core.walk import (
    children, declared_and_used, exchanged, free_variables, map_blocks, reads_of_type, substitute,
    variables, walk,
)  # fmt: skip
from loma.errors.spans import NOWHERE
from loma.passes.canonical.recurrences.readers import Made, Reader, readers
from loma.passes.canonical.recurrences.running import Running, running
from loma.passes.canonical.steps import Steps


def scans(function: Function, kinds: Collection[str], elementwise: bool | None = None) -> Function:
    """The function with loops for its running reductions of those kinds. ``elementwise``: whether
    what reads sums stands in their loops only where it reduces nothing, and no order of elements is
    lost; None: not at all."""
    return _Scans(function, frozenset(kinds), elementwise).run()


class _Scans(Steps):
    def __init__(self, function: Function, kinds: frozenset[str], elementwise: bool | None) -> None:
        super().__init__(function)
        self._kinds = kinds
        self._elementwise = elementwise
        self._dropped: set[str] = set()
        self._local, self._uses = declared_and_used(function.body)

    def run(self) -> Function:
        out: list[Stmt] = []
        for new in self._parts(self._function.body):
            out += [*self._declared, *new]
            self._declared = []
        return replace(self._function, body=self._without_dropped(tuple(out)))

    def _without_dropped(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return tuple(
            map_blocks(stmt, self._without_dropped)
            for stmt in body
            if not (isinstance(stmt, Declare) and stmt.target.name in self._dropped)
        )

    def _block(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return tuple(stmt for new in self._parts(body) for stmt in new)

    def _parts(self, body: tuple[Stmt, ...]) -> Iterator[Sequence[Stmt]]:
        """What stands for each statement of a block, or for several together."""
        position = 0
        while position < len(body):
            stmt, behind = body[position], body[position + 1 :]
            declared = tuple(takewhile(self._declares, behind))
            made, count = self._with_readers(stmt, behind[len(declared) :])
            yield (*declared, *made) if made else super()._block((stmt,))
            position += 1 + (len(declared) + count if made else 0)

    def _declares(self, stmt: Stmt) -> bool:
        """Whether a statement declares a tensor of sizes, and so may stand earlier, too."""
        return (
            isinstance(stmt, Declare)
            and stmt.value is None
            and reads_of_type(stmt.target.type) <= self._sizes
        )

    def _with_readers(self, stmt: Stmt, behind: Sequence[Stmt]) -> tuple[list[Stmt], int]:
        """A loop for a statement that fills a tensor of its own with running sums, and for all that
        reads it, if that follows; how many statements that is."""
        if not isinstance(stmt, IndexAssign) or not isinstance(stmt.target, Index):
            return [], 0
        name = stmt.target.tensor.name if isinstance(stmt.target.base, Var) else ""
        if stmt.op != "=" or name not in self._local or not isinstance(stmt.value, Reduce):
            return [], 0
        scan = running(stmt.value, {axis.name: axis for axis in stmt.axes})
        if scan is None or not _is_filled(stmt):
            return [], 0
        found = self._read_in_loop(scan, stmt, behind)
        if not found or self._uses[name] != 1 + len(found):
            return [], 0
        self._dropped.add(name)
        return self._with_state(scan, stmt, found), len(found)

    def _read_in_loop(
        self, scan: Running, stmt: IndexAssign, behind: Sequence[Stmt]
    ) -> tuple[Reader, ...]:
        """The statements behind one that fills a tensor which may run in its loop."""
        plain = scan.kind == "sum" and not scan.shared and not scan.outer
        if self._elementwise is None or scan.kind not in self._kinds or not plain:
            return ()
        if _count_at_first(scan) not in (0, 1):
            return ()
        made = _made(stmt, scan)
        if self._elementwise and made.is_last:
            return ()
        return readers(made, stmt, behind, self._elementwise)

    def _steps(self, stmt: IndexAssign) -> list[Stmt]:
        if not isinstance(stmt.target, Index):
            return [stmt]
        axes = {axis.name: axis for axis in stmt.axes}
        for node in _reductions(stmt.value):
            scan = running(node, axes) if node.kind in self._kinds else None
            if scan is None or (scan.shared and _count_at_first(scan) not in (0, 1)):
                continue
            adds = stmt.op == "+=" or scan.outer  # then an element is not what the next one adds to
            if node is stmt.value and _is_filled(stmt) and (scan.shared or not adds):
                return self._loop(scan, stmt)
            used = {scan.along.name} | (free_variables(node) & axes.keys())
            own = tuple(axis for axis in stmt.axes if axis.name in used)
            if all(sizes.is_nonnegative(axis.extent, self._is_size) for axis in own):
                place = self._element("_scan", _along_memory(own, scan), node.type)
                result = place if scan.shared else scan.outside(place)
                rest = replace(stmt, value=exchanged(stmt.value, node, result))
                first = replace(stmt, target=place, op="=", value=node, axes=own)
                found = self._read_in_loop(replace(scan, outer=()), first, (rest,))
                if found:
                    return self._with_state(scan, first, found)
                self._declared.append(Declare(place.tensor, None, NOWHERE))
                return [*self._loop(scan, first), *self._steps(rest)]
        return [stmt]

    def _element(self, name: str, axes: tuple[Axis, ...], type_: Type) -> Index:
        """All elements of a new tensor, which is not declared."""
        dims = tuple(axis.extent for axis in axes)
        element: Element = "int" if type_ == INT else "float"
        var = Var(self._names.fresh(name), TensorType(dims, element))
        return Index(var, tuple(Var(axis.name, INT) for axis in axes), type_)

    def _state(self, axes: tuple[Axis, ...], type_: Type) -> Index:
        state = self._element("_state", axes, type_)
        self._declared.append(Declare(state.tensor, None, NOWHERE))
        return state

    def _loop(self, scan: Running, stmt: IndexAssign) -> list[Stmt]:
        """The statement, whose value is that reduction, in a loop along the index."""
        counter = Var(self._names.fresh(scan.along.name), INT)
        if scan.shared:
            return self._with_shared_state(scan, stmt, counter)
        once = Axis(self._names.fresh(f"{scan.along.name}_first"), _at_most_one(scan.along.extent))
        extent = arith("-", scan.along.extent, ONE)
        behind = arith("+", counter, ONE)
        here, before = (counter, behind) if scan.backwards else (behind, counter)
        new = scan.new(here)
        if not self._comes(scan, here, Axis(counter.name, extent)):
            comes = Binary(">", scan.at(scan.extent, here), ZERO, INT)
            new = Select(comes, new, _nothing(scan), new.type)
        value = b.combined(scan.kind, _at(stmt.element, scan, before), new)
        step = _statement_at(stmt, scan, here, value)
        start = scan.start()
        if _count_at_first(scan) == 0 and scan.kind in OF_NOTHING:
            start = _nothing(scan)
        first = _statement_at(stmt, scan, scan.first, start)
        loop = For(counter.name, extent, (step,), scan.backwards, stmt.span)
        return [For(once.name, once.extent, (first,), False, stmt.span), loop]

    def _with_shared_state(self, scan: Running, stmt: IndexAssign, counter: Var) -> list[Stmt]:
        used = free_variables(scan.own)
        axes = tuple(axis for axis in (*scan.shared, *stmt.axes) if axis.name in used)
        state = self._state(axes, scan.own.type)
        step = _statement_at(stmt, scan, counter, scan.outside(state))
        return self._adding(scan, stmt, counter, state, axes, (step,))

    def _with_state(
        self, scan: Running, stmt: IndexAssign, found: tuple[Reader, ...]
    ) -> list[Stmt]:
        counter = Var(self._names.fresh(scan.along.name), INT)
        made = _made(stmt, scan)
        known = {axis.name: axis for axis in stmt.axes}
        places = (s.name for s in stmt.element.subscripts if isinstance(s, Var))
        axes = tuple(known[name] for name in places if name != scan.along.name)
        state = self._state(axes, scan.own.type)
        body = tuple(reader.at(made, counter, state.tensor) for reader in found)
        return self._adding(scan, stmt, counter, state, axes, body)

    def _adding(
        self,
        scan: Running,
        stmt: IndexAssign,
        counter: Var,
        state: Index,
        axes: tuple[Axis, ...],
        behind: tuple[Stmt, ...],
    ) -> list[Stmt]:
        """A loop that adds to a state, and does in each round what follows from it."""
        update: Stmt = IndexAssign(state, "+=", scan.new(counter), axes, stmt.span)
        if not self._comes(scan, counter, Axis(counter.name, scan.along.extent)):
            comes = Binary(">", scan.at(scan.extent, counter), ZERO, INT)
            update = If(comes, (update,), (), stmt.span)
        body = (update, *behind)
        loop = For(counter.name, scan.along.extent, body, scan.backwards, stmt.span)
        return [Zero(state.tensor, stmt.span), loop]

    def _comes(self, scan: Running, here: Expr, axis: Axis) -> bool:
        """Whether surely something new comes in at every place that an axis leads to."""
        left = arith("-", scan.at(scan.extent, here), ONE)
        return bounds.is_never_negative(left, {axis.name: axis.extent}, self._is_size)


def _reductions(expr: Expr) -> Iterator[Reduce]:
    """The reductions that an expression surely evaluates, those inside of others left out."""
    match expr:
        case Reduce():
            yield expr
        case Select(cond):
            yield from _reductions(cond)
        case Binary("and" | "or", left):
            yield from _reductions(left)
        case _:
            for child in children(expr):
                yield from _reductions(child)


def _at_most_one(extent: Expr) -> Expr:
    count = sizes.constant(extent)
    least = Builtin("min", (extent, ONE), INT)
    return least if count is None else IntConst(min(count, 1))


def _count_at_first(scan: Running) -> int | None:
    """How many values the shortest range has, if that is known."""
    count = sizes.constant(scan.at(scan.extent, scan.first))
    return None if count is None else max(count, 0)


def _along_memory(axes: tuple[Axis, ...], scan: Running) -> tuple[Axis, ...]:
    """The axes in the order in which most of what is added up is stored."""
    new = scan.new(Var(scan.along.name, INT))
    reads = [node.subscripts for node in walk(new) if isinstance(node, Index)]
    names = [name for place in max(reads, key=len, default=()) for name in variables(place)]
    order = {name: names.index(name) for name in names}
    return tuple(sorted(axes, key=lambda axis: order.get(axis.name, -1)))


def _made(stmt: IndexAssign, scan: Running) -> Made:
    """What a statement fills whose target :func:`_is_filled`."""
    along = Var(scan.along.name, INT)
    return Made(stmt.element.tensor, stmt.element.subscripts.index(along), scan.along)


def _is_filled(stmt: IndexAssign) -> bool:
    """Whether the statement's target has one dimension for each axis, and nothing else reads it."""
    target = stmt.element
    axes = {axis.name: axis for axis in stmt.axes}
    pairs = zip(target.subscripts, sizes.dims_of(target.tensor), strict=True)
    own = {s.name for s, dim in pairs if isinstance(s, Var) and runs_over(s, dim, axes)}
    return (
        own == axes.keys()
        and len(own) == len(target.subscripts)
        and target.tensor.name not in free_variables(stmt.value)
    )


def _statement_at(stmt: IndexAssign, scan: Running, place: Expr, value: Expr) -> IndexAssign:
    """The statement at one value of the index."""
    value = sizes.simple_subscripts(substitute(value, {scan.along.name: place}))
    axes = tuple(axis for axis in stmt.axes if axis.name != scan.along.name)
    return replace(stmt, target=_at(stmt.element, scan, place), value=value, axes=axes)


def _at(element: Index, scan: Running, place: Expr) -> Index:
    subscripts = tuple(substitute(s, {scan.along.name: place}) for s in element.subscripts)
    return replace(element, subscripts=subscripts)


def _nothing(scan: Running) -> Expr:
    """The reduction of no values."""
    value = OF_NOTHING[scan.kind]
    return IntConst(value) if scan.own.type == INT else FloatConst(float(value))
