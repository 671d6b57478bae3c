"""Operators as expressions of the elements of their operands."""

from __future__ import annotations

from functools import partial
from typing import cast

from loma.core import sizes
from loma.core.builtins import BUILTINS
from loma.core.ir import (
    FLOAT, INT, Axis, Binary, BinaryOp, Builtin, Expr, FloatConst, FloatType, Index, IntConst,
    IntType, NoDiff, Op, Select, TensorType, Unary, Var, replace,
)  # fmt: skip
from loma.core.ops import OPS
from loma.passes.canonical.operators.axes import (
    VIEWS, Part, Stays, constant_of, float_dims, is_composed, own_axes, subscript, turned_axes,
)  # fmt: skip
from loma.passes.canonical.operators.chosen import TRIANGLES
from loma.passes.canonical.operators.forms import Forms
from loma.passes.canonical.views import element


def _scalar_type(value: Op) -> IntType | FloatType:
    """The type of an operator's elements."""
    assert isinstance(value.type, TensorType)
    return INT if value.type.integer else FLOAT


class Elements(Forms):
    """The element of any operator that becomes one."""

    def _whole(self, value: Expr, axes: list[Axis]) -> Expr:
        """The element of a statement's value at its axes: here a reduction may stand as it is."""
        match value:
            case Op("matmul"):
                return self._product(value, axes)
            case Op("linear", (x, w)):
                return self._mapped(x, w, axes)
            case Op("conv2d") if not any(isinstance(axis, Part) for axis in axes):
                return self._convolved(value, axes)
            case Op("max_pool2d" | "avg_pool2d") if not any(isinstance(a, Part) for a in axes):
                return self._pooled(value, axes)
            case Op(_, (x,)) if (inner := self._moved(value, axes)) is not None:
                return self._whole(x, inner)
            case Op("sum_to", (x,)):
                return self._sum_to(x, axes)
            case Op(name) if (kind := OPS[name].reduces) is not None and name != "amax_or_zero":
                float_dims(value)  # of floats
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
                dims = float_dims(value)  # of floats
                if (inner := self._moved(value, axes)) is not None:
                    return self._element(value.args[0], inner)
                whole = value.args[0] if value.name in VIEWS else None
                if isinstance(whole, Op) and whole.name not in VIEWS:
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
            case Op(name, (x,)) if name in TRIANGLES:
                row, column = map(subscript, own_axes(float_dims(value), axes)[-2:])
                diagonal = dict(value.attrs)["diagonal"]
                assert isinstance(diagonal, Expr)
                edge = sizes.arith("+", row, diagonal)
                inside = Binary(TRIANGLES[name], column, edge, INT)
                return Select(inside, self._element(x, axes), FloatConst(0.0), FLOAT, value.span)
            case Op("expand" | "conv2d" | "max_pool2d" | "avg_pool2d") if any(
                isinstance(axis, Part) for axis in axes
            ):
                raise Stays  # no operand says whether the slice is there
            case Op("expand", (x,)):
                return self._element(x, axes)
            case Op(_, (x,)) if (inner := self._moved(value, axes)) is not None:
                return self._element(x, inner)
            case Op("sum_to", (x,)):
                return self._read(self._tensor("_sum", value.type, partial(self._sum_to, x)), axes)
            case Op(name) if (fill := OPS[name].fill) is not None:
                float_dims(value)  # of floats
                if any(isinstance(axis, Part) for axis in axes):
                    raise Stays
                return FloatConst(float(fill))
            case Op(name) if not axes and OPS[name].reduces == "sum" and not float_dims(value):
                return self._reduced("sum", value, axes)
            case Op(name) if (kind := OPS[name].reduces) is not None:
                total = self._tensor(f"_{name}", value.type, partial(self._reduced, kind, value))
                if name == "amax_or_zero":
                    self._if_any()
                return self._read(total, axes)
            case Op("softmax" | "log_softmax"):
                return self._softmax(value, axes)
            case Op("flip" | "roll", (x,)):
                return self._element(
                    self._plain(x) if is_composed(x) else x, turned_axes(value, axes)
                )
            case Op("gather"):
                return self._taken(value, axes)
            case Op("matmul"):
                product = self._tensor("_product", value.type, partial(self._product, value))
                return self._read(product, axes)
            case Op("linear", (x, w)):
                product = self._tensor("_product", value.type, partial(self._mapped, x, w))
                return self._read(product, axes)
            case Op("linear", (x, w, bias)):
                mapped = self._element(replace(value, args=(x, w)), axes)
                return Binary("+", mapped, self._element(bias, axes), FLOAT, value.span)
            case Op("conv2d"):
                total = self._tensor("_sum", value.type, partial(self._convolved, value))
                return self._read(total, axes)
            case Op("max_pool2d" | "avg_pool2d"):
                pool = self._tensor("_pool", value.type, partial(self._pooled, value))
                return self._read(pool, axes)
            case _:
                raise Stays

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
                raise Stays

    def _condition(self, cond: Expr, axes: list[Axis]) -> Expr:
        if isinstance(cond, Var):
            cond = self._masks.get(cond.name, cond)
        if isinstance(cond, Var) and isinstance(cond.type, TensorType) and cond.type.integer:
            return Binary("!=", self._read(cond, axes, INT), IntConst(0), INT)
        element = self._element(cond, axes)
        if element.type == INT:
            return element
        return Binary("!=", element, FloatConst(0.0), INT)

    def _taken(self, value: Op, axes: list[Axis]) -> Expr:
        """The element of a tensor at a position that another one has."""
        x, index = value.args
        tensor = self._plain(x, "_operand") if is_composed(x) else x
        own = own_axes(float_dims(value), axes)
        position = element(index, tuple(map(subscript, own)))
        if position is None or not isinstance(tensor, Var):
            raise Stays
        if any(isinstance(axis, Part) for axis in own):
            raise Stays  # no operand says whether the slice is there
        along = constant_of(dict(value.attrs)["dim"]) % len(own)
        position = replace(position, span=index.span)
        places = (position if k == along else subscript(axis) for k, axis in enumerate(own))
        return Index(tensor, tuple(places), FLOAT, value.span)
