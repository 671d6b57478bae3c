"""What a running sum adds up has a tensor of its own, unless it is a product of elements.

    y[n, t] = sum(max(x[n, q], c[q]) for q in range(t + 1))

    s[n, q] = max(x[n, q], c[q])
    y[n, t] = sum(s[n, q] for q in range(t + 1))

The adjoint of s is a running sum from the other end, and those of x and c are made of it element by
element. Without s they would be sums, for each q, of choices for all that come behind it.
"""

from __future__ import annotations

from loma.core import sizes
from loma.core.axes import shifted_places
from loma.core.effects import counters, written
from loma.core.ir import (
    FLOAT, INT, Axis, Declare, Expr, Function, Index, IndexAssign, IntConst, Module, Reduce, Stmt,
    TensorType, Var, replace,
)  # fmt: skip
from loma.core.names import Names, names_of
from loma.core.sizes import arith
from loma.core.walk import (
    free_variables, map_blocks, map_children, map_tensor_functions, substitute,
)  # fmt: skip
from loma.passes.canonical.defined import is_product
from loma.passes.canonical.recurrences.running import running

Block = tuple[Stmt, ...]


def summands(module: Module) -> Module:
    """The pass on every tensor function of a module."""
    return map_tensor_functions(module, lambda function: _Summands(function).run())


class _Summands:
    def __init__(self, function: Function) -> None:
        self._function = function
        self._names = Names(names_of(function))
        self._changed = written(function.body) | counters(function.body)
        self._is_size = frozenset(sizes.size_variables(function)).__contains__
        self._declared: list[Stmt] = []

    def run(self) -> Function:
        body = self._block(self._function.body)
        if not self._declared:
            return self._function
        return replace(self._function, body=(*self._declared, *body))

    def _block(self, block: Block) -> Block:
        out: list[Stmt] = []
        for stmt in block:
            if isinstance(stmt, IndexAssign):
                out += self._statement(stmt)
            else:
                out.append(map_blocks(stmt, self._block))
        return tuple(out)

    def _statement(self, stmt: IndexAssign) -> list[Stmt]:
        before: list[Stmt] = []
        axes = {axis.name: axis for axis in stmt.axes}

        def visit(expr: Expr) -> Expr:
            if isinstance(expr, Reduce):
                return self._apart(expr, axes, before) or expr
            return map_children(expr, visit)

        value = visit(stmt.value)
        return [*before, replace(stmt, value=value) if before else stmt]

    def _apart(self, reduce: Reduce, axes: dict[str, Axis], before: list[Stmt]) -> Expr | None:
        """The sum of elements of a new tensor, to which a statement ``before`` gives values; None
        where it is no running sum, or one of products."""
        if reduce.kind != "sum" or len(reduce.axes) != 1 or reduce.type != FLOAT:
            return None
        (axis,), body = reduce.axes, reduce.body
        scan = None if is_product(body) else running(reduce, axes)
        if scan is None or scan.along.name in free_variables(body):
            return None
        rows = [own for name, own in axes.items() if name in free_variables(body)]
        last = IntConst(0) if scan.backwards else arith("-", scan.along.extent, IntConst(1))
        longest = sizes.simplify(substitute(axis.extent, {scan.along.name: last}))
        count = sizes.count(longest, self._is_size)
        dims = (*(row.extent for row in rows), count)
        if not all(sizes.keeps_value(d, self._changed | axes.keys() | {axis.name}) for d in dims):
            return None
        tensor = Var(self._names.fresh("_summand"), TensorType(dims, "float"))
        self._declared.append(Declare(tensor, None))
        place = Index(tensor, tuple(Var(a.name, INT) for a in (*rows, axis)), FLOAT)
        own_axes = (*rows, Axis(axis.name, count))
        # An index alone runs over whole dimensions.
        value = shifted_places(body, {a.name: a.extent for a in own_axes})
        before.append(IndexAssign(place, "=", value, own_axes, reduce.span))
        return replace(reduce, body=place)
