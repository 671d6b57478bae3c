"""Means and variances of few channels with many numbers each: one pass over these."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import shim
import torch
from torch import Tensor

from loma import pipeline

PROGRAM = """
def normal(x : In[Tensor[B, C, H]], w : In[Tensor[C]], b : In[Tensor[C]]) -> Tensor[B, C, H]:
    m : Tensor[C]
    v : Tensor[C]
    y : Tensor[B, C, H]
    m[c] = sum(x[n, c, h] for n in B for h in H) / (B * H)
    v[c] = sum((x[n, c, h] - m[c]) ** 2 for n in B for h in H) / (B * H)
    y[n, c, h] = (x[n, c, h] - m[c]) / sqrt(v[c] + 1e-5) * w[c] + b[c]
    return y

def columns(x : In[Tensor[B, C]], w : In[Tensor[C]]) -> Tensor[B, C]:
    z = x - mean(x, [0], keepdim=True)
    return w * z / sqrt(mean(z * z, [0], keepdim=True) + 1e-5)

def moments(x : In[Tensor[B, C, H]]) -> tuple[Tensor[C], Tensor[C]]:
    m : Tensor[C]
    v : Tensor[C]
    m[c] = sum(x[n, c, h] for n in B for h in H) / (B * H)
    v[c] = sum((x[n, c, h] - m[c]) ** 2 for n in B for h in H)
    return m, v
"""


def _normal(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    z = x - x.mean((0, 2), keepdim=True)
    return w[:, None] * z / (z.square().mean((0, 2), keepdim=True) + 1e-5).sqrt() + b[:, None]


def _columns(x: Tensor, w: Tensor) -> Tensor:
    return _normal(x[:, :, None], w, torch.zeros_like(w))[:, :, 0]


def _moments(x: Tensor) -> Tensor:
    mean = x.mean((0, 2), keepdim=True)
    return torch.stack((mean[0, :, 0], (x - mean).square().sum((0, 2))))


@pytest.fixture(scope="module")
def module(request: pytest.FixtureRequest) -> Iterator[Any]:
    with shim.on_gpu(PROGRAM, request) as found:
        yield found


def _numbers(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(sum(shape)))


def _outlier(x: Tensor) -> Tensor:
    x[0, :, 0] = 1e4
    return x


def _other_part(x: Tensor) -> Tensor:
    x[:6] += 1e3
    return x


def _not_finite(x: Tensor) -> Tensor:
    x[0, 0, 5], x[-1, 1, 5] = float("nan"), float("inf")
    return x


CASES: dict[str, Callable[[Tensor], Tensor]] = {
    "usual": lambda x: x,
    "far": lambda x: x + 100.0,
    "alike": lambda x: torch.full_like(x, 0.1),
    "outlier": _outlier,
    "other part": _other_part,
    "not finite": _not_finite,
    "strided": lambda x: x.transpose(0, 2).contiguous().transpose(0, 2),
}


@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients(module: Any, case: str) -> None:
    x = CASES[case](_numbers(300, 3, 80))
    w, b = _numbers(3), _numbers(3) + 1.0
    rows = x.transpose(1, 2).reshape(-1, 3)
    torch.testing.assert_close(torch.stack(module.moments(x)), _moments(x), equal_nan=True)
    for name, peer, args in (("normal", _normal, (x, w, b)), ("columns", _columns, (rows, w))):
        ours = [arg.clone().requires_grad_() for arg in args]
        theirs = [arg.clone().requires_grad_() for arg in args]
        y, expected = getattr(module, name)(*ours), peer(*theirs)
        torch.testing.assert_close(y, expected, equal_nan=True)
        assert torch.equal(y.nan_to_num(), getattr(module, name)(*ours).nan_to_num())
        weight = _numbers(*y.shape)
        found = torch.autograd.grad(y, ours, weight)
        wanted = torch.autograd.grad(expected, theirs, weight)
        torch.testing.assert_close(found, wanted, equal_nan=True)


@pytest.mark.parametrize("case", ["usual", "outlier", "other part"])
def test_in_single_precision(module: Any, case: str) -> None:
    x = CASES[case](_numbers(300, 3, 80, dtype=torch.float32))
    found = torch.stack(module.moments(x)).double()
    torch.testing.assert_close(found, _moments(x.double()), rtol=2e-5, atol=1e-3)


@pytest.mark.parametrize("shape", [(0, 3, 4), (4, 3, 0), (4, 0, 4), (1, 2, 30000), (1, 1, 1)])
def test_none_and_one(module: Any, shape: tuple[int, ...]) -> None:
    x = _numbers(*shape)
    torch.testing.assert_close(torch.stack(module.moments(x)), _moments(x), equal_nan=True)


def test_where_rows_are_read_once() -> None:
    def text(program: str, name: str) -> str:
        return pipeline.stage_text(program, "schedule", name, device="cuda")

    for name in ("normal__forward", "columns", "moments"):
        assert text(PROGRAM, name).count("_near[") > 2
    others = PROGRAM.replace("- m[c]) ** 2", "- m[c] * m[c]) ** 2")  # no number between those
    assert "_near" not in text(others, "moments")
    cubes = PROGRAM.replace("- m[c]) ** 2", "- m[c]) ** 3")
    assert "_near" not in text(cubes, "moments")
