"""Quotients by what a loop does not change: products where the last bit does not matter."""

from __future__ import annotations

import math
import re

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
    "x[i, j] / c[i] / s + 1.0", "w[j] - (2.0 * x[i, j] / s - 1.0)", "w[j] * x[i, j] / k + 1.0",
    "1.0 + (x[i, j] / s if w[j] > 0.0 else 0.0)", "1.0 - -(x[i, j] / c[i])",
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


def test_a_quotient_of_what_a_loop_does_not_change_is_kept_before_it() -> None:
    shown = _tree("x[i, j] * (c[i] / (1.0 + c[i])) if c[i] > 0.0 else 0.0")
    assert "$quotient" in shown.split("vector for")[0]
    assert "/" not in shown.split("vector for")[1]


def test_terms_of_a_sum() -> None:
    text = "def f(x : In[Tensor[N]]) -> float:\n    s : float\n"
    text += "    s += x[i] / N + x[i] if x[i] > 0.5 else 0.0\n    return s\n"
    module = pipeline.program(text, "text").module
    function = module.function("f")
    shown = print_lowered(function, tree_of(function, module))
    assert re.search(r"inverse\d = 1.0 / N", shown)


def test_a_constant_is_the_second_operand_of_max() -> None:
    """The first one is not asked whether it is NaN."""
    assert "max(x[$i.j], 2.0)" in _tree("max(2.0, x[i, j])")


def test_gradients_of_quotients_under_a_condition() -> None:
    text = """
def f(s : In[Tensor[N, D]]) -> Tensor[N, D]:
    n : Tensor[N]
    v : Tensor[N, D]
    n[i] = sqrt(sum(s[i, d] ** 2 for d in D))
    v[i, d] = n[i] ** 2 / (1.0 + n[i] ** 2) * (s[i, d] / n[i]) if n[i] > 0.5 else max(0.0, s[i, d]) / D
    return v
"""  # noqa: E501
    s = torch.linspace(-1, 1, 35, dtype=torch.float64).reshape(7, 5).requires_grad_()
    n = s.norm(dim=1, keepdim=True)
    right = torch.where(n > 0.5, n**2 / (1 + n**2) * (s / n), s.clamp(min=0) / 5)
    found = loma.compile(text).f(s)
    weight = torch.cos(torch.arange(35.0, dtype=torch.float64)).reshape(7, 5)
    torch.testing.assert_close(found, right)
    grads = [torch.autograd.grad(value, s, weight)[0] for value in (found, right)]
    torch.testing.assert_close(*grads)


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
