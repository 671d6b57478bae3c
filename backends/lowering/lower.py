"""Functions to trees: where memory comes from, what runs in which loop, what a library computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from loma import errors
from loma.backends.kernels.beside import reads_beside
from loma.backends.kernels.ir import (
    Carrying, Chain, Inner, Kernel, Nested, Panels, Step, Sweep, Within, as_statement, temporaries,
)  # fmt: skip
from loma.backends.kernels.lifetimes import lifetimes
from loma.backends.kernels.pairs import Pairs
from loma.backends.lowering import joined, lanes, running, spread, together
from loma.backends.lowering.functions.held import (
    are_whole_panels, bytes_of, bytes_of_rows, held_in, in_one_loop, last_statements, moving_axes,
    multiplies, scalars_of,
)  # fmt: skip
from loma.backends.lowering.functions.operands import (
    Operands, is_kernel, operands_of, read_by_kernels,
)  # fmt: skip
from loma.backends.lowering.index_statements import index_statement
from loma.backends.lowering.masked import in_masked_lanes
from loma.backends.lowering.once import once_checks
from loma.backends.lowering.serial import is_serial, tensors_in
from loma.backends.schedule import storage
from loma.backends.schedule.choices import WHOLE
from loma.backends.schedule.context import FunctionContext, KernelScope
from loma.backends.schedule.convolution import with_bias
from loma.backends.schedule.counts import with_counts
from loma.backends.schedule.host import (
    Allocate, Branch, Buffer, Carry, Clear, Count, Either, HostNode, Later, Launch, Numbers,
    PairsPass, Pass, Piece, Question, Repeat, Reserve, Run, Serial, Spread, Stream, Unit,
)  # fmt: skip
from loma.core import sizes
from loma.core.effects import assigned, declared
from loma.core.ir import (
    INT, Assign, AtomicAdd, Declare, Expr, For, If, Index, IndexAssign, Pop, Push, Reduce, Stmt,
    TensorType, Var, While, Zero,
)  # fmt: skip
from loma.core.names import Names, names_of
from loma.core.walk import (
    blocks, map_children, map_expressions, mentioned_names, reads_elements, without_no_diff,
)  # fmt: skip
from loma.passes.device.moments import moments


def lower(context: FunctionContext, steps: tuple[Step, ...]) -> tuple[HostNode, ...]:
    """The tree of the context's function, whose fused body the steps are, for its machine."""
    passes = tuple(step for step in steps if isinstance(step, Sweep | Chain))
    tree = Lowering(context, temporaries(steps), passes).block(steps)
    return with_counts(context, in_masked_lanes(context, tree))


class Lowering(Operands):
    """Makes the nodes of one function. ``private`` are tensors that live inside kernels and panels
    alone."""

    def __init__(
        self, context: FunctionContext, private: set[str], passes: tuple[Sweep | Chain, ...]
    ) -> None:
        super().__init__(context, passes)
        self._private = private
        self._current: Stmt | None = None
        # Of the kernel that is lowered, by their first statements.
        self._loops: dict[int, Inner] = {}
        self._in_lanes = False
        self._names = Names(names_of(context.function))
        self._few: Expr | None = None  # iterations of a kernel whose statements are lowered alone

    def block(self, steps: Sequence[Step], outermost: bool = True) -> tuple[HostNode, ...]:
        before, self._outermost = self._outermost, outermost
        out: list[HostNode] = []
        fresh: set[int] = set()  # positions of statements whose target is all zero already
        block = tuple(map(as_statement, steps))
        position = 0
        while position < len(steps):
            kernel = self._context.kernel
            inner = self._loop_at(block, position)
            if inner is not None:
                out += self._lanes(inner)
                position += len(inner.source)
                continue
            run = () if kernel is None else joined.run_at(block, position, kernel.count)
            if kernel is not None and len(run) > 1:
                blank = {k - position for k in fresh}
                out.append(joined.loop(self._context, run, kernel.registers[run], blank))
                position += len(run)
            else:
                made = self._step(steps[position], block, position, fresh)
                inside, machine = kernel is not None, self._context.machine
                joins = out and not self._in_lanes
                both = None
                if joins:
                    both = together.unit(out[-1], made, machine, inside, self._few)
                    if both is None and not machine.teams:  # cuDNN adds a bias in a pass of its own
                        both = with_bias(out[-1], made, self._context.views)
                out[len(out) - (both is not None) :] = made if both is None else [both]
                position += 1
        self._outermost = before
        return tuple(out)

    def _step(
        self, step: Step, block: tuple[Stmt, ...], position: int, fresh: set[int]
    ) -> list[HostNode]:
        stmt = block[position]
        if stmt.span.line:
            self._context.current = stmt.span
        self._current = stmt
        match step:
            case Kernel():
                nodes = self._kernel(step)
            case Panels():
                nodes = self._panels(step)
            case Nested():
                nodes = self._nested(step.stmt, step.blocks)
            case Sweep():
                nodes = [self._sweep(step)]
            case Chain():
                nodes = [self._chain(step)]
            case Pairs():
                nodes = self._pairs(step)
            case Carrying():
                nodes = [self._carry(step)]
            case Zero(Var(name, TensorType()) as target):
                later = storage.zeroed_before(block, position, name)
                if later is not None and not self._is_in_loop(block[later]):
                    fresh.add(later)
                    return [Unit(stmt, ())]
                unallocated = name in self._lazy and name not in self._ready
                return [Unit(stmt, (Clear(target, unallocated),))]
            case _:
                nodes, is_fresh = self._prepare(stmt)
                is_fresh = is_fresh or position in fresh
                made = self._statement(stmt, is_fresh, reads_beside(block, position))
                unit = Unit(stmt, (*nodes, *made), is_fresh)
                nodes = [*nodes, *made] if blocks(stmt) else [unit]
        if not isinstance(stmt, Declare) or stmt.value is not None:
            self._touched |= mentioned_names((stmt,))
        return nodes

    # --------------------------------------------------------------------------- statements

    def _statement(self, stmt: Stmt, fresh: bool, beside: tuple[Index, ...] = ()) -> list[HostNode]:
        match stmt:
            case IndexAssign():
                return self._index_assign(stmt, fresh, beside)
            case Declare(Var(name, TensorType() as type_) as target, None):
                if name in self._private:
                    return []
                if type_.dims is None or self._context.dims(target) != type_.dims:
                    return [Allocate(target, True, declares=True)]
                self._lazy[name] = type_
                return [Reserve(target)]
            case Zero(Var(type=type_)) if not isinstance(type_, TensorType):
                return [Run(stmt)]
            case AtomicAdd(target, value):
                return self._statement(Assign(target, "+=", value, stmt.span), fresh)
            case Zero() | Push() | Pop():
                raise errors.BackendLacksOperator(
                    "the libtorch backend has no arrays, structs and stacks in functions that work "
                    "on tensors",
                    stmt.span,
                    hint="put what needs them into a scalar function, and call it",
                )
            case Assign(Var() as target, op, value) if self._context.serial and reads_elements(
                value
            ):
                return self._index_assign(IndexAssign(target, op, value, (), stmt.span), False)
            case If(_, then, other):
                return self._nested(stmt, (then, other))
            case For() | While() if self._runs_alone(stmt):
                return self._serial(stmt)
            case For(_, _, body) | While(_, _, body):
                return self._nested(stmt, (body,))
            case _:
                nodes: list[HostNode] = []
                stmt = map_expressions(stmt, lambda expr: self._host(expr, nodes))
                return [*nodes, Run(stmt)]

    def _runs_alone(self, loop: For | While) -> bool:
        """Whether a loop runs on one thread; in a kernel, the threads of a team do what it does."""
        context = self._context
        if context.serial or (context.machine.teams and context.kernel is not None):
            return False
        return is_serial(loop, context.module, context.machine)

    def _nested(self, stmt: Stmt, inside: Sequence[Sequence[Step]]) -> list[HostNode]:
        """A branch or a loop: a branch runs at most once where the ``if`` does, a loop's body any
        number of times."""
        later: list[HostNode] = []
        match stmt:
            case If(condition):
                condition = self._host(condition, later)
                then, other = (self._inner(block, self._outermost) for block in inside)
                return [*later, Branch(stmt, condition, then, other)]
            case For(_, extent):
                extent = self._host(extent, later)
                with self._context.counting(stmt):
                    return [*later, Count(stmt, extent, self._inner(inside[0], False))]
            case While(condition):
                condition = self._host(condition, later)
                return [*later, Repeat(stmt, condition, self._inner(inside[0], False))]
            case _:
                raise AssertionError(stmt)

    def _inner(self, block: Sequence[Step], outermost: bool) -> tuple[HostNode, ...]:
        ready = set(self._ready)
        nodes = self.block(block, outermost)
        self._ready = ready
        return nodes

    def _serial(self, stmt: For | While) -> list[HostNode]:
        tensors = tensors_in((stmt,))
        nodes: list[HostNode] = [
            self._allocate(name, True, True)
            for name in sorted(tensors)
            if name in self._lazy and name not in self._ready
        ]
        lazy, self._lazy = self._lazy, {}
        self._context.serial = True
        body = self._nested(stmt, (stmt.body,))
        self._context.serial = False
        self._lazy = lazy
        serial = Serial(stmt, tuple(body), frozenset(assigned(stmt.body)))
        return [*nodes, running.in_vectors(self._context, serial)]

    def _host(self, expr: Expr, before: list[HostNode]) -> Expr:
        """A value of tensors and scalars, with its reductions computed by loops ``before``."""
        if not isinstance(expr, Reduce):
            return map_children(expr, lambda child: self._host(child, before))
        context = self._context
        stmt = reduction_statement(context, expr)
        target = stmt.target if isinstance(stmt.target, Var) else stmt.target.tensor
        made: HostNode = Allocate(target, False, declares=True)
        if target is stmt.target:
            made = Run(Declare(target, None))
        var = Var(f"@{context.temporary('reduced')}", expr.type)
        body = (made, *index_statement(context, stmt, False, self._current))
        before.append(Later(var, body, stmt.target))
        return var

    def _index_assign(
        self, stmt: IndexAssign, fresh: bool, beside: tuple[Index, ...] = ()
    ) -> list[HostNode]:
        plain = replace(stmt, value=without_no_diff(stmt.value))
        checks = once_checks(self._context, stmt)
        return [*checks, *index_statement(self._context, plain, fresh, stmt, beside)]

    # ------------------------------------------------------------------------ kernels and panels

    def _kernel(self, kernel: Kernel) -> list[HostNode]:
        context, extent = self._context, kernel.axis.extent
        private = {var.name: var for var in kernel.private}
        nodes = self._allocate_for(kernel, {*private, *kernel.gone})
        nodes += [Allocate(var, False, declares=True) for var in kernel.parts]
        registers = joined.registers(kernel)
        for name in frozenset[str]().union(*registers.values()):
            del private[name]
        tensors = tensors_in(kernel.source)
        pieces = tuple(self._piece(tensors[name], dim) for name, dim in kernel.views)
        indices = {axis.name for axis in kernel.axes} if kernel.count is None else ()
        one = context.machine.teams and kernel.rows and kernel.blocks is None
        context.kernel = KernelScope(
            frozenset(indices),
            kernel.count,
            dict(kernel.dropped),
            registers,
            kernel.count if one else None,
        )
        count = "" if kernel.count is None else kernel.count.name
        context.counts |= {var.name for var in (kernel.count, kernel.first) if var is not None}
        bytes_ = tuple(bytes_of(var, count) for var in private.values())
        if kernel.rows and not context.machine.teams:
            bytes_ += tuple(bytes_of_rows(kernel, tensors))
        cleared: list[HostNode] = [Clear(private[name]) for name in sorted(kernel.zeroed)]
        lazy, self._lazy = self._lazy, {}  # all that its statements use is allocated
        with context.cut(pieces, extent), context.within(*moving_axes(kernel)):
            body = (*cleared, *self.block(kernel.body, outermost=False))
            end = self.block(last_statements(kernel), outermost=False)
        self._lazy = lazy
        context.kernel = None
        alive = lifetimes(kernel, (*registers, *in_one_loop(body)))
        buffers = tuple(Buffer(var, *alive[name]) for name, var in private.items())
        steps, _ = spread.steps_of(kernel.body, {kernel.axis.name})
        launch = Launch(
            kernel, steps, buffers, scalars_of(kernel), pieces,
            bytes_, body, frozenset(assigned((*kernel.body, *last_statements(kernel)))),
            1 if kernel.rows else context.machine.block_least, one, end,
        )  # fmt: skip
        if kernel.within is not None:
            launch = replace(launch, within=self._with_loops(kernel, kernel.within))
        alone = context.machine.teams and kernel.carried is None
        work = spread.work(kernel, one) if alone else None
        if work is None:
            return [*nodes, launch]
        iterations = spread.iterations(kernel, one)
        return [*nodes, Spread(launch, iterations, *work, self._one_by_one(kernel))]

    def _with_loops(self, kernel: Kernel, within: Within) -> Launch | None:
        """The kernel with inner loops; None where one of their statements is no loop that lanes can
        share."""
        context = self._context
        kernel = replace(
            kernel, body=within.body, private=within.private, zeroed=within.zeroed, within=None
        )
        indices = {axis.name for axis in kernel.axes} | {each.axis.name for each in within.loops}
        context.kernel = KernelScope(frozenset(indices), None, dict(kernel.dropped), {})
        cleared: list[HostNode] = [
            Clear(var) for var in within.private if var.name in kernel.zeroed
        ]
        lazy, self._lazy = self._lazy, {}
        self._loops = {each.numbers[0]: each for each in within.loops}
        with context.within(*moving_axes(kernel)):
            body = (*cleared, *self.block(kernel.body, outermost=False))
        self._loops = {}
        self._lazy = lazy
        context.kernel = None
        parts = {each.parts.name for loop in within.loops for each in loop.sums}
        alive = lifetimes(kernel, tuple(loop.source for loop in within.loops))
        end = max((last for _, last in alive.values()), default=0)
        buffers = tuple(
            Buffer(var, *((0, end) if var.name in parts else alive[var.name]))
            for var in within.private
        )
        steps, _ = spread.steps_of(kernel.body, {kernel.axis.name})
        writes = frozenset((*assigned(kernel.body), *parts))
        made = Launch(kernel, steps, buffers, scalars_of(kernel), (), (), body, writes)
        return made if all(map(lanes.can_share, made.loops)) else None

    def _loop_at(self, block: Sequence[Stmt], position: int) -> Inner | None:
        found = self._loops.get(block[position].number)
        if found is None:
            return None
        numbers = tuple(stmt.number for stmt in block[position : position + len(found.numbers)])
        return found if numbers == found.numbers else None

    def _is_in_loop(self, stmt: Stmt) -> bool:
        """Whether the statement's sums are added up behind a loop."""
        return any(stmt.number in loop.numbers for loop in self._loops.values())

    def _lanes(self, inner: Inner) -> list[HostNode]:
        """An inner loop, the checks of its statements in front of it."""
        loops, self._loops, self._in_lanes = self._loops, {}, True
        with self._context.within(inner.axis):
            found = self.block(inner.body, outermost=False)
        self._in_lanes = False
        # What joins the parts of sums has the numbers of these: it is no such loop again.
        behind = self.block(tuple(each.behind for each in inner.sums), outermost=False)
        self._loops = loops
        return [*lanes.loop(inner, found), *behind]

    def _one_by_one(self, kernel: Kernel) -> tuple[HostNode, ...]:
        """A kernel's statements with the tensors that are private to its iterations."""
        own = {var.name for var in kernel.private}
        self._few = sizes.product(tuple(axis.extent for axis in kernel.axes))
        source, new = moments(kernel.source, self._names.fresh)
        nodes = self._without_private(own | new, kernel, source, source)
        self._few = None
        return nodes

    def _without_private(
        self, own: set[str], kernel: Kernel, source: tuple[Stmt, ...], steps: Sequence[Step]
    ) -> tuple[HostNode, ...]:
        """Other steps for the statements of a kernel, of whose private tensors ``own`` are not
        private there."""
        private, lazy, ready = self._private, dict(self._lazy), set(self._ready)
        self._private = private - own
        tensors = tensors_in((*kernel.source, *source))
        nodes: list[HostNode] = []
        for name in sorted(own - declared(source)):
            var = tensors[name]
            assert isinstance(var.type, TensorType)
            self._lazy[name] = var.type
            self._ready.discard(name)
            self._touched.discard(name)
            nodes.append(Reserve(var))
            if name in kernel.zeroed:
                nodes.append(self._allocate(name, True, False))
        nodes += self.block(steps, self._outermost)
        self._private, self._lazy, self._ready = private, lazy, ready
        return tuple(nodes)

    def _sweep(self, sweep: Sweep) -> Pass:
        """Both ways give memory to the results alone: other tensors of the statements exist in the
        one that is no sweep."""
        result = sweep.found.result.tensor
        results = (result, *sweep.found.keeps)
        mine = [var for var in results if var.name in self._lazy and var.name not in self._ready]
        before = tuple(Allocate(var, False, self._may_have_memory(var.name)) for var in mine)
        narrow = self._is_returned(result)
        otherwise = self._inner(sweep.otherwise, self._outermost)
        self._ready |= {var.name for var in mine}
        return Pass(sweep, before, otherwise, results, narrow, self._alone(operands_of(sweep)))

    def _chain(self, chain: Chain) -> Either:
        """Either way results get memory where something is written to them first."""
        operands = tuple(
            operand.tensor
            for pairs in chain.passes
            for stream in pairs.streams
            for operand in (stream.matrix, stream.own)
            if operand is not None
        )
        private, lazy, touched = self._private, dict(self._lazy), set(self._touched)
        self._private = temporaries(chain.items)
        then = self._inner(chain.items, self._outermost)
        self._private, self._lazy, self._touched = private, lazy, touched
        otherwise = self._inner(chain.otherwise, self._outermost)
        read = read_by_kernels(chain) if all(map(is_kernel, then)) else {}
        alone = self._alone((*operands, *read.values()), frozenset(read))
        return Either(chain, then, otherwise, alone, frozenset(read) & {var.name for var in alone})

    def _carry(self, step: Carrying) -> Carry:
        """Either way results get memory where something is written to them first."""
        kernel, carried = step.kernel, step.kernel.carried
        assert carried is not None
        private, lazy, touched = self._private, dict(self._lazy), set(self._touched)
        self._private = temporaries(step.items)
        self._context.counts.add(carried.teams.name)
        then = self._inner(step.items, self._outermost)
        self._private, self._lazy, self._touched = private, lazy, touched
        own = {var.name for var in kernel.private} - {var.name for var in carried.sums}
        own -= temporaries(step.otherwise)
        otherwise = self._without_private(own, kernel, step.source, step.otherwise)
        width = sizes.product(sizes.dims_of(carried.sums[0]))
        rows = sizes.product(tuple(axis.extent for axis in kernel.axes))
        bytes_ = tuple(bytes_of(var, "") for var in carried.sums)
        return Carry(carried.teams, step.wanted, rows, width, bytes_, then, otherwise)

    def _pairs(self, pairs: Pairs) -> list[HostNode]:
        nodes: list[HostNode] = []
        narrow: set[str] = set()
        for output in pairs.outputs:
            var = output.target.tensor
            if self._is_returned(var):
                narrow.add(var.name)
            else:
                nodes.append(self._allocate(var.name, False, self._may_have_memory(var.name)))
        return [*nodes, PairsPass(pairs, frozenset(narrow))]

    def _piece(self, tensor: Var, dim: int) -> Piece:
        part = Var(f"@{self._context.temporary(f'{tensor.name}_')}", tensor.type)
        return Piece(tensor, part, dim, sizes.product(self._context.dims(tensor)[dim + 1 :]))

    def _panels(self, panels: Panels) -> list[HostNode]:
        context, machine = self._context, self._context.machine
        question = self._question(panels)
        inside, count = temporaries((panels,)), panels.count
        nodes = self._allocate_for(panels, inside)
        tensors = tensors_in(panels.source)
        pieces = tuple(self._piece(tensors[name], dim) for name, dim in panels.views)
        context.counts |= {panels.count.name, panels.first.name}
        if panels.until is not None:
            context.at_least[panels.count.name] = panels.until.end
        context.start_panels({var.name for var in panels.streamed})
        lazy, self._lazy = self._lazy, {}
        reserved: list[HostNode] = []
        for var in panels.temporaries:  # new for each panel
            assert isinstance(var.type, TensorType)
            self._lazy[var.name] = var.type
            reserved.append(Reserve(var))
        with context.cut(pieces, panels.axis.extent), context.within(*moving_axes(panels)):
            body = (*reserved, *self.block(panels.body))
        self._lazy = lazy
        if panels.until is not None:
            return [*nodes, Stream(panels, (), (), 0, 1, pieces, context.end_panels(), body)]
        usual = machine.product_bytes if multiplies(body) else machine.panel_bytes
        options = (usual, usual // 4, usual * 4, usual // 16)
        cache = context.choose("panel", panels.axis.name, options, WHOLE)
        stream = Stream(
            panels,
            tuple(bytes_of(v, count.name) for v in held_in(panels) if count in sizes.dims_of(v)),
            tuple(bytes_of(var, "") for var in panels.streamed),
            cache,
            1 if any(map(are_whole_panels, panels.body)) else machine.panel_least,
            pieces, context.end_panels(), body,
            not machine.teams and panels.writes <= {name for name, _ in panels.views}, question,
            sum(count in sizes.dims_of(var) for var in held_in(panels, False)),
        )  # fmt: skip
        return [*nodes, stream]

    def _question(self, panels: Panels) -> Question | None:
        """What has to be known before the panels of rows."""
        if panels.inner is None or panels.inner.until is None:
            return None
        until, tensors = panels.inner.until, tensors_in(panels.source)
        asked = (*until.moderate.divisors, *until.moderate.tensors)
        numbers = [self._numbers(tensors[var.name]) for var in asked]
        known = tuple(own for own in numbers if own is not None)
        return Question(until, known, len(known) == len(numbers))

    def _numbers(self, tensor: Var) -> Numbers | None:
        """None where its elements are no runs that are all as far apart."""
        part, whole = self._context.part_dims(tensor), self._context.dims(tensor)
        view = self._context.views.get(tensor.name)
        cut = {} if view is None else view.whole
        dim = max(cut, default=0)
        if not cut.keys() <= {0, dim}:
            return None
        runs, length, stride = map(sizes.product, (part[:dim], part[dim:], whole[dim:]))
        return Numbers(tensor, runs, length, stride)


def reduction_statement(context: FunctionContext, reduce: Reduce) -> IndexAssign:
    """The index statement that a reduction outside of one becomes: into a new variable, or a new
    tensor of one element."""
    names = {axis.name for axis in reduce.axes}
    ragged = any(sizes.varies(axis.extent, names) for axis in reduce.axes)
    if reduce.kind == "sum" and not ragged:
        result = Var(f"@{context.temporary('sum')}", reduce.type)
        # The extents stay those of the reduction: they need not be whole dimensions.
        return IndexAssign(result, "+=", reduce, (), reduce.span)
    element = TensorType((), "int" if reduce.type == INT else "float")
    target = Index(context.temporary_tensor("element", element), (), reduce.type)
    return IndexAssign(target, "=", reduce, (), reduce.span)
