"""The table of tensor operators as ATen calls: one row for every row of :data:`loma.core.ops.OPS`.

A row's text is C++ that needs no parentheses. ``$0`` stands for the first argument as it is,
``$t0`` for it as a tensor, ``$args`` and ``$tensors`` for all of them so, ``$dim`` for the
attribute of that name, ``$place`` for the string that begins messages. An argument that is left out
is ``{}``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loma import config, errors
from loma.backends.cfamily.names import cpp_string
from loma.core import sizes
from loma.core.builtins import BUILTINS
from loma.core.ir import FLOAT, Expr, Op, TensorType, Type
from loma.core.ops import OPS


@dataclass(frozen=True, slots=True)
class Lowered:
    """An operator whose arguments are C++ already.

    ``args`` are the texts as items of a list, of which those of tensors need no parentheses;
    ``ints`` turns an int expression to an item, ``place`` begins messages.
    """

    op: Op
    args: tuple[str, ...]
    ints: Callable[[Expr], str]
    place: str

    def fill(self, text: str) -> str:
        """A row's text with this operator's arguments and attributes."""
        return re.sub(r"\$(\w+)", lambda found: self._field(found[1]), text)

    def _field(self, name: str) -> str:
        tensors = (self.tensor(k) for k in range(len(self.args)))
        match name:
            case "args":
                return ", ".join(self.args)
            case "tensors":
                return ", ".join(tensors)
            case "place":
                return cpp_string(self.place)
            case _ if name.isdigit():
                return self.args[int(name)] if int(name) < len(self.args) else "{}"
            case _ if re.fullmatch(r"t\d", name):
                return self.tensor(int(name[1:]))
            case _:
                return self._attr(name)

    def _attr(self, name: str) -> str:
        value = dict(self.op.attrs)[name]
        if isinstance(value, tuple):
            return f"{{{', '.join(map(self.ints, value))}}}"
        (kind,) = (attr.kind for attr in OPS[self.op.name].attrs if attr.name == name)
        match kind:
            case "flag":
                return "true" if sizes.constant(value) else "false"
            case "dim":
                return str(sizes.constant(value))
            case _:
                return self.ints(value)

    def type(self, position: int) -> Type:
        return self.op.args[position].type

    def rank(self, name: str) -> int:
        """How many ints an attribute has."""
        value = dict(self.op.attrs)[name]
        assert isinstance(value, tuple)
        return len(value)

    def tensor(self, position: int) -> str:
        """The argument as a tensor: a scalar becomes a 0-dim one, ints become floats where the
        result is float."""
        text, type_ = self.args[position], self.type(position)
        is_float = _is_float(self.op.type)
        if isinstance(type_, TensorType):
            widened = type_.integer and is_float
            return f"{text}.to(loma::options<real>().dtype())" if widened else text
        return _scalar(text, "real" if type_ == FLOAT or is_float else "int64_t")

    def is_tensor(self, position: int) -> bool:
        return isinstance(self.type(position), TensorType)


def _is_float(type_: Type) -> bool:
    return isinstance(type_, TensorType) and not type_.integer


def _scalar(text: str, number: str) -> str:
    return f"loma::scalar<{number}>({text})"


@dataclass(frozen=True, slots=True)
class Row:
    """``light``: the text needs no more of tensors than runtime/light/light_tensors.h has."""

    emit: Callable[[Lowered], str]
    headers: tuple[str, ...]
    light: bool = False


def _headers(text: str) -> tuple[str, ...]:
    """Those of the at::_ops that a text names.

    Methods of tensors need none. What is a function of ATen alone is called by the runtime: its
    header, ATen/ops/NAME.h, costs each file that includes one some seconds, whatever is
    precompiled.
    """
    operators = re.findall(r"\bat::_ops::(\w+)::call\(", text)
    return tuple(f"ATen/ops/{name}_ops.h" for name in operators)


def _text(text: str, light: bool = False) -> Row:
    """A row of that text."""
    return Row(lambda c: c.fill(text), _headers(text), light)


def _method(name: str) -> Row:
    """A row that calls a method of the first argument with the others, all as tensors."""

    def emit(c: Lowered) -> str:
        first, *others = (c.tensor(k) for k in range(len(c.args)))
        return f"{first}.{name}({', '.join(others)})"

    return Row(emit, ())


def _infix(name: str) -> Row:
    def emit(c: Lowered) -> str:
        # A scalar on the right is ATen's own Scalar; it does not widen the dtype.
        plain = not c.is_tensor(1) and (c.type(1) != FLOAT or _is_float(c.type(0)))
        return c.fill(f"$t0.{name}({'$1' if plain else '$t1'})")

    return Row(emit, ())


def _compare(name: str) -> Row:
    def emit(c: Lowered) -> str:
        # Compared in float when either side is, with a float scalar rounded to the call's dtype.
        sides = []
        for k in range(2):
            number = "real" if c.type(k) == FLOAT else "int64_t"
            sides.append(c.args[k] if c.is_tensor(k) else _scalar(c.args[k], number))
        return f"{sides[0]}.{name}({sides[1]})"

    return Row(emit, ())


_ATEN = {"min": "minimum", "max": "maximum"}  # those that have the function's own name aside


def _where(c: Lowered) -> str:
    condition = c.type(0)
    if isinstance(condition, TensorType) and condition.element == "bool":
        return c.fill("$t1.where($0, $t2)")
    # loma::scalar(...) of an int would not be promoted to the dtype of the other branch.
    tested = c.args[0] if c.is_tensor(0) else _scalar(c.args[0], "real")
    return c.fill(f"$t1.where({tested}.ne(0), $t2)")


_EXTREMES = ("amax", "amin")


def _reduction(name: str) -> Row:
    def emit(c: Lowered) -> str:
        dims = "$dims" if name in _EXTREMES else "at::IntArrayRef($dims)"
        if not c.rank("dims"):
            dims = "at::IntArrayRef()" if name in _EXTREMES else "at::OptionalIntArrayRef()"
        return c.fill(f"$0.{name}({dims}, $keepdim)")

    return Row(emit, ())


def _amax_or_zero(c: Lowered) -> str:
    largest, total = (_reduction(name).emit(c) for name in ("amax", "sum"))
    return f"({c.args[0]}.sym_numel() == 0 ? {total} : {largest})"


def _measured(c: Lowered) -> bool:
    """Whether convolutions call the runtime, which picks a form, or the library itself."""
    return c.op.name.startswith("conv2d") and "convolution" in config.optimisations()


def _no_extra(c: Lowered) -> str:
    """The library's output_padding."""
    return f"{{{', '.join(['0'] * c.rank('stride'))}}}"


_GEOMETRY = "$stride, $padding, $dilation"
_CONVOLUTION = "at::_ops::convolution::call"
_CONVOLUTION_BACKWARD = "at::_ops::convolution_backward::call"


def _convolution(c: Lowered) -> str:
    # A bias is optional<Tensor>; "{}" would be read as an undefined tensor, which means the same.
    if _measured(c):
        return c.fill(f"loma::conv2d($0, $1, $2, {_GEOMETRY}, $groups)")
    found = f"{_CONVOLUTION}($0, $1, $2, {_GEOMETRY}, false, {_no_extra(c)}, $groups)"
    return c.fill(f"loma::all_filters({found}, $1, $2)")


def _convolution_adjoint(c: Lowered) -> str:
    if _measured(c):
        return c.fill(f"loma::{c.op.name}($0, $1, $shape, {_GEOMETRY}, $groups)")
    # The other operand's values are not looked at, only its sizes: memory that is never touched.
    blank = "loma::empty($shape, $0.options())"
    of_input = c.op.name.endswith("_input")
    result, operands, mask = (
        (0, f"{blank}, $1", "{true, false, false}")
        if of_input
        else (1, f"$1, {blank}", "{false, true, false}")
    )
    return c.fill(
        f"std::get<{result}>({_CONVOLUTION_BACKWARD}($0, {operands}, std::nullopt, "
        f"{_GEOMETRY}, false, {_no_extra(c)}, $groups, {mask}))"
    )


_POOLED = (
    "at::_ops::max_pool2d_with_indices::call($0, $kernel_size, $stride, $padding, {1, 1}, false)"
)
_WINDOW = "$kernel_size, $stride, $padding"
_BOUNDS = "$dim, $start, $end, $step, $place"


def add_slice(target: str, c: Lowered) -> str:
    """``slice_into`` of a tensor, added to ``target``."""
    return c.fill(f"loma::slice({target}, {_BOUNDS}).add_($0)")


ROWS: dict[str, Row] = {
    **{name: _infix(name) for name in ("add", "sub", "mul", "div")},
    **{name: _compare(name) for name in ("lt", "le", "gt", "ge", "eq", "ne")},
    "neg": _text("$0.neg()"),
    "matmul": _text("$0.matmul($1)", light=True),
    **{
        name: _text(f"at::_ops::{name}::call($0, {', '.join(['std::nullopt'] * 5)})")
        for name in ("zeros_like", "ones_like")
    },
    "mod": _method("remainder"),
    "floordiv": _method("floor_divide"),
    **{name: _method(f"logical_{name}") for name in ("and", "or", "not")},
    **{
        name: _method(_ATEN.get(name, name))
        for name, info in BUILTINS.items()
        if not info.scalar_only
    },
    "pow": _infix("pow"),
    # ATen's clamp takes no mixture of tensors and numbers
    "clamp": _text("$t0.maximum($t1).minimum($t2)"),
    # ATen's softplus is x itself above a threshold
    "softplus": _text("at::_ops::log_sigmoid::call($t0.neg()).neg()"),
    "polygamma": _text("$t1.polygamma($0)"),
    "mul_no_nan": _text("loma::mul_no_nan($t0, $t1)"),
    "where": Row(_where, ()),
    **{name: _reduction(name) for name in ("sum", "mean", "amax", "amin")},
    "amax_or_zero": Row(_amax_or_zero, ()),
    "prod": _text("loma::prod($0, $dims, $keepdim)"),
    **{
        name: _text(f"$0.{name}($dim)")
        for name in ("argmax", "argmin", "cumsum", "cumprod", "softmax", "log_softmax")
    },
    "argsort": _text("$0.argsort(true, $dim, $descending)"),
    "scan": _text("loma::scan<real>($0, $1, $dim, $place)"),
    "linear": _text("loma::linear($0, $1, $2)", light=True),
    "conv2d": Row(_convolution, (*_headers(f"{_CONVOLUTION}("), "convolution_choice.h"), True),
    "conv3d": Row(_convolution, _headers(f"{_CONVOLUTION}(")),
    "conv_transpose2d": _text(
        f"{_CONVOLUTION}($0, $1, $2, {_GEOMETRY}, true, $output_padding, $groups)"
    ),
    **{
        name: Row(
            _convolution_adjoint,
            (*_headers(f"{_CONVOLUTION_BACKWARD}("), "convolution_choice.h"),
            light=name.startswith("conv2d"),
        )
        for name in ("conv2d_input", "conv2d_weight", "conv3d_input", "conv3d_weight")
    },
    "max_pool2d": _text(f"std::get<0>({_POOLED})"),
    "max_pool2d_index": _text(f"std::get<1>({_POOLED})"),
    "avg_pool2d": _text(f"at::_ops::avg_pool2d::call($0, {_WINDOW}, false, true, std::nullopt)"),
    "avg_pool2d_input": _text(
        "at::_ops::avg_pool2d_backward::call($0, loma::empty($shape, $0.options()), "
        f"{_WINDOW}, false, true, std::nullopt)"
    ),
    "reshape": _text("$0.reshape($shape)", light=True),
    "permute": _text("$0.permute($dims)", light=True),
    "transpose": _text("$0.transpose($dim0, $dim1)", light=True),
    "cat": _text("loma::cat({$tensors}, $dim)", light=True),
    "flip": _text("$0.flip($dims)"),
    "roll": _text("$0.roll($shifts, $dims)"),
    "tril": _text("$0.tril($diagonal)"),
    "triu": _text("$0.triu($diagonal)"),
    "slice": _text(f"loma::slice($0, {_BOUNDS})", light=True),
    "slice_into": _text(f"loma::slice_into($0, $shape, {_BOUNDS})", light=True),
    "expand": _text("$0.expand($shape)", light=True),
    "sum_to": _text("loma::sum_to($0, $shape, $place)"),
    "reshape_like": _text("$0.reshape($1.sizes())"),
    "expand_like": _text("$0.expand($1.sizes())"),
    "sum_to_like": _text("loma::sum_to($0, $1.sizes(), $place)"),
    "unreduce_like": _text("loma::unreduce($0, $1.sizes(), $dims, $keepdim)"),
    "to_rows": _text("loma::to_rows($0, $dims)"),
    "from_rows_like": _text("loma::from_rows($0, $1.sizes(), $dims)"),
    "moved": _text("loma::moved($0, $dim, $ones)"),
    "one_hot": _text("loma::one_hot($0, $size, loma::options<real>(), $place)"),
    "gather": _text("loma::gather($0, $dim, $1, $place)"),
    "scatter_add": _text("loma::scatter_add($0, $1, $shape, $dim, $place)"),
    "scatter_add_like": _text("loma::scatter_add($0, $1, $2.sizes(), $dim, $place)"),
    "zeros": _text("loma::zeros($shape, loma::options<real>())"),
    "ones": _text("loma::zeros($shape, loma::options<real>()).fill_(1)"),
}


def row(op: Op) -> Row:
    """The operator's row; BackendLacksOperator where there is none."""
    found = ROWS.get(op.name)
    if found is None:
        raise errors.BackendLacksOperator(
            f"the libtorch backend has no operator '{op.name}'", op.span
        )
    return found


def is_light(op: Op) -> bool:
    """Whether generated code that calls the operator can do without torch's headers."""
    if op.name.startswith("conv") and "convolution" not in config.optimisations():
        return False
    return row(op).light


def headers(ops: Sequence[Op]) -> set[str]:
    """The ATen headers that these operators need."""
    return {header for op in ops for header in row(op).headers}
