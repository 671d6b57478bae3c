"""Kernels of rows with few rows of much work, which on a GPU are kernels of their statements: at
sizes on both sides of that, loops around statements among them."""

from __future__ import annotations

from typing import Any

import oracle
import pytest
import torch
from torch import Tensor

from loma import pipeline

PROGRAM = """
def gated(x : In[Tensor[B, R, T]], w : In[Tensor[D, R]], v : In[Tensor[D, R]], shift : In[int]
          ) -> Tensor[B, D, T]:
    f : Tensor[B, D, T]
    g : Tensor[B, D, T]
    y : Tensor[B, D, T]
    f[b, d, t] = sum(zero_pad(x[b, r, t - shift]) * w[d, r] for r in R)
    g[b, d, t] = sum(zero_pad(x[b, r, t + shift]) * v[d, r] for r in R)
    y[b, d, t] = tanh(f[b, d, t]) * sigmoid(g[b, d, t])
    return y

def grown(x : In[Tensor[B, H, W]], w : In[Tensor[L, L + 1]]) -> Tensor[B, L + 1, H, W]:
    y : Tensor[B, L + 1, H, W]
    y[b, 0, h, w_] = x[b, h, w_]
    for l in range(L):
        y[b, l + 1, h, w_] = tanh(sum(w[l, c] * zero_pad(y[b, c, h + l - 1, w_ + 1 - p])
                                      for c in range(l + 1) for p in range(3)))
    return y

def apart(x : In[Tensor[C, H, W]], y : In[Tensor[O, H, W]]) -> Tensor[O, C, 3]:
    k : Tensor[O, C, 3]
    k[o, c, p] = sum(abs(y[o, h, w] - zero_pad(x[c, h + p - 1, w])) for h in H for w in W)
    return k
"""


def gated(x: Tensor, w: Tensor, v: Tensor, shift: int) -> Tensor:
    past = torch.nn.functional.pad(x, (shift, 0))[:, :, : x.shape[2]]
    next_ = torch.nn.functional.pad(x, (0, shift))[:, :, shift:]
    return torch.tanh(w @ past) * torch.sigmoid(v @ next_)


def grown(x: Tensor, w: Tensor) -> Tensor:
    layers = [x]
    for layer in range(len(w)):
        rows, columns = x.shape[1:]
        near = torch.nn.functional.pad(torch.stack(layers, 1), (1, 1, layer + 1, layer + 1))
        parts = [near[:, :, 2 * layer : 2 * layer + rows, p : p + columns] for p in range(3)]
        layers.append(torch.tanh(torch.einsum("c,bchw->bhw", w[layer, : layer + 1], sum(parts))))
    return torch.stack(layers, 1)


@pytest.fixture(scope="module")
def module() -> Any:
    return oracle.compiled(PROGRAM)


@pytest.mark.parametrize("sizes", [(1, 16, 8, 640), (3, 4, 5, 6), (1, 1, 1, 1), (0, 2, 3, 4),
                                   (1, 2, 3, 0), (1, 0, 3, 4)])  # fmt: skip
def test_sums_and_what_follows(module: Any, sizes: tuple[int, ...]) -> None:
    batch, rows, wide, steps = sizes
    generator = torch.Generator().manual_seed(3)
    shapes = ((batch, rows, steps), (wide, rows), (wide, rows))
    args = [torch.randn(s, dtype=torch.float64, generator=generator) for s in shapes]
    _compare(module.gated, gated, args, min(steps, 2))


@pytest.mark.parametrize("sizes", [(1, 48, 64, 4), (2, 3, 4, 3), (1, 1, 1, 1), (2, 3, 4, 0)])
def test_loops(module: Any, sizes: tuple[int, ...]) -> None:
    batch, rows, columns, depth = sizes
    generator = torch.Generator().manual_seed(5)
    shapes = ((batch, rows, columns), (depth, depth + 1))
    args = [torch.randn(s, dtype=torch.float64, generator=generator) for s in shapes]
    _compare(module.grown, grown, args)


@pytest.mark.parametrize("sizes", [(2, 3, 70, 40), (1, 2, 3, 3000), (4, 1, 3000, 1), (1, 1, 0, 5),
                                   (2, 2, 1, 1)])  # fmt: skip
def test_blocks_share_two_loops(module: Any, sizes: tuple[int, ...]) -> None:
    outputs, channels, rows, columns = sizes
    generator = torch.Generator().manual_seed(7)
    shapes = ((channels, rows, columns), (outputs, rows, columns))
    args = [torch.randn(s, dtype=torch.float64, generator=generator) for s in shapes]
    _compare(module.apart, apart, args)


def apart(x: Tensor, y: Tensor) -> Tensor:
    rows = x.shape[1]
    near = torch.nn.functional.pad(x, (0, 0, 1, 1))
    sums = [(y[:, None] - near[:, p : p + rows]).abs().sum((2, 3)) for p in range(3)]
    return torch.stack(sums, 2)


def _compare(found: Any, expected: Any, args: list[Tensor], *numbers: int) -> None:
    ours = [each.clone().requires_grad_() for each in args]
    theirs = [each.clone().requires_grad_() for each in args]
    y, right = found(*ours, *numbers), expected(*theirs, *numbers)
    torch.testing.assert_close(y, right)
    weight = torch.randn(right.shape, dtype=right.dtype, generator=torch.Generator().manual_seed(1))
    y.backward(weight)
    right.backward(weight)
    for mine, other in zip(ours, theirs, strict=True):
        wanted = torch.zeros_like(other) if other.grad is None else other.grad
        torch.testing.assert_close(mine.grad, wanted)
    again = found(*args, *numbers)
    assert torch.equal(again, found(*args, *numbers))


def test_the_host_compares_iterations_with_work() -> None:
    shown = pipeline.stage_text(PROGRAM, "schedule", "gated", device="cuda")
    assert "fill the device, not 3 launches:" in shown
    shown = pipeline.stage_text(PROGRAM, "schedule", "grown", device="cuda")
    assert "fill the device, not" in shown
