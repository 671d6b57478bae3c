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
    emit: Callable[[Lowered], str]
    headers: tuple[str, ...]


def _h(*names: str) -> tuple[str, ...]:
    return tuple(f"ATen/ops/{name}.h" for name in names)


def _text(text: str, *others: str) -> Row:
    """A row of that text. ``others`` are functions of ATen beside those that it names."""
    names = re.findall(r"\bat::([a-z]\w*)\(", text)
    return Row(lambda c: c.fill(text), _h(*names, *others))


def _infix(name: str) -> Row:
    def emit(c: Lowered) -> str:
        # A scalar on the right is ATen's own Scalar; it does not widen the dtype.
        plain = not c.is_tensor(1) and (c.type(1) != FLOAT or _is_float(c.type(0)))
        return c.fill(f"at::{name}($t0, {'$1' if plain else '$t1'})")

    return Row(emit, _h(name))


def _compare(name: str) -> Row:
    def emit(c: Lowered) -> str:
        # Compared in float when either side is, with a float scalar rounded to the call's dtype.
        sides = []
        for k in range(2):
            number = "real" if c.type(k) == FLOAT else "int64_t"
            sides.append(c.args[k] if c.is_tensor(k) else _scalar(c.args[k], number))
        return f"at::{name}({sides[0]}, {sides[1]})"

    return Row(emit, _h(name))


_ATEN = {"min": "minimum", "max": "maximum"}  # those that have the function's own name aside


def _where(c: Lowered) -> str:
    condition = c.type(0)
    if isinstance(condition, TensorType) and condition.element == "bool":
        return c.fill("at::where($0, $t1, $t2)")
    # loma::scalar(...) of an int would not be promoted to the dtype of the other branch.
    tested = c.args[0] if c.is_tensor(0) else _scalar(c.args[0], "real")
    return c.fill(f"at::where(at::ne({tested}, 0), $t1, $t2)")


_EXTREMES = ("amax", "amin")


def _reduction(name: str) -> Row:
    def emit(c: Lowered) -> str:
        dims = "$dims" if name in _EXTREMES else "at::IntArrayRef($dims)"
        if not c.rank("dims"):
            dims = "at::IntArrayRef()" if name in _EXTREMES else "at::OptionalIntArrayRef()"
        return c.fill(f"at::{name}($0, {dims}, $keepdim)")

    return Row(emit, _h(name))


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


def _convolution(c: Lowered) -> str:
    # A bias is optional<Tensor>; "{}" would be read as an undefined tensor, which means the same.
    if _measured(c):
        return c.fill(f"loma::conv2d($0, $1, $2, {_GEOMETRY}, $groups)")
    return c.fill(f"at::convolution($0, $1, $2, {_GEOMETRY}, false, {_no_extra(c)}, $groups)")


def _convolution_adjoint(c: Lowered) -> str:
    if _measured(c):
        return c.fill(f"loma::{c.op.name}($0, $1, $shape, {_GEOMETRY}, $groups)")
    # The other operand's values are not looked at, only its sizes: memory that is never touched.
    blank = "at::empty($shape, $0.options())"
    of_input = c.op.name.endswith("_input")
    result, operands, mask = (
        (0, f"{blank}, $1", "{true, false, false}")
        if of_input
        else (1, f"$1, {blank}", "{false, true, false}")
    )
    return c.fill(
        f"std::get<{result}>(at::convolution_backward($0, {operands}, at::OptionalIntArrayRef(), "
        f"{_GEOMETRY}, false, {_no_extra(c)}, $groups, {mask}))"
    )


_WINDOW = "$kernel_size, $stride, $padding"
_BOUNDS = "$dim, $start, $end, $step, $place"


def add_slice(target: str, c: Lowered) -> str:
    """``slice_into`` of a tensor, added to ``target``."""
    return c.fill(f"loma::slice({target}, {_BOUNDS}).add_($0)")


ROWS: dict[str, Row] = {
    **{name: _infix(name) for name in ("add", "sub", "mul", "div")},
    **{name: _compare(name) for name in ("lt", "le", "gt", "ge", "eq", "ne")},
    **{name: _text(f"at::{name}($args)") for name in ("neg", "zeros_like", "ones_like", "matmul")},
    "mod": _text("at::remainder($tensors)"),
    "floordiv": _text("at::floor_divide($tensors)"),
    **{name: _text(f"at::logical_{name}($tensors)") for name in ("and", "or", "not")},
    **{
        name: _text(f"at::{_ATEN.get(name, name)}($tensors)")
        for name, info in BUILTINS.items()
        if not info.scalar_only
    },
    "pow": _infix("pow"),
    # at::clamp takes no mixture of tensors and numbers
    "clamp": _text("at::minimum(at::maximum($t0, $t1), $t2)"),
    # at::softplus is x itself above a threshold
    "softplus": _text("at::log_sigmoid($t0.neg()).neg()", "neg"),
    "polygamma": _text("at::polygamma($0, $t1)"),
    "mul_no_nan": _text("loma::mul_no_nan($t0, $t1)", "mul", "eq", "masked_fill"),
    "where": Row(_where, _h("where", "ne")),
    **{name: _reduction(name) for name in ("sum", "mean", "amax", "amin")},
    "amax_or_zero": Row(_amax_or_zero, _h("amax", "sum")),
    "prod": _text("loma::prod($0, $dims, $keepdim)"),
    **{
        name: _text(f"at::{name}($0, $dim)")
        for name in ("argmax", "argmin", "cumsum", "cumprod", "softmax", "log_softmax")
    },
    "argsort": _text("at::argsort($0, true, $dim, $descending)"),
    "scan": _text("loma::scan<real>($0, $1, $dim, $place)"),
    "linear": _text("at::linear($0, $1, $2)"),
    "conv2d": Row(_convolution, (*_h("convolution"), "convolution_choice.h")),
    "conv3d": Row(_convolution, _h("convolution")),
    "conv_transpose2d": _text(
        f"at::convolution($0, $1, $2, {_GEOMETRY}, true, $output_padding, $groups)"
    ),
    **{
        name: Row(
            _convolution_adjoint, (*_h("convolution_backward", "empty"), "convolution_choice.h")
        )
        for name in ("conv2d_input", "conv2d_weight", "conv3d_input", "conv3d_weight")
    },
    "max_pool2d": _text(f"std::get<0>(at::max_pool2d_with_indices($0, {_WINDOW}))"),
    "max_pool2d_index": _text(f"std::get<1>(at::max_pool2d_with_indices($0, {_WINDOW}))"),
    "avg_pool2d": _text(f"at::avg_pool2d($0, {_WINDOW}, false, true)"),
    "avg_pool2d_input": _text(
        f"at::avg_pool2d_backward($0, at::empty($shape, $0.options()), {_WINDOW}, false, true, "
        "std::nullopt)"
    ),
    "reshape": _text("at::reshape($0, $shape)"),
    "permute": _text("at::permute($0, $dims)"),
    "transpose": _text("at::transpose($0, $dim0, $dim1)"),
    "cat": _text("at::cat(std::vector<at::Tensor>{$tensors}, $dim)"),
    "flip": _text("at::flip($0, $dims)"),
    "roll": _text("at::roll($0, $shifts, $dims)"),
    "tril": _text("at::tril($0, $diagonal)"),
    "triu": _text("at::triu($0, $diagonal)"),
    "slice": _text(f"loma::slice($0, {_BOUNDS})", "slice"),
    "slice_into": _text(f"loma::slice_into($0, $shape, {_BOUNDS})", "slice", "zeros"),
    "expand": _text("$0.expand($shape)"),
    "sum_to": _text("loma::sum_to($0, $shape, $place)", "sum"),
    "reshape_like": _text("at::reshape($0, $1.sizes())"),
    "expand_like": _text("$0.expand($1.sizes())"),
    "sum_to_like": _text("loma::sum_to($0, $1.sizes(), $place)", "sum"),
    "unreduce_like": _text("loma::unreduce($0, $1.sizes(), $dims, $keepdim)"),
    "to_rows": _text("loma::to_rows($0, $dims)"),
    "from_rows_like": _text("loma::from_rows($0, $1.sizes(), $dims)"),
    "moved": _text("loma::moved($0, $dim, $ones)"),
    "one_hot": _text("loma::one_hot($0, $size, loma::options<real>(), $place)", "zeros"),
    "gather": _text("loma::gather($0, $dim, $1, $place)", "gather"),
    "scatter_add": _text("loma::scatter_add($0, $1, $shape, $dim, $place)", "zeros", "scatter_add"),
    "scatter_add_like": _text(
        "loma::scatter_add($0, $1, $2.sizes(), $dim, $place)", "zeros", "scatter_add"
    ),
    "zeros": _text("at::zeros($shape, loma::options<real>())"),
    "ones": _text("at::ones($shape, loma::options<real>())"),
}


def row(op: Op) -> Row:
    """The operator's row; BackendLacksOperator where there is none."""
    found = ROWS.get(op.name)
    if found is None:
        raise errors.BackendLacksOperator(
            f"the libtorch backend has no operator '{op.name}'", op.span
        )
    return found


def headers(ops: Sequence[Op]) -> set[str]:
    """The ATen headers that these operators need."""
    return {header for op in ops for header in row(op).headers}
