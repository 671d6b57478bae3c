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

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, cast

from loma.core import builder as b
from loma.core import sizes
from loma.core.axes import index_statement
from loma.core.builtins import BUILTINS
from loma.core.effects import written
from loma.core.ir import (
    FLOAT, INT, Assign, Axis, Binary, BinaryOp, Builtin, Declare, Expr, FloatConst, FloatType, For,
    Function, If, Index, IndexAssign, IntConst, IntType, Module, NoDiff, Op, Reduce, ReduceKind,
    Return, Select, Stmt, TensorType, Type, Unary, Var, Zero, ZeroPad, replace,
)  # fmt: skip
from loma.core.ops import OPS
from loma.passes.outer import is_outer
from loma.core.walk import (
    expressions, free_variables, map_expressions, map_tensor_functions, nodes, reads_of_type,
    substitute, walk,
)  # fmt: skip
from loma.passes.liveness import set_first
from loma.passes.canonical.filters import (
    Window, windows_of, windows_of_parts, windows_of_pool,
)  # fmt: skip
from loma.passes.canonical.hoisting import InBlocks
from loma.passes.canonical.views import (
    cut_place, element, in_order, is_inside, order_of, read_through, slice_start, turned,
)  # fmt: skip

_TRIANGLES: dict[str, BinaryOp] = {"tril": "<=", "triu": ">="}  # of the column
_PERMUTED = ("transpose", "permute")
_VIEWS = ("slice", *_PERMUTED, "reshape")
_UNIT = Axis("_one", IntConst(1))  # of a dimension of size 1, whose only subscript is 0
_OTHERS = ("where", "expand", "sum_to")


def operators(module: Module, every: bool = False) -> Module:
    """The pass on every tensor function of a module; ``every``: ``softmax`` and copies, too."""
    functions = {function.name: function for function in module.functions}

    def changed(function: Function) -> Function:
        # What says the shape of a result of any rank is what its operators do on meta tensors.
        if any(isinstance(t, TensorType) and t.dims is None for t in function.results):
            return function
        return _Operators(read_through(function), functions, every).run()

    return map_tensor_functions(module, changed)


class _Stays(Exception):
    """A statement has no form as index statements."""


def _dims(expr: Expr, ints: bool = False) -> tuple[Expr, ...]:
    """The sizes of a tensor of floats."""
    if not isinstance(expr.type, TensorType):
        raise _Stays
    return _dims_of(expr.type, ints)


def _dims_of(type_: TensorType, ints: bool = False) -> tuple[Expr, ...]:
    if type_.dims is None or (type_.integer and not ints):
        raise _Stays
    return type_.dims


def _own(dims: tuple[Expr, ...], axes: list[Axis]) -> list[Axis]:
    """The axes of a tensor that is broadcast to some."""
    if len(dims) > len(axes):
        raise _Stays
    found: list[Axis] = []
    for dim, axis in zip(dims, axes[len(axes) - len(dims) :], strict=True):
        if sizes.equal(dim, axis.extent) is True:
            found.append(axis)
        elif dim == IntConst(1):
            found.append(Axis(axis.name, dim))
        else:
            raise _Stays
    return found


@dataclass(frozen=True, slots=True)
class _Slice(Axis):
    """The axis of a tensor of which a slice is read: ``place`` is where its element lies."""

    place: Expr


@dataclass(frozen=True, slots=True)
class _Part(_Slice):
    """The axis of a tensor of which a slice is read that may leave it, as the slice itself finds
    out; ``inner`` is the axis of the slice."""

    inner: Axis
    view: Op


def _at(axis: Axis) -> Expr:
    if isinstance(axis, _Slice):
        return axis.place
    return IntConst(0) if axis.extent == IntConst(1) else Var(axis.name, INT)


def _place(tensor: Var, axes: list[Axis]) -> Index:
    return Index(tensor, tuple(map(_at, axes)), FLOAT)


def _turned(value: Op, axes: list[Axis]) -> list[Axis]:
    """The axes of what is flipped or rolled."""
    own = _own(_dims(value), axes)
    places = turned(value, tuple(map(_at, own)))
    if places is None or any(isinstance(axis, _Part) for axis in own):
        raise _Stays
    return [
        axis if place == _at(axis) else _Slice(axis.name, axis.extent, place)
        for axis, place in zip(own, places, strict=True)
    ]


def _reads_others(element: Expr, place: Index) -> bool:
    """Whether an element is made of others of the tensor than the one in its own place."""
    reads = (node for node in walk(element) if isinstance(node, Index))
    return any(read.base == place.base and read != place for read in reads)


def _moving(axes: list[Axis]) -> tuple[Axis, ...]:
    """Those that have more than one value."""
    return tuple(axis for axis in axes if axis.extent != IntConst(1))


def _reduce(kind: ReduceKind, body: Expr, axes: list[Axis]) -> Expr:
    own = _moving(axes)
    return Reduce(kind, body, own, FLOAT, body.span) if own else body


def _is_composed(value: Expr) -> bool:
    """Whether a tensor is more than a variable or a call."""
    while isinstance(value, NoDiff):
        value = value.operand
    return isinstance(value, Op)


def _scalar_type(value: Op) -> IntType | FloatType:
    """The type of an operator's elements."""
    assert isinstance(value.type, TensorType)
    return INT if value.type.integer else FLOAT


def _reads(body: tuple[Stmt, ...]) -> list[Var]:
    return [node for node in nodes(body) if isinstance(node, Var)]


def _takes_slice(expr: Expr, var: Var) -> bool:
    ops = (node for node in walk(expr) if isinstance(node, Op))
    return any(op.name == "slice" and op.args == (var,) for op in ops)


class _Operators(InBlocks):
    def __init__(self, function: Function, functions: Mapping[str, Function], every: bool) -> None:
        super().__init__(function, functions)
        self._every = every
        self._large = set[str]()  # variables that hold products of matrices, as scores of attention
        self._of_rounds = frozenset[str]()  # variables that each round of a loop around sets
        returned = (s.values for s in function.body if isinstance(s, Return))
        self._returned = {value for values in returned for value in values}
        self._masks = dict[str, Op]()  # what conditions on indices alone are
        self._parts = dict[Expr, Var]()  # slices that the statement at hand reads

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

    def _index_assign(self, stmt: IndexAssign) -> IndexAssign:
        if is_outer(stmt):
            self._large.add(stmt.element.tensor.name)
        return stmt

    def _is_taken(self, value: Expr) -> bool:
        copied = self._every and isinstance(value, Var) and isinstance(value.type, TensorType)
        return copied or _is_composed(value)

    def _assigned_value(
        self, stmt: Declare | Assign, target: Var, op: Literal["=", "+="], value: Expr
    ) -> Stmt:
        """An index statement, after those that it needs, or the statement with plain arguments."""
        copied = target in self._returned and self._is_rearranged(value)
        if not copied and not self._is_written_out(value):
            return replace(stmt, value=self._with_plain_arguments(value))
        mark = len(self._out), len(self._hoisted)
        try:
            dims = _dims(target)
            if not sizes.same(_dims(value), dims):
                return stmt
            axes = self._axes(dims)
            place, element = _place(target, axes), self._whole(value, axes)
            if _reads_others(element, place):  # as ``x = A @ x`` does
                self._forget(mark)
                made = self._tensor("_t", target.type, partial(self._whole, value))
                element = self._read(made, axes)
        except _Stays:
            self._forget(mark)
            return replace(stmt, value=self._view_of_plain(value))
        return IndexAssign(place, op, element, _moving(axes), stmt.span)

    def _part_of(self, stmt: Declare | Assign, target: Var, value: Op) -> IndexAssign | None:
        """The statement that adds computed values to a part of a tensor, which has the others."""
        (part,), dims = value.args, sizes.dims_of(target)
        given = {param.name for param in self._function.params}
        computed = part.name not in given if isinstance(part, Var) else self._is_written_out(part)
        whole = dims and sizes.same(dims, sizes.dims_of(value))
        if not whole or not computed or target.name in free_variables(part):
            return None
        attrs: dict[str, object] = {n: end for n, end in value.attrs if n != "shape"}
        found = self._slice_start(b.operator("slice", (Var("", value.type),), attrs, value.span))
        if found is None:
            return None
        mark = len(self._out), len(self._hoisted)
        try:
            axes = self._axes(_dims(part))
            new = self._element(part, axes)
        except _Stays:
            self._forget(mark)
            return None
        places = list(map(_at, axes))
        places[found[0]] = cut_place(places[found[0]], found[1])
        place = Index(target, tuple(places), FLOAT, stmt.span)
        return IndexAssign(place, "+=", new, _moving(axes), stmt.span)

    def _joined(self, stmt: Assign, target: Var, value: Op) -> list[Stmt]:
        """A statement for each part of what a round of a loop joins, for other statements of the
        round go through its elements; none where a part is no view."""
        dim = dict(value.attrs)["dim"]
        dims = sizes.dims_of(target)
        along = _constant(dim) % len(dims)
        floats = isinstance(target.type, TensorType) and target.type.element == "float"
        if target.name in free_variables(value) or not floats:
            return []
        made: list[Stmt] = []
        begin: Expr = IntConst(0)
        for part in value.args:
            axes = self._axes(sizes.dims_of(part))
            own = tuple(map(_at, axes))
            # The index alone would run over the whole dimension.
            there = (*own[:along], cut_place(own[along], begin), *own[along + 1 :])
            read = element(part, own)
            if read is None or not is_inside(part, self._sizes.__contains__, self._counters):
                return []
            new = index_statement(
                Index(target, there, FLOAT), "=", read, _moving(axes), (), self._sizes.__contains__
            )
            if not isinstance(new, IndexAssign):
                return []
            made.append(replace(new, span=stmt.span))
            begin = sizes.arith("+", begin, axes[along].extent)
        return made

    def _taken(self, value: Op, axes: list[Axis]) -> Expr:
        """The element of a tensor at a position that another one has."""
        x, index = value.args
        tensor = self._plain(x, "_operand") if _is_composed(x) else x
        own = _own(_dims(value), axes)
        position = element(index, tuple(map(_at, own)))
        if position is None or not isinstance(tensor, Var):
            raise _Stays
        if any(isinstance(axis, _Part) for axis in own):
            raise _Stays  # no operand says whether the slice is there
        along = _constant(dict(value.attrs)["dim"]) % len(own)
        position = replace(position, span=index.span)
        places = (position if k == along else _at(axis) for k, axis in enumerate(own))
        return Index(tensor, tuple(places), FLOAT, value.span)

    def _number(self, number: Index) -> Expr:
        """The only element of a tensor without dimensions, as a mean of everything is one."""
        if not self._is_written_out(number.base):
            return number
        mark = len(self._out), len(self._hoisted)
        try:
            return self._element(number.base, [])
        except _Stays:
            self._forget(mark)
            return number

    def _result(self, value: Expr) -> Expr:
        """A returned number, or a returned tensor as a variable."""
        if isinstance(value, Index) and isinstance(value.base, Op) and not value.subscripts:
            return self._number(value)
        if self._is_rearranged(value):
            return self._rearranged(value, "_result")
        return self._plain(value, "_result") if _is_composed(value) else value

    def _is_rearranged(self, value: Expr) -> bool:
        """Whether a permutation, if it is copied, is faster as an index statement: one that keeps
        rows as they are copies each, which a library is quick at where they are short."""
        if not self._every or not isinstance(value, Op) or value.name not in _PERMUTED:
            return False
        order, dims = order_of(value), sizes.dims_of(value)
        if order is None or not (isinstance(value.type, TensorType) and not value.type.integer):
            return False
        moves = order[-1] != len(order) - 1 or sizes.constant(dims[-1]) is not None
        return moves and self._is_moved(value)

    def _rearranged(self, value: Expr, wish: str = "_t") -> Expr:
        """A permutation as a variable, which an index statement makes."""
        mark = len(self._out), len(self._hoisted)
        try:
            return self._tensor(wish, value.type, partial(self._whole, value))
        except _Stays:
            self._forget(mark)
            return self._view_of_plain(value)

    def _plain(self, value: Expr, wish: str = "_t") -> Expr:
        """A tensor as a variable, where index statements compute it."""
        if not self._is_written_out(value):
            return self._with_plain_arguments(value)
        mark = len(self._out), len(self._hoisted)
        try:
            _dims(value)
            return self._tensor(wish, value.type, partial(self._whole, value))
        except _Stays:
            self._forget(mark)
            return self._view_of_plain(value)

    def _view_of_plain(self, value: Expr) -> Expr:
        """A value that stays as it is, a view with what it is one of as a variable."""
        is_view = isinstance(value, Op) and value.name in _VIEWS
        return self._with_plain_arguments(value) if is_view else value

    def _with_plain_arguments(self, value: Expr) -> Expr:
        if not isinstance(value, Op):
            return value
        if value.name == "reshape" and self._is_rearranged(value.args[0]):
            return replace(value, args=(self._rearranged(value.args[0]),))
        args = (self._plain(arg) if _is_composed(arg) else arg for arg in value.args)
        return replace(value, args=tuple(args))

    def _forget(self, mark: tuple[int, int]) -> None:
        """Takes back what was made for a statement that stays as it is."""
        del self._out[mark[0] :]
        del self._hoisted[mark[1] :]
        self._parts = {}

    def _is_one_of_many(self, value: Expr) -> bool:
        """Whether a tensor is a batch of matrices, or what a round of a loop takes of one."""
        if len(sizes.dims_of(value)) > 2 or self._is_of_a_round(value):
            return True
        if self._depth > 0 and self._is_large(value):
            return True
        if isinstance(value, Op) and value.name in _VIEWS:
            return self._is_one_of_many(value.args[0])
        return False

    def _is_of_a_round(self, value: Expr) -> bool:
        """Whether a tensor is what a round of a loop takes of one."""
        if not isinstance(value, Op) or value.name not in _VIEWS:
            return False
        start = dict(value.attrs).get("start")
        own = isinstance(start, Var) and start.name in self._counters
        return own or self._is_of_a_round(value.args[0])

    def _is_mask(self, target: Var, value: Op) -> bool:
        """Whether a tensor says for ever where a condition on its indices holds."""
        integer = isinstance(target.type, TensorType) and target.type.integer
        fixed = target.name not in self._assigned and free_variables(value) <= self._known
        names = {node.name for node in walk(value) if isinstance(node, Op)}
        plain = all(
            OPS[n].infix or OPS[n].fill is not None or n in (*_TRIANGLES, "not") for n in names
        )
        return integer and fixed and plain

    def _is_large(self, value: Expr) -> bool:
        """Whether a tensor is larger than what it is made of; its parts are cheap to make again."""
        if isinstance(value, Var):
            return value.name in self._large
        if isinstance(value, Op):
            return self._is_written_out(value) and (
                value.name == "matmul" or any(map(self._is_large, value.args))
            )
        return False

    def _is_written_out(self, value: Expr) -> bool:
        match value:
            case NoDiff(operand):
                return self._is_written_out(operand)
            case Op("matmul", args) if all(map(self._is_one_of_many, args)):
                return True
            case Op("matmul", args) if any(map(self._is_of_a_round, args)):
                return True
            case Op("softmax", (x,)) if self._is_large(x) or self._is_of_a_round(x):
                return True
            case Op("softmax", (Var(name),)) if name in self._of_rounds:
                return True
            case Op("log_softmax"):
                return True
            case Op("conv2d") if windows_of(value) is not None or self._is_of_parts(value):
                return True
            case Op("max_pool2d" | "avg_pool2d"):
                return windows_of_pool(value) is not None
            case Op("gather"):
                return self._is_gathered(value)
            case Op("softmax" | "matmul") | Var():
                return self._every
            case Op("flip" | "roll"):
                return self._every and turned(value, sizes.dims_of(value)) is not None
            case Op("transpose" | "permute" | "reshape" | "slice", (x,)) if _is_composed(x):
                return self._is_written_out(x) and self._is_moved(value)
            case Op(name):
                row = OPS[name]
                known = row.infix or row.reduces is not None or row.fill is not None
                return bool(known) or name in BUILTINS or name in (*_TRIANGLES, *_OTHERS)
            case _:
                return False

    def _is_gathered(self, value: Op) -> bool:
        """Whether positions along one dimension are all that says which elements are taken."""
        x, index = value.args
        dims = [v.type.dims if isinstance(v.type, TensorType) else None for v in (x, index)]
        along = dict(value.attrs)["dim"]
        number = None if isinstance(along, tuple) else sizes.constant(along)
        if number is None or dims[0] is None or dims[1] is None:
            return False
        pairs = enumerate(zip(dims[0], dims[1], strict=True))
        others = (pair for k, pair in pairs if k != number % len(dims[0]))
        same = all(sizes.equal(own, other) is True for own, other in others)
        return same and is_inside(index, self._sizes.__contains__)

    def _is_of_parts(self, value: Op) -> bool:
        """Whether a convolution is one of parts of tensors, in a loop of tensors that stay as they
        are: else it is no convolution of groups, whatever its place."""
        changes = self._depth > 0 and not self._assigned.isdisjoint(free_variables(value))
        return not changes and windows_of_parts(value) is not None

    # ----------------------------------------------------------------------------- elements

    def _axes(self, dims: tuple[Expr, ...]) -> list[Axis]:
        return [Axis(self._names.fresh(f"_i{k}"), dim) for k, dim in enumerate(dims)]

    def _whole(self, value: Expr, axes: list[Axis]) -> Expr:
        """The element of a statement's value at its axes: here a reduction may stand as it is."""
        match value:
            case Op("matmul"):
                return self._product(value, axes)
            case Op("conv2d") if not any(isinstance(axis, _Part) for axis in axes):
                return self._convolved(value, axes)
            case Op("max_pool2d" | "avg_pool2d") if not any(isinstance(a, _Part) for a in axes):
                return self._pooled(value, axes)
            case Op(_, (x,)) if (inner := self._moved(value, axes)) is not None:
                return self._whole(x, inner)
            case Op("sum_to", (x,)):
                return self._sum_to(x, axes)
            case Op(name) if (kind := OPS[name].reduces) is not None and name != "amax_or_zero":
                _dims(value)  # of floats
                return self._reduced(kind, value, axes)
            case _:
                return self._element(value, axes)

    def _element(self, value: Expr, axes: list[Axis]) -> Expr:
        """The element of a tensor (broadcast to the axes) or the value of a scalar."""
        if not isinstance(value.type, TensorType):
            return self._scalar(value)
        match value:
            case Var():
                return self._read(value, axes)
            case NoDiff(operand):
                return replace(value, operand=self._element(operand, axes), type=FLOAT)
            case Op() if not self._is_written_out(value):
                dims = _dims(value)  # of floats
                if (inner := self._moved(value, axes)) is not None:
                    return self._element(value.args[0], inner)
                whole = value.args[0] if value.name in _VIEWS else None
                if isinstance(whole, Op) and whole.name not in _VIEWS:
                    # What has the name is not the view, which is read where it lies.
                    view = replace(value, args=(Var("", whole.type),))
                    if (inner := self._moved(view, axes)) is not None:
                        made = self._made(whole.type, "_t", self._with_plain_arguments(whole))
                        return self._read(made, inner)
                made = self._made(value.type, "_t", self._with_plain_arguments(value))
                return self._read(made, axes[len(axes) - len(dims) :])
            case Op("neg", (x,)):
                return Unary("-", self._element(x, axes), FLOAT, value.span)
            case Op("not", (x,)):
                return Unary("not", self._element(x, axes), INT, value.span)
            case Op(name, args) if OPS[name].infix:
                left, right = (self._element(arg, axes) for arg in args)
                symbol = cast(BinaryOp, OPS[name].infix)
                return Binary(symbol, left, right, _scalar_type(value), value.span)
            case Op(name, args) if name in BUILTINS:
                own = tuple(self._element(arg, axes) for arg in args)
                return Builtin(name, own, _scalar_type(value), value.span)
            case Op("where", (cond, a, b)):
                branches = (self._element(a, axes), self._element(b, axes))
                return Select(self._condition(cond, axes), *branches, FLOAT, value.span)
            case Op(name, (x,)) if name in _TRIANGLES:
                row, column = map(_at, _own(_dims(value), axes)[-2:])
                diagonal = dict(value.attrs)["diagonal"]
                assert isinstance(diagonal, Expr)
                edge = sizes.arith("+", row, diagonal)
                inside = Binary(_TRIANGLES[name], column, edge, INT)
                return Select(inside, self._element(x, axes), FloatConst(0.0), FLOAT, value.span)
            case Op("expand" | "conv2d" | "max_pool2d" | "avg_pool2d") if any(
                isinstance(axis, _Part) for axis in axes
            ):
                raise _Stays  # no operand says whether the slice is there
            case Op("expand", (x,)):
                return self._element(x, axes)
            case Op(_, (x,)) if (inner := self._moved(value, axes)) is not None:
                return self._element(x, inner)
            case Op("sum_to", (x,)):
                return self._read(self._tensor("_sum", value.type, partial(self._sum_to, x)), axes)
            case Op(name) if (fill := OPS[name].fill) is not None:
                _dims(value)  # of floats
                if any(isinstance(axis, _Part) for axis in axes):
                    raise _Stays
                return FloatConst(float(fill))
            case Op(name) if not axes and OPS[name].reduces == "sum" and not _dims(value):
                return self._reduced("sum", value, axes)
            case Op(name) if (kind := OPS[name].reduces) is not None:
                total = self._tensor(f"_{name}", value.type, partial(self._reduced, kind, value))
                if name == "amax_or_zero":
                    self._if_any()
                return self._read(total, axes)
            case Op("softmax" | "log_softmax"):
                return self._softmax(value, axes)
            case Op("flip" | "roll", (x,)):
                return self._element(self._plain(x) if _is_composed(x) else x, _turned(value, axes))
            case Op("gather"):
                return self._taken(value, axes)
            case Op("matmul"):
                product = self._tensor("_product", value.type, partial(self._product, value))
                return self._read(product, axes)
            case Op("conv2d"):
                total = self._tensor("_sum", value.type, partial(self._convolved, value))
                return self._read(total, axes)
            case Op("max_pool2d" | "avg_pool2d"):
                pool = self._tensor("_pool", value.type, partial(self._pooled, value))
                return self._read(pool, axes)
            case _:
                raise _Stays

    def _scalar(self, value: Expr) -> Expr:
        match value:
            case Var() | FloatConst() | IntConst():
                return value
            case Index(Op() as whole, ()):
                return self._element(whole, [])
            case _ if value.type == INT and sizes.is_arithmetic(value):
                return Builtin("int2float", (value,), FLOAT, value.span)
            case _ if value.type == FLOAT and self._is_fixed(value):
                return value  # as index statements have it
            case _ if value.type == FLOAT:
                return self._made(FLOAT, "_s", value)
            case _:
                raise _Stays

    def _made(self, type_: Type, wish: str, value: Expr | None) -> Var:
        """A temporary whose size is known where it is declared."""
        if self._depth and not reads_of_type(type_) <= self._known:
            raise _Stays
        return self._temporary(type_, wish, value)

    def _tensor(self, wish: str, type_: Type, make: Callable[[list[Axis]], Expr]) -> Var:
        """A new tensor with the value that ``make`` gives for each element."""
        assert isinstance(type_, TensorType)
        axes = self._axes(_dims_of(type_))
        element = make(axes)
        var = self._made(type_, wish, None)
        stmt = IndexAssign(_place(var, axes), "=", element, _moving(axes), self._span)
        self._out.append(stmt)
        return var

    def _sum_to(self, x: Expr, axes: list[Axis]) -> Expr:
        """The sum over what was broadcast to the axes."""
        dims = _dims(x)
        lead = len(dims) - len(axes)
        inner: list[Axis] = []
        every: list[Axis] = []
        for k, dim in enumerate(dims):
            if k >= lead and sizes.equal(dim, axes[k - lead].extent) is True:
                every.append(axes[k - lead])
                continue
            if k >= lead and axes[k - lead].extent != IntConst(1):
                raise _Stays
            inner.append(Axis(self._names.fresh(f"_k{k}"), dim))
            every.append(inner[-1])
        return self._total("sum", self._element(x, every), inner, axes)

    def _total(self, kind: ReduceKind, body: Expr, inner: list[Axis], axes: list[Axis]) -> Expr:
        """A reduction; a sum of everything goes into a scalar, to which threads may add."""
        if kind != "sum" or not _moving(inner) or _moving(axes):
            return _reduce(kind, body, inner)
        total = self._temporary(FLOAT, "_total", None)
        if self._depth:
            self._out.append(Assign(total, "=", FloatConst(0.0), self._span))
        self._out.append(IndexAssign(total, "+=", body, _moving(inner), self._span))
        return total

    def _condition(self, cond: Expr, axes: list[Axis]) -> Expr:
        if isinstance(cond, Var):
            cond = self._masks.get(cond.name, cond)
        if isinstance(cond, Var) and isinstance(cond.type, TensorType) and cond.type.integer:
            return Binary("!=", self._read(cond, axes, INT), IntConst(0), INT)
        element = self._element(cond, axes)
        if element.type == INT:
            return element
        return Binary("!=", element, FloatConst(0.0), INT)

    def _read(self, tensor: Var, axes: list[Axis], element: Type = FLOAT) -> Expr:
        """The element that broadcasting puts at the axes."""
        tensor, own = self._part(tensor, _own(_dims(tensor, element == INT), axes))
        return Index(tensor, tuple(map(_at, own)), element, tensor.span)

    def _is_moved(self, view: Op) -> bool:
        try:
            return self._moved(view, self._axes(_dims(view))) is not None
        except _Stays:
            return False

    def _is_read(self, value: Expr) -> bool:
        """Whether elements are read of a tensor or computed, not of what another operator makes."""
        while isinstance(value, Op) and value.name in _VIEWS:
            if value.name == "slice" and self._slice_start(value) is None:
                return self._is_computed(value)
            value = value.args[0]
        return not isinstance(value, Op) or self._is_written_out(value)

    def _is_computed(self, view: Op) -> bool:
        """Whether a slice is one of elements that index statements compute, without steps."""
        whole = view.args[0]
        while isinstance(whole, Op) and whole.name in _VIEWS:
            whole = whole.args[0]
        every = _constant(dict(view.attrs)["step"]) == 1
        return every and isinstance(whole, Op) and self._is_written_out(whole)

    def _slice_start(self, view: Op) -> tuple[int, Expr] | None:
        own = self._counters.keys()
        counters = {
            name: extent
            for name, extent in self._counters.items()
            if free_variables(extent) <= self._known | own
        }
        return slice_start(view, self._sizes.__contains__, counters, or_empty=True)

    def _moved(self, view: Op, axes: list[Axis]) -> list[Axis] | None:
        """The axes of what is cut, transposed, or has dimensions of size 1 added or dropped, where
        a view of it has those axes; None where it is another operator."""
        if view.name not in _VIEWS or not self._is_read(view.args[0]):
            return None
        own = _own(_dims(view), axes)
        dims = _dims(view.args[0])
        if view.name == "slice":
            found = self._slice_start(view)
            if found is None:
                return self._parted(view, own, dims)
            dim, start = found
            if isinstance(own[dim], _Part):
                return None  # which has to lie in this slice, not in all of its tensor
            own[dim] = _Slice(own[dim].name, dims[dim], cut_place(_at(own[dim]), start))
            return own
        if view.name in _PERMUTED:
            order = order_of(view)
            if order is None:
                raise _Stays
            return list(in_order(order, own))
        left = [axis for axis in own if axis.extent != IntConst(1)]
        wanted = tuple(dim for dim in dims if dim != IntConst(1))
        if not sizes.same(wanted, tuple(axis.extent for axis in left)):
            return None
        rest = iter(left)
        return [_UNIT if dim == IntConst(1) else next(rest) for dim in dims]

    def _parted(self, view: Op, own: list[Axis], dims: tuple[Expr, ...]) -> list[Axis] | None:
        """The axes of computed values of which a slice is wanted that may leave them."""
        attrs = dict(view.attrs)
        dim, start = _constant(attrs["dim"]) % len(own), attrs["start"]
        assert isinstance(start, Expr)
        one = own[dim]
        if isinstance(one, _Slice) or dims[dim] == IntConst(1) or not self._is_computed(view):
            return None  # a dimension of size 1 may come from nowhere
        own[dim] = _Part(one.name, dims[dim], cut_place(_at(one), start), one, view)
        return own

    def _part(self, tensor: Var, axes: list[Axis]) -> tuple[Var, list[Axis]]:
        """The slices of a tensor that are read at some axes, as a variable, with its axes."""
        value: Expr = tensor
        inner = list(axes)
        for dim, axis in enumerate(axes):
            if isinstance(axis, _Part):
                attrs: dict[str, object] = {**dict(axis.view.attrs), "dim": dim}
                value = b.operator("slice", (value,), attrs, axis.view.span)
                inner[dim] = axis.inner
        if value is tensor:
            return tensor, axes
        if value not in self._parts:
            self._parts[value] = self._made(value.type, "_t", value)
        return self._parts[value], inner

    def _if_any(self) -> None:
        """Has the last statement's target zero where there is nothing to reduce."""
        last = self._out[-1]
        if not isinstance(last, IndexAssign) or not isinstance(last.value, Reduce):
            return
        count = sizes.product(tuple(axis.extent for axis in last.value.axes))
        if (sizes.constant(count) or 0) > 0:
            return
        del self._out[-1]
        none = Zero(last.element.tensor, last.span)
        self._out.append(If(Binary(">", count, IntConst(0), INT), (last,), (none,)))

    def _reduced(self, kind: ReduceKind, value: Op, axes: list[Axis]) -> Expr:
        (x,) = value.args
        dims = _dims(x)
        rank = len(dims)
        attrs = dict(value.attrs)
        given = attrs["dims"]
        assert isinstance(given, tuple)
        chosen = {_constant(d) % rank for d in given} or set(range(rank))
        kept = bool(_constant(attrs["keepdim"]))
        inner = [Axis(self._names.fresh(f"_k{k}"), dims[k]) for k in sorted(chosen)]
        own, reduced = iter(axes), iter(inner)
        every: list[Axis] = []
        for k in range(rank):
            every.append(next(reduced) if k in chosen else next(own))
            if k in chosen and kept:
                next(own)
        total = self._total(kind, self._element(x, every), inner, axes)
        if value.name != "mean":
            return total
        count = sizes.product(tuple(axis.extent for axis in inner))
        return Binary("/", total, Builtin("int2float", (count,), FLOAT), FLOAT)

    def _product(self, value: Op, axes: list[Axis]) -> Expr:
        """The sum of products of the operands' elements, which are read: a library takes those."""
        left, right = map(self._operand, value.args)
        if len(axes) < 2:
            raise _Stays
        along = Axis(self._names.fresh("_k"), _dims(left)[-1])
        *batch, row, column = axes

        def factor(operand: Expr, matrix: list[Axis]) -> Expr:
            own = [*batch, *matrix][-len(_dims(operand)) :]
            if not sizes.same(_dims(operand), tuple(axis.extent for axis in own)):
                raise _Stays  # it is repeated
            return self._element(operand, own)

        factors = factor(left, [row, along]), factor(right, [along, column])
        return _reduce("sum", Binary("*", *factors, FLOAT, value.span), [along])

    def _operand(self, operand: Expr) -> Expr:
        """A tensor, or one that is only transposed or has other dimensions of size 1."""
        match operand:
            case Var():
                return operand
            case Op("transpose" | "permute" | "reshape", (x,)) if self._is_moved(operand):
                return replace(operand, args=(self._operand(x),))
            case _:
                return self._plain(operand, "_operand")

    def _convolved(self, value: Op, axes: list[Axis]) -> Expr:
        """The sum of a window's elements times those of the filter, over the channels that it
        has."""
        x, w = value.args[:2]
        channel, summed, first = axes[1], list[Axis](), _UNIT
        windows = windows_of(value)
        if windows is not None:
            x, w = self._operand(x), self._operand(w)
        elif (windows := windows_of_parts(value)) is not None:
            channel = first = Axis(self._names.fresh("_k"), _dims(w)[1])
            summed = [channel]
        if windows is None or len(axes) != 2 + len(windows):
            raise _Stays
        inner, places = self._places(windows, axes[2:])
        read = ZeroPad(self._image(x, [axes[0], channel], places), x.span)
        weight = self._element(w, [axes[1], first, *inner])
        body = Binary("*", read, weight, FLOAT, value.span)
        total = _reduce("sum", body, [*summed, *inner])
        if len(value.args) == 2:
            return total
        return Binary("+", total, self._element(value.args[2], [axes[1]]), FLOAT, value.span)

    def _pooled(self, value: Op, axes: list[Axis]) -> Expr:
        """The largest, or the mean, of a window's elements."""
        windows = windows_of_pool(value)
        assert windows is not None
        inner, places = self._places(windows, axes[2:])
        read = self._image(self._operand(value.args[0]), axes[:2], places)
        if value.name == "max_pool2d":
            return _reduce("max", read, inner)
        count = math.prod(sizes.constant(axis.extent) or 0 for axis in inner)
        total = _reduce("sum", ZeroPad(read, value.span), inner)
        return Binary("/", total, FloatConst(float(count)), FLOAT, value.span)

    def _places(self, windows: list[Window], axes: list[Axis]) -> tuple[list[Axis], list[Expr]]:
        """The axes of windows, and where their elements are for elements of the result."""
        inner = [Axis(self._names.fresh("_k"), window.size) for window in windows]
        places: list[Expr] = []
        for window, axis, own in zip(windows, axes, inner, strict=True):
            here = b.binary("*", _at(axis), IntConst(window.stride))
            place = b.binary("+", here, b.binary("*", _at(own), IntConst(window.dilation)))
            places.append(sizes.simplify(b.binary("-", place, IntConst(window.padding))))
        return inner, places

    def _image(self, x: Expr, axes: list[Axis], places: list[Expr]) -> Index:
        """The element of images at the places, which may lie outside; of slices of their other
        dimensions it is read where it lies."""
        if isinstance(x, Op):
            own = [Axis(self._names.fresh("_p"), dim) for dim in _dims(x)[2:]]
            read = self._element(x, [*axes, *own])
            names = tuple(Var(axis.name, INT) for axis in own)
            if isinstance(read, Index) and read.subscripts[2:] == names:
                return replace(read, subscripts=(*read.subscripts[:2], *places))
            x = self._tensor("_operand", x.type, partial(self._element, x))
        assert isinstance(x, Var)
        return Index(x, (*map(_at, axes), *places), FLOAT, x.span)

    def _softmax(self, value: Op, axes: list[Axis]) -> Expr:
        """exp(x - max x) / sum of the same, along one dimension, or x - max x - log of that."""
        if len(axes) > len(_dims(value)):  # once, and not for each of what it is broadcast to
            made = self._tensor(f"_{value.name}", value.type, partial(self._softmax, value))
            return self._read(made, axes)
        x = self._plain(value.args[0], "_operand") if _is_composed(value.args[0]) else value.args[0]
        dims = _dims(x)
        dim = _constant(dict(value.attrs)["dim"]) % len(dims)
        rest = dims[:dim] + dims[dim + 1 :]

        def at(own: list[Axis], along: Axis) -> list[Axis]:
            return [*own[:dim], along, *own[dim:]]

        def along() -> Axis:
            return Axis(self._names.fresh("_k"), dims[dim])

        def largest(own: list[Axis]) -> Expr:
            axis = along()
            return _reduce("max", self._element(x, at(own, axis)), [axis])

        top = self._tensor("_max", TensorType(rest), largest)
        self._if_any()  # the softmax of no elements is no error

        def shifted(every: list[Axis]) -> Expr:
            row = [*every[:dim], *every[dim + 1 :]]
            return Binary("-", self._element(x, every), self._read(top, row), FLOAT)

        def power(every: list[Axis]) -> Expr:
            return Builtin("exp", (shifted(every),), FLOAT)

        powers = self._tensor("_softmax", TensorType(dims), power)

        def added(own: list[Axis]) -> Expr:
            axis = along()
            return _reduce("sum", self._read(powers, at(own, axis)), [axis])

        sums = self._tensor("_sum", TensorType(rest), added)
        row = [*axes[:dim], *axes[dim + 1 :]]
        total = self._read(sums, row)
        if value.name == "softmax":
            return Binary("/", self._read(powers, axes), total, FLOAT, value.span)
        return Binary("-", shifted(axes), Builtin("log", (total,), FLOAT), FLOAT, value.span)


def _constant(value: object) -> int:
    assert isinstance(value, Expr)
    found = sizes.constant(value)
    if found is None:
        raise _Stays
    return found
