"""Reductions inside index statements: loops of their own, in lanes where that is possible."""

from __future__ import annotations

from collections.abc import Sequence

from loma.backends.lowering import tiles
from loma.backends.lowering.frames import Frame
from loma.backends.lowering.nest import Nest
from loma.backends.schedule.access import ZERO, reads, score
from loma.backends.schedule.ir import (
    POSITION, Accumulator, If, Kind, Lazy, Node, Note, Store, builtin,
)  # fmt: skip
from loma.core import builder as b
from loma.core.ir import INT, OF_NOTHING, POSITIONS, Axis, Binary, Element, Expr, Reduce, Var
from loma.core.walk import free_variables


class StatementNest(Nest):
    """The loops of one index statement."""

    def reduce(self, reduce: Reduce) -> Expr:
        for around in self.frames:
            if reduce in around.reductions:
                return around.reductions[reduce]
        frame = self.frame
        names = free_variables(reduce)
        before = frame.inner is not None and not self.mentions(names, frame.inner)
        accumulator = self.fresh("acc", reduce.body.type)
        # What the reduction does not change along the loop around it is computed before that loop.
        outer = Frame(None)
        self.frames.append(outer)
        inside, result = self.reduction(reduce.kind, reduce.body, reduce.axes, accumulator)
        self.frames.pop()
        nodes = [*outer.head, *inside]
        if frame.guards:
            lazy = self.fresh("lazy", reduce.type)
            frame.body.append(Lazy(lazy, tuple(nodes), result))
            return lazy
        if before:
            frame.loads = True
            frame.head.extend(nodes)
        else:
            frame.body.extend(nodes)
        frame.reductions[reduce] = result
        return result

    def reduction(
        self, kind: Kind, body: Expr, axes: Sequence[Axis], accumulator: Var
    ) -> tuple[list[Node], Expr]:
        """Loops that reduce ``body`` over the axes, and the result."""
        self.scope.extend(axes)
        inner = self.best(axes, body)
        order = [axis for axis in axes if axis is not inner] + [inner]
        dtype: Element = "int" if accumulator.type == INT else "float"
        result: Expr = accumulator
        nodes: list[Node] = []
        if kind not in OF_NOTHING and self.frame.inner is None and len(self.frames) > 1:
            nodes.append(self._has_elements(kind, axes, body))
        if kind in POSITIONS and tiles.in_lanes(self, body, axes[-1].name):
            result = Var(accumulator.name, INT)
            nodes += tiles.position(self, kind, body, axes, result, dtype)
        elif kind not in POSITIONS and tiles.in_lanes(self, body, inner.name):
            nodes += tiles.reduction(self, kind, body, order, accumulator, dtype)
        else:
            nodes.append(Accumulator(accumulator, kind, dtype))
            position = None
            if kind in POSITIONS:
                result = builtin(POSITION, accumulator)
                inner, order, position = axes[-1], list(axes), self.position(axes)

            def make() -> list[Node]:
                return [Store(accumulator, kind, self.value(body), position)]

            nodes += self.loops(order[:-1], lambda: self.innermost(inner, body, make))
        del self.scope[-len(axes) :]
        return nodes, result

    def _has_elements(self, kind: str, axes: Sequence[Axis], body: Expr) -> Node:
        number = self.check("", 0, None, kind, self.context.line(body.span))
        empty = [Binary("<=", self.value(axis.extent), ZERO, INT) for axis in axes]
        return If(b.some(empty), (Note(number),))

    def best(self, axes: Sequence[Axis], body: Expr) -> Axis:
        """The axis whose loop reads the most elements in order; the last of equals."""
        found = [
            self.access(read, padded)
            for read, _, padded in reads(body, ())
            if isinstance(read.base, Var)
        ]
        return max(reversed(axes), key=lambda axis: score(axis.name, found))
