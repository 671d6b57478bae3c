"""Numbers of an iteration that are read before its first statement.

    r[()] = sum(g[n, d] * x[n, d] for d in D)
    q[()] = -r[()] / z[n]

Behind the sum all threads wait for ``z[n]``, which nobody has asked for while they waited for
``x``: no compiler moves a read to the other side of a barrier. An argument that has one number for
each iteration has that of an iteration whatever conditions say, so it is read first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from loma.backends.cfamily.device import DeviceNode
from loma.backends.cuda.iterations import EARLY, ITERATION
from loma.backends.schedule.host import Branch, Count, HostNode, Launch, Repeat, Unit
from loma.backends.schedule.ir import Parallel
from loma.backends.schedule.walk import map_expressions
from loma.core import sizes
from loma.core.ir import INT, Expr, Function, Index, IntConst, TensorType, Var
from loma.core.walk import map_children

_MOST = 8  # registers
_ZERO = IntConst(0)

Early = dict[Index, Var]  # elements, and what they are called


class Reads:
    """The numbers that a kernel's iterations read, one each, of arguments that stay as they are."""

    def __init__(self, launch: Launch, function: Function) -> None:
        kernel = launch.kernel
        extents = tuple(axis.extent for axis in kernel.axes)
        self.found: Early = {}
        self._count = kernel.count
        self._place: Expr = _ZERO  # of a part of one number
        if kernel.count is None:
            self._place = Var(ITERATION if kernel.inner else kernel.axis.name, INT)
        self._tensors = {
            param.name
            for param in function.params
            if param.mode == "In"
            and isinstance(param.type, TensorType)
            and param.type.element == "float"
            and sizes.dims_of(param) == extents
            and param.name not in launch.writes
        }
        if kernel.count is not None and not launch.single:
            self._tensors.clear()

    def named(self, body: Sequence[HostNode]) -> tuple[HostNode, ...]:
        """The kernel's body with names for them."""
        return tuple(map(self._node, body)) if self._tensors else tuple(body)

    def _node(self, node: DeviceNode | HostNode) -> HostNode:
        match node:
            case Parallel(counter=counter, count=count):
                own = counter if self._count is not None and count == self._count else None
                return map_expressions(node, lambda expr: self._named(expr, own))
            case Unit() | Count() | Repeat():
                return replace(node, body=self.named(node.body))
            case Branch():
                return replace(node, then=self.named(node.then), other=self.named(node.other))
            case _:
                return node

    def _named(self, expr: Expr, counter: Var | None) -> Expr:
        """``counter``: of a loop over the one value of a block."""
        if isinstance(expr, Index) and isinstance(expr.base, Var):
            (place,) = expr.subscripts
            if expr.base.name in self._tensors and place in (self._place, counter):
                read = replace(expr, subscripts=(self._place,))
                known = self.found.get(read)
                if known is not None or len(self.found) < _MOST:
                    name = f"{EARLY}{len(self.found) + 1}_"
                    return self.found.setdefault(read, known or Var(name, read.type))
        return map_children(expr, lambda child: self._named(child, counter))
