"""Columns of a mask that rows leave out: the same values and gradients as with all of them, and
what is not finite where they would count."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
from sampled import diagonals
import torch
from oracle import Program
from torch import Tensor

from loma import pipeline
from loma.backends.kernels.ir import Panels, Step, panels_of
from loma.backends.registry import CPU
from loma.backends.torch.codegen import steps_of
from loma.core.ir import Module

FILE = Path(__file__).resolve().parents[2] / "benchmarks/spellings/causal_attention.loma"
TEXT = FILE.read_text(encoding="utf-8")
SPELLINGS = ("operators", "choice", "statements", "ranges", "masked", "helpers", "queries")
# A zero weight times a value that is not finite is NaN in these, and no term in the others.
COMPUTED = (("j <= t", "-1e30"), ("j < t", "-1e30"))
WITH_TERMS = ("operators", "choice", "statements", "masked", "helpers", "queries")
HEAD = "q : In[Tensor[T, D]], k : In[Tensor[T, D]], v : In[Tensor[T, D]]"


def one_row_of(mask: str, far: str = "-1e30") -> str:
    """Attention without a batch under another mask."""
    return f"""
def f({HEAD}) -> Tensor[T, D]:
    s : Tensor[T, T]
    y : Tensor[T, D]
    s[t, j] = sum(q[t, d] * k[j, d] for d in D) / sqrt(D) if {mask} else {far}
    s[t, j] = exp(s[t, j] - max(s[t, i] for i in T))
    y[t, d] = sum(s[t, j] * v[j, d] for j in T) / sum(s[t, j] for j in T)
    return y
"""


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = q @ k.mT / q.shape[-1] ** 0.5
    later = torch.ones(s.shape[-2:], dtype=torch.bool).triu(1)
    return torch.softmax(s.masked_fill(later, -torch.inf), -1) @ v


def randn(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, dtype=dtype)


@cache
def optimised(text: str) -> Module:
    return pipeline.program(text).module


def leave_out(text: str, name: str) -> bool:
    """Whether the function has panels of columns."""
    module = optimised(text)
    steps: tuple[Step, ...] = steps_of(module.function(name), CPU)
    found = (p for step in steps if isinstance(step, Panels) for p in panels_of(step))
    return any(panels.until is not None for panels in found)


@pytest.fixture(scope="module")
def module() -> Any:
    return oracle.compiled(TEXT)


@pytest.mark.parametrize(("name", "half"), diagonals(3, SPELLINGS, ["", "__forward", "__backward"]))
def test_every_spelling_leaves_columns_out(name: str, half: str) -> None:
    assert leave_out(TEXT, name + half)
    assert ", T, T]" not in pipeline.stage_text(TEXT, "schedule", name + half)


@pytest.mark.parametrize(
    ("shape", "name"), diagonals(2, [(2, 70, 5), (1, 33, 1), (3, 1, 4), (2, 131, 3)], SPELLINGS)
)
def test_values_and_gradients(module: Any, name: str, shape: tuple[int, int, int]) -> None:
    args = [randn(*shape).requires_grad_() for _ in range(3)]
    weight = randn(*shape)
    found, expected = getattr(module, name)(*args), attention(*args)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad(found, args, weight), torch.autograd.grad(expected, args, weight)
    )
    if shape[1] < 50:
        assert torch.autograd.gradcheck(getattr(module, name), args)


@pytest.mark.parametrize("shape", [(0, 70, 3), (2, 0, 3), (2, 70, 0)])
def test_empty(module: Any, shape: tuple[int, int, int]) -> None:
    args = [randn(*shape).requires_grad_() for _ in range(3)]
    for name in ("operators", "masked"):
        found = getattr(module, name)(*args)
        assert found.shape == shape
        assert all(g.shape == shape for g in torch.autograd.grad(found.sum(), args))


@pytest.mark.parametrize("name", SPELLINGS)
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_what_is_not_finite(module: Any, name: str, wrong: float, which: int) -> None:
    """In a late column: early rows of a program see what the interpreter says, which has all."""
    args = [randn(1, 40, 2) for _ in range(3)]
    args[which][0, 36, 1] = wrong
    (expected,) = _program().value(name, args)
    with np.errstate(all="ignore"):
        found = getattr(module, name)(*args)
    torch.testing.assert_close(found, torch.as_tensor(np.asarray(expected)), equal_nan=True)
    if which == 2:
        assert bool(found[0, :32, 1].isnan().all()) == (name in WITH_TERMS)


@pytest.mark.parametrize("scale", [1e3, 1e7, 1e20])
def test_large_scores(module: Any, scale: float) -> None:
    """A mask of -1e30 is far from scores but where these are as large."""
    q, k, v = randn(1, 40, 2) * scale, randn(1, 40, 2) * scale, randn(1, 40, 2)
    for name in ("operators", "masked"):
        (expected,) = _program().value(name, [q, k, v])
        found = getattr(module, name)(q, k, v)
        torch.testing.assert_close(found, torch.as_tensor(np.asarray(expected)), equal_nan=True)


@pytest.mark.parametrize("seen", [0, 3])
def test_gradients_that_are_not_finite(module: Any, seen: int) -> None:
    """An infinite adjoint of a row, times a zero weight."""
    args = [randn(1, 40, 2).requires_grad_() for _ in range(3)]
    g = randn(1, 40, 2)
    g[0, seen, 1] = torch.inf
    (d_v,) = torch.autograd.grad(module.statements(*args), args[2:], g)
    assert d_v[0, : seen + 1, 1].isinf().all()
    assert d_v[0, seen + 1 :, 1].isnan().all()
    (d_v,) = torch.autograd.grad(module.ranges(*args), args[2:], g)  # where there is no such term
    assert d_v[0, : seen + 1, 1].isinf().all()
    assert d_v[0, seen + 1 :, 1].isfinite().all()


def test_out_of_order(module: Any) -> None:
    """Arguments that are not contiguous, and one that is given three times."""
    x = randn(2, 5, 70).transpose(1, 2)
    torch.testing.assert_close(module.masked(x, x, x), attention(x, x, x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes(module: Any, dtype: torch.dtype) -> None:
    q, k, v = (randn(2, 70, 8, dtype=dtype) for _ in range(3))
    expected = attention(q.double(), k.double(), v.double())
    wide = dtype == torch.float32
    torch.testing.assert_close(
        module.masked(q, k, v).double(), expected,
        rtol=1e-4 if wide else 2e-2, atol=1e-5 if wide else 2e-2,
    )  # fmt: skip


def test_threads_do_not_matter(module: Any) -> None:
    before = torch.get_num_threads()
    q, k, v = (randn(8, 150, 16) for _ in range(3))
    found = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        found.append(module.masked(q, k, v))
    torch.set_num_threads(before)
    torch.testing.assert_close(found[0], found[1], rtol=1e-13, atol=1e-14)
    torch.testing.assert_close(found[0], found[2], rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize(
    ("mask", "far", "narrow"),
    [
        ("j <= t", "-1e30", True),
        ("j < t + 1", "-1e9", True),  # with scores that are not too large
        ("j <= t", "-1e4", False),  # which scores may be
        ("j <= t", "0.0", False),
        ("j >= t", "-1e30", False),
        ("j <= t + 1", "-1e30", False),
        ("j < t", "-1e30", False),  # the first row has no column
        ("j <= T - t", "-1e30", False),
    ],
)
def test_masks(mask: str, far: str, narrow: bool, pytestconfig: pytest.Config) -> None:
    text = one_row_of(mask, far)
    assert leave_out(text, "f") == narrow
    if (mask, far) not in COMPUTED and not pytestconfig.getoption("--full"):
        return  # what is left alone is computed as everywhere
    function = oracle.compiled(text).f
    args = [randn(45, 3) for _ in range(3)]
    (expected,) = Program([text], derivatives=False).value("f", args)
    torch.testing.assert_close(function(*args), torch.as_tensor(np.asarray(expected)))


@pytest.mark.full
def test_a_number_of_the_call_is_asked_for() -> None:
    """Scores that a scale makes too large for the mask, or NaN."""
    text = """
def f(
    q : In[Tensor[B, H, T, D]], k : In[Tensor[B, H, T, D]], v : In[Tensor[B, H, T, D]],
    scale : In[float],
) -> Tensor[B, H, T, D]:
    s : Tensor[B, H, T, T]
    y : Tensor[B, H, T, D]
    s[b, h, i, j] = scale * sum(q[b, h, i, d] * k[b, h, j, d] for d in D)
    s[b, h, i, j] = s[b, h, i, j] if i >= j else -1e9
    p = softmax(s, 3)
    y[b, h, i, d] += p[b, h, i, j] * v[b, h, j, d]
    return y
"""
    assert leave_out(text, "f")
    function = oracle.compiled(text).f
    q, k, v = (randn(2, 2, 40, 3) for _ in range(3))
    for scale in (0.5, -1e9, torch.nan):
        s = (scale * q @ k.mT).masked_fill(torch.ones(40, 40, dtype=torch.bool).triu(1), -1e9)
        expected = torch.softmax(s, 3) @ v
        torch.testing.assert_close(function(q, k, v, scale), expected, equal_nan=True)


def test_what_is_returned_has_all_columns() -> None:
    text = f"""
def f({HEAD}) -> tuple[Tensor[T, D], Tensor[T, T]]:
    s : Tensor[T, T]
    y : Tensor[T, D]
    s[t, j] = exp(sum(q[t, d] * k[j, d] for d in D)) if j <= t else 0.0
    y[t, d] += s[t, j] * v[j, d]
    return y, s
"""
    assert not leave_out(text, "f")
    q, k, v = (randn(50, 3) for _ in range(3))
    y, s = oracle.compiled(text).f(q, k, v)
    torch.testing.assert_close(s, (q @ k.mT).exp().tril())
    torch.testing.assert_close(y, s @ v)


@cache
def _program() -> Program:
    return Program([TEXT], derivatives=False)
