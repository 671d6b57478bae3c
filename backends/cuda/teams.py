"""Index statements as trees for many threads: an element of the target for each of them, or for a
team that shares a sum.

The axes of the target whose values write elements of their own are one loop, whose iterations run
in parallel, neighbours in memory being neighbours. Where there is a reduction, the threads of a
team share the loop over one of its axes, and put together what they found. A statement that may
write an element several times runs over these axes one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from loma.backends.cuda.iterations import Joined, joined
from loma.backends.cuda.several import pair_axis, second_axis, shared_axis, takes_several
from loma.backends.lowering.index_statements import COUNTER, longest, needs, written
from loma.backends.lowering.plan import Plan, merged_loops
from loma.backends.lowering.reductions import StatementNest
from loma.backends.lowering.rows import elements, partial_sum
from loma.backends.schedule.access import Access, Loop, score, steps
from loma.backends.schedule.context import FunctionContext
from loma.backends.schedule.ir import (
    GROUPS, GROUPS_BESIDE, PARTS, QUOTIENT, SEVERAL, SEVERAL_BESIDE, Accumulator, AllReduce, If,
    InPlace, Kind, Let, Loop as LoopNode, Node, Parallel, Store, Team, builtin,
)  # fmt: skip
from loma.backends.schedule.marks import unmarked
from loma.backends.schedule.walk import map_blocks, map_expressions, mentioned, nodes
from loma.core import builder as b
from loma.core import sizes
from loma.core.ir import (
    INT, POSITIONS, Axis, Binary, Builtin, Element, Expr, Index, IndexAssign, IntConst, Reduce,
    Stmt, TensorType, Var,
)  # fmt: skip
from loma.core.walk import free_variables, reads_elements, reduced_axes, substitute

_SHORT = 32  # values of an axis that are too few for a team
_ZERO = IntConst(0)


def make_tree(
    context: FunctionContext,
    stmt: IndexAssign,
    kind: Kind,
    body: Expr,
    axes: tuple[Axis, ...],
    assign: bool,
    source: Stmt,
    beside: tuple[Index, ...] = (),
) -> Parallel | InPlace:
    """The loops of a statement that reduces ``body`` over those ``axes`` which its target lacks; in
    serial loops it runs where it stands. ``assign``: what the target held does not count;
    ``beside``: what others read that may run in the same loops."""
    if context.kernel is not None and context.kernel.single is not None:
        stmt, body, axes = _without(context.kernel.single, stmt, body, axes)
    nest = _Nest(context, axes)
    loops, found, target = merged_loops(nest, stmt, kind, body, axes, beside)
    if context.serial:
        return _in_place(nest, _plan(stmt, kind, body, assign, loops), loops)
    names = {loop.name for loop in loops}
    flat = [loop for loop in loops if loop.alone and not sizes.mentions(loop.axis.extent, names)]
    flat = _fastest_last(flat, found)
    rest = [loop for loop in loops if loop not in flat]
    plan = _plan(stmt, kind, body, assign, rest)
    nest.scope[:] = [loop.axis for loop in (*flat, *rest)]
    nest.shares = not any(loop.target for loop in rest)
    digits = _digits(nest, flat)
    joins = _joins(flat, digits)
    made = _total(nest, plan) if isinstance(stmt.target, Var) else elements(nest, plan)
    team = nest.team(flat)
    if team is not None and context.kernel is None and isinstance(stmt.target, Index):
        reads = [access for access in found if access is not target]
        axis = shared_axis(flat, reads, len(stmt.target.subscripts))
        if axis is not None and takes_several(made, axis.name):
            other = second_axis(flat, rest, reads, axis)
            if other is not None and not takes_several(made, axis.name, other.name):
                other = None
            pair = pair_axis(flat, rest, reads, axis) if other is None else None
            if pair is not None and takes_several(made, axis.name, pair.name):
                other = pair
            second = None if other is None else other.axis
            pairs = pair is not None and other is pair
            team = replace(team, several=axis.axis, beside=second, pairs=pairs)
            outer = min(flat.index(each) for each in (axis, other) if each is not None)
            joins = joins[: max(outer - 1, 0)]  # numbers of groups are none of values
    inside = [map_expressions(node, lambda expr: joined(expr, joins)) for node in made]
    before = _decoded(flat, digits, team)
    return Parallel(
        Var(flat[0].name, INT) if len(flat) == 1 else COUNTER,
        sizes.product(tuple(loop.axis.extent for loop in flat)), IntConst(steps(body)),
        tuple(_used(before, inside)), written(stmt.target), (source,),
        tuple(dict.fromkeys(name for loop in flat for name in loop.parts)), needs(context, stmt),
        (stmt.target,) if isinstance(stmt.target, Var) else (), tuple(nest.checks), team,
        flat[-1].axis.extent if flat and isinstance(stmt.target, Index) else None,
    )  # fmt: skip


def _without(
    count: Var, stmt: IndexAssign, body: Expr, axes: tuple[Axis, ...]
) -> tuple[IndexAssign, Expr, tuple[Axis, ...]]:
    """The statement without axes of so many values, where that is always one; but for those that
    say how long others are, whose elements are checked one by one."""
    inner = reduced_axes(body)
    used = {name for axis in (*axes, *inner) for name in free_variables(axis.extent)}
    zero: dict[str, Expr] = {
        axis.name: _ZERO for axis in axes if axis.extent == count and axis.name not in used
    }
    target = substitute(stmt.target, zero)
    assert isinstance(target, Index | Var)
    own = tuple(axis for axis in stmt.axes if axis.name not in zero)
    rest = tuple(axis for axis in axes if axis.name not in zero)
    return replace(stmt, target=target, axes=own), substitute(body, zero), rest


class _Nest(StatementNest):
    """Loops without a form for the inside of padded tensors. ``shares``: the threads of a team
    share a loop of each reduction that is no part of another one."""

    shares = False

    def __init__(self, context: FunctionContext, axes: tuple[Axis, ...]) -> None:
        super().__init__(context, axes)
        self._shared: list[tuple[Axis, Kind]] = []
        self._inside = False
        self._splits = True
        self._around: Expr | None = None

    def splittable(self, value: Expr) -> list[Access]:
        return []

    def reduce(self, reduce: Reduce) -> Expr:
        # A loop that uses the total of another one has to have all of it, not a slice's.
        if self._inside and any(reduce in frame.reductions for frame in self.frames):
            self._splits = False
        return super().reduce(reduce)

    def reduction(
        self, kind: Kind, body: Expr, axes: Sequence[Axis], accumulator: Var
    ) -> tuple[list[Node], Expr]:
        if not self.shares or self._inside or any(frame.guards for frame in self.frames):
            return super().reduction(kind, body, axes, accumulator)
        self._inside = True
        nodes, result = super().reduction(kind, body, axes, accumulator)
        self._inside = False
        axis = self._longest(axes, body)
        self._shared.append((axis, kind))
        others = [other for other in axes if other is not axis and _is_long(other)]
        if self.context.kernel is None and others:
            made = list(_around(tuple(nodes), axis.name, others[-1].name))
            if made != nodes and self._around is None:
                self._around = longest(self, others[-1].extent)
            nodes = made
        dtype: Element = "int" if accumulator.type == INT else "float"
        return [*_shared(tuple(nodes), axis.name), AllReduce(accumulator, kind, dtype)], result

    def team(self, flat: list[Loop]) -> Team | None:
        """The threads of an iteration of the loop over those axes."""
        if not self._shared:
            return None
        axis, _ = self._shared[0]
        found = list(self.accesses.values())
        across = bool(flat) and score(flat[-1].name, found) > score(axis.name, found)
        splits = self._splits and self.context.kernel is None
        splits = splits and not any(kind in POSITIONS for _, kind in self._shared)
        around = self._around if splits else None
        return Team(self._steps(axis, flat), across, splits, around=around)

    def _steps(self, axis: Axis, flat: list[Loop]) -> Expr:
        """How many values the axis has in most iterations: where data say it, as many as if these
        had shares of a dimension that is read along it."""
        steps = longest(self, axis.extent)
        if not reads_elements(axis.extent):
            return steps
        told = [loop for loop in flat if sizes.mentions(axis.extent, set(loop.parts))]
        many = Builtin(
            "max", (sizes.product(tuple(loop.axis.extent for loop in told)), IntConst(1)), INT
        )
        for subscript in (s for access in self.accesses.values() for s in access.subscripts):
            first = sizes.arith("-", unmarked(subscript.expr), Var(axis.name, INT))
            along = sizes.mentions(subscript.expr, {axis.name})
            if along and not sizes.mentions(first, {axis.name}):
                share = Binary("//", subscript.size, many, INT)
                return Builtin("max", (steps, share), INT)
        return steps

    def _longest(self, axes: Sequence[Axis], body: Expr) -> Axis:
        """The axis of a reduction that is shared: that along which operands lie, unless it is
        short."""
        best = self.best(axes, body)
        long = [axis for axis in axes if _is_long(axis)]
        return best if best in long or not long else self.best(long, body)


def _is_long(axis: Axis) -> bool:
    return (sizes.constant(axis.extent) or _SHORT) >= _SHORT


def _around(block: tuple[Node, ...], axis: str, other: str) -> tuple[Node, ...]:
    """With the loop over that other axis one whose values parts share, if the axis's is in it."""

    def visit(node: Node) -> Node:
        if isinstance(node, LoopNode) and node.counter.name == other:
            inside = (n.counter.name for n in nodes((node,)) if isinstance(n, LoopNode))
            return replace(node, role="around") if axis in inside else node
        return map_blocks(node, lambda inner: tuple(map(visit, inner)))

    return tuple(map(visit, block))


def _shared(block: tuple[Node, ...], axis: str) -> tuple[Node, ...]:
    """With the loop over the axis shared."""
    return tuple(
        replace(node, role="shared")
        if isinstance(node, LoopNode) and node.counter.name == axis
        else map_blocks(node, lambda inner: _shared(inner, axis))
        for node in block
    )


def _plan(stmt: IndexAssign, kind: Kind, body: Expr, assign: bool, rest: list[Loop]) -> Plan:
    return Plan(stmt, body, kind, assign, [], [], rest, None, False)


def _in_place(nest: _Nest, plan: Plan, loops: list[Loop]) -> InPlace:
    target = plan.stmt.target
    own = [] if isinstance(target, Var) else [loop for loop in loops if loop.alone]
    plan = replace(plan, summed=[loop for loop in loops if loop not in own])

    def inside() -> list[Node]:
        if isinstance(target, Var):
            return partial_sum(nest, plan, None, None)
        return elements(nest, plan)

    body = nest.loops([loop.axis for loop in own], inside)
    some = [Binary(">", extent, _ZERO, INT) for extent in needs(nest.context, plan.stmt)]
    if some:
        body = [If(b.every(some), tuple(body))]
    return InPlace(tuple(body), written(target), tuple(nest.checks))


def _total(nest: _Nest, plan: Plan) -> list[Node]:
    """A sum into a scalar, as the one part that there is of it."""
    type_ = plan.stmt.target.type
    dtype: Element = "int" if type_ == INT else "float"
    part = Index(Var(PARTS, TensorType((IntConst(1),), dtype)), (COUNTER,), type_)
    accumulator = nest.fresh("acc", type_)
    if plan.summed:
        axes = [loop.axis for loop in plan.summed]
        nest.scope.clear()
        nodes, found = nest.reduction("sum", plan.value, axes, accumulator)
        return [*nodes, Store(part, "set", found)]
    value = nest.value(plan.value)
    nodes, nest.frame.body = nest.frame.body, []
    return [Accumulator(accumulator, "sum", dtype), *nodes, Store(accumulator, "sum", value),
            Store(part, "set", accumulator)]  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Digit:
    """The value of an axis in a number: ``whole`` is ``extent * rest`` more than that."""

    axis: Axis
    whole: Var
    rest: Var
    extent: Expr


def _digits(nest: _Nest, flat: list[Loop]) -> list[_Digit]:
    """How the counter of one loop over several axes has their values, the last axis first; what is
    left then is the value of the first axis."""
    digits: list[_Digit] = []
    left = COUNTER
    for loop in reversed(flat[1:]):
        extent = nest.value(loop.axis.extent)
        digits.append(_Digit(loop.axis, left, nest.fresh("rest"), extent))
        left = digits[-1].rest
    return digits


def _joins(flat: list[Loop], digits: list[_Digit]) -> list[Joined]:
    """The numbers that the axes' values make, the outermost first."""
    found = [Joined(d.rest, Var(d.axis.name, INT), d.axis.extent, d.whole) for d in digits]
    if found:  # the first axis has a name of its own
        found[-1] = replace(found[-1], outer=Var(flat[0].name, INT))
    return found[::-1]


def _decoded(flat: list[Loop], digits: list[_Digit], team: Team | None) -> list[Node]:
    """The values of the axes; of those of which a thread may have several, the first of these."""
    own: dict[str, tuple[str, str]] = {}
    if team is not None and team.several is not None:
        own[team.several.name] = SEVERAL, GROUPS
    if team is not None and team.beside is not None:
        own[team.beside.name] = SEVERAL_BESIDE, GROUPS_BESIDE

    def let(axis: Axis, value: Expr) -> Node:
        if axis.name in own:
            value = builtin(own[axis.name][0], value)
        return Let(Var(axis.name, INT), value)

    nodes: list[Node] = []
    for digit in digits:
        extent = digit.extent
        if digit.axis.name in own:
            extent = builtin(own[digit.axis.name][1], extent)
        nodes.append(Let(digit.rest, builtin(QUOTIENT, digit.whole, extent)))
        value = b.binary("-", digit.whole, b.binary("*", digit.rest, extent))
        nodes.append(let(digit.axis, value))
    return [*nodes, let(flat[0].axis, digits[-1].rest)] if digits else nodes


def _used(before: Sequence[Node], inside: Sequence[Node]) -> list[Node]:
    """Those constants that something behind them mentions."""
    kept = list(inside)
    for node in reversed(before):
        assert isinstance(node, Let)
        if any(node.var.name in mentioned(each) for each in kept):
            kept.insert(0, node)
    return kept


def _fastest_last(flat: list[Loop], found: list[Access]) -> list[Loop]:
    """With the axis behind the others along which most of what is accessed lies in order; in front
    of it those of a few values that some operand does not have, which is then read again soon."""
    if not flat:
        return flat
    best = max(reversed(flat), key=lambda loop: score(loop.name, found))
    others = [loop for loop in flat if loop is not best]
    again = [loop for loop in others if _is_short(loop) and not _in_all(loop, found)]
    return [*(loop for loop in others if loop not in again), *again, best]


def _is_short(loop: Loop) -> bool:
    return (sizes.constant(loop.axis.extent) or _SHORT) < _SHORT


def _in_all(loop: Loop, found: list[Access]) -> bool:
    """Whether all that is accessed depends on the loop's axis."""
    return all(
        access.is_loose_in(loop.name) or sizes.constant(access.coefficient(loop.name)) != 0
        for access in found
    )
