"""Every tensor operator of :data:`loma.core.ops.OPS` on NumPy arrays, as one table.

A rule takes the operator's arguments by position and its attributes by name, as ints or tuples of
ints. It may return a view of an argument, and numbers of another type: the interpreter copies what
it stores, and converts results.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loma.arithmetic.grids import BUILTIN_FUNCTIONS, to_float
from loma.backends.interpreter import windows
from loma.core.builtins import BUILTINS

Array = NDArray[Any]
Rule = Callable[..., Any]
Shape = tuple[int, ...]


def _elementwise(name: str) -> Rule:
    """A built-in scalar function on arrays."""
    function = BUILTIN_FUNCTIONS[name]
    if BUILTINS[name].result == "operands":
        return function
    return lambda *args: function(*map(to_float, args))


def _are_ints(*arrays: Array) -> bool:
    return all(np.asarray(array).dtype == np.int64 for array in arrays)


def _power(x: Array, y: Array) -> Array:
    ints = _are_ints(x, y) and np.all(np.asarray(y) >= 0)
    return np.power(x, y) if ints else np.power(to_float(x), to_float(y))


def _divided(function: Callable[..., Array]) -> Rule:
    """A division, which ints by zero have none of."""

    def divide(a: Array, b: Array) -> Array:
        if _are_ints(a, b) and np.any(np.equal(b, 0)):
            raise ValueError("division of an int by zero")
        return function(a, b)

    return divide


# ----------------------------------------------------------------------- reductions and softmax


def _reduction(function: Callable[..., Array]) -> Rule:
    """Over ``dims``, all of them if none are given."""
    return lambda x, *, dims, keepdim: function(x, axis=tuple(dims) or None, keepdims=bool(keepdim))


_sum, _amax = _reduction(np.sum), _reduction(np.max)


def _mean(x: Array, *, dims: Shape, keepdim: int) -> Array:
    count = math.prod(x.shape[d] for d in dims) if dims else x.size
    return np.asarray(_sum(x, dims=dims, keepdim=keepdim) / np.float64(count))


def _row_order(rank: int, dims: Shape) -> tuple[list[int], int]:
    """The dimensions with ``dims`` (all if none) last, and how many come before those."""
    chosen = [d % rank for d in dims] if dims else list(range(rank))
    kept = [d for d in range(rank) if d not in chosen]
    return kept + chosen, len(kept)


def _to_rows(x: Array, *, dims: Shape) -> Array:
    order, kept = _row_order(x.ndim, dims)
    turned = np.transpose(x, order)
    return np.reshape(turned, (*turned.shape[:kept], math.prod(turned.shape[kept:])))


def _from_rows_like(rows: Array, like: Array, *, dims: Shape) -> Array:
    order, _ = _row_order(like.ndim, dims)
    turned = np.reshape(rows, [like.shape[d] for d in order])
    return np.transpose(turned, np.argsort(order)) if order else turned


def _moved(x: Array, *, dim: int, ones: int) -> Array:
    edge = np.full_like(np.take(x, range(min(1, x.shape[dim])), axis=dim), ones)
    return np.concatenate([edge, np.take(x, range(x.shape[dim] - 1), axis=dim)], axis=dim)


def _argsort(x: Array, *, dim: int, descending: int) -> Array:
    if not descending:
        return np.argsort(x, axis=dim, kind="stable")
    # of the reversed elements, so that equal ones keep their order
    order = np.argsort(np.flip(x, dim), axis=dim, kind="stable")
    return np.flip(x.shape[dim] - 1 - order, dim)


def _scan(a: Array, b: Array, *, dim: int) -> Array:
    if a.shape != b.shape:
        raise ValueError(f"factors of shape {a.shape} for a scan of shape {b.shape}")
    y = np.moveaxis(b.copy(), dim, 0)
    factors = np.moveaxis(a, dim, 0)
    for t in range(1, len(y)):
        y[t] += factors[t] * y[t - 1]
    return np.moveaxis(y, 0, dim)


def _softmax(x: Array, *, dim: int) -> Array:
    if x.size == 0:
        return x
    weights = np.exp(x - np.max(x, axis=dim, keepdims=True))
    return np.asarray(weights / np.sum(weights, axis=dim, keepdims=True))


def _log_softmax(x: Array, *, dim: int) -> Array:
    if x.size == 0:
        return x
    shifted = x - np.max(x, axis=dim, keepdims=True)
    return np.asarray(shifted - np.log(np.sum(np.exp(shifted), axis=dim, keepdims=True)))


def _unreduce_like(g: Array, like: Array, *, dims: Shape, keepdim: int) -> Array:
    if not keepdim:
        own = dims or range(like.ndim)
        g = np.expand_dims(g, tuple(own))
    return np.broadcast_to(g, like.shape)


def _linear(x: Array, w: Array, b: Array | None = None) -> Array:
    y = np.matmul(x, w.T) if x.ndim > 1 else w @ x
    return y if b is None else y + b


# -------------------------------------------------------------------------------------- shapes


def _slice(x: Array, *, dim: int, start: int, end: int, step: int) -> Array:
    return x[_place(x.shape, dim, start, end, step)]


def _place(shape: Shape, dim: int, start: int, end: int, step: int) -> tuple[slice, ...]:
    if not (0 <= start <= end <= shape[dim]) or step < 1:
        raise IndexError(
            f"the slice {start}:{end}:{step} leaves dimension {dim} of size {shape[dim]}"
        )
    return tuple(slice(start, end, step) if k == dim else slice(None) for k in range(len(shape)))


def _slice_into(g: Array, *, shape: Shape, dim: int, start: int, end: int, step: int) -> Array:
    out = np.zeros(shape, dtype=g.dtype)
    place = _place(shape, dim, start, end, step)
    if out[place].shape != g.shape:
        raise ValueError(f"an adjoint of shape {g.shape} for a slice of shape {out[place].shape}")
    out[place] = g
    return out


def _sum_to(x: Array, *, shape: Shape) -> Array:
    extra = x.ndim - len(shape)
    if np.broadcast_shapes(x.shape, shape) != x.shape:
        raise ValueError(f"no tensor of shape {shape} broadcasts to {x.shape}")
    x = x.sum(axis=tuple(range(extra)))
    summed = tuple(k for k, size in enumerate(shape) if size == 1 and x.shape[k] != 1)
    return np.asarray(x.sum(axis=summed, keepdims=True)) if summed else np.asarray(x)


# ----------------------------------------------------------------------- selection and constants


def _checked(index: Array, size: int) -> Array:
    if index.size and (index.min() < 0 or index.max() >= size):
        wrong = index.min() if index.min() < 0 else index.max()
        raise ValueError(f"the index {wrong} is outside a dimension of size {size}")
    return index


def _one_hot(index: Array, *, size: int) -> Array:
    return np.asarray(_checked(index, size)[..., None] == np.arange(size))


def _grid(index: Array, dim: int, shape: Shape) -> tuple[Array, ...]:
    """Subscripts of the elements that ``index`` picks along ``dim`` of a tensor of that shape."""
    if any(a > b for k, (a, b) in enumerate(zip(index.shape, shape, strict=True)) if k != dim):
        raise ValueError(f"an index of shape {index.shape} for a tensor of shape {shape}")
    places: list[Array] = list(np.indices(index.shape, sparse=True))
    places[dim] = _checked(index, shape[dim])
    return tuple(places)


def _gather(x: Array, index: Array, *, dim: int) -> Array:
    return np.asarray(x[_grid(index, dim, x.shape)])


def _scatter_add(g: Array, index: Array, *, shape: Shape, dim: int) -> Array:
    out = np.zeros(shape, dtype=g.dtype)
    places = np.broadcast_arrays(*_grid(index, dim, shape))
    np.add.at(out, tuple(places), g[tuple(slice(size) for size in index.shape)])
    return out


OPS: dict[str, Rule] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "mod": _divided(np.mod),
    "floordiv": _divided(np.floor_divide),
    "and": np.logical_and,
    "or": np.logical_or,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "neg": np.negative,
    "not": np.logical_not,
    **{name: _elementwise(name) for name, info in BUILTINS.items() if not info.scalar_only},
    "pow": _power,
    "where": lambda cond, a, b: np.where(np.asarray(cond) != 0, a, b),
    "sum": _sum,
    "mean": _mean,
    "amax": _amax,
    "amax_or_zero": lambda x, **dims: (_amax if x.size else _sum)(x, **dims),
    "amin": _reduction(np.min),
    "prod": _reduction(np.prod),
    "argmax": lambda x, *, dim: np.argmax(x, axis=dim),
    "argmin": lambda x, *, dim: np.argmin(x, axis=dim),
    "argsort": _argsort,
    "cumsum": lambda x, *, dim: np.cumsum(x, axis=dim),
    "cumprod": lambda x, *, dim: np.cumprod(x, axis=dim),
    "scan": _scan,
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "matmul": np.matmul,
    "linear": _linear,
    "conv2d": windows.convolution,
    "conv3d": windows.convolution,
    "conv_transpose2d": windows.conv_transpose2d,
    "conv2d_input": windows.convolution_input,
    "conv2d_weight": windows.convolution_weight,
    "conv3d_input": windows.convolution_input,
    "conv3d_weight": windows.convolution_weight,
    "max_pool2d": windows.max_pool2d,
    "max_pool2d_index": windows.max_pool2d_index,
    "avg_pool2d": windows.avg_pool2d,
    "avg_pool2d_input": windows.avg_pool2d_input,
    "reshape": lambda x, *, shape: np.reshape(x, shape),
    "permute": lambda x, *, dims: np.transpose(x, dims),
    "transpose": lambda x, *, dim0, dim1: np.swapaxes(x, dim0, dim1),
    "cat": lambda *tensors, dim: np.concatenate(tensors, axis=dim),
    "flip": lambda x, *, dims: np.flip(x, dims),
    "roll": lambda x, *, shifts, dims: np.roll(x, shifts, dims) if dims else np.roll(x, shifts[0]),
    "tril": lambda x, *, diagonal: np.tril(x, diagonal),
    "triu": lambda x, *, diagonal: np.triu(x, diagonal),
    "slice": _slice,
    "slice_into": _slice_into,
    "expand": lambda x, *, shape: np.broadcast_to(x, shape),
    "sum_to": _sum_to,
    "reshape_like": lambda x, like: np.reshape(x, like.shape),
    "expand_like": lambda x, like: np.broadcast_to(x, like.shape),
    "sum_to_like": lambda x, like: _sum_to(x, shape=like.shape),
    "unreduce_like": _unreduce_like,
    "to_rows": _to_rows,
    "from_rows_like": _from_rows_like,
    "moved": _moved,
    "one_hot": _one_hot,
    "gather": _gather,
    "scatter_add": _scatter_add,
    "scatter_add_like": lambda g, index, like, *, dim: _scatter_add(
        g, index, shape=like.shape, dim=dim
    ),
    "zeros": lambda *, shape: np.zeros(shape),
    "ones": lambda *, shape: np.ones(shape),
    "zeros_like": np.zeros_like,
    "ones_like": np.ones_like,
}
