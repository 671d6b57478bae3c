"""Quotients by what a loop does not change: products where the last bit does not matter."""

from __future__ import annotations

import math

import pytest
import torch
from trees import tree_of

import loma
from loma import pipeline
from loma.backends.schedule.host_printer import print_lowered

TEXT = """
def f(x : In[Tensor[N, M]], c : In[Tensor[N]], w : In[Tensor[M]], s : In[float], k : In[int]) -> Tensor[N, M]:
    y : Tensor[N, M]
    y[i, j] = {}
    return y
"""  # noqa: E501
PRODUCTS = (
    "x[i, j] / c[i] + 1.0", "x[i, j] / s * x[i, j]", "1.0 - sqrt(x[i, j] / (s * s + 1.0))",
    "x[i, j] / c[i] / s + 1.0", "w[j] - (2.0 * x[i, j] / s - 1.0)",
)  # fmt: skip
QUOTIENTS = (
    "x[i, j] / c[i]", "x[i, j] / w[j] + 1.0", "floor(x[i, j] / s + 0.5)", "1.0 / s + x[i, j]",
    "2.0 + (1.0 if x[i, j] / s < 1.0 else 0.0)", "x[i, j] / 4.0 + 1.0",
    "1.0 + pow(x[i, j] / s, 2.5)", "w[j] + float2int(x[i, j] / s)",
    "x[i, (2 * j) % M] / w[j] + 1.0", "k // 2 + x[i, j]",
)  # fmt: skip


def _tree(value: str, name: str = "f") -> str:
    module = pipeline.program(TEXT.format(value), "text").module
    function = module.function(name)
    return print_lowered(function, tree_of(function, module))


@pytest.mark.parametrize("value", PRODUCTS)
def test_products(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "inverse" in _tree(value)
    monkeypatch.setenv("LOMA_OPT", "-reciprocals")
    assert "inverse" not in _tree(value)


@pytest.mark.parametrize("value", QUOTIENTS)
def test_quotients(value: str) -> None:
    assert "inverse" not in _tree(value)


def test_a_constant() -> None:
    assert "1.0 - $v * 0.2" in _tree("1.0 - x[i, j] / 5.0").replace("x[$i.j]", "$v")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_any_divisor(dtype: torch.dtype) -> None:
    tiny, big = torch.finfo(dtype).tiny, torch.finfo(dtype).max
    ends = [1.0, 3.0, 49.0, 1e-30, 1e30, tiny, tiny / 2**20, big, big / 3, 0.0, math.inf, math.nan]
    c = torch.tensor([*ends, *(-end for end in ends)], dtype=dtype)
    x = c.expand(len(c), len(c)).contiguous()
    module = loma.compile(TEXT.format("x[i, j] / c[i] * 1.0"))
    found = module.f(x, c, c, 1.0, 1)
    right = x / c[:, None]
    torch.testing.assert_close(found, right, rtol=1e-6, atol=2 * tiny, equal_nan=True)
    where = torch.isfinite(right)
    assert torch.equal(found[~where].sign(), right[~where].sign()) or right[~where].isnan().any()


def test_every_operation_rounded_by_itself() -> None:
    x = torch.rand(3, 1000)
    c = torch.tensor([3.0, 49.0, 0.7])
    module = loma.compile(TEXT.format("x[i, j] / c[i] + 1.0"), contract=False)
    assert torch.equal(module.f(x, c, x[0], 1.0, 1), x / c[:, None] + 1.0)
