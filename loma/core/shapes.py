"""Shape rules: the type of an operator's result from the types of its arguments.

Dimensions are int expressions over sizes (:mod:`loma.core.sizes`). Where two of them must agree and
only a call can tell, the rule takes the first; the backend checks the shape that comes out at run
time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from loma import errors
from loma.core import sizes
from loma.core.builtins import BUILTINS
from loma.core.ir import INT, Attr, Element, Expr, FloatType, IntConst, IntType, TensorType, replace
from loma.core.sizes import arith
from loma.errors.spans import Span

Dims: TypeAlias = tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class OpCall:
    """A call of an operator while its type is worked out."""

    name: str
    args: tuple[Expr, ...]
    attrs: dict[str, Attr]
    span: Span

    def tensor(self, position: int) -> TensorType:
        type_ = self.args[position].type
        assert isinstance(type_, TensorType)
        return type_

    def ints(self, attr: str) -> Dims:
        value = self.attrs[attr]
        assert isinstance(value, tuple)
        return value

    def one(self, attr: str) -> Expr:
        value = self.attrs[attr]
        assert not isinstance(value, tuple)
        return value

    def const(self, attr: str) -> int:
        value = sizes.constant(self.one(attr))
        assert value is not None
        return value

    def consts(self, attr: str) -> tuple[int, ...]:
        return tuple(sizes.constant(value) or 0 for value in self.ints(attr))


ShapeRule: TypeAlias = Callable[[OpCall], TensorType]


def show(dims: Dims | None) -> str:
    """Dimensions as they are written in a type."""
    from loma.core.printer import print_type

    return print_type(TensorType(dims))


def show_size(size: Expr) -> str:
    """One of them."""
    from loma.core.printer import print_expr

    return print_expr(size)


def _element(call: OpCall) -> Element:
    elements = [a.type.element for a in call.args if isinstance(a.type, TensorType)]
    if "float32" in elements:
        return "float32"
    if "float" in elements or any(isinstance(a.type, FloatType) for a in call.args):
        return "float"
    if elements == ["bool"] * len(call.args):
        return "bool"  # the operators that only move elements
    return "int"


def rank_of(call: OpCall, position: int, rank: int) -> Dims | None:
    """The dims of an argument that must have this rank; None where its rank is not known."""
    dims = call.tensor(position).dims
    if dims is not None and len(dims) != rank:
        raise errors.RankMismatch(
            f"argument {position + 1} of '{call.name}' is {show(dims)}, of rank {len(dims)}; "
            f"it takes a tensor of rank {rank}",
            call.args[position].span,
        )
    return dims


def agree(call: OpCall, left: Expr, right: Expr, what: str) -> None:
    if sizes.equal(left, right) is False:
        raise errors.ShapeMismatch(
            f"'{call.name}' needs {what} to be equal, found {show_size(left)} and "
            f"{show_size(right)}",
            call.span,
        )


def _joined(call: OpCall, left: Dims, right: Dims) -> Dims:
    """The broadcast of two shapes."""
    out: list[Expr] = []
    for k in range(max(len(left), len(right))):
        a = left[len(left) - 1 - k] if k < len(left) else IntConst(1)
        b = right[len(right) - 1 - k] if k < len(right) else IntConst(1)
        if a == IntConst(1):
            out.append(b)
        elif b == IntConst(1) or sizes.equal(a, b) is not False:
            out.append(a)
        else:
            raise errors.ShapeMismatch(
                f"'{call.name}' cannot broadcast {show(left)} with {show(right)}: the sizes "
                f"{show_size(a)} and {show_size(b)} differ and neither is 1",
                call.span,
            )
    return tuple(reversed(out))


def _broadcast_dims(call: OpCall) -> Dims | None:
    dims: Dims = ()
    for arg in call.args:
        match arg.type:
            case IntType() | FloatType():
                continue
            case TensorType(None):
                return None
            case TensorType(own) if own is not None:
                dims = _joined(call, dims, own)
            case _:
                raise AssertionError(arg.type)
    return dims


def check_expands(call: OpCall, small: Dims | None, large: Dims | None) -> None:
    """Refuses a shape that does not broadcast to another."""
    if small is None or large is None:
        return
    pairs = zip(reversed(small), reversed(large), strict=False)
    if len(small) > len(large) or any(
        sizes.constant(a) != 1 and sizes.equal(a, b) is False for a, b in pairs
    ):
        raise errors.ShapeMismatch(
            f"'{call.name}': {show(small)} does not broadcast to {show(large)}", call.span
        )


def same(call: OpCall) -> TensorType:
    return _counted(call.tensor(0))


def _counted(type_: TensorType) -> TensorType:
    """The type of what is computed of ints: of those of a BoolTensor an IntTensor."""
    return TensorType(type_.dims, "int") if type_.element == "bool" else type_


def like(call: OpCall) -> TensorType:
    return TensorType(call.tensor(1).dims, _element(call))


def broadcast(call: OpCall) -> TensorType:
    return _counted(TensorType(_broadcast_dims(call), _element(call)))


def quotient(call: OpCall) -> TensorType:
    if _element(call) in ("int", "bool"):
        raise errors.BinaryOpTypeMismatch(
            "'/' takes float tensors, found two of ints", call.span,
            hint="multiply one of them by 1.0 first",
        )  # fmt: skip
    return broadcast(call)


def compare(call: OpCall) -> TensorType:
    return TensorType(_broadcast_dims(call), "bool")


def builtin(call: OpCall) -> TensorType:
    """A built-in scalar function on all elements."""
    info = BUILTINS[call.name]
    for name, arg in zip(info.args, call.args, strict=True):
        if name in info.ints and arg.type != INT:
            raise errors.OperatorArguments(
                f"argument '{name}' of '{call.name}' is one int for all elements", call.span
            )
    dims, element = _broadcast_dims(call), _element(call)
    if info.result == "int":  # of these each is a question
        return TensorType(dims, "bool")
    if element != "float32" and info.result == "float" and not _is_whole_power(call):
        return TensorType(dims, "float")
    return _counted(TensorType(dims, element))


def _is_whole_power(call: OpCall) -> bool:
    """``n ** 2`` of ints is an int; with an exponent that may be negative it is a float."""
    exponent = call.args[-1]
    return call.name == "pow" and isinstance(exponent, IntConst) and exponent.value >= 0


def where(call: OpCall) -> TensorType:
    return TensorType(_broadcast_dims(call), _element(replace(call, args=call.args[1:])))


def reduce(call: OpCall) -> TensorType:
    x = call.tensor(0) if call.name == "amax" else _counted(call.tensor(0))
    return TensorType(reduced(call, x.dims), x.element)


def reduced(call: OpCall, of: Dims | None) -> Dims | None:
    keep = call.const("keepdim")
    if of is None:
        return () if not call.ints("dims") and not keep else None
    dims = call.consts("dims") or tuple(range(len(of)))
    return tuple(IntConst(1) if k in dims else d for k, d in enumerate(of) if keep or k not in dims)


def argmax(call: OpCall) -> TensorType:
    dims, dim = call.tensor(0).dims, call.const("dim")
    return TensorType(None if dims is None else dims[:dim] + dims[dim + 1 :], "int")


def positions(call: OpCall) -> TensorType:
    return TensorType(call.tensor(0).dims, "int")


def matmul(call: OpCall) -> TensorType:
    a, b = call.tensor(0).dims, call.tensor(1).dims
    if a is None or b is None:
        return TensorType(None, _element(call))
    for position, dims in enumerate((a, b)):
        if len(dims) < 2:
            raise errors.RankMismatch(
                f"argument {position + 1} of 'matmul' is {show(dims)}; it takes matrices "
                "[..., M, K] and [..., K, N], and vectors",
                call.args[position].span,
                hint="a single number multiplies with *",
            )
    agree(call, a[-1], b[-2], "the columns of the first and the rows of the second matrix")
    return TensorType((*_joined(call, a[:-2], b[:-2]), a[-2], b[-1]), _element(call))


def linear(call: OpCall) -> TensorType:
    x, w = call.tensor(0).dims, rank_of(call, 1, 2)
    _check_bias(call, None if w is None else w[0], "the rows of the weight")
    if x is None or w is None:
        return TensorType(None, _element(call))
    if not x:
        raise errors.RankMismatch("argument 1 of 'linear' has rank 0", call.args[0].span)
    agree(call, x[-1], w[1], "the last size of x and the columns of the weight")
    return TensorType((*x[:-1], w[0]), _element(call))


def _window(size: Expr, kernel: Expr, stride: Expr, padding: Expr, dilation: Expr) -> Expr:
    span = arith("+", arith("*", dilation, arith("-", kernel, IntConst(1))), IntConst(1))
    room = arith("-", arith("+", size, arith("*", IntConst(2), padding)), span)
    return arith("+", arith("//", room, stride), IntConst(1))


def _check_bias(call: OpCall, size: Expr | None, what: str = "the output channels") -> None:
    if len(call.args) == 3:
        bias = rank_of(call, 2, 1)
        if bias is not None and size is not None:
            agree(call, bias[0], size, f"the size of the bias and {what}")


def convolution(call: OpCall) -> TensorType:
    rank = 2 + len(call.ints("stride"))
    x, w = rank_of(call, 0, rank), rank_of(call, 1, rank)
    _check_bias(call, w[0] if w is not None else None)
    return TensorType(convolved(call, x, w), _element(call))


def convolved(call: OpCall, x: Dims | None, w: Dims | None) -> Dims | None:
    if x is None or w is None:
        return None
    agree(call, x[1], arith("*", w[1], call.one("groups")), "the channels of x and of the weight")
    attrs = zip(call.ints("stride"), call.ints("padding"), call.ints("dilation"), strict=True)
    out = [_window(x[2 + k], w[2 + k], s, p, d) for k, (s, p, d) in enumerate(attrs)]
    return (x[0], w[0], *out)


def conv_transpose2d(call: OpCall) -> TensorType:
    x, w = rank_of(call, 0, 4), rank_of(call, 1, 4)
    channels = None if w is None else arith("*", w[1], call.one("groups"))
    _check_bias(call, channels)
    if x is None or w is None or channels is None:
        return TensorType(None, _element(call))
    agree(call, x[1], w[0], "the channels of x and the first size of the weight")
    out = []
    for k in range(2):
        s, p, d = (call.ints(a)[k] for a in ("stride", "padding", "dilation"))
        room = arith("*", arith("-", x[2 + k], IntConst(1)), s)
        window = arith("*", d, arith("-", w[2 + k], IntConst(1)))
        extra = arith("+", call.ints("output_padding")[k], IntConst(1))
        size = arith("-", arith("+", room, window), arith("*", IntConst(2), p))
        out.append(arith("+", size, extra))
    return TensorType((x[0], channels, *out), _element(call))


def pool2d(call: OpCall) -> TensorType:
    return TensorType(pooled(call, rank_of(call, 0, 4)), call.tensor(0).element)


def pooled(call: OpCall, x: Dims | None) -> Dims | None:
    if x is None:
        return None
    attrs = zip(call.ints("kernel_size"), call.ints("stride"), call.ints("padding"), strict=True)
    one = IntConst(1)
    out = [_window(x[2 + k], size, s, p, one) for k, (size, s, p) in enumerate(attrs)]
    return (x[0], x[1], *out)


def pool2d_index(call: OpCall) -> TensorType:
    return TensorType(pool2d(call).dims, "int")


def from_shape(call: OpCall) -> TensorType:
    return TensorType(tuple(map(sizes.simplify, call.ints("shape"))), _element(call))


def expand(call: OpCall) -> TensorType:
    check_expands(call, call.tensor(0).dims, call.ints("shape"))
    return from_shape(call)


def constant(call: OpCall) -> TensorType:
    return TensorType(tuple(map(sizes.simplify, call.ints("shape"))), "float")


def reshape(call: OpCall) -> TensorType:
    x = call.tensor(0)
    shape = tuple(map(sizes.simplify, call.ints("shape")))
    unknown = [k for k, size in enumerate(shape) if size == IntConst(-1)]
    if len(unknown) > 1:
        raise errors.OperatorArguments("'reshape' takes at most one size of -1", call.span)
    known = sizes.product(tuple(s for s in shape if s != IntConst(-1)))
    if unknown:
        if x.dims is None:
            raise errors.OperatorArguments(
                "'reshape' cannot work out the size -1 of a tensor of unknown rank", call.span,
                hint="give the argument its sizes: Tensor[N, ...]",
            )  # fmt: skip
        rest = sizes.quotient(sizes.product(x.dims), known)
        shape = (*shape[: unknown[0]], rest, *shape[unknown[0] + 1 :])
    elif x.dims is not None and sizes.equal(sizes.product(x.dims), known) is False:
        raise errors.ShapeMismatch(
            f"'reshape' cannot make {show(shape)} of {show(x.dims)}: "
            "the numbers of elements differ",
            call.span,
        )
    return TensorType(shape, x.element)


def permute(call: OpCall) -> TensorType:
    x, order = call.tensor(0), call.consts("dims")
    if x.dims is None:
        return x
    if sorted(order) != list(range(len(x.dims))):
        raise errors.OperatorArguments(
            f"'permute' of {show(x.dims)} takes each of the dimensions 0 to {len(x.dims) - 1} "
            f"once, found {list(order)}",
            call.span,
        )
    return TensorType(tuple(x.dims[k] for k in order), x.element)


def transpose(call: OpCall) -> TensorType:
    x = call.tensor(0)
    if x.dims is None:
        return x
    i, j = call.const("dim0"), call.const("dim1")
    dims = list(x.dims)
    dims[i], dims[j] = dims[j], dims[i]
    return TensorType(tuple(dims), x.element)


def roll(call: OpCall) -> TensorType:
    shifts, dims = len(call.ints("shifts")), len(call.ints("dims"))
    if shifts != (dims or 1):
        raise errors.OperatorArguments(
            f"'roll' takes a shift for each dimension, found {shifts} and {dims}", call.span
        )
    return call.tensor(0)


def matrices(call: OpCall) -> TensorType:
    x = call.tensor(0)
    if x.dims is not None and len(x.dims) < 2:
        raise errors.RankMismatch(
            f"argument 1 of '{call.name}' is {show(x.dims)}; it takes matrices [..., N, M]",
            call.args[0].span,
        )
    return x


def cat(call: OpCall) -> TensorType:
    dim = call.const("dim")
    first = call.tensor(0).dims
    total: Expr = IntConst(0)
    for position, arg in enumerate(call.args):
        dims = call.tensor(position).dims
        if dims is None or first is None:
            return TensorType(None, _element(call))
        if len(dims) != len(first):
            raise errors.RankMismatch(
                f"'cat' joins tensors of one rank, found {show(first)} and {show(dims)}",
                arg.span,
            )
        for k, (a, b) in enumerate(zip(first, dims, strict=True)):
            if k != dim:
                agree(call, a, b, f"the sizes of dimension {k}")
        total = arith("+", total, dims[dim])
    assert first is not None
    return TensorType((*first[:dim], total, *first[dim + 1 :]), _element(call))


def slice_(call: OpCall) -> TensorType:
    return replace(call.tensor(0), dims=sliced(call, call.tensor(0).dims))


def sliced(call: OpCall, x: Dims | None) -> Dims | None:
    if x is None:
        return None
    dim = call.const("dim")
    start, end, step = (call.one(name) for name in ("start", "end", "step"))
    room = arith("+", arith("-", end, start), arith("-", step, IntConst(1)))
    for bound in (start, end):
        value, size = sizes.constant(bound), sizes.constant(x[dim])
        if value is not None and (value < 0 or (size is not None and value > size)):
            raise errors.SubscriptOutOfRange(
                f"'slice' from {show_size(start)} to {show_size(end)} leaves dimension "
                f"{dim} of {show(x)}",
                call.span,
            )
    return (*x[:dim], arith("//", room, step), *x[dim + 1 :])


def one_hot(call: OpCall) -> TensorType:
    dims = call.tensor(0).dims
    return TensorType(None if dims is None else (*dims, sizes.simplify(call.one("size"))), "float")


def gather(call: OpCall) -> TensorType:
    x, index = call.tensor(0).dims, call.tensor(1).dims
    if x is not None and index is not None and len(x) != len(index):
        raise errors.RankMismatch(
            f"'gather' takes an index of the rank of x, found {show(x)} and {show(index)}",
            call.args[1].span,
        )
    return TensorType(index, call.tensor(0).element)
