"""Which statements may read a tensor in the loop that makes it, element by element.

    r[b, t, d] = sum(k[b, q] * v[b, q, d] for q in range(t + 1))
    y[b, t, d] = a[b, t] * r[b, t, d]

The loop along t that adds up r may do what the second statement does with r[b, t, d] as soon as it
has that. Then it needs no more of r than one value of t at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loma.core import sizes
from loma.core.builtins import BUILTINS
from loma.core.distinct import unproved
from loma.core.ir import (
    FLOAT, Axis, Binary, Builtin, Call, Expr, Index, IndexAssign, Reduce, Select, Stmt, Unary, Var,
    replace,
)  # fmt: skip
from loma.core.walk import (
    free_variables, is_element_of, map_children, mentioned_names, own_names, substitute, walk,
)  # fmt: skip
from loma.passes.canonical.recurrences.running import running

FEW = 3  # operations on floats for one element after the other, where lanes could share them


@dataclass(frozen=True, slots=True)
class Made:
    """A tensor that a loop makes along one of its dimensions, whose index is ``along``."""

    tensor: Var
    dim: int
    along: Axis

    @property
    def is_last(self) -> bool:
        return self.dim == len(sizes.dims_of(self.tensor)) - 1


@dataclass(frozen=True, slots=True)
class Reader:
    """A statement that reads the tensor where its own ``axis`` has the value of the loop."""

    stmt: IndexAssign
    axis: Axis

    def at(self, made: Made, counter: Var, state: Var) -> IndexAssign:
        """It at one value of the axis, of a state in the place of the tensor."""

        def visit(expr: Expr) -> Expr:
            if not is_element_of(expr, made.tensor.name):
                return map_children(expr, visit)
            left = (*expr.subscripts[: made.dim], *expr.subscripts[made.dim + 1 :])
            return replace(expr, base=state, subscripts=left)

        here: dict[str, Expr] = {self.axis.name: counter}
        value = sizes.simple_subscripts(substitute(visit(self.stmt.value), here))
        target = sizes.simple_subscripts(substitute(self.stmt.element, here))
        assert isinstance(target, Index)
        axes = tuple(axis for axis in self.stmt.axes if axis.name != self.axis.name)
        return replace(self.stmt, target=target, value=value, axes=axes)


def readers(
    made: Made, maker: IndexAssign, behind: Sequence[Stmt], elementwise: bool
) -> tuple[Reader, ...]:
    """The first of the statements behind the one that makes the tensor, as far as they can run in
    its loop. ``elementwise``: those that reduce nothing."""
    found: list[Reader] = []
    used = mentioned_names((maker,))
    written: set[str] = set()
    for stmt in behind:
        reader = _reader(stmt, made, elementwise)
        if reader is None:
            break
        target = reader.stmt.element.tensor.name
        # A round must not see what others write.
        if target in used or not written.isdisjoint(mentioned_names((stmt,))):
            break
        used |= mentioned_names((stmt,))
        written.add(target)
        found.append(reader)
    return tuple(found)


def _reader(stmt: Stmt, made: Made, elementwise: bool) -> Reader | None:
    name = made.tensor.name
    if not isinstance(stmt, IndexAssign) or name not in own_names(stmt) or unproved(stmt):
        return None
    target, axes = stmt.target, {axis.name: axis for axis in stmt.axes}
    if not isinstance(target, Index) or not isinstance(target.base, Var):
        return None
    places = {n for subscript in target.subscripts for n in free_variables(subscript)}
    if target.base.name in places | free_variables(stmt.value) or name in places:
        return None
    reads = [node for node in walk(stmt.value) if is_element_of(node, name)]
    mentions = sum(isinstance(node, Var) and node.name == name for node in walk(stmt.value))
    along = {node.subscripts[made.dim] for node in reads}
    if mentions != len(reads) or len(along) != 1:
        return None
    (place,) = along
    axis = axes.get(place.name) if isinstance(place, Var) else None
    if axis is None or sizes.equal(axis.extent, made.along.extent) is not True:
        return None
    inside = [node for node in walk(stmt.value) if isinstance(node, Reduce)]
    if any(running(node, axes) for node in inside) or (elementwise and (inside or stmt.op != "=")):
        return None
    return None if made.is_last and not _is_small(stmt.value) else Reader(stmt, axis)


def _is_small(value: Expr) -> bool:
    """Whether it costs next to nothing to compute a value outside of lanes."""
    kinds = (Binary, Unary, Builtin, Select)
    numbers = [node for node in walk(value) if isinstance(node, kinds) and node.type == FLOAT]
    return len(numbers) <= FEW and not any(_is_costly(node) for node in walk(value))


def _is_costly(node: Expr) -> bool:
    costs = isinstance(node, Builtin) and BUILTINS[node.name].costly
    return costs or isinstance(node, Call | Reduce)
