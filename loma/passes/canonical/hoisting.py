"""Reductions that stand inside expressions, taken out into temporaries.

``y[b, o] = tanh(sum(x[b, i] * w[o, i] for i in I) + c[o])`` is

    _r[b, o] = sum(x[b, i] * w[o, i] for i in I)
    y[b, o] = tanh(_r[b, o] + c[o])

A temporary has just the indices that its reduction depends on, and is made only once where a
statement names it twice; what might fail there stays under the conditions around it. The canonical
form (:mod:`loma.passes.canonical.reductions`) and the normal form of AD, which leaves no reduction
inside an expression, are made by this code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set as AbstractSet
from itertools import pairwise

from loma.core import builder as b
from loma.core.axes import index_statement, shifted_places
from loma.core.bounds import interval, is_never_negative, stays_inside
from loma.core.effects import assigned
from loma.core.ir import (
    FLOAT, INT, OF_NOTHING, POSITIONS, Assign, Axis, Binary, Call, Declare, Expr, For, Function, If,
    Index, IndexAssign, IntConst, Reduce, Stmt, TensorType, Type, Var, Zero, ZeroPad, replace,
)  # fmt: skip
from loma.core.names import Names, names_of, with_own_indices
from loma.core.ops import divisor
from loma.core.sizes import affine, constant, count, dims_of, product, size_variables
from loma.core.walk import (
    blocks, certain_reads, free_variables, map_blocks, map_guarded, reads_elements, substitute,
    walk,
)  # fmt: skip
from loma.errors.spans import NOWHERE, Span


class Hoisting:
    """Goes through the statements of one function; what they need before them goes into ``_out``.

    ``_assigned`` are variables that change, ``_known`` ints that do not during a call, sizes among
    them, ``_counters`` the ranges of the loops around. Declarations of what other statements use
    inside are ``_hoisted`` in front of the outermost one.
    """

    _takes_guarded = True  # whether what a condition guards is taken out, too

    def __init__(self, names: Names, sizes: set[str]) -> None:
        self._names = names
        self._sizes = sizes
        self._assigned = set[str]()
        self._known = set[str]()
        self._counters: dict[str, Expr] = {}
        self._depth = 0
        self._out: list[Stmt] = []
        self._hoisted: list[Stmt] = []
        # The reductions of the statement at hand that temporaries hold, by what they compute.
        self._reductions: dict[tuple[Expr, tuple[Axis, ...]], Index] = {}
        self._guard: Expr | None = None  # what holds where the expression at hand is evaluated
        self._span: Span = NOWHERE  # of the statement at hand

    def _prepared(self, expr: Expr) -> Expr:
        """A reduction in the form in which it is wanted, anything else as it is."""
        return expr

    def _takes(
        self, part: Expr, scope: dict[str, Axis], axes: tuple[Axis, ...], dims: list[Expr]
    ) -> bool:
        """Whether a part is taken out, into a temporary of that size over axes of the scope."""
        return True

    def _where_used(
        self, made: Stmt, part: Expr, scope: dict[str, Axis], axes: tuple[Axis, ...]
    ) -> Stmt:
        """The statement that makes a temporary over some axes of the scope, or what does so only
        where something reads it."""
        return made

    def _without_room(self, reduce: Reduce, axis: Axis) -> Expr:
        """What stands for a reduction whose temporary has no size along an axis that is known
        where it is declared."""
        raise NotImplementedError

    def _temporary(self, type_: Type, wish: str, value: Expr | None) -> Var:
        var = Var(self._names.fresh(wish), type_)
        if self._depth == 0:
            self._out.append(Declare(var, value, self._span))
        elif value is not None and self._is_fixed(value):
            self._hoisted.append(Declare(var, value, self._span))
        else:
            self._hoisted.append(Declare(var, None, self._span))
            if value is not None:
                self._out.append(Assign(var, "=", value, self._span))
        return var

    def _is_fixed(self, value: Expr) -> bool:
        """Whether a number is the same in all rounds of the loops around, and computing it in
        front of them, where they may have none, is no error."""
        known = free_variables(value) <= self._known
        return (
            known
            and not isinstance(value.type, TensorType)
            and not may_fail(value, {}, self._sizes.__contains__)
        )

    def _map_children(self, expr: Expr, visit: Callable[[Expr], Expr]) -> Expr:
        """``map_children``; ``visit`` runs with the condition under which a child is evaluated."""

        def under(child: Expr, guard: Expr | None) -> Expr:
            around = self._guard
            if guard is not None:
                self._guard = guard if around is None else b.binary("and", around, guard)
            found = visit(child)
            self._guard = around
            return found

        return map_guarded(expr, under)

    def _only_where(self, guard: Expr, make: Callable[[], Stmt]) -> None:
        """Emits a statement, with the temporaries that it needs, under a condition."""
        cond = self._temporary(INT, "_taken", b.binary("!=", guard, b.flt(0)))
        self._assigned.add(cond.name)
        around, self._out, self._guard = self._out, [], None
        self._depth += 1
        self._out.append(make())
        self._depth -= 1
        self._out, body, self._guard = around, tuple(self._out), guard
        self._out.append(If(cond, body, (), self._span))

    def _hoisted_value(self, stmt: IndexAssign) -> IndexAssign:
        """An index statement with no reduction but one that is the whole right side."""
        value, scope = self._prepared(stmt.value), {axis.name: axis for axis in stmt.axes}
        whole = isinstance(value, Reduce) and (stmt.op == "=" or value.kind == "sum")
        if isinstance(value, Reduce) and whole and not shadows(value, scope):
            return replace(stmt, value=replace(value, body=self._hoisted_body(value, scope)))
        return replace(stmt, value=self._hoist(value, scope))

    def _hoisted_body(self, reduce: Reduce, scope: dict[str, Axis]) -> Expr:
        return self._hoist(reduce.body, scope | {axis.name: axis for axis in reduce.axes})

    def _hoist(self, expr: Expr, scope: dict[str, Axis]) -> Expr:
        """The expression with each reduction in it read from a temporary."""
        if not isinstance(expr, Reduce):
            return self._map_children(expr, lambda child: self._hoist(child, scope))
        reduce = self._prepared(expr)
        assert isinstance(reduce, Reduce)
        expr = replace(reduce, body=self._hoisted_body(reduce, scope))
        guard = self._guard
        if guard is not None:
            fails = may_fail(expr, scope, self._sizes.__contains__)
            often = is_triangle(guard, scope) or is_of_rows(guard, expr, scope)
            if not self._takes_guarded and (fails or not often):
                return self._reductions.get(self._key(expr, scope), expr)
            guard = guard if fails else None
        if guard is not None and free_variables(guard) & set(scope):
            expr, guard = where_holds(expr, guard, self._names), None
        key = self._key(expr, scope)
        axes = key[1]
        if key in self._reductions:
            return self._reductions[key]
        element = "int" if expr.kind in POSITIONS or expr.type == INT else "float"
        dims: list[Expr] = []
        for axis in axes:
            room = self._room(axis, expr, scope)
            if room is None:
                return self._without_room(expr, axis)
            dims.append(room)
        if not self._takes(expr, scope, axes, dims):
            return expr
        var = self._temporary(TensorType(tuple(dims), element), "_r", None)  # type: ignore[arg-type]
        place = Index(var, tuple(Var(axis.name, INT) for axis in axes), expr.type)
        shorter = {a.name for a, dim in zip(axes, dims, strict=True) if self._count(a) != dim}
        # An index of a reduction need not fill a dimension, one of a statement has to.
        expr = shifted_places(expr, {a.name: a.extent for a in axes if a.name not in shorter})
        made: Stmt = IndexAssign(place, "=", expr, axes, self._span)
        if shorter:
            made = index_statement(place, "=", expr, axes, shorter, self._sizes.__contains__)
            if self._depth:  # nothing of an iteration before is in it, which a tape would keep
                self._out.append(Zero(var, self._span))
        if guard is not None:
            self._only_where(guard, lambda: made)
            return place
        self._out.append(self._where_used(made, expr, scope, axes))
        self._reductions[key] = place
        return place

    def _key(self, reduce: Reduce, scope: dict[str, Axis]) -> tuple[Expr, tuple[Axis, ...]]:
        """What a reduction computes, and for which axes of the scope."""
        used = free_variables(reduce)
        for axis in reversed(scope.values()):  # a range depends on indices before it only
            if axis.name in used:
                used |= free_variables(axis.extent)
        return with_numbered_axes(reduce), tuple(a for a in scope.values() if a.name in used)

    def _count(self, axis: Axis) -> Expr:
        return count(axis.extent, self._sizes.__contains__)

    def _room(self, axis: Axis, expr: Expr, scope: dict[str, Axis]) -> Expr | None:
        """The size of a temporary along an axis: how many values that has or, where this is not
        known where the temporary is declared, may have at most, if what it subscripts tells."""
        needed = free_variables(axis.extent)
        if needed <= self._known or (self._depth == 0 and needed.isdisjoint(scope)):
            return self._count(axis)
        extents = self._counters | {name: other.extent for name, other in scope.items()}
        range_ = interval(axis.extent, extents, self._sizes.__contains__)
        if range_ is not None and free_variables(range_.high) <= self._known:
            return count(range_.high, self._sizes.__contains__)
        for place in certain_reads(expr):
            if not isinstance(place, Index) or not isinstance(place.base, Var):
                continue
            for subscript, dim in zip(place.subscripts, dims_of(place.base), strict=False):
                found = affine(subscript, (axis,))
                moves = found is not None and constant(found[0].get(axis.name, IntConst(0)))
                if moves and free_variables(dim) <= self._known:
                    return dim
        return None


class InBlocks(Hoisting):
    """A pass on one function, statement by statement, that takes parts of their expressions out
    where nothing guards them, and where the sizes of temporaries are known."""

    _takes_guarded = False

    def __init__(self, function: Function, functions: Mapping[str, Function]) -> None:
        self._function = function = with_own_indices(function)
        super().__init__(Names(names_of(function)), set(size_variables(function)))
        self._assigned = set(assigned(function.body, functions))
        ints = {param.name for param in function.params if param.type == INT}
        self._known = (ints | self._sizes) - self._assigned
        # Sizes of tensors that there are in any case: none is negative.
        self._lengths: set[Expr] = set()

    def run(self) -> Function:
        return replace(self._function, body=self._block(self._function.body))

    def _count(self, axis: Axis) -> Expr:
        return axis.extent if axis.extent in self._lengths else super()._count(axis)

    def _index_assign(self, stmt: IndexAssign) -> IndexAssign:
        """The statement with parts read from temporaries, which ``_out`` computes."""
        raise NotImplementedError

    def _block(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        around, self._out = self._out, []
        done: list[Stmt] = []
        for stmt in body:
            if self._depth == 0 and isinstance(stmt, Declare):
                self._lengths.update(_fixed_dims(stmt, self._known))
            self._reductions, self._span = {}, stmt.span
            new = self._statement(stmt)
            if self._depth == 0:
                done += self._hoisted
                self._hoisted = []
            done += [*self._out, new]
            self._out = []
        self._out = around
        return tuple(done)

    def _statement(self, stmt: Stmt) -> Stmt:
        if isinstance(stmt, IndexAssign):
            return self._index_assign(stmt)
        if isinstance(stmt, For):
            self._counters[stmt.counter] = stmt.extent
        self._depth += bool(blocks(stmt))
        new = map_blocks(stmt, self._block)
        self._depth -= bool(blocks(stmt))
        return new

    def _takes(
        self, part: Expr, scope: dict[str, Axis], axes: tuple[Axis, ...], dims: list[Expr]
    ) -> bool:
        if not axes:
            return False  # the frontend has taken out what has no index
        whole = all(self._count(axis) == dim for axis, dim in zip(axes, dims, strict=True))
        ragged = any(free_variables(e) & scope.keys() for e in self._lacking(scope, axes))
        return whole and not (ragged and may_fail(part, scope, self._sizes.__contains__))

    def _lacking(self, scope: dict[str, Axis], axes: tuple[Axis, ...]) -> list[Expr]:
        """The extents, which may be 0, of indices that a part over these axes lacks."""
        names = {axis.name for axis in axes}
        extents = [axis.extent for axis in scope.values() if axis.name not in names]
        return [extent for extent in extents if (constant(extent) or 0) <= 0]

    def _without_room(self, reduce: Reduce, axis: Axis) -> Expr:
        return reduce

    def _where_used(
        self, made: Stmt, part: Expr, scope: dict[str, Axis], axes: tuple[Axis, ...]
    ) -> Stmt:
        """What may fail is left out where the indices that it lacks have no values."""
        lacking = self._lacking(scope, axes)
        if not lacking or not may_fail(part, scope, self._sizes.__contains__):
            return made
        some = Binary(">", product(tuple(lacking)), IntConst(0), INT)
        assert isinstance(made, IndexAssign)
        assert isinstance(made.target, Index)
        # In a loop nothing of an iteration before stays in it, which a tape would keep.
        nothing = (Zero(made.target.tensor, self._span),) if self._depth else ()
        return If(some, (made,), nothing, self._span)


def _fixed_dims(stmt: Declare, known: AbstractSet[str]) -> list[Expr]:
    """The sizes of a declared tensor that nothing changes."""
    dims = stmt.target.type.dims if isinstance(stmt.target.type, TensorType) else None
    return [dim for dim in dims or () if free_variables(dim) <= known]


def may_fail(expr: Expr, scope: Mapping[str, Axis], is_size: Callable[[str], bool]) -> bool:
    """Whether an expression may end in an error; the axes in ``scope`` run over dimensions."""
    extents = {axis.name: axis.extent for axis in scope.values()}
    reductions = [node for node in walk(expr) if isinstance(node, Reduce)]
    own = {axis.name: axis.extent for node in reductions for axis in node.axes}
    for above, node in pairwise((expr, *walk(expr))):  # what comes after a ZeroPad is its read
        by = divisor(node)
        if by is not None and not constant(by):
            return True
        match node:
            case Index(base, subscripts) if not isinstance(above, ZeroPad):
                dims = base.type.dims if isinstance(base.type, TensorType) else None
                for sub, dim in zip(subscripts, dims or subscripts, strict=True):
                    runs_over = isinstance(sub, Var) and sub.name in extents
                    if not runs_over and not stays_inside(sub, dim, extents | own, is_size):
                        return True
            case Reduce(kind, _, axes) if kind not in OF_NOTHING:
                ends = (b.binary("-", axis.extent, IntConst(1)) for axis in axes)
                if not all(is_never_negative(end, extents | own, is_size) for end in ends):
                    return True
            case Call():
                return True
            case _:
                continue
    return False


def is_triangle(guard: Expr, scope: Mapping[str, Axis]) -> bool:
    """Whether a condition compares indices, and holds for many of them."""
    match guard:
        case Binary("and", left, right):
            return is_triangle(left, scope) and is_triangle(right, scope)
        case Binary("<" | "<=" | ">" | ">=", left, right):
            return left.type == right.type == INT and len(free_variables(guard) & scope.keys()) == 2
        case _:
            return False


def is_of_rows(guard: Expr, reduce: Reduce, scope: Mapping[str, Axis]) -> bool:
    """Whether a condition asks data about some of a reduction's indices, which is then wanted for
    all values of the others: ``sum(x[b, t, d] for t in T) if count[b] > 0.0 else 0.0``. In loops of
    its own it takes less than one element at a time under the condition, which mostly holds."""
    asked, own = (free_variables(expr) & scope.keys() for expr in (guard, reduce))
    return asked < own and reads_elements(guard)


def where_holds(reduce: Reduce, guard: Expr, names: Names) -> Reduce:
    """The reduction of what counts where the guard holds, which knows nothing of its axes."""
    taken = free_variables(guard)
    clash = {axis.name: names.fresh(axis.name) for axis in reduce.axes if axis.name in taken}
    renamed: dict[str, Expr] = {old: Var(new, INT) for old, new in clash.items()}
    axes = tuple(Axis(clash.get(axis.name, axis.name), axis.extent) for axis in reduce.axes)
    zero: Expr = b.flt(0) if reduce.body.type == FLOAT else IntConst(0)
    return replace(reduce, body=b.select(guard, substitute(reduce.body, renamed), zero), axes=axes)


def with_numbered_axes(reduce: Reduce) -> Reduce:
    """Equal for two reductions that differ in the names of their own axes only."""
    names = [f"${k}" for k in range(len(reduce.axes))]  # no name of a program
    numbers: dict[str, Expr] = {
        axis.name: Var(name, INT) for axis, name in zip(reduce.axes, names, strict=True)
    }
    axes = tuple(replace(axis, name=name) for axis, name in zip(reduce.axes, names, strict=True))
    return replace(reduce, body=substitute(reduce.body, numbers), axes=axes)


def shadows(reduce: Reduce, scope: dict[str, Axis]) -> bool:
    return any(axis.name in scope for axis in reduce.axes)
