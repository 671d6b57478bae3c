"""The adjoint of an index statement is index statements.

``T[l] += e`` with adjoint ``g = dT[l]`` gives, for every read ``X[s]`` in ``e``,

    dX[s] += g * (partial derivative of e with respect to that read)

summed over the indices that ``s`` does not have. After ``T[l] = e`` the old values of ``T`` are
gone, so ``dT`` is set to zero there. A read inside ``zero_pad`` is turned around into a gather over
the tensor's own index, because what it would scatter may fall outside. So is a read under a
condition that keeps it inside, as in ``x[i - 1] if i > 0 else 0.0``. Where that is not proved, or
nothing can be turned around, the condition goes into the subscript, which is checked:
``dX[s if c else 0] += (...) if c else 0.0``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from loma.ad.contributions import Contribution, PartialName, contributions
from loma.ad.tensor.gather import between, both, gather, inside_tests
from loma.ad.tensor.products import product_of_others
from loma.ad.tensor.sweep import SweepContext
from loma.core import builder as b, sizes
from loma.core.axes import index_statement, target_axes, terms_of
from loma.core.bounds import facts, last_places, stays_inside
from loma.core.distinct import told_apart
from loma.core.ir import (
    FLOAT, INT, Axis, Binary, Expr, FloatConst, If, Index, IndexAssign, IntConst, Place, Reduce,
    ReduceKind, Select, Stmt, TensorType, Var, Zero, replace,
)  # fmt: skip
from loma.core.overlap import reads_of, same_element
from loma.core.walk import free_variables, map_children, root, walk
from loma.passes.liveness import covers


def first_extreme(stmt: IndexAssign, temporary: Callable[[TensorType, str], Var]) -> Stmt | None:
    """For ``T[l] = max(...)`` or ``min``: the statement that records the position of the first
    extreme element, to stand beside it in the forward sweep."""
    value = stmt.value
    if not isinstance(value, Reduce) or value.kind not in ("max", "min"):
        return None
    place = temporary(TensorType(tuple(a.extent for a in stmt.axes), "int"), "_at")
    kind: ReduceKind = "argmax" if value.kind == "max" else "argmin"
    where = Reduce(kind, value.body, value.axes, INT)
    return IndexAssign(Index(place, _counters(stmt.axes), INT), "=", where, stmt.axes, stmt.span)


def is_looked_for_again(stmt: IndexAssign) -> bool:
    """Whether the adjoint of ``T[l] = max(...)`` finds the first extreme element by comparing it
    with the result: it is one of a few, which no other point has, and nothing is computed of it
    that might be rounded in another way."""
    value = stmt.value
    if stmt.op != "=" or not isinstance(value, Reduce) or value.kind not in ("max", "min"):
        return False
    if not isinstance(value.body, Index) or not isinstance(stmt.target, Index):
        return False
    every = (*stmt.axes, *value.axes)
    apart = told_apart(value.body.subscripts, every) == {axis.name for axis in every}
    return apart and bool(terms_of(value))


def recorded(extreme: Var, axes: tuple[Axis, ...]) -> Expr:
    """Where the first extreme element is, as :func:`first_extreme` has it."""
    return Index(extreme, _counters(axes), INT)


def _counters(axes: tuple[Axis, ...]) -> tuple[Expr, ...]:
    return tuple(Var(axis.name, INT) for axis in axes)


def states_result(stmt: IndexAssign) -> bool:
    """Whether the right side is what the target holds afterwards, and does not depend on what it
    held before."""
    target, value = stmt.target, stmt.value
    if stmt.op != "=" or not isinstance(target, Index) or isinstance(value, Reduce):
        return False
    return not any(same_element(target, read.place) for read in reads_of(root(target), value))


def adjoint_reads(
    stmt: IndexAssign, kept: bool, active: Callable[[str], bool], partial_name: PartialName
) -> tuple[Expr, ...]:
    """What the adjoint of a statement that is not run again computes with, and what of that stands
    for the statement's own result (``kept``)."""
    value = stmt.value
    found: list[Expr] = [axis.extent for axis in stmt.axes]
    if isinstance(stmt.target, Index):
        found += stmt.target.subscripts
    if isinstance(value, Reduce) and value.kind != "sum":
        return (*found, value)
    body = value.body if isinstance(value, Reduce) else value
    for one in contributions(body, Var("_g", FLOAT), active, partial_name):
        parts = [with_result(one.value, stmt) if kept else one.value]
        parts += [] if one.guard is None else [one.guard]
        if isinstance(one.place, Index):
            parts += one.place.subscripts
        if isinstance(value, Reduce):  # it is computed at each point of the sum
            parts = [replace(value, body=part, type=part.type) for part in parts]
        found += parts
    return tuple(found)


def with_result(expr: Expr, stmt: IndexAssign) -> Expr:
    """The expression with the statement's right side read from its target."""
    if expr == stmt.value and not isinstance(expr, Index | Var | IntConst | FloatConst):
        return replace(stmt.target, span=expr.span)
    return map_children(expr, lambda child: with_result(child, stmt))


def adjoint_statements(
    stmt: IndexAssign,
    extreme: Var | None,
    result: Var,
    context: SweepContext,
    kept: bool,
    first: bool,
) -> list[Stmt]:
    """The adjoint of one index statement.

    ``extreme`` is the tensor of :func:`first_extreme` for a ``max`` or ``min``, None where the
    ``result``, what the statement wrote, tells (:func:`is_looked_for_again`); ``kept``: the
    target still holds the result (:func:`states_result`); ``first``: nothing has written to these
    elements before, so that nobody looks at their adjoints any more.
    """
    target = stmt.target
    name = root(target)
    out: list[Stmt] = []
    g: Expr = adjoint_place(target, context)
    value, axes = stmt.value, stmt.axes
    ranged = {axis.name for axis in value.axes} if isinstance(value, Reduce) else set()
    summed = len(axes) > len(target_axes(stmt)) or isinstance(value, Reduce)
    reads_itself = any(isinstance(n, Var) and n.name == name for n in walk(value))
    if reads_itself and context.is_active(name) and summed:
        g = _copy_of(g, target_axes(stmt), context, out)
    where: Expr | None = None
    if isinstance(value, Reduce):
        value, axes, g, where = _inside(stmt, value, g, extreme, result, context, out)
    point = _Point(axes, ranged, context)
    found = contributions(
        value, g, context.is_active, context.partial_name, where,
        lambda place: _is_same(target, place) or point.exists(place),
    )  # fmt: skip
    if kept:
        found = [replace(one, value=with_result(one.value, stmt)) for one in found]
    own = [c for c in found if _is_same(target, c.place) and not summed]
    out += [point.contribute(one) for one in found if one not in own]
    if own:
        # The target's own old element: read, then replaced, in one statement.
        place = adjoint_place(target, context)
        total = b.total([one.value for one in own])
        out.append(index_statement(place, stmt.op, total, axes))
    elif stmt.op == "=" and not first:
        # With the adjoint copied away above, the target is cleared before it is added to.
        copied = summed and reads_itself and g != adjoint_place(target, context)
        out.insert(1 if copied else len(out), _clear(stmt, context))
    return out


def _is_same(target: Index | Var, place: Place) -> bool:
    """Whether a read is of the element that is written, at every point."""
    if not isinstance(target, Index) or not isinstance(place, Index) or target.base != place.base:
        return target == place
    return same_element(target, place)


def adjoint_place(place: Index | Var, context: SweepContext) -> Index | Var:
    if isinstance(place, Var):
        return context.adjoint(place.name)
    return replace(place, base=replace(context.adjoint(root(place)), span=place.base.span))


def _copy_of(g: Expr, own: tuple[Axis, ...], context: SweepContext, out: list[Stmt]) -> Expr:
    copy = context.temporary(TensorType(tuple(axis.extent for axis in own)), "_g")
    place = Index(copy, _counters(own), FLOAT)
    out.append(index_statement(place, "=", g, own))
    return place


def _inside(
    stmt: IndexAssign,
    value: Reduce,
    g: Expr,
    extreme: Var | None,
    result: Var,
    context: SweepContext,
    out: list[Stmt],
) -> tuple[Expr, tuple[Axis, ...], Expr, Expr | None]:
    """A reduction's body, all axes, the adjoint of the body, and where that adjoint counts."""
    axes, inner = stmt.axes, stmt.axes + value.axes
    match value.kind:
        case "sum":
            return value.body, inner, g, None
        case "max" | "min":
            if extreme is None:
                first = _first_of(terms_of(value, axes), replace(stmt.element, base=result))
            else:
                first = recorded(extreme, axes)
            return value.body, inner, g, is_extreme(value, first)
        case "prod":
            others = product_of_others(value, axes, context.scope(), out)
            return value.body, inner, b.mul(g, others), None
        case _:
            return b.flt(0), inner, g, None


def _first_of(terms: Sequence[Expr], extreme: Expr) -> Expr:
    """Where the first of some numbers is that is the extreme, or not a number."""
    at: Expr = IntConst(len(terms) - 1)
    for k, term in reversed(list(enumerate(terms[:-1]))):
        same = b.binary("or", b.binary("==", term, extreme), b.binary("!=", term, term))
        at = b.select(same, IntConst(k), at)
    return at


def is_extreme(value: Reduce, first: Expr) -> Expr:
    """Whether a point of a ``max`` or ``min`` is the first extreme one, which is at ``first``."""
    position: Expr = IntConst(0)
    for axis in value.axes:
        step = b.binary("*", position, axis.extent)
        position = b.binary("+", step, Var(axis.name, INT))
    return b.binary("==", sizes.simplify(position), first)


@dataclass(frozen=True, slots=True)
class _Point:
    """Where contributions are made: at each point of axes, of which ``own`` have ranges of their
    own."""

    axes: tuple[Axis, ...]
    own: Collection[str]
    context: SweepContext

    def exists(self, place: Place) -> bool:
        """Whether there is such an element at every point."""
        ranges = {**self.context.ranges(), **{axis.name: axis.extent for axis in self.axes}}
        return isinstance(place, Var) or self._inside(place, last_places(ranges))

    def _inside(self, place: Place, known: tuple[Expr, ...]) -> bool:
        """The same for the points where the expressions ``known`` are not negative."""
        assert isinstance(place, Index)
        return all(self._is_inside(place, k, known) for k in range(len(place.subscripts)))

    def _is_inside(self, place: Index, position: int, known: tuple[Expr, ...] = ()) -> bool:
        subscript, dim = place.subscripts[position], sizes.dims_of(place.base)[position]
        extents = {axis.name: axis.extent for axis in self.axes}
        if isinstance(subscript, Var) and subscript.name in extents.keys() - set(self.own):
            return True  # it runs over the dimension
        extents = {**self.context.ranges(), **extents}
        return stays_inside(subscript, dim, extents, self.context.is_size, known)

    def contribute(self, one: Contribution) -> Stmt:
        assert isinstance(one.place, Var | Index)
        place = adjoint_place(one.place, self.context)
        if one.guard is None and not one.padded:
            return self._statement(place, one.value, self.axes)
        assert isinstance(place, Index)
        around, guard = self._split(one.guard)
        if one.padded:
            around += [between(s, sizes.dims_of(place.base)[k]) for k, s in self._outside(place)]
        one = replace(one, guard=guard)
        if guard is None and not one.padded:
            stmt = self._statement(place, one.value, self.axes)
        else:
            known = tuple(fact for test in around for fact in facts(test))
            found = None
            if self._is_safe(one, known):
                found = gather(
                    place, one.selected, self.axes, self.context.names, self.context.is_size,
                    one.padded, self.context.ranges(),
                )  # fmt: skip
            stmt = self._where(place, one, known) if found is None else self._statement(*found)
        if around:
            stmt = If(b.every(around), (stmt,), ())
        return stmt

    def _split(self, guard: Expr | None) -> tuple[list[Expr], Expr | None]:
        """Conditions that are the same at every point, to be tested first, and what is left."""
        match guard:
            case Binary("and", left, right):
                first, rest = self._split(left)
                if rest is not None:
                    return first, b.binary("and", rest, right)
                more, rest = self._split(right)
                return first + more, rest
            case None:
                return [], None
            case _:
                varies = free_variables(guard) & {axis.name for axis in self.axes}
                return ([], guard) if varies else ([guard], None)

    def _outside(self, place: Index) -> list[tuple[int, Expr]]:
        """Subscripts that are the same at every point and may be outside."""
        names = {axis.name for axis in self.axes}
        return [
            (k, s)
            for k, s in enumerate(place.subscripts)
            if not free_variables(s) & names and not self._is_inside(place, k)
        ]

    def _statement(self, place: Index | Var, value: Expr, axes: tuple[Axis, ...]) -> Stmt:
        return index_statement(place, "+=", value, axes, self.own, self.context.is_size)

    def _is_safe(self, one: Contribution, known: tuple[Expr, ...]) -> bool:
        """Whether what falls outside may be dropped: no mistake of the program is lost with it."""
        assert isinstance(one.place, Index)
        if one.guard is None:
            return True
        if one.padded:
            return not any(
                isinstance(node, Index) for s in one.place.subscripts for node in walk(s)
            )
        return self._inside(one.place, known + facts(one.guard))

    def _where(self, place: Index, one: Contribution, known: tuple[Expr, ...]) -> Stmt:
        """A scatter that adds zero to element 0 where there is no such place; nothing to a tensor
        without elements. ``known`` is not negative at any point."""
        guard = one.guard
        count = len(place.subscripts)
        if one.padded:
            tests = [
                None if self._is_inside(place, k, known) else test
                for k, test in enumerate(inside_tests(place, self.axes))
            ]
            guard = functools.reduce(both, tests, guard)
            outside = [test is not None for test in tests]
        else:
            outside = [not self._is_inside(place, k, known) for k in range(count)]
        if guard is None:
            return self._statement(place, one.value, self.axes)
        subscripts = list(place.subscripts)
        some: Expr | None = None
        for k, dim in enumerate(sizes.dims_of(place.base)):
            if outside[k]:
                subscripts[k] = Select(guard, subscripts[k], IntConst(0), INT, subscripts[k].span)
                if (sizes.constant(dim) or 0) <= 0:
                    some = both(some, b.binary(">", dim, IntConst(0)))
        value = b.select(guard, one.value, b.flt(0))
        stmt = self._statement(replace(place, subscripts=tuple(subscripts)), value, self.axes)
        return stmt if some is None else If(some, (stmt,), ())


def _clear(stmt: IndexAssign, context: SweepContext) -> Stmt:
    """Sets the adjoint of an overwritten target to zero, as a whole where it is all overwritten."""
    place = adjoint_place(stmt.target, context)
    assert isinstance(place, Index)
    assert isinstance(place.base, Var)
    if covers(stmt):
        return Zero(place.base)
    return index_statement(place, "=", b.flt(0), stmt.axes)
