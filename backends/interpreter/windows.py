"""Convolutions and pooling on NumPy: loops over the window, whole arrays for the rest."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Sizes = tuple[int, ...]
Place = tuple[Any, ...]  # of the last dimensions


def _padded(x: Array, padding: Sizes, value: float = 0.0) -> Array:
    return np.pad(x, ((0, 0), (0, 0), *((p, p) for p in padding)), constant_values=value)


def _taps(
    kernel: Sizes, out: Sizes, stride: Sizes, dilation: Sizes
) -> Iterator[tuple[Place, Place]]:
    """(the place of a tap in the window, those of the padded input that it meets) for every tap."""
    for tap in np.ndindex(*kernel):
        met = (
            slice(k * d, k * d + (size - 1) * s + 1, s)
            for k, size, s, d in zip(tap, out, stride, dilation, strict=True)
        )
        yield (..., *tap), (..., *met)


def _check(cond: bool, message: str) -> None:
    if not cond:
        raise ValueError(message)


def _out_size(size: Sizes, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes) -> Sizes:
    out = tuple(
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(size, kernel, stride, padding, dilation, strict=True)
    )
    _check(min(out) > 0, f"the window {kernel} does not fit in an input of size {size}")
    return out


def _in_groups(x: Array, groups: int) -> Array:
    return x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])


def _rows(x: Array) -> Array:
    return x.reshape(*x.shape[:3], math.prod(x.shape[3:]))


def _weights(w: Array, groups: int) -> Array:
    return w.reshape(groups, w.shape[0] // groups, *w.shape[1:])


def _check_channels(channels: int, w: Array, groups: int) -> None:
    fits = channels == w.shape[1] * groups and w.shape[0] % groups == 0
    _check(fits, "the channels of x and w disagree")


def _biased(y: Array, b: Array | None) -> Array:
    return y if b is None else y + b.reshape(-1, *(1,) * (y.ndim - 2))


def convolution(
    x: Array, w: Array, b: Array | None = None, *,
    stride: Sizes, padding: Sizes, dilation: Sizes, groups: int,
) -> Array:  # fmt: skip
    _check_channels(x.shape[1], w, groups)
    kernel, outputs = w.shape[2:], w.shape[0]
    out = _out_size(x.shape[2:], kernel, stride, padding, dilation)
    padded, weight = _in_groups(_padded(x, padding), groups), _weights(w, groups)
    y = np.zeros((x.shape[0], groups, outputs // groups, *out), dtype=x.dtype)
    for tap, places in _taps(kernel, out, stride, dilation):
        y += np.einsum("ngc...,goc->ngo...", padded[places], weight[tap])
    return _biased(y.reshape(x.shape[0], outputs, *out), b)


def convolution_input(
    g: Array, w: Array, *,
    shape: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int,
) -> Array:  # fmt: skip
    out = _out_size(shape[2:], w.shape[2:], stride, padding, dilation)
    expected = (shape[0], w.shape[0], *out)
    _check(g.shape == expected, f"the adjoint has shape {g.shape}, not {expected}")
    return _scattered(g, w, shape, stride, padding, dilation, groups)


def _scattered(
    g: Array, w: Array, shape: Sizes,
    stride: Sizes, padding: Sizes, dilation: Sizes, groups: int,
) -> Array:  # fmt: skip
    """Every element of g spread over the window that it came from."""
    n, channels = shape[:2]
    _check_channels(channels, w, groups)
    wide = tuple(size + 2 * p for size, p in zip(shape[2:], padding, strict=True))
    padded = np.zeros((n, groups, w.shape[1], *wide), dtype=g.dtype)
    adjoint, weight = _in_groups(g, groups), _weights(w, groups)
    for tap, places in _taps(w.shape[2:], g.shape[2:], stride, dilation):
        padded[places] += np.einsum("ngo...,goc->ngc...", adjoint, weight[tap])
    inner: Place = (..., *(slice(p, p + n) for p, n in zip(padding, shape[2:], strict=True)))
    return padded[inner].reshape(shape)


def convolution_weight(
    g: Array, x: Array, *,
    shape: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int,
) -> Array:  # fmt: skip
    kernel = shape[2:]
    out = _out_size(x.shape[2:], kernel, stride, padding, dilation)
    expected = (x.shape[0], shape[0], *out)
    _check(g.shape == expected, f"the adjoint has shape {g.shape}, not {expected}")
    padded, adjoint = _in_groups(_padded(x, padding), groups), _rows(_in_groups(g, groups))
    weight = np.zeros((groups, shape[0] // groups, shape[1], *kernel), dtype=g.dtype)
    for tap, places in _taps(kernel, out, stride, dilation):
        met = _rows(padded[places])
        weight[tap] = np.einsum("ngok,ngck->goc", adjoint, met)
    return weight.reshape(shape)


def conv_transpose2d(
    x: Array, w: Array, b: Array | None = None, *,
    stride: Sizes, padding: Sizes, output_padding: Sizes, dilation: Sizes, groups: int,
) -> Array:  # fmt: skip
    sizes = [
        (size - 1) * s - 2 * p + d * (k - 1) + extra + 1
        for size, s, p, d, k, extra in zip(
            x.shape[2:], stride, padding, dilation, w.shape[2:], output_padding, strict=True
        )
    ]
    shape = (x.shape[0], w.shape[1] * groups, *sizes)
    return _biased(_scattered(x, w, shape, stride, padding, dilation, groups), b)


def _windows(x: Array, kernel: Sizes, stride: Sizes, padding: Sizes, fill: float) -> Array:
    """Every window of x, its elements along a new last axis in row-major order."""
    ones = (1,) * len(kernel)
    out = _out_size(x.shape[2:], kernel, stride, padding, ones)
    padded = _padded(x, padding, fill)
    taps = [padded[places] for _, places in _taps(kernel, out, stride, ones)]
    return np.stack(taps, axis=-1)


def max_pool2d(x: Array, *, kernel_size: Sizes, stride: Sizes, padding: Sizes) -> Array:
    return np.asarray(_windows(x, kernel_size, stride, padding, -np.inf).max(axis=-1))


def max_pool2d_index(x: Array, *, kernel_size: Sizes, stride: Sizes, padding: Sizes) -> Array:
    places = np.arange(x.shape[2] * x.shape[3], dtype=np.float64).reshape(1, 1, *x.shape[2:])
    place = _windows(np.broadcast_to(places, x.shape), kernel_size, stride, padding, -1.0)
    values = np.where(place < 0, -np.inf, _windows(x, kernel_size, stride, padding, -np.inf))
    # where the whole window is -inf, the padding must not be the first of equals
    best = values.max(axis=-1, keepdims=True)
    first = np.argmax(((values == best) | np.isnan(values)) & (place >= 0), axis=-1)
    return np.take_along_axis(place, first[..., None], axis=-1)[..., 0].astype(np.int64)


def avg_pool2d(x: Array, *, kernel_size: Sizes, stride: Sizes, padding: Sizes) -> Array:
    return np.asarray(_windows(x, kernel_size, stride, padding, 0.0).mean(axis=-1))


def avg_pool2d_input(
    g: Array, *, shape: Sizes, kernel_size: Sizes, stride: Sizes, padding: Sizes
) -> Array:
    n, c, h, width = shape
    ones = (1, 1)
    out = _out_size((h, width), kernel_size, stride, padding, ones)
    _check(g.shape == (n, c, *out), f"the adjoint has shape {g.shape}, not {(n, c, *out)}")
    padded = np.zeros((n, c, h + 2 * padding[0], width + 2 * padding[1]), dtype=g.dtype)
    for _, places in _taps(kernel_size, out, stride, ones):
        padded[places] += g / (kernel_size[0] * kernel_size[1])
    return padded[..., padding[0] : padding[0] + h, padding[1] : padding[1] + width]
