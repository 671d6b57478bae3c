"""Running reductions, from element to element.

``y[b, t] = sum(x[b, q] for q in range(t + 1))`` adds every element to all that come behind it. In a
loop over t it takes one step for each element:

    y[b, 0] = x[b, 0]
    for t in range(T - 1):
        y[b, t + 1] = y[b, t] + x[b, t + 1]

So does any range that grows by one along an index; values are taken in the order in which they come
in. Factors that depend on t leave the sum. Where they have an index that is summed over, as in
``sum(a[t, d] * k[q, d] * v[q] for q in range(t + 1) for d in D)``, the loop keeps a state,
``s[d] += k[t, d] * v[t]``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from loma.core import bounds, builder as b, sizes
from loma.core.axes import runs_over
from loma.core.bounds import ONE, ZERO
from loma.core.ir import (
    INT, OF_NOTHING, Axis, Binary, Builtin, Expr, FloatConst, For, Function, If, Index, IndexAssign,
    IntConst, Reduce, Select, Stmt, TensorType, Type, Var, Zero, replace,
)  # fmt: skip
from loma.core.sizes import arith
from loma.core.walk import children, exchanged, free_variables, substitute
from loma.passes.canonical.recurrences.running import Running, running
from loma.passes.canonical.steps import Steps


def scans(function: Function, kinds: Collection[str]) -> Function:
    """The function with loops for its running reductions of those kinds."""
    return _Scans(function, frozenset(kinds)).run()


class _Scans(Steps):
    def __init__(self, function: Function, kinds: frozenset[str]) -> None:
        super().__init__(function)
        self._kinds = kinds

    def _steps(self, stmt: IndexAssign) -> list[Stmt]:
        if not isinstance(stmt.target, Index):
            return [stmt]
        axes = {axis.name: axis for axis in stmt.axes}
        for node in _reductions(stmt.value):
            scan = running(node, axes) if node.kind in self._kinds else None
            if scan is None or (scan.shared and _count_at_first(scan) not in (0, 1)):
                continue
            adds = stmt.op == "+=" or scan.outer  # then an element is not what the next one adds to
            if node is stmt.value and _is_filled(stmt, scan) and (scan.shared or not adds):
                return self._loop(scan, stmt)
            used = {scan.along.name} | (free_variables(node) & axes.keys())
            own = tuple(axis for axis in stmt.axes if axis.name in used)
            if all(sizes.is_nonnegative(axis.extent, self._is_size) for axis in own):
                place = self._tensor("_scan", own, node.type)
                made = self._loop(scan, replace(stmt, target=place, op="=", axes=own))
                result = place if scan.shared else scan.outside(place)
                rest = replace(stmt, value=exchanged(stmt.value, node, result))
                return [*made, *self._steps(rest)]
        return [stmt]

    def _tensor(self, name: str, axes: tuple[Axis, ...], type_: Type) -> Index:
        """All elements of a new tensor."""
        dims = tuple(axis.extent for axis in axes)
        var = self._temporary(name, TensorType(dims, "int" if type_ == INT else "float"))
        return Index(var, tuple(Var(axis.name, INT) for axis in axes), type_)

    def _loop(self, scan: Running, stmt: IndexAssign) -> list[Stmt]:
        """The statement, whose value is that reduction, in a loop along the index."""
        counter = Var(self._names.fresh(scan.along.name), INT)
        if scan.shared:
            return self._with_state(scan, stmt, counter)
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

    def _with_state(self, scan: Running, stmt: IndexAssign, counter: Var) -> list[Stmt]:
        used = free_variables(scan.own)
        axes = tuple(axis for axis in (*scan.shared, *stmt.axes) if axis.name in used)
        state = self._tensor("_state", axes, scan.own.type)
        update: Stmt = IndexAssign(state, "+=", scan.new(counter), axes, stmt.span)
        if not self._comes(scan, counter, Axis(counter.name, scan.along.extent)):
            comes = Binary(">", scan.at(scan.extent, counter), ZERO, INT)
            update = If(comes, (update,), (), stmt.span)
        step = _statement_at(stmt, scan, counter, scan.outside(state))
        loop = For(counter.name, scan.along.extent, (update, step), scan.backwards, stmt.span)
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


def _is_filled(stmt: IndexAssign, scan: Running) -> bool:
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
