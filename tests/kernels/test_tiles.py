"""Sums in tiles of vectors: lengths around a tile's, any number of threads, NaN and infinity."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import oracle
import pytest
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

import loma
from loma import pipeline

LENGTHS = (0, 1, 7, 8, 15, 16, 17, 63, 64, 65, 129)

# Under no_diff: nothing here calls backward functions, which would have to be compiled.
PROGRAM = """
def by_rows(a : In[Tensor[N, K]], b : In[Tensor[K, M]], c : In[Tensor[M]]) -> Tensor[N, M]:
    y : Tensor[N, M]
    y[i, j] += no_diff(a[i, k] * b[k, j] * c[j])
    return y

def dots(a : In[Tensor[N, R, M]], v : In[Tensor[N, M]]) -> tuple[Tensor[N, R], float]:
    y : Tensor[N, R]
    s : float = 0.0
    y[i, r] = no_diff(sum(a[i, r, j] * v[i, j] for j in M))
    s += no_diff(a[i, r, j] * v[i, j])
    return y, s

def costly(x : In[Tensor[N, M]], w : In[Tensor[M]]) -> tuple[Tensor[N], Tensor[M], float]:
    a : Tensor[N]
    b : Tensor[M]
    s : float = 0.0
    a[i] = no_diff(sum(exp(x[i, j]) * w[j] for j in M))
    b[j] = no_diff(sum(tanh(x[i, j]) for i in N))
    s += no_diff(log(1.0 + exp(x[i, j])))
    return a, b, s

def extremes(
    x : In[Tensor[K, M]]
) -> tuple[Tensor[M], Tensor[K], Tensor[M], Tensor[K], Tensor[M], Tensor[K]]:
    a : Tensor[M]
    b : Tensor[K]
    c : Tensor[M]
    d : Tensor[K]
    e : Tensor[M]
    f : Tensor[K]
    a[j] = no_diff(max(x[k, j] for k in K))
    b[k] = no_diff(max(x[k, j] for j in M))
    c[j] = no_diff(min(x[k, j] for k in K))
    d[k] = no_diff(min(x[k, j] for j in M))
    e[j] = no_diff(prod(x[k, j] for k in K))
    f[k] = no_diff(prod(x[k, j] for j in M))
    return a, b, c, d, e, f

def positions(x : In[Tensor[K, M]], z : In[Tensor[N, K, M]], t : In[IntTensor[K, M]]
              ) -> tuple[IntTensor[M], IntTensor[M], IntTensor[M], IntTensor[N, M], IntTensor[M],
                         IntTensor[K], IntTensor[N], IntTensor[K]]:
    a : IntTensor[M]
    b : IntTensor[M]
    c : IntTensor[M]
    d : IntTensor[N, M]
    e : IntTensor[M]
    f : IntTensor[K]
    g : IntTensor[N]
    h : IntTensor[K]
    a[j] = argmax(x[k, j] for k in K)
    b[j] = argmin(x[k, j] for k in K)
    c[j] = argmax(z[n, k, j] for k in K for n in N)
    d[n, j] = argmin(z[n, k, j] for k in K)
    e[j] = argmax(t[k, j] for k in K)
    f[k] = argmin(x[k, j] for j in M)
    g[n] = argmax(z[n, k, j] for k in K for j in M)
    h[k] = argmin(t[k, j] for j in M)
    return a, b, c, d, e, f, g, h

def windows(
    x : In[Tensor[C, M]], k : In[Tensor[P, C, M]]
) -> tuple[Tensor[C, M], Tensor[P, C], Tensor[P, C, M]]:
    y : Tensor[C, M]
    s : Tensor[P, C]
    g : Tensor[P, C, M]
    y[c, w] += no_diff(zero_pad(x[c, w + p - 2]) * k[p, c, w])
    s[p, c] += no_diff(zero_pad(x[c, w + p - 2]) * zero_pad(x[c - 1, w]))
    g[p, c, w] = no_diff(sum(zero_pad(x[c + q - 1, w + p - 2]) * x[c, w] for q in range(3)))
    return y, s, g

def shared(w : In[Tensor[I, R, K, O]], x : In[Tensor[B, R, K]]) -> Tensor[B, I, R, O]:
    u : Tensor[B, I, R, O]
    u[b, i, r, o] += no_diff(exp(w[i, r, k, o]) * x[b, r, k] * x[b, r, k])
    return u

def across(x : In[Tensor[B, M, N]], z : In[Tensor[N]]) -> Tensor[B, N, M]:
    y : Tensor[B, N, M]
    y[b, j, i] = no_diff(x[b, i, j] * 2.0 + z[j])
    return y

def counted(t : In[IntTensor[K, M]]) -> tuple[IntTensor[M], IntTensor[K]]:
    a : IntTensor[M]
    b : IntTensor[K]
    a[j] = sum(t[k, j] * k for k in K)
    b[k] = max(t[k, j] for j in M)
    return a, b
"""


@pytest.fixture(scope="module")
def program() -> loma.LomaModule:
    return loma.compile(PROGRAM)


def _padded(x: Tensor, width: tuple[int, int, int, int]) -> Tensor:
    """F.pad of the last two dimensions, which before torch 2.7 refuses those of size 0."""
    left, right, above, below = width
    *outer, rows, length = x.shape
    padded = x.new_zeros(*outer, above + rows + below, left + length + right)
    padded[..., above : above + rows, left : left + length] = x
    return padded


def _windows(x: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    taps, (rows, length) = k.shape[0], x.shape
    padded = _padded(x, (2, taps, 0, 0))
    moved = torch.stack([padded[:, p : p + length] for p in range(taps)])
    above = _padded(moved, (0, 0, 1, 1))
    near = above[:, :-2] + above[:, 1:-1] + above[:, 2:]
    return (moved * k).sum(0), (moved * _padded(x, (0, 0, 1, 0))[:rows]).sum(2), near * x


def _cases(length: int, dtype: torch.dtype) -> list[tuple[str, list[Tensor], Callable[..., Any]]]:
    def leaf(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=dtype)

    cases: list[tuple[str, list[Tensor], Callable[..., Any]]] = [
        ("by_rows", [leaf(3, 70), leaf(70, length), leaf(length)], lambda a, b, c: (a @ b * c,)),
        ("dots", [leaf(2, 3, length), leaf(2, length)],
         lambda a, v: ((a * v[:, None]).sum(2), (a * v[:, None]).sum())),
        ("costly", [leaf(3, length), leaf(length)],
         lambda x, w: (x.exp() @ w, x.tanh().sum(0), x.exp().log1p().sum())),
        ("windows", [leaf(3, length), leaf(5, 3, length)], _windows),
        ("shared", [leaf(2, 9, 3, length), leaf(4, 9, 3)],
         lambda w, x: (torch.einsum("irko,brk->biro", w.exp(), x * x),)),
        ("across", [leaf(2, length, 33), leaf(33)],
         lambda x, z: (x.transpose(1, 2) * 2.0 + z[:, None],)),
    ]  # fmt: skip
    if length:
        cases.append(("extremes", [leaf(5, length)], lambda x: (
            x.amax(0), x.amax(1), x.amin(0), x.amin(1), x.prod(0), x.prod(1))))  # fmt: skip
    return cases


def _results(value: Any) -> tuple[Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.full)]
)
@pytest.mark.parametrize("length", LENGTHS)
def test_any_length(program: loma.LomaModule, length: int, dtype: torch.dtype) -> None:
    tolerance = 2e-5 if dtype == torch.float32 else 1e-11
    for name, args, reference in _cases(length, dtype):
        found = _results(getattr(program, name)(*args))
        for value, right in zip(found, reference(*args), strict=True):
            value = torch.as_tensor(value, dtype=dtype)
            scale = 1 + float(right.abs().max()) if right.numel() else 1.0
            assert torch.allclose(value, right, rtol=tolerance, atol=tolerance * scale), name


@pytest.mark.parametrize("length", LENGTHS[1:])
def test_integers(program: loma.LomaModule, length: int) -> None:
    numbers = torch.randint(-9, 9, (5, length))
    sums, largest = program.counted(numbers)
    assert torch.equal(sums, (numbers * torch.arange(5)[:, None]).sum(0))
    assert torch.equal(largest, numbers.amax(1))


@pytest.mark.usefixtures("threads")
def test_any_number_of_threads(program: loma.LomaModule) -> None:
    for name, args, _ in [*_cases(129, torch.float32), *_cases(4111, torch.float32)]:
        found = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(_results(getattr(program, name)(*args)))
        for other in found[1:]:
            for value, first in zip(other, found[0], strict=True):
                assert torch.equal(torch.as_tensor(value), torch.as_tensor(first)), name


@pytest.mark.parametrize("special", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("place", [0, 15, 16, 66])
def test_nan_and_infinity(program: loma.LomaModule, special: float, place: int) -> None:
    x = torch.randn(5, 67)
    x[2, place] = special
    for value, right in zip(
        program.extremes(x),
        (x.amax(0), x.amax(1), x.amin(0), x.amin(1), x.prod(0), x.prod(1)),
        strict=True,
    ):
        assert torch.allclose(value, right, equal_nan=True)
    kernel = torch.zeros(5, 5, 67)
    kernel[0, :, 0] = special  # where the window leaves the row: zero times it is NaN
    found = program.windows(torch.randn(5, 67), kernel)[0]
    assert torch.isnan(found[:, 0]).all()
    assert torch.isfinite(found[:, 1:]).all()
    dots, total = program.dots(x[:, None].contiguous(), torch.ones(5, 67))
    assert torch.equal(torch.isfinite(dots[:, 0]), torch.isfinite(x).all(1))
    assert not torch.isfinite(torch.as_tensor(total))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("values", ["equal", "infinite", "nan"])
def test_positions(program: loma.LomaModule, length: int, dtype: torch.dtype, values: str) -> None:
    """The first of equal elements, and the first NaN before all."""
    x, z = torch.randn(5, length, dtype=dtype).round(), torch.randn(3, 5, length, dtype=dtype)
    for tensor in (x, z):
        if values != "equal":
            tensor[torch.rand_like(tensor) < 0.5] = -torch.inf
            tensor[torch.rand_like(tensor) < 0.3] = torch.inf
        if values == "nan":
            tensor[torch.rand_like(tensor) < 0.2] = torch.nan
    t = torch.randint(-2, 2, (5, length)) * (2**62 if values == "infinite" else 1)
    if length == 0:
        return  # rows of nothing have no extreme: tests/kernels/test_index_statements.py
    if values == "infinite":
        x[:, ::2], t[:, ::2] = -torch.inf, -(2**63)
    expected = (
        x.numpy().argmax(0), x.numpy().argmin(0),
        z.transpose(0, 1).flatten(0, 1).numpy().argmax(0), z.numpy().argmin(1),
        t.numpy().argmax(0), x.numpy().argmin(1), z.flatten(1).numpy().argmax(1),
        t.numpy().argmin(1),
    )  # fmt: skip
    for found, right in zip(program.positions(x, z, t), expected, strict=True):
        assert torch.equal(found, torch.from_numpy(right))


PLACES = """
def f(x : In[Tensor[N, 2 * H + 1, 2 * W + 1]]) -> tuple[
    IntTensor[N, H, W], IntTensor[N, H, W], IntTensor[N, 2 * H, W], Tensor[N, H, W],
]:
    a : IntTensor[N, H, W]
    b : IntTensor[N, H, W]
    c : IntTensor[N, 2 * H, W]
    d : Tensor[N, H, W]
    a[n, h, w] = argmax(x[n, 2 * h + p, 2 * w + q] for p in range(2) for q in range(2))
    b[n, h, w] = argmin(x[n, 2 * h + p, 2 * w + q] for p in range(3) for q in range(3))
    c[n, h, w] = argmax(x[n, h + 0, 2 * w + q] for q in range(2))
    d[n, h, w] = sum(x[n, 2 * h + p, 2 * w + q] for p in range(3) for q in range(3))
    return a, b, c, d
"""


@pytest.mark.parametrize("width", [1, 7, 40])
def test_where_the_extremes_of_windows_stand(width: int) -> None:
    """The first of several, and of NaN."""
    x = torch.randint(-2, 3, (3, 9, 2 * width + 1)).double()
    x[torch.rand(x.shape) < 0.1] = torch.nan
    wide, small = (
        sliding_window_view(x.numpy(), (k, k), (1, 2))[:, : 7 + (k == 3) : 2, ::2] for k in (3, 2)
    )
    row = sliding_window_view(x.numpy(), 2, 2)[:, :8, ::2]
    a, b, c, d = loma.compile(PLACES).f(x)
    np.testing.assert_array_equal(a, small.reshape(*a.shape, 4).argmax(3))
    np.testing.assert_array_equal(b, wide.reshape(*a.shape, 9).argmin(3))
    np.testing.assert_array_equal(c, row.argmax(3))
    np.testing.assert_allclose(d, wide.sum((3, 4)))


def test_costly_values_are_worked_out_for_all_lanes_at_once() -> None:
    assert "loma::update_apart<" in pipeline.stage_text(PROGRAM, "cpp", "costly")
    assert "loma::update_apart<" not in pipeline.stage_text(PROGRAM, "cpp", "dots")


MASKED = """
def masked(
    x : In[Tensor[B, T]], keep : In[BoolTensor[B, T]],
) -> tuple[Tensor[B], Tensor[B], IntTensor[B]]:
    s : Tensor[B]
    m : Tensor[B]
    p : IntTensor[B]
    s[b] = sum(x[b, t] if keep[b, t] else 0.5 for t in T)
    m[b] = max(x[b, t] if keep[b, t] else -1e30 for t in T)
    p[b] = argmax(x[b, t] if keep[b, t] else -1e30 for t in T)
    return s, m, p
"""


@pytest.mark.parametrize("length", [1, 5, 8, 31, 32, 77])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_masks_in_lanes(length: int, dtype: torch.dtype) -> None:
    assert "loma::update_apart<" in pipeline.stage_text(MASKED, "cpp", "masked")
    generator = torch.Generator().manual_seed(length)
    x = torch.randn(3, length, generator=generator, dtype=dtype)
    keep = torch.rand(3, length, generator=generator) > 0.4
    sums, largest, at = oracle.compiled(MASKED).masked(x, keep)
    torch.testing.assert_close(sums, torch.where(keep, x, 0.5).sum(1))
    values, places = torch.where(keep, x, -1e30).max(1)
    torch.testing.assert_close(largest, values)
    assert at[keep.any(1)].tolist() == places[keep.any(1)].tolist()
