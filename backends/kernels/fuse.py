"""Fusion: runs of statements become kernels, parallel loops over an index that they share.

Inside an iteration every temporary shrinks by that dimension, so that it stays in the cache, and
whole loops (the iterations of a routing) run without looking at memory that others write. Where one
loop is not enough, the run goes through panels of the index; see
:mod:`loma.backends.kernels.panels`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from loma.backends.kernels.ir import Kernel, Nested, Step, Panels
from loma.backends.kernels.private import make_kernel
from loma.backends.kernels.runs import Run, Runs
from loma.backends.kernels.sharing import Library, Shared, is_last, is_value
from loma.backends.kernels.panels import InPanels, in_panels
from loma.core.ir import For, Function, If, Stmt, While
from loma.core.names import Names, names_of
from loma.core.walk import numbered


def fuse(function: Function, library: Library) -> tuple[Step, ...]:
    """The function's body with kernels and panels; ``library`` tells which statements a backend
    hands to a library as a whole."""
    names = Names(names_of(function))
    function = replace(function, body=numbered(function.body))
    return _Fusion(function, library, names).run()


class _Fusion:
    """Panels first, in the outermost block; kernels in what is left and inside the panels."""

    def __init__(self, function: Function, library: Library, names: Names) -> None:
        self._function = function
        self._library = library
        self._names = names
        self._kernels = _Kernels(Runs(function, library), names)

    def run(self) -> tuple[Step, ...]:
        runs = Runs(self._function, self._library, panels=True)
        body = self._function.body
        out: list[Step] = []
        plain: list[Stmt] = []
        position = 0
        while position < len(body):
            run = runs.longest(body, position)
            found = None if run is None else in_panels(run, runs, self._names, self._inside)
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

    def _inside(self, body: tuple[Stmt, ...]) -> tuple[Step, ...]:
        """The steps of a panel."""
        function = replace(self._function, body=numbered(body))
        return _Kernels(Runs(function, self._library), self._names).block(function.body)


@dataclass(slots=True)
class _Kernels:
    runs: Runs
    names: Names

    def block(self, block: tuple[Stmt, ...], loop: bool = False) -> tuple[Step, ...]:
        """The steps of a block; ``loop``: it may run more than once."""
        out: list[Step] = []
        position = 0
        while position < len(block):
            run = self.runs.longest(block, position)
            shared = None if run is None else _best(run)
            if run is None or shared is None:
                out.append(self._alone(block[position], loop))
                position += 1
                continue
            private = self.runs.temporaries(run.statements, shared, loop)
            out += [*run.before, make_kernel(run.statements, shared, private, self.names)]
            position = run.end
        return tuple(out)

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


def _best(run: Run) -> Shared | None:
    """The way to share an index that leaves the last dimensions to inner loops, and of these the
    outermost; None where the only ways are blocks, and those would have to know more than their
    part: the value of the index, or what other parts of a tensor hold."""

    def rank(way: Shared) -> tuple[bool, int]:
        return is_last(run.statements, way), sum(dim for _, dim in way.dims)

    def is_possible(way: Shared) -> bool:
        knows_more = way.mixed or is_value(run.statements, way)
        return not (knows_more and is_last(run.statements, way))

    return min(filter(is_possible, run.ways), key=rank, default=None)
