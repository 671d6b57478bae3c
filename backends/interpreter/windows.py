"""Convolutions and pooling on NumPy: loops over the window, whole arrays for the rest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Pair = tuple[int, int]
ONES: Pair = (1, 1)


def _window(size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def _padded(x: Array, padding: Pair, value: float = 0.0) -> Array:
    rows, cols = padding
    return np.pad(x, ((0, 0), (0, 0), (rows, rows), (cols, cols)), constant_values=value)


def _taps(
    kernel: Pair, out: Pair, stride: Pair, dilation: Pair
) -> Iterator[tuple[int, int, tuple[slice, slice]]]:
    """(p, q, the places of the padded input that this tap meets) for every tap of the window."""
    for p in range(kernel[0]):
        for q in range(kernel[1]):
            rows = slice(p * dilation[0], p * dilation[0] + (out[0] - 1) * stride[0] + 1, stride[0])
            cols = slice(q * dilation[1], q * dilation[1] + (out[1] - 1) * stride[1] + 1, stride[1])
            yield p, q, (rows, cols)


def _check(cond: bool, message: str) -> None:
    if not cond:
        raise ValueError(message)


def _out_size(size: Pair, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair) -> Pair:
    out = tuple(
        _window(*parts) for parts in zip(size, kernel, stride, padding, dilation, strict=True)
    )
    _check(min(out) > 0, f"the window {kernel} does not fit in an input of size {size}")
    return out[0], out[1]


def conv2d(
    x: Array, w: Array, b: Array | None = None, *,
    stride: Pair, padding: Pair, dilation: Pair, groups: int,
) -> Array:  # fmt: skip
    n, c, h, width = x.shape
    o, per_group, kh, kw = w.shape
    _check(c == per_group * groups and o % groups == 0, "the channels of x and w disagree")
    out = _out_size((h, width), (kh, kw), stride, padding, dilation)
    padded = _padded(x, padding).reshape(n, groups, per_group, h + 2 * padding[0], -1)
    weight = w.reshape(groups, o // groups, per_group, kh, kw)
    y = np.zeros((n, groups, o // groups, *out), dtype=x.dtype)
    for p, q, (rows, cols) in _taps((kh, kw), out, stride, dilation):
        y += np.einsum("ngchw,goc->ngohw", padded[..., rows, cols], weight[..., p, q])
    y = y.reshape(n, o, *out)
    return y if b is None else y + b[:, None, None]


def conv2d_input(
    g: Array, w: Array, *,
    shape: tuple[int, ...], stride: Pair, padding: Pair, dilation: Pair, groups: int,
) -> Array:  # fmt: skip
    kernel = w.shape[2], w.shape[3]
    out = _out_size((shape[2], shape[3]), kernel, stride, padding, dilation)
    expected = (shape[0], w.shape[0], *out)
    _check(g.shape == expected, f"the adjoint has shape {g.shape}, not {expected}")
    return _scattered(g, w, shape, stride, padding, dilation, groups)


def _scattered(
    g: Array, w: Array, shape: tuple[int, ...],
    stride: Pair, padding: Pair, dilation: Pair, groups: int,
) -> Array:  # fmt: skip
    """Every element of g spread over the window that it came from."""
    n, c, h, width = shape
    o, per_group, kh, kw = w.shape
    _check(c == per_group * groups and o % groups == 0, "the channels of x and w disagree")
    out = g.shape[2], g.shape[3]
    rows_all, cols_all = h + 2 * padding[0], width + 2 * padding[1]
    padded = np.zeros((n, groups, per_group, rows_all, cols_all), dtype=g.dtype)
    adjoint = g.reshape(n, groups, o // groups, *out)
    weight = w.reshape(groups, o // groups, per_group, kh, kw)
    for p, q, (rows, cols) in _taps((kh, kw), out, stride, dilation):
        padded[..., rows, cols] += np.einsum("ngohw,goc->ngchw", adjoint, weight[..., p, q])
    inner = padded[..., padding[0] : padding[0] + h, padding[1] : padding[1] + width]
    return inner.reshape(n, c, h, width)


def conv2d_weight(
    g: Array, x: Array, *,
    shape: tuple[int, ...], stride: Pair, padding: Pair, dilation: Pair, groups: int,
) -> Array:  # fmt: skip
    n, _, h, width = x.shape
    o, per_group, kh, kw = shape
    out = _out_size((h, width), (kh, kw), stride, padding, dilation)
    _check(g.shape == (n, o, *out), f"the adjoint has shape {g.shape}, not {(n, o, *out)}")
    padded = _padded(x, padding).reshape(n, groups, per_group, h + 2 * padding[0], -1)
    adjoint = g.reshape(n, groups, o // groups, *out)
    weight = np.zeros((groups, o // groups, per_group, kh, kw), dtype=g.dtype)
    for p, q, (rows, cols) in _taps((kh, kw), out, stride, dilation):
        weight[..., p, q] = np.einsum("ngohw,ngchw->goc", adjoint, padded[..., rows, cols])
    return weight.reshape(shape)


def conv_transpose2d(
    x: Array, w: Array, b: Array | None = None, *,
    stride: Pair, padding: Pair, output_padding: Pair, dilation: Pair, groups: int,
) -> Array:  # fmt: skip
    n, _, h, width = x.shape
    _, per_group, kh, kw = w.shape
    sizes = [
        (size - 1) * s - 2 * p + d * (k - 1) + extra + 1
        for size, s, p, d, k, extra in zip(
            (h, width), stride, padding, dilation, (kh, kw), output_padding, strict=True
        )
    ]
    shape = (n, per_group * groups, *sizes)
    y = _scattered(x, w, shape, stride, padding, dilation, groups)
    return y if b is None else y + b[:, None, None]


def _windows(x: Array, kernel: Pair, stride: Pair, padding: Pair, fill: float) -> Array:
    """Every window of x, its elements along a new last axis in row-major order."""
    out = _out_size((x.shape[2], x.shape[3]), kernel, stride, padding, ONES)
    padded = _padded(x, padding, fill)
    taps = [padded[..., rows, cols] for _, _, (rows, cols) in _taps(kernel, out, stride, ONES)]
    return np.stack(taps, axis=-1)


def max_pool2d(x: Array, *, kernel_size: Pair, stride: Pair, padding: Pair) -> Array:
    return np.asarray(_windows(x, kernel_size, stride, padding, -np.inf).max(axis=-1))


def max_pool2d_index(x: Array, *, kernel_size: Pair, stride: Pair, padding: Pair) -> Array:
    places = np.arange(x.shape[2] * x.shape[3], dtype=np.float64).reshape(1, 1, *x.shape[2:])
    place = _windows(np.broadcast_to(places, x.shape), kernel_size, stride, padding, -1.0)
    values = np.where(place < 0, -np.inf, _windows(x, kernel_size, stride, padding, -np.inf))
    # where the whole window is -inf, the padding must not be the first of equals
    best = values.max(axis=-1, keepdims=True)
    first = np.argmax(((values == best) | np.isnan(values)) & (place >= 0), axis=-1)
    return np.take_along_axis(place, first[..., None], axis=-1)[..., 0].astype(np.int64)


def avg_pool2d(x: Array, *, kernel_size: Pair, stride: Pair, padding: Pair) -> Array:
    return np.asarray(_windows(x, kernel_size, stride, padding, 0.0).mean(axis=-1))


def avg_pool2d_input(
    g: Array, *, shape: tuple[int, ...], kernel_size: Pair, stride: Pair, padding: Pair
) -> Array:
    n, c, h, width = shape
    out = _out_size((h, width), kernel_size, stride, padding, ONES)
    _check(g.shape == (n, c, *out), f"the adjoint has shape {g.shape}, not {(n, c, *out)}")
    padded = np.zeros((n, c, h + 2 * padding[0], width + 2 * padding[1]), dtype=g.dtype)
    for _, _, (rows, cols) in _taps(kernel_size, out, stride, ONES):
        padded[..., rows, cols] += g / (kernel_size[0] * kernel_size[1])
    return padded[..., padding[0] : padding[0] + h, padding[1] : padding[1] + width]
