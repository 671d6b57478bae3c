"""Index statements as loop nests over raw data.

A statement becomes one C++ function that runs a stretch of its parallel loop, and a call of it. The
innermost loop runs over an axis of the target (rows of the target are updated element by element,
summed axes are loops around the row), or over a summed axis with a scalar accumulator: whichever
reads more elements in order. Only axes whose values write elements of their own run in parallel,
and what a thread computes does not depend on how many there are.
"""

from __future__ import annotations

from dataclasses import replace

from loma import config
from loma.backends.lowering import together
from loma.backends.lowering.borders import at_borders
from loma.backends.lowering.frames import may_throw
from loma.backends.lowering.grouped import Additions, are_additions
from loma.backends.lowering.interleaved import apart, interleaved, written_out
from loma.backends.lowering.nest import Bounds
from loma.backends.lowering.packing import packed
from loma.backends.lowering.plan import Plan, make_plan, target_axes
from loma.backends.lowering.reductions import StatementNest
from loma.backends.lowering.rows import elements, partial_sum, rows
from loma.backends.schedule import contraction, convolution
from loma.backends.schedule.access import (
    ROUNDS, ZERO, Loop, analyse, ragged, reads, rename_axes, steps,
)  # fmt: skip
from loma.backends.schedule.context import FunctionContext
from loma.backends.schedule.divisions import without_divisions
from loma.backends.schedule.guards import marked
from loma.backends.schedule.host import (
    CheckSome, Contract, Convolve, Group, GroupedContract, HostNode,
)  # fmt: skip
from loma.backends.schedule.ir import (
    QUOTIENT, REMAINDER, If, InPlace, Kind, Let, Node, Parallel, builtin,
)  # fmt: skip
from loma.backends.schedule.marks import mark_of, unmarked
from loma.backends.schedule.ranges import provably_inside, range_checks
from loma.backends.schedule.rewrites import pieces
from loma.backends.schedule.target import Target
from loma.core import builder as b, sizes
from loma.core.bounds import interval
from loma.core.ir import (
    INT, OF_NOTHING, Axis, Binary, Expr, FloatConst, Index, IndexAssign, IntConst, Reduce, Select,
    Stmt, Var, remembered,
)  # fmt: skip
from loma.core.walk import free_variables, reads_elements, walk, without_no_diff

COUNTER = Var("@p_", INT)  # of a parallel loop over pieces, or over two axes as one


def index_statement(
    context: FunctionContext,
    stmt: IndexAssign,
    fresh: bool,
    source: Stmt | None = None,
    beside: tuple[Index, ...] = (),
) -> list[HostNode]:
    """The checks and the run of an index statement; ``fresh``: the target is all zero and
    everything in it may be overwritten. ``source``: the statement that it serves, if another.
    ``beside``: what others read that may run in the same loops."""
    found: list[HostNode] = []
    in_vectors = context.machine.lanes > 1
    for k, (whole, own) in enumerate(without_divisions(stmt, context.is_size, in_vectors)):
        blank = fresh and (own or k == 0)

        def nodes(parts: list[IndexAssign], blank: bool = blank) -> list[HostNode]:
            made = (_without_divisions(context, p, blank, source or stmt, beside) for p in parts)
            return [node for part in made for node in part]

        near = apart(context, whole, blank)
        if len(near) > 1:
            found += together.parts(nodes(near), context.machine)
            continue
        between = interleaved(context, whole)
        one = together.parts(nodes(between), context.machine, True) if len(between) > 1 else []
        if len(one) == 1 and isinstance(one[0], Parallel):
            found.append(together.read_once(one[0]))
        else:
            found += nodes([whole])
    return found


def _without_divisions(
    context: FunctionContext,
    stmt: IndexAssign,
    fresh: bool,
    source: Stmt,
    beside: tuple[Index, ...],
) -> list[HostNode]:
    assign, plain = stmt.op == "=" or fresh, stmt
    target = marked(stmt.target, stmt.axes, context)
    assert isinstance(target, Index | Var)
    value = marked(without_no_diff(stmt.value), stmt.axes, context)
    stmt = replace(stmt, target=target)
    axes, kind, body = _normalised(stmt, value, assign)
    line = context.line(stmt.span)
    found = [
        (analyse(context, read, scope, padded), scope)
        for root, own in ((stmt.target, stmt.axes), (body, axes))
        for read, scope, padded in reads(root, own)
    ]
    nodes: list[HostNode] = [*range_checks(context, stmt, found, line)]
    # Inside of a kernel every iteration would call, or copy.
    if isinstance(stmt.target, Index) and context.kernel is None and not ragged(axes):
        call = _library_call(context.machine, stmt, kind, body, axes)
        if isinstance(call, Contract):
            into = call.target.tensor.name in context.views or not call.target.is_whole
            return [*nodes, replace(call, assign=assign, into=into)]
        if call is not None:
            return [*nodes, replace(call, dims=context.dims(call.result.tensor), assign=assign)]
        if context.make_tree is None:
            copies, body = packed(context, stmt.target, kind, body, axes)
            nodes += [copy for copy in copies if not context.before_panels(copy)]
    if kind not in OF_NOTHING:
        nodes += _nonempty(stmt, kind, axes, line)
    if context.make_tree is not None:
        made: HostNode = context.make_tree(context, stmt, kind, body, axes, assign, source, beside)
        outside = context.kernel is None and not context.serial
        if outside and are_additions(stmt, kind, body, axes, assign):
            made = _grouped(context, Additions(context, stmt, body, axes), made, source)
        return [*nodes, made]
    if context.machine.lanes > 1:
        body = at_borders(context, axes, body)
    axes, kind, body = written_out(context, stmt.target, kind, body, axes)
    nest = StatementNest(context, axes)
    plan = make_plan(nest, stmt, kind, body, axes, assign, beside)
    tree = _tree(context, nest, plan, source)
    if context.kernel is None and not context.serial:
        groups = library_call(plain, context.machine)
        if isinstance(groups, GroupedContract):
            # Rows are all written; of groups some may have none.
            call = replace(groups.call, assign=assign and groups.rows[0] is not None)
            return [*nodes, replace(groups, call=call, otherwise=(tree,))]
    return [*nodes, tree]


def _grouped(
    context: FunctionContext, additions: Additions, otherwise: HostNode, source: Stmt
) -> Group:
    """Additions to what data name, those to one element by one thread."""
    assert context.make_tree is not None
    noted = index_statement(context, additions.noted(context), False, source)
    stmt, body, axes = additions.together()
    tree = context.make_tree(context, stmt, "sum", body, axes, False, source)
    assert isinstance(tree, Parallel)
    return Group(
        additions.cells, additions.order, additions.lengths, additions.count, tuple(noted),
        (additions.begun(tree),), (otherwise,),
    )  # fmt: skip


def _normalised(
    stmt: IndexAssign, value: Expr, assign: bool
) -> tuple[tuple[Axis, ...], Kind, Expr]:
    """All axes, the reduction over those that the target lacks, and what is reduced.

    A reduction that is the whole right side becomes that of the statement.
    """
    summed = len(target_axes(stmt)) < len(stmt.axes)
    taken = {axis.name for axis in stmt.axes}
    if isinstance(value, Reduce):
        # A sum may have another length in each row; an extremum of nothing is an error there.
        by_row = value.kind == "sum" and not summed
        fixed = {axis.name for axis in value.axes} | (set() if by_row else taken)
        inner = rename_axes(value, taken)
        whole = inner.kind == "sum" or (assign and not summed and isinstance(stmt.target, Index))
        differs = sizes.mentions if by_row else sizes.varies
        if whole and not any(differs(axis.extent, fixed) for axis in value.axes):
            return stmt.axes + inner.axes, inner.kind, inner.body
    return stmt.axes, "sum", value


def _nonempty(stmt: IndexAssign, kind: str, axes: tuple[Axis, ...], line: int) -> list[CheckSome]:
    own = tuple(axis.extent for axis in stmt.axes)
    reduced = tuple(axis.extent for axis in axes[len(stmt.axes) :])
    if all(isinstance(extent, IntConst) and extent.value > 0 for extent in reduced):
        return []
    return [CheckSome(kind, own, reduced, line)]


def _tree(
    context: FunctionContext, nest: StatementNest, plan: Plan, source: Stmt
) -> Parallel | InPlace:
    """The loops of a statement; in serial loops, and without threads, it runs where it stands."""
    target = plan.stmt.target
    alone = plan.inner is None and not (plan.parallel or plan.around or plan.summed)
    if context.serial or not context.machine.threads or (alone and context.kernel is not None):
        return _in_place(context, nest, plan)
    total = (target,) if isinstance(target, Var) else ()
    loops, chunked = _shared_loops(plan)
    around = [] if total else [loop.axis for loop in plan.around]
    if total:
        plan = replace(plan, summed=plan.summed[1:])
    counter, count = COUNTER, sizes.product(tuple(loop.axis.extent for loop in loops))
    before: list[Node] = []
    bounds: Bounds | None = None
    if len(loops) == 1:
        counter = Var(loops[0].name, INT)
    elif len(loops) == 2:
        extent = nest.value(loops[1].axis.extent)
        before = [Let(Var(loops[0].name, INT), builtin(QUOTIENT, COUNTER, extent)),
                  Let(Var(loops[1].name, INT), builtin(REMAINDER, COUNTER, extent))]  # fmt: skip
    if chunked:
        assert plan.inner is not None
        extent, bounds = nest.value(plan.inner.axis.extent), (Var("@low_", INT), Var("@high_", INT))
        begins, count = pieces(COUNTER, *bounds, _chunk(context.machine, plan), ZERO, extent)
        before = [*begins]
    inside = lambda: _inside(nest, plan, bounds, counter)  # noqa: E731
    body = [*before, *nest.loops(around, inside)]
    return Parallel(
        counter, count, _work(nest, plan, loops, chunked), tuple(body), written(target),
        (source,), _shared_axes(plan, loops, chunked), needs(context, plan.stmt), total,
        tuple(nest.checks),
    )  # fmt: skip


def _in_place(context: FunctionContext, nest: StatementNest, plan: Plan) -> InPlace:
    loops = [] if isinstance(plan.stmt.target, Var) else [*plan.parallel, *plan.around]
    body = nest.loops([loop.axis for loop in loops], lambda: _inside(nest, plan, None, None))
    some = [Binary(">", extent, ZERO, INT) for extent in needs(context, plan.stmt)]
    if some:
        body = [If(b.every(some), tuple(body))]
    return InPlace(tuple(body), written(plan.stmt.target), tuple(nest.checks))


def _shared_loops(plan: Plan) -> tuple[list[Loop], bool]:
    """The loops whose iterations threads share; where there are none, whether they share pieces of
    the innermost loop."""
    parts = isinstance(plan.stmt.target, Var)
    loops = plan.summed[:1] if parts else plan.parallel
    inner = plan.inner
    return loops, not loops and inner is not None and (parts or (plan.by_rows and inner.alone))


def _shared_axes(plan: Plan, loops: list[Loop], chunked: bool) -> tuple[str, ...]:
    shared = [plan.inner] if chunked and plan.inner is not None else loops
    return tuple(dict.fromkeys(name for loop in shared for name in loop.parts))


def _chunk(machine: Target, plan: Plan) -> int:
    if any(isinstance(node, Reduce) for node in walk(plan.value)):
        return machine.chunk // 256
    return machine.chunk if not plan.summed else machine.chunk // 16


def written(target: Index | Var) -> tuple[Var, ...]:
    return (target.tensor,) if isinstance(target, Index) else ()


def _inside(
    nest: StatementNest, plan: Plan, bounds: Bounds | None, counter: Var | None
) -> list[Node]:
    if isinstance(plan.stmt.target, Var):
        return partial_sum(nest, plan, bounds, counter)
    return rows(nest, plan, bounds) if plan.by_rows else elements(nest, plan)


def needs(context: FunctionContext, stmt: IndexAssign) -> tuple[Expr, ...]:
    """When a sum has terms, if the element that it is added to may be missing otherwise: the range
    check of a subscript that no axis moves says nothing where other axes are empty, nor can
    ``t % N`` be computed for an N of 0."""
    if not isinstance(stmt.target, Index):
        return ()
    target = stmt.target
    own = target_axes(stmt)
    summed = [axis for axis in stmt.axes if axis.name not in own]
    access = analyse(context, target, stmt.axes)
    if all(
        (isinstance(s.expr, Var) and s.expr.name in own)
        or (provably_inside(s, stmt.axes, context) and not may_throw(s.expr, context.module))
        for s in access.subscripts
    ):
        return ()
    names = {axis.name for axis in stmt.axes}
    extents = [axis.extent for axis in summed if not sizes.mentions(axis.extent, names)]
    return tuple(dict.fromkeys(e for e in extents if not sizes.constant(e)))


def _work(nest: StatementNest, plan: Plan, loops: list[Loop], chunked: bool) -> Expr:
    """About how many steps of arithmetic an iteration of the parallel loop takes, rows of several
    lengths being as long as the longest."""
    inner = [plan.inner] if plan.inner is not None else []
    if plan.square is not None:
        size = IntConst(nest.context.machine.square)
        extents = [*(loop.axis.extent for loop in plan.around), size, size]
    else:
        own = plan.summed if plan.scattered is None else [plan.scattered]
        kept = [plan.keeps] if plan.keeps is not None else []
        alone = [] if kept else inner
        extents = [loop.axis.extent for loop in [*plan.around, *own, *kept, *alone]]
        extents += [IntConst(nest.context.machine.strip) for _ in inner if kept]
    if plan.group is not None:
        whole = any(loop.pieces_of == plan.group.loop.name for loop in loops)
        extents.append(IntConst(plan.group.many) if whole else plan.group.loop.axis.extent)
    reductions = [node for node in walk(plan.value) if isinstance(node, Reduce)]
    names = {axis.name for axes in (nest.scope, *(r.axes for r in reductions)) for axis in axes}
    below = [
        longest(nest, axis.extent)
        for reduction in reductions
        for axis in reduction.axes
        if not sizes.mentions(axis.extent, names) and not _is_conditional(axis.extent)
    ]
    factor = steps(plan.value)
    extents = [longest(nest, extent) for extent in extents]
    if chunked:
        summed = [longest(nest, loop.axis.extent) for loop in plan.summed]
        return sizes.product(
            (IntConst(_chunk(nest.context.machine, plan) * factor), *summed, *below)
        )
    return sizes.product((IntConst(factor), *extents, *below))


def longest(nest: StatementNest, extent: Expr) -> Expr:
    """That of rows of several lengths which is the longest; where nobody knows, 1, or more where
    data say it."""
    names = {axis.name for axis in nest.scope}
    if reads_elements(extent):
        return IntConst(ROUNDS)
    if not sizes.mentions(extent, names):
        return extent
    found = interval(extent, nest.context.extents(nest.scope), nest.context.is_size)
    return IntConst(1) if found is None or sizes.mentions(found.high, names) else found.high


def _is_conditional(extent: Expr) -> bool:
    """Whether elements say how long an axis is that need not exist."""
    return any(mark_of(node) is not None for node in walk(extent))


def library_call(
    stmt: IndexAssign, machine: Target
) -> Contract | GroupedContract | Convolve | None:
    """The library call that the statement becomes, or None for loops."""
    return _matched(stmt, machine) if _calls_library(machine) else None


@remembered
def _matched(stmt: IndexAssign, machine: Target) -> Contract | GroupedContract | Convolve | None:
    axes, kind, body = _normalised(stmt, without_no_diff(stmt.value), stmt.op == "=")
    if ragged(axes):
        return None
    found = _library_call(machine, stmt, kind, body, axes)
    return found or _grouped_product(machine, stmt, kind, body, axes)


def _grouped_product(
    machine: Target, stmt: IndexAssign, kind: str, body: Expr, axes: tuple[Axis, ...]
) -> GroupedContract | None:
    """On a device the host would wait for the groups."""
    target = stmt.target
    if machine.teams or not isinstance(target, Index) or not _calls_library(machine):
        return None
    found = contraction.factors(target, kind, body)
    if found is None or _is_short(machine, target, axes):
        return None
    return contraction.match_groups(target, found, axes)


def _calls_library(machine: Target) -> bool:
    return machine.library and "contraction" in config.optimisations()


def _is_short(machine: Target, target: Index, axes: tuple[Axis, ...]) -> bool:
    """Whether matrices are known to have few columns or terms, so that loops are as fast."""
    columns = free_variables(target.subscripts[-1]) if target.subscripts else frozenset()
    rows = free_variables(target) - columns
    limits = {
        axis: machine.few_columns if axis.name in columns else machine.few_terms
        for axis in axes
        if axis.name not in rows
    }
    known = ((sizes.constant(axis.extent), most) for axis, most in limits.items())
    return any(extent is not None and extent <= most for extent, most in known)


def _library_call(
    machine: Target, stmt: IndexAssign, kind: str, body: Expr, axes: tuple[Axis, ...]
) -> Contract | Convolve | None:
    target = stmt.target
    if not isinstance(target, Index) or not _calls_library(machine):
        return None
    guard: Expr | None = None
    match body:
        case Select(guard, guarded, FloatConst(0.0)):
            body = unmarked(guarded)
        case _:
            pass
    found = contraction.factors(target, kind, body)
    if found is None:
        return None
    product = None
    if guard is None and not _is_short(machine, target, axes):
        product = contraction.match(target, found, axes)
    return product or convolution.match(target, found, axes, stmt.op == "+=", guard)
