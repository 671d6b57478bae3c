"""Tensor operators that are expressions of others.

An operator is one row here and nothing else: a program has the expression in its place, so that its
shape, its derivatives and its place in fused loops follow from those of :mod:`loma.core.ops`. Names
and attributes follow PyTorch's.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from loma import errors
from loma.core import builder as b, shapes, sizes
from loma.core.ir import Expr, IntConst, TensorType
from loma.core.ops import OPS, AttrInfo, AttrKind, Definition, OpInfo
from loma.core.shapes import Dims


def _op(c: Definition, name: str, *args: Expr, **attrs: object) -> Expr:
    """An operator's value; of numbers alone, what that operator is for numbers."""
    if any(isinstance(arg.type, TensorType) for arg in args) or not args:
        return b.operator(name, args, attrs, c.span)
    match args, OPS[name].infix:
        case (cond, then, other), None if name == "where":
            return b.select(cond, then, other, c.span)
        case (left, right), str(symbol):
            return b.binary(symbol, left, right, c.span)
        case _:
            return b.builtin(name, args, c.span)


def _dims(x: Expr) -> Dims | None:
    assert isinstance(x.type, TensorType)
    return x.type.dims


def _known(c: Definition, position: int) -> Dims:
    """The sizes of an argument that has to have them."""
    dims = c.dims(position)
    if dims is None:
        raise errors.RankMismatch(
            f"'{c.name}' takes a tensor of known rank", c.args[position].span,
            hint="give its type sizes: Tensor[N, M]",
        )  # fmt: skip
    return dims


def _square(c: Definition, x: Expr) -> Expr:
    x = c.once(x)
    return _op(c, "mul", x, x)


# --------------------------------------------------------------------------------- elementwise


def silu(c: Definition) -> Expr:
    """x sigmoid(x)"""
    x = c.once(c.args[0])
    return _op(c, "mul", x, _op(c, "sigmoid", x))


def gelu(c: Definition) -> Expr:
    """x times the probability that a normal variable is below x, or PyTorch's tanh form of that"""
    x = c.once(c.args[0])
    half = _op(c, "mul", b.flt(0.5), x)
    if c.const("approximate"):
        bent = _op(c, "mul", _op(c, "mul", b.flt(0.044715), x), _square(c, x))
        inner = _op(c, "mul", b.flt(math.sqrt(2.0 / math.pi)), _op(c, "add", x, bent))
        return _op(c, "mul", half, _op(c, "add", b.flt(1), _op(c, "tanh", inner)))
    return _op(c, "mul", half, _op(c, "erfc", _op(c, "mul", b.flt(-math.sqrt(0.5)), x)))


def elu(c: Definition) -> Expr:
    """x where x > 0, else alpha (exp(x) - 1)"""
    x = c.once(c.args[0])
    positive = _op(c, "gt", x, b.flt(0))
    low = _op(c, "where", positive, b.flt(0), x)  # so that what is not taken cannot overflow
    fall = _op(c, "mul", c.one("alpha"), _op(c, "expm1", low))
    return _op(c, "where", positive, x, fall)


def leaky_relu(c: Definition) -> Expr:
    """x where x > 0, else negative_slope x"""
    x = c.once(c.args[0])
    low = _op(c, "mul", c.one("negative_slope"), x)
    return _op(c, "where", _op(c, "gt", x, b.flt(0)), x, low)


# ---------------------------------------------------------------------------------- reductions


def logsumexp(c: Definition) -> Expr:
    """m + log(sum(exp(x - m))), m the largest element where it is finite, else 0. That of no
    elements is -inf."""
    x = c.once(c.args[0])
    dims = {"dims": c.attrs["dims"]}
    largest = c.once(_op(c, "amax_or_zero", x, **dims, keepdim=1))
    finite = _op(c, "eq", _op(c, "sub", largest, largest), b.flt(0))
    offset = c.once(b.no_diff(_op(c, "where", finite, largest, b.flt(0))))
    total = c.once(_op(c, "sum", _op(c, "exp", _op(c, "sub", x, offset)), **dims, keepdim=1))
    # of nothing but -inf the derivative is 0
    some = _op(c, "where", _op(c, "ne", total, b.flt(0)), total, b.flt(0))
    kept = _op(c, "add", _op(c, "log", some), offset)
    return kept if c.const("keepdim") else _op(c, "sum", kept, **dims)


def var(c: Definition) -> Expr:
    """the sum of (x - mean(x))^2 over n - correction, for n elements"""
    x = c.once(c.args[0])
    dims, less = {"dims": c.attrs["dims"]}, c.one("correction")
    apart = _op(c, "sub", x, _op(c, "mean", x, **dims, keepdim=1))
    squares = _op(c, "sum", _square(c, apart), **dims, keepdim=c.attrs["keepdim"])
    own = c.dims(0)
    if own is None:
        ones = _op(c, "sum", _op(c, "ones_like", x), **dims, keepdim=c.attrs["keepdim"])
        return _op(c, "div", squares, _op(c, "relu", _op(c, "sub", ones, less)))
    chosen = c.consts("dims") or range(len(own))
    count = b.binary("-", sizes.product(tuple(own[k] for k in chosen)), less)
    known = sizes.constant(count)
    none = IntConst(0)
    left = b.builtin("max", [count, none]) if known is None else IntConst(max(known, 0))
    return _op(c, "div", squares, left)


def std(c: Definition) -> Expr:
    """the root of the variance"""
    return _op(c, "sqrt", var(c))


def norm(c: Definition) -> Expr:
    """the root of the sum of squares"""
    squares = _square(c, c.args[0])
    total = _op(c, "sum", squares, dims=c.attrs["dims"], keepdim=c.attrs["keepdim"])
    return _op(c, "sqrt", total)


def layer_norm(c: Definition) -> Expr:
    """(x - mean) / sqrt(var + eps) over the last dimensions, times weight, plus bias"""
    x, shape = c.once(c.args[0]), c.ints("normalized_shape")
    for position, what in ((1, "weight"), (2, "bias")):
        own = c.dims(position) if position < len(c.args) else None
        if sizes.differ(own, shape):
            raise errors.ShapeMismatch(
                f"the {what} of 'layer_norm' is {shapes.show(own)}, and normalized_shape says "
                f"{shapes.show(shape)}",
                c.args[position].span,
            )
    own = c.dims(0)
    if not shape or (own is not None and sizes.differ(own[-len(shape) :], shape)):
        raise errors.ShapeMismatch(
            f"normalized_shape of 'layer_norm' is {shapes.show(shape)}, and x, which ends in these "
            f"sizes, {shapes.show(own)}",
            c.span,
        )
    dims = {"dims": tuple(range(-len(shape), 0)), "keepdim": 1}
    if own is not None and not sizes.same(own[-len(shape) :], shape):
        x = c.once(_op(c, "reshape", x, shape=(*own[: -len(shape)], *shape)))
    apart = c.once(_op(c, "sub", x, _op(c, "mean", x, **dims)))
    spread = _op(c, "mean", _op(c, "mul", apart, apart), **dims)
    y: Expr = _op(c, "div", apart, _op(c, "sqrt", _op(c, "add", spread, c.one("eps"))))
    if own is None:  # this way a call checks the sizes
        y = _op(c, "mul", y, _op(c, "expand_like", _op(c, "ones", shape=shape), x))
    scale = [arg if sizes.same(_dims(arg), shape) else _op(c, "reshape", arg, shape=shape)
             for arg in c.args[1:]]  # fmt: skip
    for name, arg in zip(("mul", "add"), scale, strict=False):
        y = _op(c, name, y, arg)
    return y


# -------------------------------------------------------------------------- products


def matmul(c: Definition) -> Expr:
    """the matrix product; a vector on the left is a row, one on the right a column"""
    left, right = map(_dims, c.args)
    if left is None or right is None:
        return _op(c, "matmul", *c.args)
    pair, one = list(c.args), IntConst(1)
    if len(left) == 1:
        pair[0] = _op(c, "reshape", pair[0], shape=(one, *left))
    if len(right) == 1:
        pair[1] = _op(c, "reshape", pair[1], shape=(*right, one))
    made = _op(c, "matmul", *pair)
    dims = _dims(made)
    if len(left) > 1 and len(right) > 1:
        return made
    assert dims is not None
    rows = () if len(left) == 1 else dims[-2:-1]
    columns = () if len(right) == 1 else dims[-1:]
    return _op(c, "reshape", made, shape=(*dims[:-2], *rows, *columns))


# -------------------------------------------------------------------------- shape, convolutions


def stack(c: Definition) -> Expr:
    """cat of the tensors or floats, each with a new dimension of size 1"""
    first: Dims = () if b.is_scalar(c.args[0].type) else _known(c, 0)
    rank = len(first) + 1
    dim = sizes.constant(c.one("dim"))
    if dim is None or not -rank <= dim < rank:
        raise errors.OperatorArguments(
            f"attribute 'dim' of 'stack' is a constant from {-rank} to {rank - 1}", c.span
        )
    dim %= rank
    rows = []
    for position, tensor in enumerate(c.args):
        dims: Dims = () if b.is_scalar(tensor.type) else _known(c, position)
        if sizes.differ(dims, first):
            raise errors.ShapeMismatch(
                f"'stack' joins tensors of one shape, found {b.show_type(c.args[0].type)} and "
                f"{b.show_type(tensor.type)}",
                tensor.span,
            )
        shape = (*dims[:dim], IntConst(1), *dims[dim:])
        if b.is_scalar(tensor.type):
            rows.append(_op(c, "add", _op(c, "zeros", shape=shape), tensor))
        else:
            rows.append(_op(c, "reshape", tensor, shape=shape))
    return _op(c, "cat", *rows, dim=dim)


def conv1d(c: Definition) -> Expr:
    """conv2d along the last dimension of tensors with another one, of size 1, before it"""
    x, w = _known(c, 0), _known(c, 1)
    out = shapes.convolution(c).dims
    assert out is not None
    one = IntConst(1)
    wide = [_op(c, "reshape", arg, shape=(*dims[:2], one, dims[2]))
            for arg, dims in zip(c.args[:2], (x, w), strict=True)]  # fmt: skip
    edges = (("stride", 1), ("padding", 0), ("dilation", 1))
    attrs = {name: (IntConst(edge), *c.ints(name)) for name, edge in edges}
    y = _op(c, "conv2d", *wide, *c.args[2:], **attrs, groups=c.attrs["groups"])
    return _op(c, "reshape", y, shape=out)


# --------------------------------------------------------------------------------------- table


def _a(name: str, kind: AttrKind, default: float | tuple[int, ...] | None = None) -> AttrInfo:
    return AttrInfo(name, kind, default)


def _row(
    make: Callable[[Definition], Expr], args: tuple[str, ...], *attrs: AttrInfo,
    optional: int = 0, takes_list: bool = False, any_element: bool = False,
    order: tuple[str, ...] = (), scalars: bool = False,
) -> OpInfo:  # fmt: skip
    def shape(call: shapes.OpCall) -> TensorType:
        made = make(Definition(call.name, call.args, call.attrs, call.span, lambda expr: expr))
        assert isinstance(made.type, TensorType)
        return made.type

    return OpInfo(
        make.__name__, args, attrs, shape, make.__doc__ or "", "defined", optional=optional,
        takes_list=takes_list, any_element=any_element, order=order, scalars=scalars, define=make,
    )  # fmt: skip


_KEEP = _a("keepdim", "flag", 0)
_DIMS = _a("dims", "dims", ())
_CORRECTION = _a("correction", "int", 1)

_ROWS = (
    _row(silu, ("x",), scalars=True),
    _row(gelu, ("x",), AttrInfo("approximate", "word", 0, words=("none", "tanh")), scalars=True),
    _row(elu, ("x",), _a("alpha", "float", 1.0), scalars=True),
    _row(leaky_relu, ("x",), _a("negative_slope", "float", 0.01), scalars=True),
    _row(logsumexp, ("x",), _a("dims", "dims"), _KEEP),
    _row(var, ("x",), _DIMS, _CORRECTION, _KEEP),
    _row(std, ("x",), _DIMS, _CORRECTION, _KEEP),
    _row(norm, ("x",), _DIMS, _KEEP),
    _row(
        layer_norm, ("x", "weight", "bias"), _a("normalized_shape", "ints"),
        _a("eps", "float", 1e-5), optional=2,
        order=("x", "normalized_shape", "weight", "bias", "eps"),
    ),
    _row(matmul, ("a", "b")),
    _row(
        stack, ("tensors",), _a("dim", "int", 0), takes_list=True, any_element=True, scalars=True
    ),
    _row(
        conv1d, ("x", "w", "b"), _a("stride", "ints", (1,)), _a("padding", "ints", (0,)),
        _a("dilation", "ints", (1,)), _a("groups", "int", 1), optional=1,
    ),
)  # fmt: skip

DEFINED: dict[str, OpInfo] = {row.name: row for row in _ROWS}
OPERATORS: dict[str, OpInfo] = OPS | DEFINED  # what a program may call
