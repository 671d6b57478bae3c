"""Runs the trees of tensor functions on NumPy arrays: what backends make of a program, without one.

Memory that nothing has written is NaN. Iterations of kernels run in any order, on memory that the
lifetimes of their private tensors share, and may touch no element that another one writes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, assert_never

import numpy as np
from numpy.typing import NDArray
from tree_loops import run_tree
from tree_memory import Machine, Variables
from tree_reductions import is_int, poison
from tree_routines import convolve

from loma.arithmetic import grids as arith
from loma.backends.interpreter import values
from loma.backends.interpreter.arguments import bind_arguments
from loma.backends.interpreter.evaluate import evaluate
from loma.backends.interpreter.frame import Frame
from loma.backends.interpreter.interpreter import Interpreter
from loma.backends.schedule.host import (
    Allocate, Arranged, Branch, Buffer, Carry, CheckOnce, CheckRange, CheckSome, Clear, Contract,
    Convolve, Count, Drop, Either, Group, GroupedContract, HostNode, Lanes, Later, Launch, Operand,
    PairsPass, Pass, Permute, Piece, Question, Repeat, Reserve, Run, Serial, Spread, Stream, Unit,
)  # fmt: skip
from loma.backends.schedule.ir import InPlace, Parallel, dtype_of
from loma.core.effects import written
from loma.core.ir import INT, Expr, Function, Module, Return, TensorType, Var, is_tensor_function
from loma.core.sizes import dims_of
from loma.errors.spans import Span

Value = Any
Array = NDArray[Any]

MOST = 3  # values of a block or a panel


class LoweredInterpreter(Interpreter):
    """Runs tensor functions as the trees that ``lower`` makes of them, all others as they are."""

    def __init__(
        self, module: Module, lower: Callable[[Function], tuple[HostNode, ...]], seed: int = 0
    ) -> None:
        super().__init__(module)
        self._lower = lower
        self._rng = random.Random(seed)
        self._machine = Machine(self._rng)
        self._trees: dict[str, tuple[HostNode, ...]] = {}

    def call(self, name: str, *args: Value) -> tuple[Value, ...]:
        self._machine = Machine(self._rng)  # a call that fails leaves its loops behind
        return super().call(name, *args)

    def _invoke(self, frame: Frame, args: Sequence[Value]) -> tuple[Value, ...]:
        function = frame.function
        if not is_tensor_function(function):
            return super()._invoke(frame, args)
        if function.name not in self._trees:
            self._trees[function.name] = self._lower(function)
        bind_arguments(frame, args)
        frame.env = Variables({name: _dense(value) for name, value in frame.env.items()})
        host = _Host(self, frame, self._machine)
        host.nodes(self._trees[function.name])
        outs = tuple(frame.env[p.name] for p in function.params if p.mode == "Out")
        return host.results + outs


def _dense(value: Value) -> Value:
    if not isinstance(value, np.ndarray):
        return value
    return np.ascontiguousarray(value).reshape(value.shape)


def _offsets(buffers: Sequence[Buffer], sizes: Sequence[int]) -> list[int]:
    """Where private tensors lie: each as low as it meets none that is alive at the same time."""
    offsets: list[int] = []
    for buffer, size in zip(buffers, sizes, strict=True):
        taken = [
            (at, at + length)
            for other, at, length in zip(buffers, offsets, sizes, strict=False)
            if buffer.first <= other.last and other.first <= buffer.last
        ]
        offset = 0
        while behind := [end for at, end in taken if at < offset + size and offset < end]:
            offset = behind[0]
        offsets.append(offset)
    return offsets


class _Host:
    """The nodes of one call."""

    def __init__(self, owner: LoweredInterpreter, frame: Frame, machine: Machine) -> None:
        self.owner, self.frame, self.machine = owner, frame, machine
        assert isinstance(frame.env, Variables)
        self.env = frame.env
        self.results: tuple[Value, ...] = ()
        self.kept: list[Array] = []  # memory of iterations, so that no address comes twice

    def whole(self, expr: Expr) -> int:
        return int(evaluate(self.frame, expr))

    def true(self, expr: Expr) -> bool:
        return bool(arith.is_true(evaluate(self.frame, expr)))

    def shape(self, var: Var) -> tuple[int, ...]:
        return tuple(map(self.whole, dims_of(var)))

    def nodes(self, nodes: Sequence[HostNode]) -> None:
        for node in nodes:
            self.node(node)

    def node(self, node: HostNode) -> None:
        env = self.env
        match node:
            case Unit(source, body):
                self.frame.line = source.span.line or self.frame.line
                self.nodes(body)
            case Run(stmt):
                self.run(stmt)
            case Reserve(var):
                env.pop(var.name, None)
            case Allocate():
                self.allocate(node)
            case Drop(var, needed):
                if not self.true(needed):
                    del env[var.name]
            case Clear(var, if_allocated):
                if var.name in env or not if_allocated:
                    env[var.name][...] = 0
            case Permute(var, operand, order):
                env[var.name] = env[operand.name].transpose(order).copy()
            case Later(var, body, value):
                env.pop(var.name, None)
                env.lazy[var.name] = lambda: self.later(body, value)
            case CheckRange() | CheckSome() | CheckOnce():
                self.check(node)
            case Contract(target, left, right, equation, assign, into):
                product = np.einsum(equation, self.operand(left), self.operand(right), order="C")
                if into:
                    self.operand(target)[...] = (
                        product if assign else self.operand(target) + product
                    )
                else:
                    self.take(target.tensor, product, assign)
            case GroupedContract():
                self.groups(node)
            case Convolve():
                self.convolve(node)
            case Branch(_, condition, then, other):
                self.nodes(then if self.true(condition) else other)
            case Count(source, extent, body):
                span = range(self.whole(extent))
                for position in reversed(span) if source.backwards else span:
                    env[source.counter] = position
                    self.nodes(body)
            case Repeat(source, condition, body):
                self.owner._while(self.frame, source, condition, lambda: self.nodes(body))
            case Serial(_, body):
                self.nodes(body)
            case Launch(within=Launch() as within) if self.takes(within):
                self.launch(within)
            case Launch():
                self.launch(node)
            case Lanes():
                self.lanes(node)
            case Group():
                if self.machine.rng.random() < 0.5:
                    self.nodes(node.otherwise)
                else:
                    self.group(node)
            case Spread(launch, iterations, work, launches, otherwise):
                [self.whole(each) for each in (iterations, work, launches)]
                self.nodes(otherwise if self.machine.rng.random() < 0.5 else (launch,))
            case Carry():
                [self.whole(each) for each in (node.rows, node.width)]
                wanted = all(self.whole(each) for each in node.wanted)
                rows = self.whole(node.rows)
                carries = wanted and rows > 0 and self.machine.rng.random() < 0.5
                self.env[node.teams.name] = self.machine.rng.randint(1, rows) if carries else 0
                self.nodes(node.then if carries else node.otherwise)
            case Stream():
                self.stream(node)
            case Pass(otherwise=otherwise) | Either(otherwise=otherwise):
                self.nodes(otherwise)
            case PairsPass():
                raise AssertionError(node)
            case Parallel() | InPlace():
                run_tree(self.frame, node, self.machine)
            case _:
                assert_never(node)

    def group(self, node: Group) -> None:
        self.env[node.cells.name] = self.memory(self.shape(node.cells), node.cells)
        self.nodes(node.noted)
        cells = self.env[node.cells.name].reshape(-1)
        order = np.argsort(cells, kind="stable")
        first = np.concatenate([[True], np.diff(cells[order]) != 0])[: len(cells)]
        begins = np.append(np.flatnonzero(first), len(cells))
        lengths = np.zeros(len(cells), dtype=np.int64)
        lengths[first] = np.diff(begins)
        self.env[node.order.name], self.env[node.lengths.name] = order, lengths
        self.nodes(node.together)

    def groups(self, node: GroupedContract) -> None:
        group, size = self.env[node.group.name], self.whole(node.size)
        self.whole(node.work)
        exist = all(0 <= own < size for own in group)
        if not exist or self.machine.rng.random() < 0.5:
            return self.nodes(node.otherwise)
        operands = node.call.target, node.call.left, node.call.right
        tensors = [self.env[operand.tensor.name] for operand in operands]
        order = np.argsort(group, kind="stable")
        for operand, dim, tensor in zip(operands, node.rows, tensors, strict=True):
            if dim is not None:
                self.env[operand.tensor.name] = np.take(tensor, order, dim)
        for place in np.unique(group):
            self.env[node.place.name] = int(place)
            self.env[node.start.name] = int((group < place).sum())
            self.env[node.count.name] = int((group == place).sum())
            self.node(node.call)
        for operand, dim, tensor in zip(operands, node.rows, tensors, strict=True):
            if dim is not None:
                made, self.env[operand.tensor.name] = self.env[operand.tensor.name], tensor
                if operand is node.call.target:
                    tensor[(slice(None),) * dim + (order,)] = made
        return None

    def operand(self, operand: Operand) -> Any:
        """A view, or zeros that nobody looks at for places that there are not."""
        found = self.frame.env[operand.tensor.name]
        places = {dim: (self.whole(place), 1) for dim, place in operand.fixed}
        places |= {c.dim: (self.whole(c.start), self.whole(c.count)) for c in operand.cuts}
        shape = [places[k][1] if k in places else size for k, size in enumerate(found.shape)]
        if all(0 <= at <= found.shape[dim] - n for dim, (at, n) in places.items()):
            begin = [places.get(k, (0, 0))[0] for k in range(found.ndim)]
            spans = zip(begin, shape, strict=True)
            found = found[tuple(slice(at, at + count) for at, count in spans)]
        else:
            found = np.zeros(shape)
        return found.squeeze(tuple(dim for dim, _ in operand.fixed))

    # ---------------------------------------------------------------------------- statements

    def run(self, stmt: Any) -> None:
        if isinstance(stmt, Return):
            self.results = self.owner._results(self.frame, self.returned(stmt))
        else:
            self.owner._run(self.frame, stmt)
            for name in written((stmt,)):
                self.env[name] = _dense(self.env[name])

    def returned(self, stmt: Return) -> Return:
        """Results that nothing has given memory, because nobody wants them, are zero."""
        for value in stmt.values:
            if isinstance(value, Var) and isinstance(value.type, TensorType):
                missing = value.name not in self.env and value.name not in self.env.lazy
                if missing:
                    self.env[value.name] = values.zero(value.type, self.shape(value), {})
        return stmt

    def later(self, body: Sequence[HostNode], value: Expr) -> Value:
        self.nodes(body)
        return evaluate(self.frame, value)

    # -------------------------------------------------------------------------------- memory

    def allocate(self, node: Allocate) -> None:
        var = node.var
        if node.wanted is not None and not self.true(node.wanted):
            return
        if node.unless and var.name in self.env:
            return
        array = self.memory(self.shape(var), var)
        if node.zeros:
            array[...] = 0
        self.env[var.name] = array

    def memory(self, shape: tuple[int, ...], var: Var) -> Array:
        if any(size < 0 for size in shape):
            raise ValueError(f"'{var.name}' would have the shape {list(shape)}")
        array = np.full(shape, poison(dtype_of(var)))
        if self.machine.loops:
            self.kept.append(array)
        return array

    def take(self, target: Var, value: Array, assign: bool) -> None:
        if assign:
            self.env[target.name] = array = self.memory(value.shape, target)
            array[...] = value
        else:
            self.env[target.name] += value

    def convolve(self, node: Convolve) -> None:
        operands = [
            self.part(part) if part.tensor.name in self.env else None
            for part in (node.image, node.first, node.second)
        ]
        start = np.zeros([self.whole(dim) for dim in node.shape])
        if node.bias is not None:
            axes = [node.first.order[k] for k in (0, 2) if node.first.order[k] >= 0]
            own = self.env[node.bias.name].transpose(np.argsort(axes))
            start += own.reshape([n if k in axes else 1 for k, n in enumerate(start.shape)])
        operands[0 if node.spreads else 1] = start
        shifts = [self.whole(meeting.shift) for meeting in node.spatial]
        found = convolve(node, operands, shifts)
        if not node.result.cuts:
            self.take(node.result.tensor, found, node.assign)
        elif node.assign:
            self.part(node.result)[...] = found
        else:
            part = self.part(node.result)
            part += found

    def part(self, part: Arranged) -> Array:
        array: Array = self.env[part.tensor.name]
        for one in part.cuts:
            start, count = self.whole(one.start), max(0, self.whole(one.count))
            if one.padded:
                margins = [(0, 0)] * array.ndim
                ends = max(0, -start), max(0, start + count - array.shape[one.dim])
                margins[one.dim] = ends
                array, start = np.pad(array, margins), start + ends[0]
            array = array[(*[slice(None)] * one.dim, slice(start, start + count))]
        return array

    # -------------------------------------------------------------------------------- checks

    def check(self, node: CheckRange | CheckSome | CheckOnce) -> None:
        place = self.frame.place(Span(node.line))
        match node:
            case CheckRange(tensor, dim, size, text):
                if all(self.whole(extent) > 0 for extent in node.needs) and not self.inside(node):
                    raise ValueError(
                        f"{place}: '{text}' leaves dimension {dim} of '{tensor}', of size "
                        f"{self.whole(size)}"
                    )
            case CheckSome(kind, own, reduced):
                some = all(self.whole(extent) > 0 for extent in own)
                if some and any(self.whole(extent) == 0 for extent in reduced):
                    raise ValueError(f"{place}: '{kind}' of no elements")
            case CheckOnce(cells, noted, axes, _, target, _, _, needs):
                if any(self.whole(extent) <= 0 for extent in needs):
                    return
                shape = tuple(self.whole(extent) for _, extent in axes)
                self.env[cells.name] = self.memory(shape, cells)
                self.nodes(noted)
                known = self.env[cells.name][self.env[cells.name] >= 0]
                if len(np.unique(known)) < known.size:
                    raise ValueError(f"{place}: '{target}' is assigned twice")
            case _:
                assert_never(node)

    def inside(self, node: CheckRange) -> bool:
        size = self.whole(node.size)
        if node.extent is not None:
            return self.whole(node.extent) == size
        if node.rest is None:
            return size > 0
        low = high = self.whole(node.rest)
        for coefficient, extent in node.terms or ():
            count = self.whole(extent)
            if count <= 0:
                return True
            end = self.whole(coefficient) * (count - 1)
            low, high = low + min(end, 0), high + max(end, 0)
        return low >= 0 and high < size

    # ---------------------------------------------------------------------- kernels and panels

    def launch(self, node: Launch) -> None:
        """Teams that carry sums take iterations in turns, one team after another."""
        carried = node.kernel.carried
        if carried is None:
            self.iterations(node)
            return
        teams = self.whole(carried.teams)
        extent = self.whole(node.kernel.axis.extent)
        assert 0 < teams <= extent
        before = self.env.keys() | set()
        for number in self.machine.shuffled(range(teams)):
            for var in carried.sums:
                self.env[var.name] = np.zeros(self.shape(var))
                self.kept.append(self.env[var.name])
            self.iterations(node, (number, teams))
            self.env[carried.number.name] = number
            self.nodes(node.end)
        for name in self.env.keys() - before:
            del self.env[name]

    def takes(self, within: Launch) -> bool:
        """Whether a kernel with inner loops runs: if one of them is got to, and each has something
        to do, perhaps."""
        reached = [all(map(self.whole, node.inner.under)) for node in within.loops]
        if not any(reached):
            return False
        some = [
            self.whole(extent) > 0
            for node in within.loops
            for extent in (node.inner.axis.extent, node.inner.lanes, *node.few)
        ]
        return all(some) and self.machine.rng.random() < 0.5

    def lanes(self, node: Lanes) -> None:
        """Values in any order. Each adds to sums of its own, and the first part of all is whole in
        the end."""
        inner = node.inner
        totals = {each.own.name: np.zeros(self.shape(each.own)) for each in inner.sums}
        own = (*inner.private, *inner.rows, *(each.own for each in inner.sums))
        watched = self.machine.watched
        self.machine.watched = watched | {var.name for var in own}
        for value in self.machine.shuffled(range(self.whole(inner.axis.extent))):
            self.env[inner.axis.name] = value
            for var in own:
                start = 0.0 if var.name in totals else np.nan
                self.env[var.name] = np.full(self.shape(var), start)
                self.kept.append(self.env[var.name])
            self.nodes(node.body)
            for name, total in totals.items():
                total += self.env[name]
        self.machine.watched = watched
        for name in {inner.axis.name, *(var.name for var in own)}:
            self.env.pop(name, None)
        for each in inner.sums:
            self.env[each.parts.name][0] = totals[each.own.name]

    def iterations(self, node: Launch, of: tuple[int, int] = (0, 1)) -> None:
        """``of``: of a team, and how many there are."""
        kernel, machine = node.kernel, self.machine
        extent, before = self.whole(kernel.axis.extent), dict(self.env)
        # An iteration of a team adds to what the one before has left.
        order = machine.shuffled if kernel.carried is None else list
        watched, machine.watched = machine.watched, machine.watched | node.writes
        if kernel.count is None:
            shape = [max(self.whole(axis.extent), 0) for axis in kernel.axes]
            for number in order(range(of[0], math.prod(shape), of[1])):
                place = map(int, np.unravel_index(number, shape))
                self.env |= zip([axis.name for axis in kernel.axes], place, strict=True)
                self.iteration(node)
        else:
            most = 1 if node.single else MOST
            parts = list(machine.pieces(0, extent, most))
            if kernel.blocks is not None:
                size = self.whole(kernel.blocks.size)
                parts = [(k, min(size, extent - k)) for k in range(0, extent, size)]
            for number in order(range(of[0], len(parts), of[1])):
                first, count = parts[number]
                assert kernel.first is not None
                if kernel.blocks is not None:
                    self.env[kernel.blocks.number.name] = number
                self.env |= {kernel.count.name: count, kernel.first.name: first}
                with self.cut(node.pieces, first, count):
                    self.iteration(node)
        machine.watched = watched
        for name in {v.name for v in node.scalars} | {b.var.name for b in node.buffers}:
            self.env.pop(name, None)
            if name in before:
                self.env[name] = before[name]

    def iteration(self, node: Launch) -> None:
        """Private tensors lie where those lie that are not alive at the same time."""
        carried = node.kernel.carried
        sums = () if carried is None else carried.sums
        buffers = [buffer for buffer in node.buffers if buffer.var not in sums]
        sizes = [int(np.prod(self.shape(buffer.var))) for buffer in buffers]
        offsets = _offsets(buffers, sizes)
        ends = [offset + size for offset, size in zip(offsets, sizes, strict=True)]
        memory = np.full(max(ends, default=0), np.nan)
        self.kept.append(memory)
        for buffer, begin, end in zip(buffers, offsets, ends, strict=True):
            own = memory[begin:end]
            own = own.view(np.int64) if is_int(dtype_of(buffer.var)) else own
            self.env[buffer.var.name] = own.reshape(self.shape(buffer.var))
        for var in node.scalars:
            self.env[var.name] = poison("int" if var.type == INT else "float")
        self.nodes(node.body)

    def stream(self, node: Stream) -> None:
        panels = node.panels
        self.nodes(node.before)
        if node.question is not None:
            self.env[node.question.until.exact.name] = self.is_moderate(node.question)
        if panels.until is not None:
            exact = self.env[panels.until.exact.name]
            many = self.whole(panels.until.end if exact else panels.axis.extent)
            self.env |= {panels.count.name: many, panels.first.name: 0}
            with self.cut(node.pieces, 0, many):
                self.nodes(node.body)
            return
        parts = list(self.machine.pieces(0, self.whole(panels.axis.extent), MOST))
        order = self.machine.shuffled(range(len(parts))) if node.apart else range(len(parts))
        for first, count in (parts[number] for number in order):
            self.env |= {panels.count.name: count, panels.first.name: first}
            with self.cut(node.pieces, first, count):
                self.nodes(node.body)

    def is_moderate(self, question: Question) -> bool:
        asked = question.until.moderate
        if not question.possible or not all(
            1 <= self.whole(size) <= asked.long for size in asked.sizes
        ):
            return False
        values = [abs(np.asarray(self.env[n.tensor.name])) for n in question.numbers]
        divisors = values[: len(asked.divisors)]
        values += [abs(np.asarray(self.env[var.name])) for var in asked.scalars]
        return all(bool(np.all(v <= asked.most)) for v in values) and all(
            bool(np.all(v >= 1 / asked.most)) for v in divisors
        )

    @contextmanager
    def cut(self, pieces: Sequence[Piece], first: int, count: int) -> Iterator[None]:
        """Tensors are parts of themselves."""
        env, parts = self.env, self.machine.parts
        whole = {piece.tensor.name: env[piece.tensor.name] for piece in pieces}
        before = dict(parts)
        for piece in pieces:
            name, array = piece.tensor.name, whole[piece.tensor.name]
            memory = parts.get(name)
            memory = array.reshape(-1) if memory is None else memory
            parts[name] = memory[first * self.whole(piece.stride) :]
            env |= {f"{name} {k}": size for k, size in enumerate(array.shape)}
            taken = [slice(None)] * array.ndim
            taken[piece.dim] = slice(first, first + count)
            env[name] = array[tuple(taken)]
        yield
        parts.clear()
        parts.update(before)
        env |= whole
