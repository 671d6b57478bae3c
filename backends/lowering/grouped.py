"""Additions to elements that data name (``y[p[i], d] += x[i, d]``), of which several may be one
element: what belongs to one element is added up in a loop, in the order in which the statement has
it, and elements are independent.

The element of each addition is a number, its cell. Where these are sorted, with the additions to
one cell in their order, those to a cell stand side by side: the first of each begins a loop over
all of them, the others have nothing to do.
"""

from __future__ import annotations

from dataclasses import replace

from loma.backends.lowering.plan import own_elements, reads_target, target_axes
from loma.backends.schedule.access import cell
from loma.backends.schedule.context import FunctionContext
from loma.backends.schedule.ir import (
    OF_TILES, QUOTIENT, REMAINDER, AllReduce, If, Kind, Let, Loop, Node, Parallel, builtin,
)  # fmt: skip
from loma.backends.schedule.marks import HELD, mark_of, unmarked
from loma.backends.schedule.walk import map_blocks
from loma.core import builder as b
from loma.core import sizes
from loma.core.ir import (
    INT, Axis, Binary, Builtin, Expr, Index, IndexAssign, IntConst, TensorType, Var, ZeroPad,
)  # fmt: skip
from loma.core.walk import map_children, substitute


def are_additions(
    stmt: IndexAssign, kind: Kind, body: Expr, axes: tuple[Axis, ...], assign: bool
) -> bool:
    """Whether a statement may add to an element several times, and which ones tells a number
    that follows from some axes alone."""
    target = stmt.target
    if not isinstance(target, Index) or kind != "sum" or assign or reads_target(target, body):
        return False
    own = own_elements(stmt)
    met = target_axes(stmt) - own
    fixed = [axis for axis in stmt.axes if axis.name in own | met]
    names = {axis.name for axis in axes}
    if not met or any(sizes.mentions(axis.extent, names) for axis in fixed):
        return False
    mixed = [sub for sub in target.subscripts if sizes.mentions(sub, met)]
    return not any(sizes.mentions(sub, own) for sub in mixed)


class Additions:
    """A statement that adds to elements which its ``axes``, those of ``count`` points, name."""

    def __init__(
        self, context: FunctionContext, stmt: IndexAssign, body: Expr, axes: tuple[Axis, ...]
    ) -> None:
        """``axes`` are all of the statement's, ``body`` is what it sums over those that its target
        lacks."""
        own, named = own_elements(stmt), target_axes(stmt)
        self._stmt, self._body = stmt, body
        self._all = axes
        self.axes = tuple(a for a in stmt.axes if a.name in named and a.name not in own)
        self._own = tuple(a for a in stmt.axes if a.name in own)
        self._summed = tuple(a for a in axes if a.name not in named)
        self._names = {axis.name for axis in self.axes}
        self.count = sizes.product(tuple(axis.extent for axis in self.axes))
        many = TensorType((self.count,), "int")
        shape = TensorType(tuple(axis.extent for axis in self.axes), "int")
        self.cells = context.temporary_tensor("cells", shape)
        self.order = context.temporary_tensor("order", many)
        self.lengths = context.temporary_tensor("lengths", many)
        self._first = Var(f"@{context.temporary('first')}", INT)
        self._next = Var(f"@{context.temporary('next')}", INT)

    def noted(self, context: FunctionContext) -> IndexAssign:
        """The statement that fills the cells."""
        target = self._stmt.element
        dims = context.dims(target.base)
        parts = [
            (unmarked(sub), dims[d])
            for d, sub in enumerate(target.subscripts)
            if sizes.mentions(sub, self._names)
        ]
        place = Index(self.cells, tuple(Var(axis.name, INT) for axis in self.axes), INT)
        return IndexAssign(place, "=", cell(parts), self.axes, self._stmt.span)

    def together(self) -> tuple[IndexAssign, Expr, tuple[Axis, ...]]:
        """The statement over cells, what it sums, and all of its axes."""
        first, following = self._first, self._next
        begin = Index(self.order, (Builtin(HELD, (first,), INT),), INT)
        place = b.binary("+", first, following)
        here = Index(self.order, (Builtin(HELD, (place,), INT),), INT)
        length = Index(self.lengths, (Builtin(HELD, (first,), INT),), INT)
        target = self._moved(self._stmt.element, self._values(begin))
        assert isinstance(target, Index)
        values = self._values(here)
        summed = tuple(replace(a, extent=substitute(a.extent, values)) for a in self._summed)
        own = (Axis(first.name, self.count), *self._own)
        stmt = replace(self._stmt, target=target, op="+=", axes=own, distinct=True)
        return stmt, self._moved(self._body, values), (*own, Axis(following.name, length), *summed)

    def begun(self, tree: Parallel) -> Parallel:
        """The tree of that statement, of which only the first of a cell's additions does
        something, and that one alone."""
        body = [_alone(node) for node in tree.body if not isinstance(node, AllReduce)]
        start = next(
            (k + 1 for k, node in enumerate(body)
             if isinstance(node, Let) and node.var == self._first), 0,
        )  # fmt: skip
        some = Binary(">", Index(self.lengths, (self._first,), INT), IntConst(0), INT)
        return replace(tree, body=(*body[:start], If(some, tuple(body[start:]))), team=None)

    def _values(self, point: Expr) -> dict[str, Expr]:
        """What the axes are at the point of that number."""
        found: dict[str, Expr] = {}
        for axis in reversed(self.axes[1:]):
            found[axis.name] = builtin(REMAINDER, point, axis.extent)
            point = builtin(QUOTIENT, point, axis.extent)
        found[self.axes[0].name] = point
        return found

    def _moved(self, expr: Expr, values: dict[str, Expr]) -> Expr:
        """An expression at such values. Subscripts that are affine have been checked for all."""
        if isinstance(expr, ZeroPad):
            return substitute(expr, values)
        if isinstance(expr, Var):
            return values.get(expr.name, expr)
        if not isinstance(expr, Index):
            return map_children(expr, lambda child: self._moved(child, values))
        subscripts = []
        for subscript in expr.subscripts:
            moved = self._moved(subscript, values)
            affine = mark_of(subscript) is None and sizes.affine(subscript, self._all) is not None
            held = affine and sizes.mentions(subscript, self._names)
            subscripts.append(Builtin(HELD, (moved,), INT, subscript.span) if held else moved)
        return replace(expr, subscripts=tuple(subscripts))


def _alone(node: Node) -> Node:
    """For one thread."""
    if isinstance(node, Loop) and node.role == "shared":
        node = replace(node, role="serial")
    if isinstance(node, Let):
        return replace(node, value=_one(node.value))
    return map_blocks(
        node, lambda block: tuple(_alone(n) for n in block if not isinstance(n, AllReduce))
    )


def _one(expr: Expr) -> Expr:
    """For a thread that has one value of each axis."""
    if isinstance(expr, Builtin) and expr.name in OF_TILES:
        return _one(expr.args[0])
    return map_children(expr, _one)
