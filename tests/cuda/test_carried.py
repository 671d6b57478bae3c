"""Gradients of what rows share, on a GPU summed up by the teams of threads that go through the
rows, where there are many: at sizes on both sides of that, and with some gradients not wanted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import loma
from loma import pipeline

PROGRAM = """
def norm(x : In[Tensor[N, D]], w : In[Tensor[D]], b : In[Tensor[D]]) -> Tensor[N, D]:
    m : Tensor[N]
    v : Tensor[N]
    y : Tensor[N, D]
    m[n] = sum(x[n, d] for d in D) / D
    v[n] = sum((x[n, d] - m[n]) ** 2 for d in D) / D
    y[n, d] = (x[n, d] - m[n]) / sqrt(v[n] + 1e-5) * w[d] + b[d]
    return y

def scaled(x : In[Tensor[B, N, D]], w : In[Tensor[D]]) -> Tensor[B, N, D]:
    s : Tensor[B, N]
    y : Tensor[B, N, D]
    s[b, n] = sum(x[b, n, d] * x[b, n, d] for d in D)
    y[b, n, d] = x[b, n, d] * w[d] / sqrt(s[b, n] / D + 0.5)
    return y

def heads(x : In[Tensor[N, H, D]], w : In[Tensor[H, D]], g : In[Tensor[D, H]]) -> Tensor[N, H, D]:
    s : Tensor[N]
    y : Tensor[N, H, D]
    s[n] = sum(exp(x[n, h, d]) for h in H for d in D)
    y[n, h, d] = x[n, h, d] * tanh(w[h, d] + g[d, h]) / s[n]
    return y

def both(x : In[Tensor[N, D]], y : Out[Tensor[N, D]], total : Out[Tensor[D]]):
    s : Tensor[N]
    s[n] = sum(x[n, d] * x[n, d] for d in D)
    y[n, d] = x[n, d] / (1 + s[n])
    total[d] += x[n, d] * x[n, d]
"""
# Rows and their length: what a stand-in finds too few, enough, of one team, with rows left over
SIZES = [(3, 5), (0, 70), (70, 0), (16, 256), (67, 130), (300, 64), (9, 1000), (4100, 33)]
if torch.cuda.is_available():  # which has enough with more
    SIZES += [(4100, 1030), (1031, 4096), (40000, 256)]


@pytest.fixture(scope="module")
def module() -> Any:
    return loma.compile(PROGRAM)


def numbers(*shapes: tuple[int, ...]) -> list[Tensor]:
    seed = torch.Generator().manual_seed(17)
    return [torch.randn(shape, dtype=torch.float64, generator=seed) for shape in shapes]


@pytest.mark.parametrize("wanted", ["xwb", "xw", "wb", "x", "b"])
@pytest.mark.parametrize("sizes", SIZES)
def test_norm(module: Any, sizes: tuple[int, int], wanted: str) -> None:
    if wanted != "xwb" and sizes not in SIZES[3:5]:
        pytest.skip("at two sizes")
    _compare(
        module.norm,
        lambda x, w, b: torch.nn.functional.layer_norm(x, w.shape, w, b, 1e-5),
        numbers(sizes, sizes[1:], sizes[1:]),
        ["xwb".index(name) for name in wanted],
    )


@pytest.mark.parametrize("sizes", SIZES)
def test_scaled(module: Any, sizes: tuple[int, int]) -> None:
    rows, columns = sizes
    _compare(
        module.scaled,
        lambda x, w: x * w / (x.square().mean(-1, keepdim=True) + 0.5).sqrt(),
        numbers((1, rows, columns), (columns,)),
    )


@pytest.mark.parametrize("sizes", SIZES)
def test_sums_of_several_indices(module: Any, sizes: tuple[int, int]) -> None:
    rows, columns = sizes
    _compare(
        module.heads,
        lambda x, w, g: x * (w + g.T).tanh() / x.exp().sum((1, 2), keepdim=True),
        numbers((rows, 3, columns), (3, columns), (columns, 3)),
    )


@pytest.mark.parametrize("sizes", SIZES)
def test_in_place(module: Any, sizes: tuple[int, int]) -> None:
    x, y, total = numbers(sizes, sizes, sizes[1:])
    expected = total + x.square().sum(0)
    module.both(x, y, total)
    torch.testing.assert_close(total, expected)
    torch.testing.assert_close(y, x / (1 + x.square().sum(1, keepdim=True)))


def _compare(
    found: Any, expected: Any, args: list[Tensor], wanted: list[int] | None = None
) -> None:
    wanted = list(range(len(args))) if wanted is None else wanted
    grads: list[list[Tensor]] = []
    for function in (found, expected, found):
        given = [arg.clone().requires_grad_(k in wanted) for k, arg in enumerate(args)]
        y = function(*given)
        weight = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(1))
        grads.append(list(torch.autograd.grad(y, [given[k] for k in wanted], weight)))
    for mine, other, again in zip(*grads, strict=True):
        torch.testing.assert_close(mine, other)
        assert torch.equal(mine, again)


@pytest.mark.cpu
def test_text() -> None:
    program = f"{PROGRAM}\nd_norm = rev_diff(norm)\nd_scaled = rev_diff(scaled)\n"
    for name in ("norm", "scaled", "heads"):
        shown = pipeline.stage_text(program, "schedule", f"{name}__backward", device="cuda")
        assert "behind the last one of a team:" in shown, name
    shown = pipeline.stage_text(program, "kernels", "norm__backward", device="cuda")
    assert "carried by one of teams" in shown
    assert "if _need_x and _need_w and _need_b and it is less to read:" in shown
    assert "carried" not in pipeline.stage_text(program, "kernels", "norm__backward")
