"""Shape rules of the operators that derivatives are made of: such an adjoint carries the shape that
it makes, or is given a tensor of it.

What cannot fit is refused, as in :mod:`loma.core.shapes`: programs may use these operators, too.
"""

from __future__ import annotations

from loma import errors
from loma.core import sizes
from loma.core.ir import TensorType
from loma.core.shapes import (
    Dims, OpCall, agree, check_expands, convolved, from_shape, like, pooled, rank_of, reduced, show,
    sliced,
)  # fmt: skip


def _check_same(call: OpCall, found: Dims | None, wanted: Dims | None, what: str) -> None:
    """Refuses shapes that are known to differ."""
    if sizes.differ(found, wanted):
        raise errors.ShapeMismatch(
            f"'{call.name}' needs {what} to be {show(wanted)}, found {show(found)}", call.span
        )


def reshape_like(call: OpCall) -> TensorType:
    x, wanted = call.tensor(0).dims, call.tensor(1).dims
    if x is not None and wanted is not None:
        agree(call, sizes.product(x), sizes.product(wanted), "the numbers of elements")
    return like(call)


def expand_like(call: OpCall) -> TensorType:
    check_expands(call, call.tensor(0).dims, call.tensor(1).dims)
    return like(call)


def sum_to_like(call: OpCall) -> TensorType:
    check_expands(call, call.tensor(1).dims, call.tensor(0).dims)
    return like(call)


def unreduce_like(call: OpCall) -> TensorType:
    wanted = reduced(call, call.tensor(1).dims)
    _check_same(call, call.tensor(0).dims, wanted, "the sum's adjoint")
    return like(call)


def rows(call: OpCall) -> TensorType:
    x = call.tensor(0)
    if x.dims is None:
        return x
    chosen = call.consts("dims") or tuple(range(len(x.dims)))
    kept = tuple(dim for k, dim in enumerate(x.dims) if k not in chosen)
    return TensorType((*kept, sizes.product(tuple(x.dims[k] for k in chosen))), x.element)


def convolution_adjoint(call: OpCall) -> TensorType:
    """The adjoint of a convolution in x or in w, from that of its result and the other one."""
    rank = 2 + len(call.ints("stride"))
    made = _made(call, rank)
    g, other = rank_of(call, 0, rank), rank_of(call, 1, rank)
    pair = (made, other) if call.name.endswith("_input") else (other, made)
    _check_same(call, g, convolved(call, *pair), "the convolution's adjoint")
    return from_shape(call)


def _made(call: OpCall, rank: int) -> Dims:
    dims = call.ints("shape")
    if len(dims) != rank:
        raise errors.RankMismatch(
            f"'{call.name}' makes a tensor of rank {rank}, found the shape {show(dims)}", call.span
        )
    return dims


def pool2d_adjoint(call: OpCall) -> TensorType:
    wanted = pooled(call, _made(call, 4))
    _check_same(call, rank_of(call, 0, 4), wanted, "the pooling's adjoint")
    return from_shape(call)


def slice_into(call: OpCall) -> TensorType:
    _check_dim(call)
    part = sliced(call, call.ints("shape"))
    _check_same(call, call.tensor(0).dims, part, "the slice's adjoint")
    return from_shape(call)


def scan(call: OpCall) -> TensorType:
    _check_same(call, call.tensor(0).dims, call.tensor(1).dims, "the factors")
    return call.tensor(1)


def sum_to(call: OpCall) -> TensorType:
    check_expands(call, call.ints("shape"), call.tensor(0).dims)
    return from_shape(call)


def scatter_add(call: OpCall) -> TensorType:
    _check_dim(call)
    _check_scattered(call, call.ints("shape"))
    return from_shape(call)


def scatter_add_like(call: OpCall) -> TensorType:
    wanted = call.tensor(2).dims
    _check_scattered(call, wanted)
    return TensorType(wanted, call.tensor(0).element)


def _check_scattered(call: OpCall, made: Dims | None) -> None:
    g, index = call.tensor(0).dims, call.tensor(1).dims
    _check_same(call, g, index, "gather's adjoint")
    if g is not None and made is not None and len(g) != len(made):
        raise errors.RankMismatch(
            f"'{call.name}' adds {show(g)} to {show(made)}: the ranks differ", call.span
        )


def _check_dim(call: OpCall) -> None:
    """Of what is made, of which the operator has the shape alone."""
    rank = len(call.ints("shape"))
    if not 0 <= call.const("dim") < rank:
        raise errors.OperatorArguments(
            f"'{call.name}' has no dimension {call.const('dim')}: its shape has rank {rank}",
            call.span,
        )
