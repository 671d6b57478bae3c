"""Operators that reduce, element by element: sums, products, windows, softmax, and the temporaries
that hold what they need."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from loma.core import builder as b
from loma.core import sizes
from loma.core.ir import (
    FLOAT, INT, Assign, Axis, Binary, Builtin, Expr, FloatConst, If, Index, IndexAssign, IntConst,
    Op, Reduce, ReduceKind, TensorType, Type, Var, Zero, ZeroPad, replace,
)  # fmt: skip
from loma.core.walk import reads_of_type
from loma.passes.canonical.filters import Window, windows_of, windows_of_parts, windows_of_pool
from loma.passes.canonical.operators.axes import (
    UNIT, VIEWS, Part, Stays, constant_of, dims_of, float_dims, is_composed, moving, own_axes,
    place_of, reduction, subscript,
)  # fmt: skip
from loma.passes.canonical.operators.chosen import Chosen


class Forms(Chosen):
    """What an operator's element is made of, by the elements of its operands."""

    def _whole(self, value: Expr, axes: list[Axis]) -> Expr:
        """The element of a statement's value at its axes: here a reduction may stand as it is."""
        raise NotImplementedError

    def _element(self, value: Expr, axes: list[Axis]) -> Expr:
        """The element of a tensor (broadcast to the axes) or the value of a scalar."""
        raise NotImplementedError

    def _plain(self, value: Expr, wish: str = "_t") -> Expr:
        """A tensor as a variable, where index statements compute it."""
        if not self._is_written_out(value):
            return self._with_plain_arguments(value)
        mark = len(self._out), len(self._hoisted)
        try:
            float_dims(value)
            return self._tensor(wish, value.type, partial(self._whole, value))
        except Stays:
            self._forget(mark)
            return self._view_of_plain(value)

    def _rearranged(self, value: Expr, wish: str = "_t") -> Expr:
        """A permutation as a variable, which an index statement makes."""
        mark = len(self._out), len(self._hoisted)
        try:
            return self._tensor(wish, value.type, partial(self._whole, value))
        except Stays:
            self._forget(mark)
            return self._view_of_plain(value)

    def _view_of_plain(self, value: Expr) -> Expr:
        """A value that stays as it is, a view with what it is one of as a variable."""
        is_view = isinstance(value, Op) and value.name in VIEWS
        return self._with_plain_arguments(value) if is_view else value

    def _with_plain_arguments(self, value: Expr) -> Expr:
        if not isinstance(value, Op):
            return value
        if value.name == "reshape" and self._is_rearranged(value.args[0]):
            return replace(value, args=(self._rearranged(value.args[0]),))
        args = (self._plain(arg) if is_composed(arg) else arg for arg in value.args)
        return replace(value, args=tuple(args))

    def _forget(self, mark: tuple[int, int]) -> None:
        """Takes back what was made for a statement that stays as it is."""
        del self._out[mark[0] :]
        del self._hoisted[mark[1] :]
        self._parts = {}

    def _made(self, type_: Type, wish: str, value: Expr | None) -> Var:
        """A temporary whose size is known where it is declared."""
        if self._depth and not reads_of_type(type_) <= self._known:
            raise Stays
        return self._temporary(type_, wish, value)

    def _tensor(self, wish: str, type_: Type, make: Callable[[list[Axis]], Expr]) -> Var:
        """A new tensor with the value that ``make`` gives for each element."""
        assert isinstance(type_, TensorType)
        axes = self._axes(dims_of(type_))
        element = make(axes)
        var = self._made(type_, wish, None)
        stmt = IndexAssign(place_of(var, axes), "=", element, moving(axes), self._span)
        self._out.append(stmt)
        return var

    def _read(self, tensor: Var, axes: list[Axis], element: Type = FLOAT) -> Expr:
        """The element that broadcasting puts at the axes."""
        tensor, own = self._part(tensor, own_axes(float_dims(tensor, element == INT), axes))
        return Index(tensor, tuple(map(subscript, own)), element, tensor.span)

    def _part(self, tensor: Var, axes: list[Axis]) -> tuple[Var, list[Axis]]:
        """The slices of a tensor that are read at some axes, as a variable, with its axes."""
        value: Expr = tensor
        inner = list(axes)
        for dim, axis in enumerate(axes):
            if isinstance(axis, Part):
                attrs: dict[str, object] = {**dict(axis.view.attrs), "dim": dim}
                value = b.operator("slice", (value,), attrs, axis.view.span)
                inner[dim] = axis.inner
        if value is tensor:
            return tensor, axes
        if value not in self._parts:
            self._parts[value] = self._made(value.type, "_t", value)
        return self._parts[value], inner

    # ----------------------------------------------------------------------------- what reduces

    def _sum_to(self, x: Expr, axes: list[Axis]) -> Expr:
        """The sum over what was broadcast to the axes."""
        dims = float_dims(x)
        lead = len(dims) - len(axes)
        inner: list[Axis] = []
        every: list[Axis] = []
        for k, dim in enumerate(dims):
            if k >= lead and sizes.equal(dim, axes[k - lead].extent) is True:
                every.append(axes[k - lead])
                continue
            if k >= lead and axes[k - lead].extent != IntConst(1):
                raise Stays
            inner.append(Axis(self._names.fresh(f"_k{k}"), dim))
            every.append(inner[-1])
        return self._total("sum", self._element(x, every), inner, axes)

    def _total(self, kind: ReduceKind, body: Expr, inner: list[Axis], axes: list[Axis]) -> Expr:
        """A reduction; a sum of everything goes into a scalar, to which threads may add."""
        if kind != "sum" or not moving(inner) or moving(axes):
            return reduction(kind, body, inner)
        total = self._temporary(FLOAT, "_total", None)
        if self._depth:
            self._out.append(Assign(total, "=", FloatConst(0.0), self._span))
        self._out.append(IndexAssign(total, "+=", body, moving(inner), self._span))
        return total

    def _reduced(self, kind: ReduceKind, value: Op, axes: list[Axis]) -> Expr:
        (x,) = value.args
        dims = float_dims(x)
        rank = len(dims)
        attrs = dict(value.attrs)
        given = attrs["dims"]
        assert isinstance(given, tuple)
        chosen = {constant_of(d) % rank for d in given} or set(range(rank))
        kept = bool(constant_of(attrs["keepdim"]))
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

    def _product(self, value: Op, axes: list[Axis]) -> Expr:
        """The sum of products of the operands' elements, which are read: a library takes those."""
        left, right = map(self._operand, value.args)
        if len(axes) < 2:
            raise Stays
        along = Axis(self._names.fresh("_k"), float_dims(left)[-1])
        *batch, row, column = axes

        def factor(operand: Expr, matrix: list[Axis]) -> Expr:
            own = [*batch, *matrix][-len(float_dims(operand)) :]
            if not sizes.same(float_dims(operand), tuple(axis.extent for axis in own)):
                raise Stays  # it is repeated
            return self._element(operand, own)

        factors = factor(left, [row, along]), factor(right, [along, column])
        return reduction("sum", Binary("*", *factors, FLOAT, value.span), [along])

    def _mapped(self, x: Expr, w: Expr, axes: list[Axis]) -> Expr:
        """The sum of products of the elements of rows and of a matrix with a row for each result,
        which are read."""
        x, w = map(self._operand, (x, w))
        along = Axis(self._names.fresh("_k"), sizes.dims_of(w)[1])
        factors = self._element(x, [*axes[:-1], along]), self._element(w, [axes[-1], along])
        return reduction("sum", Binary("*", *factors, FLOAT), [along])

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
        channel, summed, first = axes[1], list[Axis](), UNIT
        windows = windows_of(value)
        if windows is not None:
            x, w = self._operand(x), self._operand(w)
        elif (windows := windows_of_parts(value)) is not None:
            channel = first = Axis(self._names.fresh("_k"), float_dims(w)[1])
            summed = [channel]
        if windows is None or len(axes) != 2 + len(windows):
            raise Stays
        inner, places = self._places(windows, axes[2:])
        read = ZeroPad(self._image(x, [axes[0], channel], places), x.span)
        weight = self._element(w, [axes[1], first, *inner])
        body = Binary("*", read, weight, FLOAT, value.span)
        total = reduction("sum", body, [*summed, *inner])
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
            return reduction("max", read, inner)
        count = math.prod(sizes.constant(axis.extent) or 0 for axis in inner)
        total = reduction("sum", ZeroPad(read, value.span), inner)
        return Binary("/", total, FloatConst(float(count)), FLOAT, value.span)

    def _places(self, windows: list[Window], axes: list[Axis]) -> tuple[list[Axis], list[Expr]]:
        """The axes of windows, and where their elements are for elements of the result."""
        inner = [Axis(self._names.fresh("_k"), window.size) for window in windows]
        places: list[Expr] = []
        for window, axis, own in zip(windows, axes, inner, strict=True):
            here = b.binary("*", subscript(axis), IntConst(window.stride))
            place = b.binary("+", here, b.binary("*", subscript(own), IntConst(window.dilation)))
            places.append(sizes.simplify(b.binary("-", place, IntConst(window.padding))))
        return inner, places

    def _image(self, x: Expr, axes: list[Axis], places: list[Expr]) -> Index:
        """The element of images at the places, which may lie outside; of slices of their other
        dimensions it is read where it lies."""
        if isinstance(x, Op):
            own = [Axis(self._names.fresh("_p"), dim) for dim in float_dims(x)[2:]]
            read = self._element(x, [*axes, *own])
            names = tuple(Var(axis.name, INT) for axis in own)
            if isinstance(read, Index) and read.subscripts[2:] == names:
                return replace(read, subscripts=(*read.subscripts[:2], *places))
            x = self._tensor("_operand", x.type, partial(self._element, x))
        assert isinstance(x, Var)
        return Index(x, (*map(subscript, axes), *places), FLOAT, x.span)

    def _softmax(self, value: Op, axes: list[Axis]) -> Expr:
        """exp(x - max x) / sum of the same, along one dimension, or x - max x - log of that."""
        if len(axes) > len(float_dims(value)):  # once, and not for each of what it is broadcast to
            made = self._tensor(f"_{value.name}", value.type, partial(self._softmax, value))
            return self._read(made, axes)
        x = self._plain(value.args[0], "_operand") if is_composed(value.args[0]) else value.args[0]
        dims = float_dims(x)
        dim = constant_of(dict(value.attrs)["dim"]) % len(dims)
        rest = dims[:dim] + dims[dim + 1 :]

        def at(own: list[Axis], along: Axis) -> list[Axis]:
            return [*own[:dim], along, *own[dim:]]

        def along() -> Axis:
            return Axis(self._names.fresh("_k"), dims[dim])

        def largest(own: list[Axis]) -> Expr:
            axis = along()
            return reduction("max", self._element(x, at(own, axis)), [axis])

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
            return reduction("sum", self._read(powers, at(own, axis)), [axis])

        sums = self._tensor("_sum", TensorType(rest), added)
        row = [*axes[:dim], *axes[dim + 1 :]]
        total = self._read(sums, row)
        if value.name == "softmax":
            return Binary("/", self._read(powers, axes), total, FLOAT, value.span)
        return Binary("-", shifted(axes), Builtin("log", (total,), FLOAT), FLOAT, value.span)
