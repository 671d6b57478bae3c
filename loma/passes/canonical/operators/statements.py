"""Tensor operators as index statements.

Elementwise operators (with broadcasting) and reductions over dims: what stands as ``y : Tensor[N,
M] = relu(x + b)`` in a program is ``y[i, j] = relu(x[i, j] + b[j])`` in the canonical form. Slices,
permuted operands, and those with dimensions of size 1 added or dropped, are read where they lie,
as is what is flipped or rolled, and of a slice of computed values only the slice is computed;
products of batches of matrices are sums. An operator of another kind (a convolution, a permutation)
that stands inside such an expression becomes a statement of its own, and so do its arguments. Where
the sizes do not prove how operands broadcast, a statement stays as it is. So do, in front of AD,
``softmax``, whose derivative is shorter than that of its parts, products of matrices, and copies;
but not of the scores of an attention, which are computed again rather than kept, and in a loop not
of what a round takes of a tensor or sets itself, as such statements run for all rounds at once.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from loma import errors
from loma.core import builder as b
from loma.core import sizes
from loma.core.axes import index_statement
from loma.core.bounds import is_never_negative
from loma.core.effects import written
from loma.core.ir import (
    FLOAT, Assign, Declare, Expr, FloatType, For, Function, Index, IndexAssign, IntConst, Module,
    Op, Return, Stmt, TensorType, Var, Zero, replace,
)  # fmt: skip
from loma.core.walk import (
    expressions, free_variables, map_expressions, map_tensor_functions, nodes, substitute, walk,
)  # fmt: skip
from loma.passes.liveness import set_first
from loma.passes.canonical.operators.axes import (
    Stays, constant_of, float_dims, is_composed, moving, place_of, subscript,
)  # fmt: skip
from loma.passes.canonical.operators.elements import Elements
from loma.passes.canonical.views import cut_place, element, read_through


def operators(module: Module, every: bool = False) -> Module:
    """The pass on every tensor function of a module; ``every``: ``softmax`` and copies, too."""
    functions = {function.name: function for function in module.functions}

    def changed(function: Function) -> Function:
        # What says the shape of a result of any rank is what its operators do on meta tensors.
        if any(isinstance(t, TensorType) and t.dims is None for t in function.results):
            return function
        return _Operators(read_through(function), functions, every).run()

    return map_tensor_functions(module, changed)


def _reads_others(element: Expr, place: Index) -> bool:
    """Whether an element is made of others of the tensor than the one in its own place."""
    reads = (node for node in walk(element) if isinstance(node, Index))
    return any(read.base == place.base and read != place for read in reads)


def _reads(body: tuple[Stmt, ...]) -> list[Var]:
    return [node for node in nodes(body) if isinstance(node, Var)]


def _takes_slice(expr: Expr, var: Var) -> bool:
    ops = (node for node in walk(expr) if isinstance(node, Op))
    return any(op.name == "slice" and op.args == (var,) for op in ops)


class _Operators(Elements):
    def _block(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        if self._depth == 0:
            body = self._with_sliced(body)
        return super()._block(body)

    def _with_sliced(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """With computed values in place of names that only a slice in the next statement has."""
        out = list(body)
        for position in reversed(range(len(body) - 1)):
            following, rest = out[position + 1], tuple(out[position + 1 :])
            match out[position], following:
                case Declare(Var() as var, Op() as value), Declare() | Assign() | Return() if (
                    _reads(rest).count(var) == 1 and self._is_written_out(value)
                ):
                    if any(_takes_slice(expr, var) for expr in expressions(following)):
                        values: dict[str, Expr] = {var.name: value}
                        new = map_expressions(following, partial(substitute, values=values))
                        out[position : position + 2] = [new]
                case _:
                    pass
        return tuple(out)

    def _statement(self, stmt: Stmt) -> Stmt:
        self._parts = {}
        match stmt:
            case Declare(target, Op() as value) if self._is_mask(target, value):
                self._masks[target.name] = value
            case Declare(target, value) | Assign(Var() as target, _, value) if (
                value is not None and self._is_large(value)
            ):
                self._large.add(target.name)
            case _:
                pass
        match stmt:
            case Declare(target, value) if value is not None and self._is_taken(value):
                new = self._assigned_value(stmt, target, "=", value)
                if isinstance(new, IndexAssign):
                    self._out.append(Declare(target, None, stmt.span))
                return new
            case Assign(Var() as target, "=", Op("cat") as value) if self._depth > 0 and (
                parts := self._joined(stmt, target, value)
            ):
                self._out += parts[:-1]
                return parts[-1]
            case Declare(target, Op("slice_into") as value) if into := self._part_of(
                stmt, target, value
            ):
                self._out.append(Declare(target, None, stmt.span))
                return replace(into, op="=")
            case Assign(Var() as target, op, Op("slice_into") as value) if into := self._part_of(
                stmt, target, value
            ):
                if op == "=":
                    self._out.append(Zero(target, stmt.span))
                return into
            case Assign(Var() as target, op, value) if self._is_taken(value):
                return self._assigned_value(stmt, target, op, value)
            case Assign(Var(_, FloatType()), _, Index(Op(), ()) as number):
                return replace(stmt, value=self._number(number))
            case Declare(Var(_, FloatType()), Index(Op(), ()) as number):
                return replace(stmt, value=self._number(number))
            case Return(values):
                return replace(stmt, values=tuple(map(self._result, values)))
            case For():
                own = {name for name in written(stmt.body) if set_first(name, stmt.body)}
                around, self._of_rounds = self._of_rounds, self._of_rounds | own
                new = super()._statement(stmt)
                self._of_rounds = around
                return new
            case _:
                return super()._statement(stmt)

    def _assigned_value(
        self, stmt: Declare | Assign, target: Var, op: Literal["=", "+="], value: Expr
    ) -> Stmt:
        """An index statement, after those that it needs, or the statement with plain arguments."""
        copied = target in self._returned and self._is_rearranged(value)
        if not copied and not self._is_written_out(value):
            return replace(stmt, value=self._with_plain_arguments(value))
        mark = len(self._out), len(self._hoisted)
        try:
            dims = float_dims(target)
            if not sizes.same(float_dims(value), dims):
                return stmt
            axes = self._axes(dims)
            place, element = place_of(target, axes), self._whole(value, axes)
            if _reads_others(element, place):  # as ``x = A @ x`` does
                self._forget(mark)
                made = self._tensor("_t", target.type, partial(self._whole, value))
                element = self._read(made, axes)
        except Stays:
            self._forget(mark)
            return replace(stmt, value=self._view_of_plain(value))
        return IndexAssign(place, op, element, moving(axes), stmt.span)

    def _part_of(self, stmt: Declare | Assign, target: Var, value: Op) -> IndexAssign | None:
        """The statement that adds computed values to a part of a tensor, which has the others."""
        (part,), dims = value.args, sizes.dims_of(target)
        given = {param.name for param in self._function.params}
        computed = part.name not in given if isinstance(part, Var) else self._is_written_out(part)
        whole = dims and sizes.same(dims, sizes.dims_of(value))
        if not whole or not computed or target.name in free_variables(part):
            return None
        attrs: dict[str, object] = {n: end for n, end in value.attrs if n != "shape"}
        try:
            cut = b.operator("slice", (Var("", value.type),), attrs, value.span)
        except errors.SubscriptOutOfRange:  # for sizes whose call fails
            return None
        found = self._slice_start(cut)
        if found is None:
            return None
        mark = len(self._out), len(self._hoisted)
        try:
            axes = self._axes(float_dims(part))
            new = self._element(part, axes)
        except Stays:
            self._forget(mark)
            return None
        places = list(map(subscript, axes))
        places[found[0]] = cut_place(places[found[0]], found[1])
        place = Index(target, tuple(places), FLOAT, stmt.span)
        return IndexAssign(place, "+=", new, moving(axes), stmt.span)

    def _joined(self, stmt: Assign, target: Var, value: Op) -> list[Stmt]:
        """A statement for each part of what a round of a loop joins, for other statements of the
        round go through its elements; none where a part is no view. That a part is there is checked
        where it is read."""
        dim = dict(value.attrs)["dim"]
        dims = sizes.dims_of(target)
        along = constant_of(dim) % len(dims)
        floats = isinstance(target.type, TensorType) and target.type.element == "float"
        if target.name in free_variables(value) or not floats:
            return []
        made: list[Stmt] = []
        begin: Expr = IntConst(0)
        for part in value.args:
            axes = self._axes(sizes.dims_of(part))
            own = tuple(map(subscript, axes))
            # The index alone would run over the whole dimension.
            there = (*own[:along], cut_place(own[along], begin), *own[along + 1 :])
            read = element(part, own)
            # Of a part whose size is none an element may lie outside without being looked at.
            is_size, ranges = self._sizes.__contains__, self._counters
            if read is None or not all(is_never_negative(a.extent, ranges, is_size) for a in axes):
                return []
            new = index_statement(
                Index(target, there, FLOAT), "=", read, moving(axes), (), self._sizes.__contains__
            )
            if not isinstance(new, IndexAssign):
                return []
            made.append(replace(new, span=stmt.span))
            begin = sizes.arith("+", begin, axes[along].extent)
        return made

    def _number(self, number: Index) -> Expr:
        """The only element of a tensor without dimensions, as a mean of everything is one."""
        if not self._is_written_out(number.base):
            return number
        mark = len(self._out), len(self._hoisted)
        try:
            return self._element(number.base, [])
        except Stays:
            self._forget(mark)
            return number

    def _result(self, value: Expr) -> Expr:
        """A returned number, or a returned tensor as a variable."""
        if isinstance(value, Index) and isinstance(value.base, Op) and not value.subscripts:
            return self._number(value)
        if self._is_rearranged(value):
            return self._rearranged(value, "_result")
        return self._plain(value, "_result") if is_composed(value) else value
