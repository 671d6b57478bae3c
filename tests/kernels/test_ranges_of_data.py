"""Rows whose lengths data say: sums over them and loops along them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import loma
from loma import pipeline

MEANS = """
def means(x : In[Tensor[L, D]], start : In[IntTensor[B + 1]]) -> Tensor[B, D]:
    y : Tensor[B, D]
    y[b, d] = (sum(x[l, d] for l in range(start[b + 0], start[b + 1]))
               / max(start[b + 1] - start[b + 0], 1))
    return y
"""
TOTALS = """
def totals(x : In[Tensor[L, D]], start : In[IntTensor[B + 1]]) -> Tensor[B, D]:
    y : Tensor[B, D]
    for b in range(B):
        for l in range(start[b], start[b + 1]):
            y[b, d] += x[l, d]
    return y
"""
PRODUCT = """
def product(x : In[Tensor[N]], value : In[Tensor[E]], at : In[IntTensor[E]],
            start : In[IntTensor[M + 1]]) -> Tensor[M]:
    y : Tensor[M]
    y[m] = sum(value[e] * x[at[e]] for e in range(start[m + 0], start[m + 1]))
    return y
"""
# Orders that meet and leave rows out; the last one goes back, where ranges are empty.
STARTS = ([0, 3, 3, 7, 20], [0, 20], [4, 9, 2, 20, 18, 20], [0, 0, 0])


@pytest.fixture(scope="module")
def module() -> Any:
    return loma.compile(MEANS + "\n" + TOTALS + "\n" + PRODUCT)


def _sums(x: Tensor, start: Tensor, mean: bool = False) -> Tensor:
    rows = []
    for begin, end in zip(start.tolist()[:-1], start.tolist()[1:], strict=True):
        row = x[begin : max(begin, end)].sum(0)
        rows.append(row / max(end - begin, 1) if mean else row)
    return torch.stack(rows)


@pytest.mark.parametrize("start", STARTS, ids=str)
@pytest.mark.parametrize("columns", [1, 5, 150])
def test_against_pytorch(module: Any, columns: int, start: list[int]) -> None:
    torch.manual_seed(0)
    x = torch.randn(20, columns, requires_grad=True)
    at = torch.tensor(start)
    for name, mean in (("means", True), ("totals", False)):
        expected = _sums(x, at, mean)
        found = getattr(module, name)(x, at)
        torch.testing.assert_close(found, expected)
        weight = torch.randn_like(expected)
        wanted = torch.autograd.grad(expected, x, weight)
        torch.testing.assert_close(torch.autograd.grad(found, x, weight), wanted)


def test_a_sparse_matrix_by_rows(module: Any) -> None:
    torch.manual_seed(0)
    dense = torch.randn(30, 17) * (torch.rand(30, 17) < 0.3)
    at = dense.nonzero()
    start = torch.searchsorted(at[:, 0].contiguous(), torch.arange(31))
    x = torch.randn(17, requires_grad=True)
    value = dense[dense != 0].requires_grad_()
    found = module.product(x, value, at[:, 1], start)
    torch.testing.assert_close(found, dense @ x)
    weight = torch.randn(30)
    gradients = torch.autograd.grad(found, (x, value), weight)
    outer = torch.outer(weight, x.detach())[dense != 0]
    torch.testing.assert_close(gradients, (dense.T @ weight, outer))


def test_without_columns_rows_or_elements(module: Any) -> None:
    none = torch.tensor([0, 0, 0])
    for name in ("means", "totals"):
        function = getattr(module, name)
        assert function(torch.zeros(20, 0), torch.tensor([0, 4])).shape == (1, 0)
        assert function(torch.zeros(20, 3), torch.tensor([0])).shape == (0, 3)
    assert module.totals(torch.zeros(0, 3), none).tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("name", ["means", "totals"])
def test_what_leaves_the_tensor_is_told(module: Any, name: str) -> None:
    function, told = getattr(module, name), r"line \d+: subscript 'l' of 'x' .*outside dimension 0"
    for start in ([0, 3, 21], [-1, 3, 4]):
        with pytest.raises(ValueError, match=told):
            function(torch.zeros(20, 3), torch.tensor(start))


def test_loops_along_rows_run_for_all_columns_side_by_side() -> None:
    assert "parallel d in range(D):" in pipeline.stage_text(TOTALS, "kernels", "totals")
    found = pipeline.stage_text(MEANS, "kernels", "means__backward")
    assert "parallel d in range(D):" in found


def test_rounds_that_the_loop_itself_decides_come_one_after_the_other() -> None:
    text = """
def f(x : In[Tensor[N, D]], start : In[IntTensor[N]]) -> Tensor[N, D]:
    y : Tensor[N, D]
    n : IntTensor[N]
    n[i] = start[i]
    for r in range(2):
        for k in range(n[r]):
            y[k, d] += x[r, d]
            n[k] = n[k] + 1
    return y
"""
    found = loma.compile(text).f(torch.ones(4, 3), torch.tensor([1, 0, 0, 0]))
    assert found[:, 0].tolist() == [1.0, 0.0, 0.0, 0.0]
    assert "parallel d" not in pipeline.stage_text(text, "kernels", "f")
