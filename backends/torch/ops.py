"""The table of tensor operators as ATen calls: one row for every row of :data:`loma.core.ops.OPS`.

A row's function gets the operator with lowered arguments, and gives C++ that needs no parentheses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loma import config, errors
from loma.backends.cfamily.names import cpp_string
from loma.core import sizes
from loma.core.builtins import BUILTINS
from loma.core.ir import FLOAT, Expr, Op, TensorType, Type


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

    def type(self, position: int) -> Type:
        return self.op.args[position].type

    @property
    def result_is_float(self) -> bool:
        return isinstance(self.op.type, TensorType) and not self.op.type.integer

    def attr(self, name: str) -> str:
        value = dict(self.op.attrs)[name]
        assert not isinstance(value, tuple)
        return self.ints(value)

    def const(self, name: str) -> int:
        value = dict(self.op.attrs)[name]
        assert not isinstance(value, tuple)
        constant = sizes.constant(value)
        assert constant is not None
        return constant

    def list(self, name: str) -> str:
        value = dict(self.op.attrs)[name]
        assert isinstance(value, tuple)
        return f"{{{', '.join(map(self.ints, value))}}}"

    def flag(self, name: str) -> str:
        return "true" if self.const(name) else "false"

    def tensor(self, position: int) -> str:
        """The argument as a tensor: a scalar becomes a 0-dim one, ints become floats where the
        result is float."""
        text, type_ = self.args[position], self.type(position)
        if isinstance(type_, TensorType):
            if type_.integer and self.result_is_float:
                return f"{text}.to(loma::options<real>().dtype())"
            return text
        number = "real" if type_ == FLOAT or self.result_is_float else "int64_t"
        return f"loma::scalar<{number}>({text})"

    def is_bool(self, position: int) -> bool:
        type_ = self.type(position)
        return isinstance(type_, TensorType) and type_.element == "bool"

    def is_tensor(self, position: int) -> bool:
        return isinstance(self.type(position), TensorType)

    def optional(self, position: int) -> str:
        return self.args[position] if position < len(self.args) else "{}"


@dataclass(frozen=True, slots=True)
class Row:
    emit: Callable[[Lowered], str]
    headers: tuple[str, ...]


def _h(*names: str) -> tuple[str, ...]:
    return tuple(f"ATen/ops/{name}.h" for name in names)


def _function(name: str) -> Row:
    """``at::name(x, ...)`` with the arguments as they are."""

    def emit(c: Lowered) -> str:
        return f"at::{name}({', '.join(c.args)})"

    return Row(emit, _h(name))


def _infix(name: str) -> Row:
    def emit(c: Lowered) -> str:
        # A scalar on the right is ATen's own Scalar; it does not widen the dtype.
        plain = not c.is_tensor(1) and (c.type(1) != FLOAT or _is_float(c.type(0)))
        right = c.args[1] if plain else c.tensor(1)
        return f"at::{name}({c.tensor(0)}, {right})"

    return Row(emit, _h(name))


_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


def _compare(name: str) -> Row:
    def emit(c: Lowered) -> str:
        # Compared in float when either side is, with a float scalar rounded to the call's dtype.
        sides = []
        for k in range(2):
            number = "real" if c.type(k) == FLOAT else "int64_t"
            sides.append(c.args[k] if c.is_tensor(k) else f"loma::scalar<{number}>({c.args[k]})")
        return f"at::{name}({sides[0]}, {sides[1]})"

    return Row(emit, _h(name))


def _is_float(type_: Type) -> bool:
    return isinstance(type_, TensorType) and not type_.integer


_ATEN = {"min": "minimum", "max": "maximum"}  # those that have the function's own name aside


def _builtin(name: str) -> Row:
    """``at::name(x, ...)`` of tensors that broadcast."""
    function = _ATEN.get(name, name)

    def emit(c: Lowered) -> str:
        args = (c.tensor(k) for k in range(len(c.args)))
        return f"at::{function}({', '.join(args)})"

    return Row(emit, _h(function))


def _clamp(c: Lowered) -> str:
    # at::clamp takes no mixture of tensors and numbers
    return f"at::minimum(at::maximum({c.tensor(0)}, {c.tensor(1)}), {c.tensor(2)})"


def _softplus(c: Lowered) -> str:
    # at::softplus is x itself above a threshold
    return f"at::log_sigmoid({c.tensor(0)}.neg()).neg()"


def _polygamma(c: Lowered) -> str:
    return f"at::polygamma({c.args[0]}, {c.tensor(1)})"


def _mul_no_nan(c: Lowered) -> str:
    x, y = c.tensor(0), c.tensor(1)
    return f"loma::mul_no_nan({x}, {y})"


def _where(c: Lowered) -> str:
    if c.is_bool(0):
        return f"at::where({c.args[0]}, {c.tensor(1)}, {c.tensor(2)})"
    # loma::scalar(...) of an int would not be promoted to the dtype of the other branch.
    cond = c.args[0] if c.is_tensor(0) else f"loma::scalar<real>({c.args[0]})"
    return f"at::where(at::ne({cond}, 0), {c.tensor(1)}, {c.tensor(2)})"


_EXTREMES = ("amax", "amin")


def _reduction(name: str) -> Row:
    def emit(c: Lowered) -> str:
        dims = c.list("dims")
        if not _rank(c, "dims"):
            dims = "at::IntArrayRef()" if name in _EXTREMES else "at::OptionalIntArrayRef()"
        elif name not in _EXTREMES:
            dims = f"at::IntArrayRef({dims})"
        return f"at::{name}({c.args[0]}, {dims}, {c.flag('keepdim')})"

    return Row(emit, _h(name))


def _amax_or_zero(c: Lowered) -> str:
    largest, total = (_reduction(name).emit(c) for name in ("amax", "sum"))
    return f"({c.args[0]}.sym_numel() == 0 ? {total} : {largest})"


def _along(name: str) -> Row:
    def emit(c: Lowered) -> str:
        return f"at::{name}({c.args[0]}, {c.const('dim')})"

    return Row(emit, _h(name))


def _prod(c: Lowered) -> str:
    return f"loma::prod({c.args[0]}, {c.list('dims')}, {c.flag('keepdim')})"


def _argsort(c: Lowered) -> str:
    return f"at::argsort({c.args[0]}, true, {c.const('dim')}, {c.flag('descending')})"


def _scan(c: Lowered) -> str:
    place = cpp_string(c.place)
    return f"loma::scan<real>({c.args[0]}, {c.args[1]}, {c.const('dim')}, {place})"


def _flip(c: Lowered) -> str:
    return f"at::flip({c.args[0]}, {c.list('dims')})"


def _roll(c: Lowered) -> str:
    return f"at::roll({c.args[0]}, {c.list('shifts')}, {c.list('dims')})"


def _triangle(name: str) -> Row:
    def emit(c: Lowered) -> str:
        return f"at::{name}({c.args[0]}, {c.attr('diagonal')})"

    return Row(emit, _h(name))


def _linear(c: Lowered) -> str:
    return f"at::linear({c.args[0]}, {c.args[1]}, {c.optional(2)})"


def _geometry(c: Lowered) -> str:
    return f"{c.list('stride')}, {c.list('padding')}, {c.list('dilation')}"


def _measured(c: Lowered) -> bool:
    """Whether convolutions call the runtime, which picks a form, or the library itself."""
    return c.op.name.startswith("conv2d") and "convolution" in config.optimisations()


def _no_extra(c: Lowered) -> str:
    """The library's output_padding."""
    zeros = ["0"] * _rank(c, "stride")
    return f"{{{', '.join(zeros)}}}"


def _rank(c: Lowered, name: str) -> int:
    value = dict(c.op.attrs)[name]
    assert isinstance(value, tuple)
    return len(value)


def _convolution(c: Lowered) -> str:
    operands = f"{c.args[0]}, {c.args[1]}, {c.optional(2)}, {_geometry(c)}"
    # A bias is optional<Tensor>; "{}" would be read as an undefined tensor, which means the same.
    if _measured(c):
        return f"loma::conv2d({operands}, {c.attr('groups')})"
    return f"at::convolution({operands}, false, {_no_extra(c)}, {c.attr('groups')})"


def _conv_transpose2d(c: Lowered) -> str:
    # The adjoint of conv2d with respect to its input; the size of its result is not an attribute.
    return (
        f"at::convolution({c.args[0]}, {c.args[1]}, {c.optional(2)}, {_geometry(c)}, true, "
        f"{c.list('output_padding')}, {c.attr('groups')})"
    )


def _convolution_adjoint(c: Lowered) -> str:
    of_input = c.op.name.endswith("_input")
    if _measured(c):
        operands = f"{c.args[0]}, {c.args[1]}, {c.list('shape')}, {_geometry(c)}"
        return f"loma::{c.op.name}({operands}, {c.attr('groups')})"
    # The other operand's values are not looked at, only its sizes: memory that is never touched.
    blank = f"at::empty({c.list('shape')}, {c.args[0]}.options())"
    x, w = (blank, c.args[1]) if of_input else (c.args[1], blank)
    mask = "{true, false, false}" if of_input else "{false, true, false}"
    return (
        f"std::get<{0 if of_input else 1}>(at::convolution_backward({c.args[0]}, {x}, {w}, "
        f"at::OptionalIntArrayRef(), {_geometry(c)}, false, {_no_extra(c)}, {c.attr('groups')}, "
        f"{mask}))"
    )


def _window(c: Lowered) -> str:
    return f"{c.list('kernel_size')}, {c.list('stride')}, {c.list('padding')}"


def _max_pool2d(result: int) -> Callable[[Lowered], str]:
    def emit(c: Lowered) -> str:
        return f"std::get<{result}>(at::max_pool2d_with_indices({c.args[0]}, {_window(c)}))"

    return emit


def _avg_pool2d(c: Lowered) -> str:
    return f"at::avg_pool2d({c.args[0]}, {_window(c)}, false, true)"


def _avg_pool2d_input(c: Lowered) -> str:
    blank = f"at::empty({c.list('shape')}, {c.args[0]}.options())"
    return f"at::avg_pool2d_backward({c.args[0]}, {blank}, {_window(c)}, false, true, std::nullopt)"


def _reshape(c: Lowered) -> str:
    return f"at::reshape({c.args[0]}, {c.list('shape')})"


def _permute(c: Lowered) -> str:
    return f"at::permute({c.args[0]}, {c.list('dims')})"


def _transpose(c: Lowered) -> str:
    return f"at::transpose({c.args[0]}, {c.const('dim0')}, {c.const('dim1')})"


def _cat(c: Lowered) -> str:
    tensors = ", ".join(c.tensor(k) for k in range(len(c.args)))
    return f"at::cat(std::vector<at::Tensor>{{{tensors}}}, {c.const('dim')})"


def _bounds(c: Lowered) -> str:
    return ", ".join([str(c.const("dim")), *(c.attr(n) for n in ("start", "end", "step"))])


def _slice(c: Lowered) -> str:
    return f"loma::slice({c.args[0]}, {_bounds(c)}, {cpp_string(c.place)})"


def _slice_into(c: Lowered) -> str:
    return f"loma::slice_into({c.args[0]}, {c.list('shape')}, {_bounds(c)}, {cpp_string(c.place)})"


def add_slice(target: str, c: Lowered) -> str:
    """``slice_into`` of a tensor, added to ``target``."""
    part = f"loma::slice({target}, {_bounds(c)}, {cpp_string(c.place)})"
    return f"{part}.add_({c.args[0]})"


def _expand(c: Lowered) -> str:
    return f"{c.args[0]}.expand({c.list('shape')})"


def _sum_to(c: Lowered) -> str:
    return f"loma::sum_to({c.args[0]}, {c.list('shape')}, {cpp_string(c.place)})"


def _reshape_like(c: Lowered) -> str:
    return f"at::reshape({c.args[0]}, {c.args[1]}.sizes())"


def _expand_like(c: Lowered) -> str:
    return f"{c.args[0]}.expand({c.args[1]}.sizes())"


def _sum_to_like(c: Lowered) -> str:
    return f"loma::sum_to({c.args[0]}, {c.args[1]}.sizes(), {cpp_string(c.place)})"


def _unreduce_like(c: Lowered) -> str:
    dims, keep = c.list("dims"), c.flag("keepdim")
    return f"loma::unreduce({c.args[0]}, {c.args[1]}.sizes(), {dims}, {keep})"


def _to_rows(c: Lowered) -> str:
    return f"loma::to_rows({c.args[0]}, {c.list('dims')})"


def _from_rows_like(c: Lowered) -> str:
    return f"loma::from_rows({c.args[0]}, {c.args[1]}.sizes(), {c.list('dims')})"


def _moved(c: Lowered) -> str:
    return f"loma::moved({c.args[0]}, {c.const('dim')}, {c.flag('ones')})"


def _one_hot(c: Lowered) -> str:
    place = cpp_string(c.place)
    return f"loma::one_hot({c.args[0]}, {c.attr('size')}, loma::options<real>(), {place})"


def _gather(c: Lowered) -> str:
    place = cpp_string(c.place)
    return f"loma::gather({c.args[0]}, {c.const('dim')}, {c.args[1]}, {place})"


def _scatter(c: Lowered, shape: str) -> str:
    place = cpp_string(c.place)
    return f"loma::scatter_add({c.args[0]}, {c.args[1]}, {shape}, {c.const('dim')}, {place})"


def _scatter_add(c: Lowered) -> str:
    return _scatter(c, c.list("shape"))


def _scatter_add_like(c: Lowered) -> str:
    return _scatter(c, f"{c.args[2]}.sizes()")


def _constant(name: str) -> Row:
    def emit(c: Lowered) -> str:
        return f"at::{name}({c.list('shape')}, loma::options<real>())"

    return Row(emit, _h(name))


ROWS: dict[str, Row] = {
    "add": _infix("add"),
    "sub": _infix("sub"),
    "mul": _infix("mul"),
    "div": _infix("div"),
    **{name: _compare(name) for name in _COMPARISONS},
    **{
        name: _function(name)
        for name in (
            "neg",
            "zeros_like",
            "ones_like",
        )
    },
    "mod": _builtin("remainder"),
    "floordiv": _builtin("floor_divide"),
    **{name: _builtin(f"logical_{name}") for name in ("and", "or", "not")},
    **{name: _builtin(name) for name, info in BUILTINS.items() if not info.scalar_only},
    "pow": _infix("pow"),
    "clamp": Row(_clamp, _h("minimum", "maximum")),
    "softplus": Row(_softplus, _h("log_sigmoid", "neg")),
    "polygamma": Row(_polygamma, _h("polygamma")),
    "mul_no_nan": Row(_mul_no_nan, _h("mul", "eq", "masked_fill")),
    "where": Row(_where, _h("where", "ne")),
    "sum": _reduction("sum"),
    "mean": _reduction("mean"),
    "amax": _reduction("amax"),
    "amax_or_zero": Row(_amax_or_zero, _h("amax", "sum")),
    "amin": _reduction("amin"),
    "prod": Row(_prod, ()),
    "argmax": _along("argmax"),
    "argmin": _along("argmin"),
    "argsort": Row(_argsort, _h("argsort")),
    "cumsum": _along("cumsum"),
    "cumprod": _along("cumprod"),
    "scan": Row(_scan, ()),
    "softmax": _along("softmax"),
    "log_softmax": _along("log_softmax"),
    "matmul": _function("matmul"),
    "linear": Row(_linear, _h("linear")),
    "conv2d": Row(_convolution, (*_h("convolution"), "convolution_choice.h")),
    "conv3d": Row(_convolution, _h("convolution")),
    "conv_transpose2d": Row(_conv_transpose2d, _h("convolution")),
    **{
        name: Row(
            _convolution_adjoint, (*_h("convolution_backward", "empty"), "convolution_choice.h")
        )
        for name in ("conv2d_input", "conv2d_weight", "conv3d_input", "conv3d_weight")
    },
    "max_pool2d": Row(_max_pool2d(0), _h("max_pool2d_with_indices")),
    "max_pool2d_index": Row(_max_pool2d(1), _h("max_pool2d_with_indices")),
    "avg_pool2d": Row(_avg_pool2d, _h("avg_pool2d")),
    "avg_pool2d_input": Row(_avg_pool2d_input, _h("avg_pool2d_backward", "empty")),
    "reshape": Row(_reshape, _h("reshape")),
    "permute": Row(_permute, _h("permute")),
    "transpose": Row(_transpose, _h("transpose")),
    "cat": Row(_cat, _h("cat")),
    "flip": Row(_flip, _h("flip")),
    "roll": Row(_roll, _h("roll")),
    "tril": _triangle("tril"),
    "triu": _triangle("triu"),
    "slice": Row(_slice, _h("slice")),
    "slice_into": Row(_slice_into, _h("slice", "zeros")),
    "expand": Row(_expand, ()),
    "sum_to": Row(_sum_to, _h("sum")),
    "reshape_like": Row(_reshape_like, _h("reshape")),
    "expand_like": Row(_expand_like, ()),
    "sum_to_like": Row(_sum_to_like, _h("sum")),
    "unreduce_like": Row(_unreduce_like, ()),
    "to_rows": Row(_to_rows, ()),
    "from_rows_like": Row(_from_rows_like, ()),
    "moved": Row(_moved, ()),
    "one_hot": Row(_one_hot, _h("zeros")),
    "gather": Row(_gather, _h("gather")),
    "scatter_add": Row(_scatter_add, _h("zeros", "scatter_add")),
    "scatter_add_like": Row(_scatter_add_like, _h("zeros", "scatter_add")),
    "zeros": _constant("zeros"),
    "ones": _constant("ones"),
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
