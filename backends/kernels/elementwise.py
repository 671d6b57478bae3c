"""Tensor operators as index statements, so that they fuse with others.

Elementwise operators (with broadcasting), reductions over dims, softmax, products of matrices, also
transposed ones, and copies: what stands as
``y : Tensor[N, M] = relu(x + b)`` in a program is ``y[i, j] = max(x[i, j] + b[j], 0.0)`` here.
Where the sizes do not prove how the operands broadcast, the statement stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from typing import Literal, cast

from loma.core import sizes
from loma.core.builtins import BUILTINS
from loma.core.ir import (
    FLOAT, INT, Assign, Axis, Binary, BinaryOp, Builtin, Declare, Expr, FloatConst, FloatType, If,
    Index, IndexAssign, IntConst, IntType, NoDiff, Op, Reduce, ReduceKind, Return, Select, Stmt,
    TensorType, Type, Unary, Var,
)  # fmt: skip
from loma.core.names import Names
from loma.core.ops import OPS
from loma.core.walk import numbered

_TRIANGLES: dict[str, BinaryOp] = {"tril": "<=", "triu": ">="}  # of the column


def index_statements(stmt: Stmt, names: Names) -> tuple[list[Declare], list[Stmt]] | None:
    """A statement with a whole-tensor value as declarations and index statements; None where it
    has to stay."""
    op: Literal["=", "+="] = "="
    match stmt:
        case Declare(target, value) if value is not None:
            pass
        case Assign(Var() as target, op, value):
            pass
        case _:
            return None
    if not _is_float(target.type) or not _is_float(value.type):
        return None
    try:
        lowering = _Lowering(names, stmt)
        axes = lowering.axes(_dims(target))
        element = lowering.top(value, axes, _dims(target))
    except _Stays:
        return None
    own = tuple(Var(axis.name, INT) for axis in axes)
    last = IndexAssign(Index(target, own, FLOAT), op, element, tuple(axes), stmt.span)
    declared = [*lowering.declarations]
    if isinstance(stmt, Declare):
        declared.append(Declare(target, None, stmt.span))
    return declared, [*lowering.statements, last]


class _Stays(Exception):
    """The statement has no form as index statements."""


def _is_float(type_: object) -> bool:
    return isinstance(type_, TensorType) and type_.dims is not None and not type_.integer


def _dims(expr: Expr, ints: bool = False) -> tuple[Expr, ...]:
    if not isinstance(expr.type, TensorType) or expr.type.dims is None:
        raise _Stays
    if expr.type.integer and not ints:
        raise _Stays
    return expr.type.dims


def _scalar(value: Op) -> IntType | FloatType:
    """The type of an operator's elements."""
    assert isinstance(value.type, TensorType)
    return INT if value.type.integer else FLOAT


class _Lowering:
    def __init__(self, names: Names, stmt: Stmt) -> None:
        self._names = names
        self._stmt = stmt
        self.declarations: list[Declare] = []
        self.statements: list[Stmt] = []

    def axes(self, dims: tuple[Expr, ...]) -> list[Axis]:
        return [Axis(self._names.fresh(f"_i{k}"), dim) for k, dim in enumerate(dims)]

    def top(self, value: Expr, axes: list[Axis], dims: tuple[Expr, ...]) -> Expr:
        """The element of a statement's value at its axes."""
        if not sizes.same(_dims(value), dims):
            raise _Stays
        match value:
            case Op("matmul"):
                return self._product(value, axes)
            case Op("transpose"):
                raise _Stays  # a view
        return self.element(value, axes)

    def element(self, value: Expr, axes: list[Axis]) -> Expr:
        """The element of a tensor (broadcast to the axes) or the value of a scalar."""
        if not isinstance(value.type, TensorType):
            if isinstance(value, Var | FloatConst | IntConst):
                return value
            if value.type == INT and sizes.is_arithmetic(value):
                return Builtin("int2float", (value,), FLOAT, value.span)
            raise _Stays
        match value:
            case Var():
                return self._read(value, axes)
            case NoDiff(operand):
                return self.element(operand, axes)
            case Op("neg", (x,)):
                return Unary("-", self.element(x, axes), FLOAT, value.span)
            case Op("not", (x,)):
                return Unary("not", self.element(x, axes), INT, value.span)
            case Op(name, args) if OPS[name].infix:
                left, right = (self.element(arg, axes) for arg in args)
                symbol = cast(BinaryOp, OPS[name].infix)
                return Binary(symbol, left, right, _scalar(value), value.span)
            case Op(name, args) if name in BUILTINS:
                own = tuple(self.element(arg, axes) for arg in args)
                return Builtin(name, own, _scalar(value), value.span)
            case Op("where", (cond, a, b)):
                branches = (self.element(a, axes), self.element(b, axes))
                return Select(self._condition(cond, axes), *branches, FLOAT, value.span)
            case Op(name, (x,)) if name in _TRIANGLES and len(axes) == len(_dims(value)):
                row, column = (Var(axis.name, INT) for axis in axes[-2:])
                diagonal = dict(value.attrs)["diagonal"]
                assert isinstance(diagonal, Expr)
                edge = Binary("+", row, diagonal, INT)
                inside = Binary(_TRIANGLES[name], column, edge, INT)
                return Select(inside, self.element(x, axes), FloatConst(0.0), FLOAT, value.span)
            case Op(name, type=TensorType() as type_) if (kind := OPS[name].reduces) is not None:
                total = self._temporary(f"_{name}", type_, partial(self._reduced, kind, value))
                if name == "amax_or_zero":
                    self._if_any()
                return self._read(total, axes)
            case Op("softmax"):
                return self._softmax(value, axes)
            case Op("matmul", type=TensorType() as type_):
                product = self._temporary("_product", type_, partial(self._product, value))
                return self._read(product, axes)
            case Op("transpose", (x,)) if len(axes) == len(_dims(x)):
                given = dict(value.attrs)
                first, second = (_constant(given[name]) % len(axes) for name in ("dim0", "dim1"))
                swapped = [*axes]
                swapped[first], swapped[second] = axes[second], axes[first]
                return self.element(x, swapped)
            case _:
                raise _Stays

    def _condition(self, cond: Expr, axes: list[Axis]) -> Expr:
        if isinstance(cond, Var) and isinstance(cond.type, TensorType) and cond.type.integer:
            return Binary("!=", self._read(cond, axes, INT), IntConst(0), INT)
        element = self.element(cond, axes)
        if element.type == INT:
            return element
        return Binary("!=", element, FloatConst(0.0), INT)

    def _read(self, tensor: Var, axes: list[Axis], element: Type = FLOAT) -> Expr:
        """The element that broadcasting puts at the axes."""
        dims = _dims(tensor, element == INT)
        if len(dims) > len(axes):
            raise _Stays
        subscripts: list[Expr] = []
        for dim, axis in zip(dims, axes[len(axes) - len(dims) :], strict=True):
            if sizes.equal(dim, axis.extent) is True:
                subscripts.append(Var(axis.name, INT))
            elif dim == IntConst(1):
                subscripts.append(IntConst(0))
            else:
                raise _Stays
        return Index(tensor, tuple(subscripts), element, tensor.span)

    def _temporary(self, name: str, type_: TensorType, make: Callable[[list[Axis]], Expr]) -> Var:
        """A new tensor with the value that ``make`` gives for each element."""
        var = Var(self._names.fresh(name), type_)
        axes = self.axes(_dims(var))
        element = make(axes)
        own = tuple(Var(axis.name, INT) for axis in axes)
        self.declarations.append(Declare(var, None, self._stmt.span))
        target = Index(var, own, FLOAT)
        self.statements.append(IndexAssign(target, "=", element, tuple(axes), self._stmt.span))
        return var

    def _if_any(self) -> None:
        """Leaves the last statement's target at zero where there is nothing to reduce."""
        last = self.statements.pop()
        assert isinstance(last, IndexAssign)
        assert isinstance(last.value, Reduce)
        count = sizes.product(tuple(axis.extent for axis in last.value.axes))
        self.statements.append(If(Binary(">", count, IntConst(0), INT), (last,), ()))

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
        total = Reduce(kind, self.element(x, every), tuple(inner), FLOAT, value.span)
        if value.name != "mean":
            return total
        count = sizes.product(tuple(axis.extent for axis in inner))
        return Binary("/", total, Builtin("int2float", (count,), FLOAT), FLOAT)

    def _product(self, value: Op, axes: list[Axis]) -> Expr:
        """The sum of products of the operands' elements, which are read: a library takes those."""
        left, right = map(self._operand, value.args)
        along = Axis(self._names.fresh("_k"), _dims(left)[-1])
        *batch, row, column = axes

        def factor(operand: Expr, matrix: list[Axis]) -> Expr:
            own = [*batch, *matrix][-len(_dims(operand)) :]
            if not sizes.same(_dims(operand), tuple(axis.extent for axis in own)):
                raise _Stays  # it is repeated
            return self.element(operand, own)

        factors = factor(left, [row, along]), factor(right, [along, column])
        return Reduce("sum", Binary("*", *factors, FLOAT), (along,), FLOAT, value.span)

    def _operand(self, operand: Expr) -> Expr:
        """A tensor, or one whose matrices are transposed."""
        if isinstance(operand, Var) or (
            isinstance(operand, Op)
            and operand.name == "transpose"
            and isinstance(operand.args[0], Var)
        ):
            return operand
        type_ = TensorType(_dims(operand))
        return self._temporary("_operand", type_, partial(self.element, operand))

    def _softmax(self, value: Op, axes: list[Axis]) -> Expr:
        """exp(x - max x) / sum of the same, along one dimension."""
        (x,) = value.args
        dims = _dims(x)
        dim = _constant(dict(value.attrs)["dim"]) % len(dims)
        rest = dims[:dim] + dims[dim + 1 :]

        def at(own: list[Axis], along: Axis) -> list[Axis]:
            return [*own[:dim], along, *own[dim:]]

        def along() -> Axis:
            return Axis(self._names.fresh("_k"), dims[dim])

        def largest(own: list[Axis]) -> Expr:
            axis = along()
            return Reduce("max", self.element(x, at(own, axis)), (axis,), FLOAT)

        top = self._temporary("_max", TensorType(rest), largest)
        self._if_any()  # the softmax of no elements is no error

        def shifted(every: list[Axis]) -> Expr:
            row = [*every[:dim], *every[dim + 1 :]]
            low = Binary("-", self.element(x, every), self._read(top, row), FLOAT)
            return Builtin("exp", (low,), FLOAT)

        powers = self._temporary("_softmax", TensorType(dims), shifted)

        def total(own: list[Axis]) -> Expr:
            axis = along()
            return Reduce("sum", self._read(powers, at(own, axis)), (axis,), FLOAT)

        sums = self._temporary("_sum", TensorType(rest), total)
        if len(axes) != len(dims):
            raise _Stays
        row = [*axes[:dim], *axes[dim + 1 :]]
        return Binary("/", self._read(powers, axes), self._read(sums, row), FLOAT, value.span)


def _constant(value: object) -> int:
    assert isinstance(value, Expr)
    found = sizes.constant(value)
    if found is None:
        raise _Stays
    return found


@dataclass(frozen=True, slots=True)
class Expanded:
    """A body in which index statements stand for whole-tensor statements.

    Those that stand for the same one have the same number; ``origins`` gives, by number, that one.
    """

    body: tuple[Stmt, ...]
    origins: dict[int, Stmt]


def expanded(body: tuple[Stmt, ...], names: Names) -> Expanded:
    """The body, with numbers, with every statement of its outermost block as index statements that
    can be."""
    out: list[Stmt] = []
    origins: dict[int, Stmt] = {}
    for stmt in numbered(body):
        made = _returned(stmt, names) if isinstance(stmt, Return) else _made(stmt, names)
        if made:
            origins[stmt.number] = stmt
        out += numbered(made, repeat(stmt.number)) if made else [stmt]
    return Expanded(tuple(out), origins)


def _made(stmt: Stmt, names: Names) -> tuple[Stmt, ...]:
    """Declarations and index statements for a statement, none where it has to stay."""
    found = index_statements(stmt, names)
    return () if found is None else (*found[0], *found[1])


def _returned(stmt: Return, names: Names) -> tuple[Stmt, ...]:
    """The same for a ``return``, whose values become variables."""
    before: list[Stmt] = []
    values = list(stmt.values)
    for k, value in enumerate(values):
        if isinstance(value, Op):
            result = Var(names.fresh("_result"), value.type, value.span)
            made = _made(Declare(result, value, stmt.span), names)
            values[k] = result if made else value
            before += made
    return (*before, replace(stmt, values=tuple(values))) if before else ()
