"""Fusion: runs of statements become kernels, parallel loops over an index that they share.

Inside an iteration every temporary shrinks by that dimension, so that it stays in the cache, and
whole loops (the iterations of a routing) run without looking at memory that others write. Where one
loop is not enough, the run goes through panels of the index; see
:mod:`loma.backends.kernels.panels`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from loma import config
from loma.backends.kernels.beside import beside
from loma.backends.kernels.carried import with_sums
from loma.backends.kernels.counted import counted
from loma.backends.kernels.diagonals import without_diagonals
from loma.backends.kernels.eager import with_eager_choices
from loma.backends.kernels.inner import within
from loma.backends.kernels.ir import (
    Carrying, Chain, Kernel, Nested, Step, Panels, Sweep, panels_of,
)  # fmt: skip
from loma.backends.kernels.lifetimes import in_place
from loma.backends.kernels.pairs import Pairs, region
from loma.backends.kernels.panels import InPanels, in_panels
from loma.backends.kernels.parts import worth_it
from loma.backends.kernels.private import make_kernel, make_kernel_with_sums, with_inner
from loma.backends.kernels.runs import Run, Runs
from loma.backends.kernels.sharing import (
    OUTERMOST, Around, Library, Shared, is_last, is_row,
)  # fmt: skip
from loma.backends.kernels.starts import with_starts
from loma.backends.kernels.sweeps import sweeps
from loma.core.effects import blanks
from loma.core.ir import Declare, For, Function, If, Stmt, Var, While, replace
from loma.core.names import Names, names_of
from loma.core.sizes import size_variables
from loma.core.walk import numbered, statements
from loma.passes.canonical.costly import costly_once
from loma.passes.canonical.recurrences.scans import scans
from loma.passes.device.epilogues import epilogues
from loma.passes.first_write import first_writes
from loma.passes.peeling import peeled
from loma.passes.powers import by_rounds
from loma.passes.strips import in_strips


def fuse(
    function: Function, library: Library, elements: int = 0, flat: bool = False, rounds: int = 0
) -> tuple[Step, ...]:
    """The function's body with kernels and panels; ``library`` tells which statements a backend
    hands to a library as a whole. ``elements``: so many are in the tensors that a block of rows
    goes through, where kernels have sums over their index, 0 if they have none. ``flat``: an
    iteration has one value of all indices that its statements share, as there are many threads.
    ``rounds``: loops along rows that lie side by side take so many elements of each at a time."""
    if "scans" in config.optimisations():
        function = function if flat else by_rounds(function)
        function = scans(function, ("sum",), elementwise=flat)
        function = replace(function, body=first_writes(function.body))
        apart = peeled(function)
        if apart != function:
            function = costly_once(apart, {})
    if rounds > 1 and "squares" in config.optimisations():
        function = in_strips(function, rounds)

    def steps(function: Function) -> tuple[Step, ...]:
        function = replace(function, body=numbered(beside(function).body))
        names = Names(names_of(function))
        fusion = _Fusion(function, library, names, elements=elements, flat=flat)
        return fusion.with_sweeps() if flat else fusion.run()

    if not flat:
        function = with_eager_choices(function)
    if flat:  # sweeps know scores by products that stand alone
        return steps(epilogues(counted(function), lambda stmt: library(stmt) is not None))
    function = with_starts(counted(function, few=True), library, Names(names_of(function)))
    whole, many = without_diagonals(function)
    if many and _whole(found := steps(whole)) >= many:
        return found
    return steps(function)


def _whole(steps: tuple[Step, ...]) -> int:
    """How many sums up to a diagonal are whole products."""
    around = (panels for step in steps if isinstance(step, Panels) for panels in panels_of(step))
    return sum(panels.until.whole for panels in around if panels.until is not None)


class _Fusion:
    """Panels first, in the outermost block, and panels of other axes inside of them; kernels in
    what is left. ``count``: the extent of the panels at hand, ``around``: what is known of all."""

    def __init__(
        self,
        function: Function,
        library: Library,
        names: Names,
        count: Var | None = None,
        around: Around = OUTERMOST,
        elements: int = 0,
        flat: bool = False,
    ) -> None:
        self._flat = flat
        self._sizes = frozenset(size_variables(function))
        self._function = function
        self._library = library
        self._names = names
        self._around = around
        wide = Runs(function, library, parts=True) if elements else None
        runs = Runs(function, library)
        self._kernels = _Kernels(
            runs, names, count, wide, elements, self._runs if flat else None,
            Runs(function, library, parts=True) if flat else None,
            None if flat else _declared(function.body),
        )  # fmt: skip

    def with_sweeps(self) -> tuple[Step, ...]:
        """The steps, with what one pass over columns computes by itself."""
        places, rest = sweeps(self._function, self._names)
        out: list[Step] = []
        for place in places:
            out += self.run(place.before)
            out.append(Sweep(place.found, self.run(place.source), place.source))
        found = None if places else region(self._function, self._names)
        if found is None:
            return (*out, *self.run(rest))
        items: list[Step] = []
        between: tuple[Stmt, ...] = ()
        for item in found.items:
            if isinstance(item, Pairs):
                items += [*self.run(between), item]
                between = ()
            else:
                between = (*between, item)
        chain = Chain(
            (*items, *self.run(between)), self.run(found.source), found.source, found.conditions
        )
        return (*self.run(found.before), chain, *self.run(found.behind))

    def run(self, body: tuple[Stmt, ...] | None = None) -> tuple[Step, ...]:
        runs = Runs(self._function, self._library, True, self._around)
        body = self._function.body if body is None else body
        out: list[Step] = []
        plain: list[Stmt] = []
        position = 0
        while position < len(body):
            run = runs.longest(body, position)
            nested = bool(self._around.counts)
            found = None
            if run is not None:
                is_size = None if self._flat else self._is_size
                found = in_panels(run, runs, self._names, self._inside, nested, is_size)
            if run is None or not isinstance(found, InPanels):
                end = position + 1
                # What is left of a kernel is one, too, unless more statements could join that.
                if run is not None and found is not None and runs.end_at(body, run.end):
                    end = run.end
                plain += body[position:end]
                position = end
                continue
            out += [*self._kernels.block((*plain, *run.before, *found.early)), found.panels]
            plain = list(found.late)
            position = run.end
        return (*out, *self._kernels.block(tuple(plain)))

    def _inside(
        self, body: tuple[Stmt, ...], count: Var, blank: frozenset[str], more: frozenset[str]
    ) -> tuple[Step, ...]:
        """The steps of a panel."""
        function = replace(self._function, body=numbered(body))
        around = Around(self._around.counts | {count.name} | more, blank)
        return _Fusion(function, self._library, self._names, count, around, flat=self._flat).run()

    def _is_size(self, name: str) -> bool:
        return name in self._sizes or name in self._around.counts

    def _runs(self, body: tuple[Stmt, ...]) -> Runs:
        """Those of other statements of the function."""
        return Runs(replace(self._function, body=body), self._library)


@dataclass(slots=True)
class _Kernels:
    runs: Runs
    names: Names
    count: Var | None = None  # the extent of the axis that panels around have cut
    wide: Runs | None = None  # with sums over the index
    elements: int = 0
    inside: Callable[[tuple[Stmt, ...]], Runs] | None = None  # where kernels have inner indices
    carries: Runs | None = None  # with sums over the index, where teams may carry them
    local: Collection[str] | None = None  # tensors that are declared, where rows are in a cache

    def block(
        self, block: tuple[Stmt, ...], loop: bool = False, carries: bool = True
    ) -> tuple[Step, ...]:
        """The steps of a block; ``loop``: it may run more than once; ``carries``: its kernels may
        carry sums."""
        out: list[Step] = []
        position = 0
        while position < len(block):
            carrying = None if loop or not carries else self._carrying(block, position)
            if carrying is not None:
                steps, position = carrying
                out += steps
                continue
            run = self.runs.longest(block, position)
            summed = self._summed(run, block, position, loop)
            if summed is not None:
                steps, position = summed
                out += steps
                continue
            if run is not None and _is_one_branch(run):
                run = None
            shared = None if run is None else _best(run, self.count)
            if run is None or shared is None:
                out.append(self._alone(block[position], loop))
                position += 1
                continue
            private = self.runs.temporaries(run.statements, shared, loop)
            kernel = make_kernel(run.statements, shared, private, self.names)
            kernel = self._flattened(kernel)
            if self.local is not None:
                kernel = in_place(kernel, self.local)
            if self.inside is not None:
                kernel = replace(kernel, within=within(kernel, self.names))
            out += [*run.before, kernel]
            position = run.end
        return tuple(out)

    def _flattened(self, kernel: Kernel) -> Kernel:
        """The kernel with all indices that its statements share; where loops should run along one,
        that stays."""
        if self.inside is None or kernel.count is not None:
            return kernel
        body = (*(Declare(var, None) for var in kernel.private), *kernel.body)
        runs = self.inside(body)
        run = runs.longest(body, 0)
        shared = None if run is None or run.statements != kernel.body else _best(run, None)
        if run is None or shared is None or is_row(kernel.body, shared):
            return kernel
        private = runs.temporaries(kernel.body, shared)
        if private.keys() != {var.name for var in kernel.private}:
            return kernel
        return self._flattened(with_inner(kernel, shared, private, self.names))

    def _carrying(
        self, block: tuple[Stmt, ...], position: int
    ) -> tuple[tuple[Step, ...], int] | None:
        """Statements from a position on with sums that are carried, and where they end."""
        if self.carries is None:
            return None
        found = with_sums(block, position, self.carries, self.names)
        if found is None:
            return None
        source = block[position : found.end]
        outside = tuple(stmt for stmt in found.before if stmt in source)
        inside = tuple(stmt for stmt in found.before if stmt not in source)  # of branches
        rest = tuple(stmt for stmt in source if stmt not in outside)
        items = (*inside, found.kernel, *found.behind)
        otherwise = self.block(rest, carries=False)
        step = Carrying(found.kernel, items, found.wanted, otherwise, rest)
        return (*outside, step), found.end

    def _summed(
        self, run: Run | None, block: tuple[Stmt, ...], position: int, loop: bool
    ) -> tuple[tuple[Step, ...], int] | None:
        """A kernel with sums over its index and what is behind it, up to which position, if it is
        more than the ``run`` without sums, or goes along rows where that goes down columns."""
        wide = None if self.wide is None else self.wide.longest(block, position)
        if wide is None or self.wide is None:
            return None
        shared = next((way for way in wide.ways if worth_it(wide.statements, way)), None)
        best = None if run is None else _best(run, self.count)
        covered = run is not None and best is not None and not is_row(run.statements, best)
        if shared is None or (covered and run is not None and run.end >= wide.end):
            return None
        private = self.wide.temporaries(wide.statements, shared, loop)
        made = make_kernel_with_sums(wide.statements, shared, private, self.names, self.elements)
        return (*wide.before, *made), wide.end

    def _alone(self, stmt: Stmt, loop: bool) -> Step:
        blocks: tuple[tuple[Step, ...], ...]
        match stmt:
            case If(_, then, other):
                blocks = (self.block(then, loop), self.block(other, loop))
            case For(_, _, body) | While(_, _, body):
                blocks = (self.block(body, loop=True),)
            case _:
                return stmt
        fused = any(isinstance(s, Kernel | Panels | Nested) for block in blocks for s in block)
        return Nested(stmt, blocks) if fused else stmt


def _declared(body: tuple[Stmt, ...]) -> frozenset[str]:
    """Tensors that have memory of their own."""
    return frozenset(blanks(statements(body)))


def _is_one_branch(run: Run) -> bool:
    """Whether a run is one ``if``, which is decided once, around kernels of what is in it."""
    return len(run.statements) == 1 and isinstance(run.statements[0], If)


def _best(run: Run, count: Var | None) -> Shared | None:
    """The way to share an index that leaves the last dimensions to inner loops, and of these the
    one that panels have cut, which has values left, or the outermost; None where the only ways are
    blocks, and those would have to know what other parts of a tensor hold."""

    def rank(way: Shared) -> tuple[bool, bool, int]:
        is_cut = count is not None and way.extent == count
        return is_row(run.statements, way), not is_cut, sum(dim for _, dim in way.dims)

    def is_possible(way: Shared) -> bool:
        return not (way.mixed and is_last(run.statements, way))

    return min(filter(is_possible, run.ways), key=rank, default=None)
