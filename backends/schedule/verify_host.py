"""What holds of the tree of every function, its loops included; see :mod:`.verify`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import assert_never

from loma.backends.kernels.ir import Inner
from loma.backends.schedule.host import (
    Allocate, Branch, Carry, CheckOnce, CheckRange, CheckSome, Clear, Contract, Convolve, Count,
    Drop, Either, Group, GroupedContract, HostNode, Lanes, Later, Launch, PairsPass, Pass, Permute,
    Piece, Repeat, Reserve, Run, Serial, Spread, Stream, Unit, flat,
)  # fmt: skip
from loma.backends.schedule.host_printer import head
from loma.backends.schedule.ir import InPlace, Parallel
from loma.backends.schedule.verify import VerificationError, verify_tree
from loma.core.effects import declared, written
from loma.core.ir import (
    INT, Expr, For, Function, If, IndexAssign, Reduce, Stmt, TensorType, Var, While,
)  # fmt: skip
from loma.core.sizes import dims_of, size_variables
from loma.core.walk import expressions, free_variables, walk

__all__ = ["VerificationError", "verify_lowered"]


def verify_lowered(function: Function, nodes: Sequence[HostNode]) -> None:
    """Raises VerificationError unless the function's tree is well formed."""
    verifier = _Verifier(function)
    verifier.names = {p.name for p in function.params} | set(size_variables(function))
    verifier.block(nodes)


@dataclass(slots=True)
class _Verifier:
    """``names`` are those in scope. ``reserved``: tensors that get their memory later. ``writes``:
    what may be written inside of a kernel or of serial loops, None elsewhere."""

    function: Function
    names: set[str] = field(default_factory=set)
    reserved: set[str] = field(default_factory=set)
    writes: frozenset[str] | None = None
    serial: bool = False
    launched: bool = False
    node: HostNode | None = None

    def fail(self, what: str) -> VerificationError:
        where = "" if self.node is None else f", `{head(self.node)}`"
        return VerificationError(f"in the tree of '{self.function.name}'{where}: {what}")

    def require(self, condition: bool, what: str) -> None:
        if not condition:
            raise self.fail(what)

    # ----------------------------------------------------------------------------- names

    def knows(self, name: str) -> bool:
        """Whether the name is in scope; a size of a tensor is where the tensor is."""
        return name in self.names or name.rpartition(" ")[0] in self.names

    def known(self, *exprs: Expr) -> None:
        for expr in exprs:
            missing = sorted(name for name in free_variables(expr) if not self.knows(name))
            self.require(not missing, f"{', '.join(missing)} not declared")

    def ints(self, *exprs: Expr) -> None:
        self.known(*exprs)
        self.require(all(expr.type == INT for expr in exprs), "a number that is no int")

    def declare(self, var: Var) -> None:
        self.require(var.name not in self.names, f"'{var.name}' is declared already")
        self.ints(*dims_of(var))
        self.names.add(var.name)

    def tensor(self, var: Var) -> None:
        self.known(var)
        self.require(isinstance(var.type, TensorType), f"'{var.name}' is no tensor")

    def written(self, name: str) -> None:
        allowed = self.writes is None or name in self.writes
        self.require(allowed, f"'{name}' is not among what may be written here")

    @contextmanager
    def inner(self, *counters: str) -> Iterator[None]:
        """A scope of its own, with ints."""
        before = set(self.names)
        hidden = sorted(before & set(counters))
        self.require(not hidden, f"{', '.join(hidden)} hides a variable")
        self.names |= set(counters)
        yield
        self.names = before

    # ----------------------------------------------------------------------------- nodes

    def block(self, nodes: Sequence[HostNode]) -> None:
        for node in nodes:
            self.node = node
            self.visit(node)

    def inside(self, nodes: Sequence[HostNode], *counters: str) -> None:
        with self.inner(*counters):
            self.block(nodes)

    def visit(self, node: HostNode) -> None:
        match node:
            case Unit(_, body):
                self.block(body)
            case Run(stmt):
                self.run(stmt)
            case Reserve(var):
                self.declare(var)
                self.reserved.add(var.name)
            case Allocate():
                self.allocate(node)
            case Clear(var):
                self.tensor(var)
                self.written(var.name)
            case Drop(var, wanted):
                self.tensor(var)
                self.ints(wanted)
            case Permute(var, operand, order):
                self.tensor(operand)
                self.alone()
                every = list(range(len(dims_of(operand))))
                self.require(sorted(order) == every, "no order of dimensions")
                self.declare(var)
            case Later(var, body, value):
                with self.inner():
                    self.block(body)
                    self.known(value)
                self.declare(var)
            case CheckRange() | CheckSome() | CheckOnce():
                self.check(node)
            case Contract():
                self.product(node)
            case GroupedContract():
                self.tensor(node.group)
                self.ints(node.size, node.work)
                with self.inner():
                    for var in (node.place, node.start, node.count):
                        self.declare(var)
                    self.product(node.call)
                self.inside(node.otherwise)
            case Convolve():
                self.convolve(node)
            case Branch(_, condition, then, other):
                self.known(condition)
                self.inside(then)
                self.inside(other)
            case Count(source, extent, body):
                self.ints(extent)
                self.inside(body, source.counter)
            case Repeat(_, condition, body):
                self.known(condition)
                self.inside(body)
            case Serial(_, body, writes):
                self.require(not self.serial, "inside of a loop")
                before, self.serial, self.writes = self.writes, True, writes
                self.inside(body)
                self.serial, self.writes = False, before
            case Launch():
                self.launch(node)
                if node.within is not None:
                    self.launch(node.within)
            case Lanes(inner, body, few):
                self.lanes(inner, body, few)
            case Group():
                self.alone()
                self.ints(node.count)
                with self.inner():
                    for var in (node.cells, node.order, node.lengths):
                        self.declare(var)
                    self.block(node.noted)
                    self.block(node.together)
                self.inside(node.otherwise)
            case Spread(launch, iterations, work, launches, otherwise):
                self.alone()
                self.ints(iterations, work, launches)
                self.visit(launch)
                self.inside(otherwise)
            case Carry():
                self.alone()
                self.known(*node.wanted)
                self.ints(node.rows, node.width, *(many for _, many in node.bytes))
                self.inside(node.then, node.teams.name)
                self.inside(node.otherwise)
            case Stream():
                self.stream(node)
            case Pass():
                self.sweep(node)
            case PairsPass(pairs):
                self.alone()
                for output in pairs.outputs:
                    self.tensor(output.target.tensor)
            case Either(chain, then, otherwise):
                self.alone()
                self.known(*chain.conditions)
                self.inside(then)
                self.inside(otherwise)
            case Parallel() | InPlace():
                self.require(isinstance(node, InPlace) or not self.serial, "loops on other threads")
                verify_tree(node, self.knows)
                for var in node.writes:
                    self.written(var.name)
            case _:
                assert_never(node)

    def alone(self) -> None:
        """What iterations of kernels and serial loops may not do."""
        self.require(not (self.serial or self.launched), "inside of a loop")

    def run(self, stmt: Stmt) -> None:
        is_loop = isinstance(stmt, If | For | While | IndexAssign)
        self.require(not is_loop, "a statement that has a node of its own")
        self.names |= declared((stmt,))
        for expr in expressions(stmt):
            reduces = any(isinstance(node, Reduce) for node in walk(expr))
            self.require(not reduces, "a reduction has a node of its own")
            self.known(expr)
        self.names |= written((stmt,))

    def allocate(self, node: Allocate) -> None:
        self.alone()
        if node.declares:
            self.declare(node.var)
        self.tensor(node.var)
        own = node.declares or node.var.name in self.reserved
        self.require(own, f"nothing has reserved '{node.var.name}'")
        if node.wanted is not None:
            self.known(node.wanted)

    def check(self, node: CheckRange | CheckSome | CheckOnce) -> None:
        match node:
            case CheckRange(size=size, rest=rest, terms=terms, extent=extent, needs=needs):
                given = [expr for expr in (rest, extent) if expr is not None]
                self.ints(size, *given, *needs, *(e for term in terms or () for e in term))
                self.require(len(given) < 2, "an index and a subscript at once")
                self.require((rest is None) == (terms is None), "half an interval")
                with self.inner():
                    for axis in node.rows:
                        self.ints(axis.extent)
                        self.declare(Var(axis.name, INT))
                    self.ints(*node.rounds)
            case CheckSome(_, own, reduced):
                self.ints(*own, *reduced)
            case CheckOnce(cells, noted, axes, places, needs=needs):
                sizes = [size for _, size in places if size is not None]
                self.ints(*(extent for _, extent in axes), *sizes, *needs)
                self.require(len(axes) == len(dims_of(cells)), "not one cell for each point")
                with self.inner():
                    self.declare(cells)
                    self.block(noted)
            case _:
                assert_never(node)

    def product(self, node: Contract) -> None:
        self.alone()
        parts = re.split(",|->", node.equation)
        for operand, part in zip((node.left, node.right, node.target), parts, strict=True):
            self.tensor(operand.tensor)
            self.ints(*(place for _, place in operand.fixed))
            self.ints(*(value for cut in operand.cuts for value in (cut.start, cut.count)))
            rank = len(dims_of(operand.tensor)) - len(operand.fixed)
            self.require(len(part) == rank, f"'{operand.tensor.name}' has another rank")

    def convolve(self, node: Convolve) -> None:
        self.alone()
        self.ints(*node.dims, *(meeting.shift for meeting in node.spatial))
        self.require(0 < len(node.spatial) <= 2, "other than one or two dimensions of space")
        if node.bias is not None:
            self.tensor(node.bias)
            new = node.assign and not node.spreads and not node.result.cuts
            self.require(new, "a bias is added to what is no new tensor")
        for part in (node.image, node.first, node.second):
            self.tensor(part.tensor)
            own = sorted(dim for dim in part.order if dim >= 0)
            grouped = part.order[:1] != (-1,)
            count = 2 + grouped + len(node.spatial)
            complete = own == list(range(len(dims_of(part.tensor)))) and len(own) == count
            self.require(complete, f"not all dimensions of '{part.tensor.name}'")
            self.ints(*(value for cut in part.cuts for value in (cut.start, cut.count)))
            self.require({cut.dim for cut in part.cuts} <= {*own}, "there is no such dimension")

    # ------------------------------------------------------------------ kernels and panels

    def launch(self, node: Launch) -> None:
        self.alone()
        kernel = node.kernel
        self.ints(*(axis.extent for axis in kernel.axes))
        number = None if kernel.blocks is None else kernel.blocks.number
        part = [var.name for var in (kernel.count, kernel.first, number) if var is not None]
        carried = kernel.carried
        with self.inner(*part):
            self.ints(node.work)
        self.pieces(node.pieces, kernel.count is not None)
        before, self.launched = self.writes, True
        self.writes = node.writes
        with self.inner():
            for var in node.scalars:  # the variables of the function, private here
                self.known(var)
            with self.inner(*(part or [axis.name for axis in kernel.axes])):
                for buffer in node.buffers:
                    self.require(0 <= buffer.first <= buffer.last, "a life that ends before it")
                    self.declare(buffer.var)
                self.block(node.body)
                if carried is not None:
                    mine = {buffer.var for buffer in node.buffers}
                    self.require(mine >= {*carried.sums}, "sums that have no memory")
                    self.ints(carried.teams)
                    self.inside(node.end, carried.number.name)
        self.writes, self.launched = before, False

    def lanes(self, inner: Inner, body: Sequence[HostNode], few: Sequence[Expr]) -> None:
        self.require(self.launched, "an inner loop without a kernel")
        self.ints(inner.axis.extent, inner.lanes, *few)
        before = self.writes
        own = (*inner.private, *inner.rows, *(each.own for each in inner.sums))
        with self.inner(inner.axis.name):
            for var in own:
                self.declare(var)
            self.writes = None if before is None else before | {var.name for var in own}
            known = (Unit, Branch, Parallel)
            self.require(
                all(isinstance(node, known) for node in flat(body)), "no loop over elements"
            )
            self.block(body)
        self.writes = before
        for each in inner.sums:
            self.tensor(each.parts)

    def stream(self, node: Stream) -> None:
        self.alone()
        self.ints(node.panels.axis.extent, *(many for _, many in (*node.bytes, *node.operands)))
        with self.inner():
            self.block(node.before)
            self.pieces(node.pieces, True)
            if node.apart:
                parts = {piece.tensor.name for piece in node.pieces}
                shared = sorted(node.panels.writes - parts)
                self.require(not shared, f"panels that are apart share {', '.join(shared)}")
            question, until = node.question, node.panels.until
            if question is not None:
                asked = question.until.moderate
                self.ints(*asked.sizes)
                self.known(*asked.scalars)
                for numbers in question.numbers:
                    self.tensor(numbers.tensor)
                    self.ints(numbers.runs, numbers.length, numbers.stride)
            if until is not None:
                self.ints(until.exact, until.end)
            more = [] if question is None else [question.until.exact.name]
            part = [node.panels.count.name, node.panels.first.name]
            self.inside(node.body, *part, *more)

    def sweep(self, node: Pass) -> None:
        self.alone()
        self.block(node.before)
        for var in node.results:
            self.tensor(var)
            self.written(var.name)
        self.known(*node.sweep.found.conditions)
        self.inside(node.otherwise)

    def pieces(self, pieces: Sequence[Piece], allowed: bool) -> None:
        self.require(allowed or not pieces, "pieces without blocks")
        for piece in pieces:
            self.tensor(piece.tensor)
            self.require(0 <= piece.dim < len(dims_of(piece.tensor)), "there is no such dimension")
            self.ints(piece.stride)
