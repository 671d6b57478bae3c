"""Functions to trees: where memory comes from, what runs in which loop, what a library computes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

from loma import errors
from loma.backends.kernels.beside import reads_beside
from loma.backends.kernels.ir import (
    Carrying, Chain, Inner, Kernel, Nested, Panels, Step, Sweep, Within, as_statement, panels_of,
    statements_of, temporaries,
)  # fmt: skip
from loma.backends.kernels.lifetimes import lifetimes
from loma.backends.kernels.pairs import Pairs
from loma.backends.kernels.sharing import mentions
from loma.backends.kernels.sweeps import mentioned_in
from loma.backends.lowering import joined, lanes, running, spread, together
from loma.backends.lowering.index_statements import index_statement, library_call
from loma.backends.lowering.masked import in_masked_lanes
from loma.backends.lowering.once import once_checks
from loma.backends.lowering.serial import is_serial, tensors_in
from loma.backends.schedule import storage
from loma.backends.schedule.choices import WHOLE
from loma.backends.schedule.context import FunctionContext, KernelScope
from loma.backends.schedule.convolution import with_bias
from loma.backends.schedule.counts import with_counts
from loma.backends.schedule.host import (
    Allocate, Branch, Buffer, Bytes, Carry, Clear, Contract, Convolve, Count, Drop, Either,
    HostNode, Later, Launch, Numbers, PairsPass, Pass, Piece, Question, Repeat, Reserve, Run,
    Serial, Spread, Stream, Unit,
)  # fmt: skip
from loma.backends.schedule.ir import Parallel
from loma.core import sizes
from loma.core.distinct import fill_together
from loma.core.effects import assigned, declared, written_places
from loma.core.ir import (
    INT, Assign, AtomicAdd, Axis, Binary, Declare, Expr, For, Function, If, Index, IndexAssign,
    IntConst, Pop, Push, Reduce, Return, Stmt, TensorType, Var, While, Zero,
)  # fmt: skip
from loma.core.names import Names, names_of
from loma.core.walk import (
    blocks, map_children, map_expressions, mentioned_names, own_names, reads_elements, root,
    substitute, walk, without_no_diff,
)  # fmt: skip
from loma.passes import peeling
from loma.passes.device.moments import moments
from loma.passes.liveness import Liveness


def lower(context: FunctionContext, steps: tuple[Step, ...]) -> tuple[HostNode, ...]:
    """The tree of the context's function, whose fused body the steps are, for its machine."""
    passes = tuple(step for step in steps if isinstance(step, Sweep | Chain))
    tree = Lowering(context, temporaries(steps), passes).block(steps)
    return with_counts(context, in_masked_lanes(context, tree))


class Lowering:
    """Makes the nodes of one function.

    ``private`` are tensors that live inside kernels and panels alone. ``ready`` are the declared
    tensors that surely have memory where the lowering stands, ``touched`` those that an earlier
    statement may have given some. ``outermost``: what it stands in runs at most once.
    """

    def __init__(
        self, context: FunctionContext, private: set[str], passes: tuple[Sweep | Chain, ...]
    ) -> None:
        self._context = context
        self._passes = passes
        self._private = private
        self._lazy: dict[str, TensorType] = {}  # declared and not allocated then
        self._ready: set[str] = set()
        self._touched: set[str] = set()
        self._outermost = True
        self._current: Stmt | None = None
        self._loops: dict[
            int, Inner
        ] = {}  # of the kernel that is lowered, by their first statements
        self._in_lanes = False
        self._names = Names(names_of(context.function))
        self._few: Expr | None = None  # iterations of a kernel whose statements are lowered alone
        # In a backward function an adjoint that nobody wants stays undefined: its last parameters
        # say which results are wanted.
        function = context.function
        is_backward = function.half == "backward"
        self._needs = function.params[-len(function.results) :] if is_backward else ()
        self._guarded = _guarded(function) if self._needs and function.results else {}
        self._dropped: dict[str, Var] = {}  # of these, what has memory that nothing may have filled

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

    # ------------------------------------------------------------------------------- memory

    def _prepare(self, stmt: Stmt) -> tuple[list[HostNode], bool]:
        """Memory for what the statement uses for the first time. Whether its target is all zero
        still, so that an index statement may assign instead of adding."""
        fresh = False
        nodes: list[HostNode] = []
        for name in sorted(own_names(stmt)):
            if isinstance(stmt, Return) and name in self._dropped:
                nodes.append(Drop(Var(name, self._lazy[name]), self._dropped[name]))
            if name not in self._lazy or name in self._ready:
                continue
            if isinstance(stmt, Return) and self._needs:
                nodes += self._wanted(stmt, name)
                continue
            unknown = self._may_have_memory(name)
            if storage.is_whole(stmt, name) and storage.overwrites(stmt, name):
                self._ready.add(name)
                continue
            made = (
                isinstance(stmt, IndexAssign)
                and name == root(stmt.target)
                and _is_new(library_call(stmt, self._context.machine))
            )
            whole = made or storage.overwrites(stmt, name)
            adds = isinstance(stmt, IndexAssign) and stmt.op == "+="
            blank = whole and not (adds and unknown)
            fresh = fresh or (blank and not unknown)
            self._ready.add(name)
            if blank and made:
                continue  # the result is a new tensor
            nodes.append(self._allocate(name, not blank, unknown))
        return nodes, fresh

    def _may_have_memory(self, name: str) -> bool:
        return not self._outermost or name in self._touched

    def _allocate(self, name: str, zeros: bool, unless: bool) -> Allocate:
        """Memory for a declared tensor, ``unless`` a statement before has given it any."""
        self._ready.add(name)
        return Allocate(Var(name, self._lazy[name]), zeros, unless)

    def _wanted(self, stmt: Return, name: str) -> list[HostNode]:
        """Memory for a result that no statement before has written to, if it is wanted."""
        var = Var(name, self._lazy[name])
        return [
            Allocate(var, True, True, Var(need.name, need.type))
            for value, need in zip(stmt.values, self._needs, strict=True)
            if value == Var(name, value.type)
        ]

    def _allocate_for(self, step: Kernel | Panels, private: set[str]) -> list[HostNode]:
        """Memory for what outlives a kernel and is used there for the first time."""
        written = frozenset(self._lazy) - private
        _, before_all = Liveness(()).block(step.source, written)
        names = mentioned_names(step.source)
        sums = {n for p in panels_of(step) for n in p.sums} if isinstance(step, Panels) else set()
        nodes: list[HostNode] = []
        for name in sorted((names & written) - self._ready):
            unknown = self._may_have_memory(name)
            before, need = before_all, self._guarded.get(name)
            own = [stmt for stmt in step.source if name in mentioned_names((stmt,))]
            guarded = [isinstance(stmt, If) and stmt.cond == need for stmt in own]
            if need is not None and all(guarded):
                own = [inner for stmt in own if isinstance(stmt, If) for inner in stmt.then]
                _, before = Liveness(()).block(tuple(own), frozenset({name}))
            whole = name not in before or fill_together(_assignments(own), name) > 0
            whole = whole or (len(own) > 1 and peeling.fill_together(own[0], own[1], name))
            blank = whole and name not in sums and not unknown
            nodes.append(self._allocate(name, not blank, unknown))
            if blank and need is not None and all(guarded):
                self._dropped[name] = need
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
        bytes_ = tuple(_bytes(var, count) for var in private.values())
        if kernel.rows and not context.machine.teams:
            bytes_ += tuple(_bytes_of_rows(kernel, tensors))
        cleared: list[HostNode] = [Clear(private[name]) for name in sorted(kernel.zeroed)]
        lazy, self._lazy = self._lazy, {}  # all that its statements use is allocated
        with context.cut(pieces, extent), context.within(*_moving(kernel)):
            body = (*cleared, *self.block(kernel.body, outermost=False))
            end = self.block(_last(kernel), outermost=False)
        self._lazy = lazy
        context.kernel = None
        alive = lifetimes(kernel, (*registers, *_in_one_loop(body)))
        buffers = tuple(Buffer(var, *alive[name]) for name, var in private.items())
        steps, _ = spread.steps_of(kernel.body, {kernel.axis.name})
        launch = Launch(
            kernel, steps, buffers, _scalars(kernel), pieces,
            bytes_, body, frozenset(assigned((*kernel.body, *_last(kernel)))),
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
        with context.within(*_moving(kernel)):
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
        made = Launch(kernel, steps, buffers, _scalars(kernel), (), (), body, writes)
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
        return Pass(sweep, before, otherwise, results, narrow, self._alone(_operands(sweep)))

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
        read = _read_by_kernels(chain) if all(map(_is_kernel, then)) else {}
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
        bytes_ = tuple(_bytes(var, "") for var in carried.sums)
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

    def _alone(
        self, operands: tuple[Var, ...], read: frozenset[str] = frozenset()
    ) -> tuple[Var, ...]:
        """The operands that are arguments, and no more than operands of passes, or ``read`` beside
        them."""
        found = {var.name: var for var in operands if self._is_operand(var.name, read)}
        return tuple(found.values())

    def _is_operand(self, name: str, read: frozenset[str]) -> bool:
        own = {as_statement(step): step for step in self._passes}
        for stmt in self._context.function.body:
            if name in mentioned_names((stmt,)):
                step = own.get(stmt)
                if step is None or (name in _read_besides(step) and name not in read):
                    return False
        return any(p.name == name and p.mode == "In" for p in self._context.function.params)

    def _is_returned(self, result: Var) -> bool:
        """Whether a tensor is fresh, and all that happens to it behind its pass is its return."""
        name, outside = result.name, 0
        own = {as_statement(step) for step in self._passes}
        for stmt in self._context.function.body:
            if stmt in own or isinstance(stmt, Declare):
                continue
            values = stmt.values if isinstance(stmt, Return) else ()
            plain = [value for value in values if isinstance(value, Var) and value.name == name]
            if name in mentioned_names((stmt,)) and len(plain) != 1:
                return False
            outside += len(plain)
        return outside == 1 and name in self._lazy and name not in self._touched

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
        with context.cut(pieces, panels.axis.extent), context.within(*_moving(panels)):
            body = (*reserved, *self.block(panels.body))
        self._lazy = lazy
        if panels.until is not None:
            return [*nodes, Stream(panels, (), (), 0, 1, pieces, context.end_panels(), body)]
        usual = machine.product_bytes if _multiplies(body) else machine.panel_bytes
        options = (usual, usual // 4, usual * 4, usual // 16)
        cache = context.choose("panel", panels.axis.name, options, WHOLE)
        stream = Stream(
            panels,
            tuple(_bytes(var, count.name) for var in _held(panels) if count in sizes.dims_of(var)),
            tuple(_bytes(var, "") for var in panels.streamed),
            cache,
            1 if any(map(_are_whole_panels, panels.body)) else machine.panel_least,
            pieces, context.end_panels(), body,
            not machine.teams and panels.writes <= {name for name, _ in panels.views}, question,
            sum(count in sizes.dims_of(var) for var in _held(panels, False)),
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


def _operands(sweep: Sweep) -> tuple[Var, ...]:
    found = sweep.found
    return tuple(e.tensor for e in (found.scores.query, found.scores.key, found.values))


def _guarded(function: Function) -> dict[str, Var]:
    """The results of a backward function that nothing mentions but where they are wanted, and the
    parameters that say so."""
    body, last = list(statements_of(function.body[:-1])), function.body[-1]
    assert isinstance(last, Return)
    names = [value.name if isinstance(value, Var) else "" for value in last.values]
    found: dict[str, Var] = {}
    for name, param in zip(names, function.params[-len(names) :], strict=True):
        need = Var(param.name, param.type)
        using = [
            stmt
            for stmt in body
            if name in mentioned_names((stmt,)) and not isinstance(stmt, Declare)
        ]
        inside = all(isinstance(s, If) and s.cond == need and not s.other for s in using)
        if inside and names.count(name) == 1:
            found[name] = need
    return found


def _assignments(statements: Sequence[Stmt]) -> list[Stmt]:
    """The first statements, as far as they assign."""
    return list(
        takewhile(lambda stmt: isinstance(stmt, IndexAssign) and stmt.op == "=", statements)
    )


def _read_besides(step: Sweep | Chain) -> frozenset[str]:
    """The tensors that something but a product of a pass reads."""
    if isinstance(step, Sweep):
        return mentioned_in(step.found)
    found: set[str] = set()
    for item in step.items:
        if isinstance(item, Pairs):
            nodes = [node for output in item.outputs for node in walk(output.weight)]
            found |= {root(node) for node in nodes if isinstance(node, Index)}
        else:
            found |= mentioned_names((as_statement(item),))
    return frozenset(found)


def _read_by_kernels(chain: Chain) -> dict[str, Var]:
    """The tensors of floats that statements beside a chain's passes read, and weights do not."""
    found: dict[str, Var] = {}
    written: set[str] = set()
    for item in chain.items:
        if isinstance(item, Pairs):
            outputs = (node for output in item.outputs for node in walk(output.weight))
            written |= {root(node) for node in outputs if isinstance(node, Index)}
            continue
        statement = as_statement(item)
        written |= set(assigned((statement,)))
        found |= tensors_in((statement,))
    return {
        name: var
        for name, var in found.items()
        if name not in written
        and isinstance(var.type, TensorType)
        and var.type.element == "float"
        and var.type.dims
    }


def _is_kernel(node: HostNode) -> bool:
    """Whether a node is nothing but kernels that read tensors of the outside element by element."""
    match node:
        case Reserve() | Allocate() | PairsPass() | Parallel():
            return True
        case Unit(_, body):
            return all(map(_is_kernel, body))
        case Launch():
            return not node.pieces
        case Spread(launch, otherwise=otherwise):
            return _is_kernel(launch) and all(map(_is_kernel, otherwise))
        case _:
            return False


def _in_one_loop(nodes: Sequence[HostNode]) -> Iterator[tuple[Stmt, ...]]:
    """The statements that run in one loop with others."""
    for node in nodes:
        match node:
            case Unit(source, more=more) if more:
                yield (source, *more)
            case Count(_, _, body):
                yield from _in_one_loop(body)
            case Branch(_, _, then, other):
                yield from _in_one_loop((*then, *other))
            case _:
                continue


def _last(kernel: Kernel) -> tuple[Stmt, ...]:
    return () if kernel.carried is None else kernel.carried.end


def _moving(step: Kernel | Panels) -> list[Axis]:
    """What differs between the iterations of a kernel or panels: the index, or the first value and
    the number of a block."""
    team = []
    if isinstance(step, Kernel) and step.carried is not None:
        team = [Axis(step.carried.number.name, step.carried.teams)]
    if step.first is None or step.count is None:
        return [*team, *step.axes] if isinstance(step, Kernel) else [step.axis]
    last = Binary("-", step.axis.extent, step.count, INT)
    found = [*team, Axis(step.first.name, Binary("+", last, IntConst(1), INT))]
    if isinstance(step, Kernel) and step.blocks is not None:
        found.append(Axis(step.blocks.number.name, step.blocks.count))
    return found


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


def _is_new(call: Contract | Convolve | None) -> bool:
    """Whether a library gives a statement's target as a new tensor."""
    if isinstance(call, Contract):
        return call.target.is_whole
    return call is not None and not call.result.cuts


def _bytes(var: Var, count: str) -> Bytes:
    """The elements of a tensor; those of one value of the axis where ``count`` names its extent."""
    assert isinstance(var.type, TensorType)
    dims = [dim for dim in var.type.dims or () if not (isinstance(dim, Var) and dim.name == count)]
    return var.type.element, sizes.product(tuple(dims))


def _bytes_of_rows(kernel: Kernel, tensors: Mapping[str, Var]) -> Iterator[Bytes]:
    """The elements of a row of each tensor that the statements of a kernel go through more than
    once: with what is private they stay in the cache from one statement to the next."""
    found = mentions(kernel.body)
    for name, dim in kernel.views:
        type_ = tensors[name].type
        assert isinstance(type_, TensorType)
        dims = type_.dims or ()
        if found[name] > 1 and len(dims) > 1:
            yield type_.element, sizes.product((*dims[:dim], *dims[dim + 1 :]))


def _multiplies(nodes: Sequence[HostNode]) -> bool:
    """Whether the library multiplies matrices for the nodes."""
    for node in nodes:
        match node:
            case Contract():
                return True
            case Unit(body=body) | Stream(body=body) if _multiplies(body):
                return True
            case Branch(then=then, other=other) if _multiplies((*then, *other)):
                return True
    return False


def _are_whole_panels(step: Step) -> bool:
    return isinstance(step, Panels) and step.until is None


def _held(panels: Panels, inside: bool = True) -> Iterator[Var]:
    """What lives in a panel, also in kernels; in panels ``inside`` of it, as if they were one,
    behind the rest."""
    yield from panels.temporaries
    for step in panels.body:
        if isinstance(step, Kernel) and step.count is None:
            yield from step.private
    for step in panels.body:
        if inside and isinstance(step, Panels):
            whole = {step.count.name: step.axis.extent}
            for var in _held(step):
                assert isinstance(var.type, TensorType)
                dims = tuple(substitute(dim, whole) for dim in sizes.dims_of(var))
                yield Var(var.name, replace(var.type, dims=dims))


def _scalars(kernel: Kernel) -> tuple[Var, ...]:
    """Scalars that the kernel changes: every thread has its own."""
    places = (place for place in written_places(kernel.body) if isinstance(place, Var))
    return tuple({p.name: p for p in places if not isinstance(p.type, TensorType)}.values())
