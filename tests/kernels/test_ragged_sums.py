"""Sums over ranges that another index tells, or data, and loops along such rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import oracle
import pytest
import torch
from torch import Tensor

import loma
from loma import pipeline, specialise

PROGRAM = """
def product(e : In[Tensor[B, T, T]], v : In[Tensor[B, T, D]]) -> Tensor[B, T, D]:
    y : Tensor[B, T, D]
    y[b, t, d] = sum(e[b, t, j] * v[b, j, d] for j in range(t + 1))
    return y

def across(x : In[Tensor[T, B]]) -> Tensor[T, B]:
    y : Tensor[T, B]
    y[t, b] = sum(x[t - j, b] * exp(x[j, b]) for j in range(t + 1))
    return y

def falling(x : In[Tensor[T]]) -> Tensor[T, T]:
    y : Tensor[T, T]
    y[s, t] = sum(sin(x[j] * x[s]) for j in range(T - t))
    return y

def beyond(x : In[Tensor[T, T]], n : In[int]) -> Tensor[T]:
    y : Tensor[T]
    y[t] = sum(x[t, j + n] for j in range(t))
    return y

def masked(x : In[Tensor[B, T]]) -> Tensor[B, T]:
    y : Tensor[B, T]
    y[b, t] = sum((1.0 if j <= t else 0.0) * sin(x[b, t]) * x[b, j] for j in T)
    return y

def guarded(x : In[Tensor[B, T]]) -> Tensor[B, T, T]:
    y : Tensor[B, T, T]
    y[b, t, j] = exp(x[b, j] - max(x[b, i] for i in range(t + 1))) if j <= t else 0.0
    return y
"""


def _rows(x: Tensor, row: Callable[[int], Tensor], dim: int) -> Tensor:
    return torch.stack([row(t) for t in range(len(x))], dim)


CASES: dict[str, tuple[Callable[..., Tensor], list[tuple[tuple[int, ...], ...]]]] = {
    "product": (
        lambda e, v: e.tril() @ v,
        [((2, 70, 70), (2, 70, 33)), ((1, 3, 3), (1, 3, 0)), ((0, 5, 5), (0, 5, 2))],
    ),
    "across": (
        lambda x: _rows(x, lambda t: (x[: t + 1].flip(0) * x[: t + 1].exp()).sum(0), 0),
        [((9, 20),), ((1, 1),)],
    ),
    "falling": (
        lambda x: _rows(x, lambda t: torch.sin(x[None, : len(x) - t] * x[:, None]).sum(1), 1),
        [((17,),), ((1,),)],
    ),
    "beyond": (lambda x: _rows(x, lambda t: x[t, :t].sum(), 0), [((17, 17),), ((1, 1),)]),
    "masked": (lambda x: x.cumsum(1) * x.sin(), [((3, 40),), ((2, 0),)]),
    "guarded": (
        lambda x: (x[:, None] - x.cummax(1).values[:, :, None]).exp().tril(),
        [((3, 19),), ((2, 1),)],
    ),
}


@pytest.fixture(scope="module")
def module() -> Any:
    torch.set_default_dtype(torch.float64)
    try:
        return loma.compile(PROGRAM)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("name", CASES)
def test_against_pytorch(module: Any, name: str) -> None:
    reference, shapes = CASES[name]
    torch.manual_seed(0)
    for shape in shapes:
        args = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shape]
        value = getattr(module, name)(*args, *([0] if name == "beyond" else []))
        expected = reference(*args)
        torch.testing.assert_close(value, expected)
        weight = torch.randn_like(value)
        found = torch.autograd.grad(value, args, weight)
        torch.testing.assert_close(found, torch.autograd.grad(expected, args, weight))


def test_what_leaves_the_tensor_is_told(module: Any) -> None:
    x = torch.zeros(4, 4, dtype=torch.float64)
    module.beyond(x, 1)
    with pytest.raises(ValueError, match="outside dimension 1 of size 4"):
        module.beyond(x, 2)


def test_zeros_of_a_mask_stand_for_nothing(module: Any) -> None:
    x = torch.tensor([[1.0, 2.0, float("nan")]], dtype=torch.float64)
    assert module.masked(x).isnan().tolist() == [[False, False, True]]


def test_known_sizes() -> None:
    before = specialise.use(specialise.Thresholds(calls=1, total_ms=0.0))
    try:
        function = loma.compile(PROGRAM.split("\n\n")[0] + "\n").product
        e, v = torch.randn(2, 70, 70), torch.randn(2, 70, 33)
        for _ in range(2):
            torch.testing.assert_close(function(e, v), e.tril() @ v, rtol=1e-4, atol=1e-4)
            specialise.wait()
        torch.testing.assert_close(function(e, v), e.tril() @ v, rtol=1e-4, atol=1e-4)
    finally:
        specialise.use(before)


# Rows whose lengths data say.
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
PAIRS = """
def pairs(x : In[Tensor[L, D]], w : In[Tensor[L]], start : In[IntTensor[B + 1]]) -> Tensor[B, D]:
    y : Tensor[B, D]
    y[b, d] = sum(sum(x[l, d] * x[k, d] * w[k] for k in range(start[b + 0], start[b + 1]))
                  for l in range(start[b + 0], start[b + 1]))
    return y
"""
# Orders that meet and leave rows out; the last one goes back, where ranges are empty.
STARTS = ([0, 3, 3, 7, 20], [0, 20], [4, 9, 2, 20, 18, 20], [0, 0, 0])


@pytest.fixture(scope="module")
def of_data() -> Any:
    return loma.compile("\n".join((MEANS, TOTALS, PRODUCT, PAIRS)))


def _sums(x: Tensor, start: Tensor, mean: bool = False) -> Tensor:
    rows = []
    for begin, end in zip(start.tolist()[:-1], start.tolist()[1:], strict=True):
        row = x[begin : max(begin, end)].sum(0)
        rows.append(row / max(end - begin, 1) if mean else row)
    return torch.stack(rows)


@pytest.mark.parametrize("start", STARTS, ids=str)
@pytest.mark.parametrize("columns", [1, 5, 150])
def test_ranges_of_data(of_data: Any, columns: int, start: list[int]) -> None:
    torch.manual_seed(0)
    x = torch.randn(20, columns, requires_grad=True)
    at = torch.tensor(start)
    for name, mean in (("means", True), ("totals", False)):
        expected = _sums(x, at, mean)
        found = getattr(of_data, name)(x, at)
        torch.testing.assert_close(found, expected)
        weight = torch.randn_like(expected)
        wanted = torch.autograd.grad(expected, x, weight)
        torch.testing.assert_close(torch.autograd.grad(found, x, weight), wanted)


def test_sums_of_sums(of_data: Any) -> None:
    """Both of a row's length: what they read is no tensor of all rows, and rows stay apart."""
    start = torch.tensor([0, 4, 5, 5, 17, 20])
    for columns in (1, 6, 70):
        torch.manual_seed(0)
        x = torch.randn(20, columns, requires_grad=True)
        w = torch.randn(20, requires_grad=True)
        expected = _sums(x, start) * _sums(x * w[:, None], start)
        found = of_data.pairs(x, w, start)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        weight = torch.randn_like(expected)
        wanted = torch.autograd.grad(expected, (x, w), weight)
        gradients = torch.autograd.grad(found, (x, w), weight)
        torch.testing.assert_close(gradients, wanted, rtol=1e-3, atol=1e-3)


def test_a_sparse_matrix_by_rows(of_data: Any) -> None:
    torch.manual_seed(0)
    dense = torch.randn(30, 17) * (torch.rand(30, 17) < 0.3)
    at = dense.nonzero()
    start = torch.searchsorted(at[:, 0].contiguous(), torch.arange(31))
    x = torch.randn(17, requires_grad=True)
    value = dense[dense != 0].requires_grad_()
    found = of_data.product(x, value, at[:, 1], start)
    torch.testing.assert_close(found, dense @ x)
    weight = torch.randn(30)
    gradients = torch.autograd.grad(found, (x, value), weight)
    outer = torch.outer(weight, x.detach())[dense != 0]
    torch.testing.assert_close(gradients, (dense.T @ weight, outer))


def test_without_columns_rows_or_elements(of_data: Any) -> None:
    none = torch.tensor([0, 0, 0])
    for name in ("means", "totals"):
        function = getattr(of_data, name)
        assert function(torch.zeros(20, 0), torch.tensor([0, 4])).shape == (1, 0)
        assert function(torch.zeros(20, 3), torch.tensor([0])).shape == (0, 3)
    assert of_data.totals(torch.zeros(0, 3), none).tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("name", ["means", "totals"])
def test_what_data_put_outside_is_told(of_data: Any, name: str) -> None:
    function, told = getattr(of_data, name), r"line \d+: subscript 'l' of 'x' .*outside dimension 0"
    for start in ([0, 3, 21], [-1, 3, 4]):
        with pytest.raises(ValueError, match=told):
            function(torch.zeros(20, 3), torch.tensor(start))


def test_loops_that_add_up_are_sums() -> None:
    columns = TOTALS.replace("        for l", "        for d in range(D):\n            for l")
    columns = columns.replace("            y[b", "                y[b")
    for text in (TOTALS, columns):
        assert "y[b, d] = sum(" in pipeline.stage_text(text, "kernels", "totals")


WEIGHTED = """
def weighted(x : In[Tensor[L, D]], w : In[Tensor[L]], start : In[IntTensor[B + 1]]) -> Tensor[B, D]:
    y : Tensor[B, D]
    for b in range(B):
        z : float = 0.0
        for l in range(start[b], start[b + 1]):
            z += w[l]
        for l in range(start[b], start[b + 1]):
            y[b, d] += w[l] * x[l, d] / z
    return y
"""


def test_rows_without_elements_divide_nothing() -> None:
    shown = pipeline.stage_text(WEIGHTED, "optimised", "weighted")
    assert "Tensor[B, L]" not in shown  # no place for all elements in each row
    function = oracle.compiled(WEIGHTED).weighted
    x, w = torch.randn(4, 3, dtype=torch.float64), torch.rand(4, dtype=torch.float64)
    args = (x.requires_grad_(), w.requires_grad_())
    found = function(*args, torch.tensor([0, 1, 1, 4]))
    rows = [(w[a:b, None] * x[a:b]).sum(0) / w[a:b].sum() for a, b in ((0, 1), (1, 4))]
    expected = torch.stack((rows[0], torch.zeros(3, dtype=torch.float64), rows[1]))
    torch.testing.assert_close(found, expected)
    given = torch.randn(3, 3, dtype=torch.float64)
    ours, theirs = (torch.autograd.grad(y, args, given) for y in (found, expected))
    torch.testing.assert_close(ours, theirs)
    assert function(x[:0], w[:0], torch.tensor([0, 0])).tolist() == [[0.0] * 3]
    with pytest.raises(ValueError, match="outside dimension 0"):
        function(x[:0], w[:0], torch.tensor([0, 1]))


def test_loops_along_rows_run_for_all_columns_side_by_side() -> None:
    halved = TOTALS.replace("+= x", "= 0.5 * y[b, d] + x")
    assert "parallel d in range(D):" in pipeline.stage_text(halved, "kernels", "totals")
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
