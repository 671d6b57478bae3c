"""Chains of products, whose large tensors exist for a few rows at a time."""

from __future__ import annotations

import oracle
import pytest
from sampled import diagonals
import torch
from schedule_cases import ATTENTION
from torch import Tensor

import loma
from loma import pipeline
from loma.backends.kernels.ir import Kernel, Panels, panels_of
from loma.backends.registry import CPU
from loma.backends.torch.codegen import steps_of
from loma.core.ir import Var
from loma.core.printer import print_type

NEAREST = """
def nearest(x : In[Tensor[B, T, D]], c : In[Tensor[B, S, D]]) -> Tensor[B, T]:
    r : Tensor[B, T, S]
    w : Tensor[B, T, S]
    y : Tensor[B, T]
    r[b, i, j] = sum((x[b, i, d] - c[b, j, d]) * (x[b, i, d] - c[b, j, d]) for d in D)
    w[b, i, j] = exp(-r[b, i, j])
    y[b, i] = -log(sum(w[b, i, j] for j in S))
    return y
"""
MLP = """
def mlp(x : In[Tensor[N, K]], u : In[Tensor[H, K]], w : In[Tensor[M, H]]) -> Tensor[N, M]:
    h : Tensor[N, H] = relu(x @ transpose(u, 0, 1))
    y : Tensor[N, M] = h @ transpose(w, 0, 1)
    return y
"""


def causal(q: Tensor, k: Tensor, v: Tensor, scale: Tensor) -> Tensor:
    s = q @ k.mT * scale
    later = torch.ones(s.shape[-2:], dtype=torch.bool).triu(1)
    return torch.softmax(s.masked_fill(later, -1e6), -1) @ v


# Heads behind the rows.
HEADS = """
def heads(
    q : In[Tensor[B, T, H, D]], k : In[Tensor[B, S, H, D]], v : In[Tensor[B, S, H, D]],
) -> Tensor[B, T, H, D]:
    s : Tensor[B, H, T, S]
    e : Tensor[B, H, T, S]
    y : Tensor[B, T, H, D]
    s[b, h, i, j] = sum(q[b, i, h, d] * k[b, j, h, d] for d in D)
    e[b, h, i, j] = exp(s[b, h, i, j])
    y[b, i, h, d] = sum(e[b, h, i, j] * v[b, j, h, d] for j in S)
    return y
"""


# Each row has as many weights as its number says.
ROWS = """
def rows(q : In[Tensor[B, T, D]], k : In[Tensor[B, T, D]], v : In[Tensor[B, T, E]]) -> Tensor[B, T, E]:
    s : Tensor[B, T, T]
    m : Tensor[B, T]
    y : Tensor[B, T, E]
    s[b, t, j] += q[b, t, d] * k[b, j, d]
    m[b, t] = max(s[b, t, j] for j in range(t + 1))
    y[b, t, d] = sum(exp(s[b, t, j] - m[b, t]) * v[b, j, d] for j in range(t + 1)) / sum(exp(s[b, t, j] - m[b, t]) for j in range(t + 1))
    return y
"""  # noqa: E501


# One panel; several of the batch; several of one batch element's rows; nothing.
SIZES = [
    (3, 7, 5, 4, 2),
    (40, 120, 130, 3, 2),
    (2, 700, 1500, 2, 3),
    (0, 3, 2, 1, 1),
    (2, 0, 3, 1, 1),
]


@pytest.mark.parametrize(
    ("dtype", "size"), diagonals(2, [torch.float64, torch.float32], SIZES), ids=str
)
def test_attention(size: tuple[int, ...], dtype: torch.dtype) -> None:
    B, T, S, D, E = size
    draw = torch.Generator().manual_seed(0)
    shapes = [(B, T, D), (B, S, D), (B, S, E), ()]
    given = [torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes]
    g = torch.randn((B, T, E), generator=draw, dtype=torch.float64)
    exact = [x.clone().requires_grad_() for x in given]
    expected = causal(*exact)
    own = [x.to(dtype) for x in given]
    own[:3] = [x.mT.contiguous().mT for x in own[:3]]  # not dense
    for x in own:
        x.requires_grad_()
    y = loma.compile(ATTENTION).attention(*own)
    close = 1e-4 if dtype == torch.float32 else 1e-10
    torch.testing.assert_close(y.double(), expected, rtol=close, atol=close)
    grads = torch.autograd.grad(y, own, g.to(dtype))
    for found, wanted in zip(grads, torch.autograd.grad(expected, exact, g), strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=close, atol=close)


def temporaries(text: str, function: str) -> list[str]:
    """Names of what exists for one panel of a function only."""
    steps = steps_of(pipeline.program(text).module.function(function), CPU)
    return [
        var.name
        for step in steps if isinstance(step, Panels)
        for panels in panels_of(step)
        for var in (*panels.temporaries, *kernel_privates(panels))
    ]  # fmt: skip


def kernel_privates(panels: Panels) -> list[Var]:
    return [var for step in panels.body if isinstance(step, Kernel) for var in step.private]


def test_no_matrix_is_kept() -> None:
    forward = pipeline.program(ATTENTION).module.function("attention__forward")
    kept = " ".join(print_type(type_) for type_ in forward.results)
    assert "[B, T]" in kept
    assert "S" not in kept
    assert {"_r", "p"} <= {*temporaries(ATTENTION, "attention__forward")}
    assert {"_r", "_d_s"} <= {*temporaries(ATTENTION, "attention__backward")}


@pytest.mark.parametrize(
    ("text", "function", "name"),
    [(NEAREST, "nearest", "r"), (MLP, "mlp", "h"), (HEADS, "heads", "e")],
    ids=["nearest", "mlp", "heads"],
)  # fmt: skip
def test_other_chains(text: str, function: str, name: str) -> None:
    assert name in temporaries(text, function)


def test_rows_of_different_lengths() -> None:
    assert {"_r", "_exp"} <= {*temporaries(ROWS, "rows")}
    tree = pipeline.stage_text(ROWS, "schedule", "rows")
    assert "Tensor[T, T]" not in tree
    assert "Tensor[b_count, T, T]" not in tree
    assert "$clamped" not in tree  # sizes prove that a row is inside
    module = oracle.compiled(ROWS)
    for B, T, D, E in [(3, 7, 4, 2), (2, 1500, 3, 5), (0, 3, 1, 1), (2, 0, 3, 1)]:
        draw = torch.Generator().manual_seed(0)
        q, k, v = (torch.randn((B, T, n), generator=draw, dtype=torch.float64) for n in (D, D, E))
        torch.testing.assert_close(module.rows(q, k, v), causal(q, k, v, torch.tensor(1.0)))


CELLS = """
def cells(
    x : In[Tensor[T, B, K]], w : In[Tensor[K, N]], u : In[Tensor[N, N]],
) -> Tensor[T, B, N]:
    y : Tensor[T, B, N]
    for i in range(B):
        h : Tensor[N]
        for t in range(T):
            h[n] = tanh(sum(x[t, i, k] * w[k, n] for k in K) + sum(h[m] * u[m, n] for m in N))
            y[t, i, n] = h[n]
    return y
"""


def test_products_behind_a_recurrence_take_whole_tensors() -> None:
    """Those of a few sequences lie apart in each step."""
    steps = steps_of(pipeline.program(CELLS).module.function("cells__backward"), CPU)
    (panels,) = [step for step in steps if isinstance(step, Panels)]
    assert panels.sums == ()
    assert {name for name, _ in panels.views}.isdisjoint({"x", "_d_x"})
    generator = torch.Generator().manual_seed(0)
    shapes = ((5, 40, 3), (3, 4), (4, 4))
    own = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
    module = oracle.compiled(CELLS)
    assert torch.autograd.gradcheck(module.cells, [x.requires_grad_() for x in own])
