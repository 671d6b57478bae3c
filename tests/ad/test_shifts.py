"""Maxima that only shift exponents: no derivative looks for their places, and all are right."""

from __future__ import annotations

import re

import pytest
import torch
from index_cases import Case, Ints
import oracle
from oracle import Program, check, entry
from torch import Tensor

from loma import pipeline
from loma.ad import split_pairs
from loma.core.printer import print_module
from loma.frontend import parse


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax((0.5 * q @ k.mT).tril() + torch.full((4, 4), -1e30).triu(1), 2) @ v


def _rounds(u: Tensor) -> Tensor:
    logits = torch.zeros_like(u)
    for _ in range(3):
        s = (u * torch.softmax(logits, 0)).sum(1)
        logits = logits + u * s[:, None]
    return s


CANCELS = (
    Case("log_sum_exp", """
def log_sum_exp(a : In[Tensor[N, M]]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = max(a[i, j] for j in M) + log(sum(exp(a[i, k] - max(a[i, j] for j in M)) for k in M))
    return y
""", lambda a: torch.logsumexp(a, 1), ((3, 4),)),
    Case("soft_minimum", """
def soft_minimum(a : In[Tensor[N, M]], t : In[float]) -> Tensor[M]:
    low : Tensor[M]
    low[j] = min(a[i, j] * 2.0 for i in N)
    s : Tensor[M]
    s[j] += exp(-0.5 * (2.0 * a[i, j] - low[j]))
    y : Tensor[M]
    y[j] = t * (low[j] / 2.0 - log(s[j]))
    return y
""", lambda a, t: -t * torch.logsumexp(-a, 0), ((3, 4), ())),
    Case("softmax_by_squares", """
def softmax_by_squares(a : In[Tensor[N, M]]) -> Tensor[N, M]:
    m : Tensor[N]
    m[i] = max(a[i, j] for j in M)
    e : Tensor[N, M]
    e[i, j] = exp(a[i, j] - m[i]) ** 2
    y : Tensor[N, M]
    y[i, j] = e[i, j] / max(sum(e[i, k] for k in M), 0.0) * (1.0 if m[i] > 100.0 else 2.0)
    return y
""", lambda a: 2.0 * torch.softmax(2.0 * a, 1), ((3, 4),)),
    Case("attention_in_a_loop", """
def attention_in_a_loop(
    q : In[Tensor[B, T, D]], k : In[Tensor[B, S, D]], v : In[Tensor[B, S, D]],
) -> Tensor[B, T, D]:
    y : Tensor[B, T, D]
    for b in range(B):
        s : Tensor[T, S]
        s[i, j] = 0.5 * sum(q[b, i, d] * k[b, j, d] for d in D) if j <= i else 0.0 - 1e30
        m : Tensor[T]
        m[i] = max(s[i, j] for j in S)
        p : Tensor[T, S]
        p[i, j] = exp(s[i, j] - m[i]) if j <= i else 0.0
        z : Tensor[T]
        z[i] += p[i, j]
        y[b, i, d] += p[i, j] * v[b, j, d] / z[i]
    return y
""", _attention, ((2, 4, 3), (2, 4, 3), (2, 4, 3))),
    Case("of_operators", """
def of_operators(
    q : In[Tensor[B, T, D]], k : In[Tensor[B, S, D]], v : In[Tensor[B, S, D]],
) -> Tensor[B, T, D]:
    return softmax(0.5 * q @ transpose(k, 1, 2), 2) @ v
""", lambda q, k, v: torch.softmax(0.5 * q @ k.mT, 2) @ v, ((2, 4, 3), (2, 5, 3), (2, 5, 3))),
    Case("of_heads_in_a_loop", """
def of_heads_in_a_loop(
    q : In[Tensor[B, T, D]], k : In[Tensor[B, S, D]], v : In[Tensor[B, S, D]],
) -> Tensor[B, T, D]:
    y : Tensor[B, T, D]
    for b in range(B):
        w = softmax(q[b] @ transpose(k[b], 0, 1) * 0.5, 1)
        y[b] = w @ v[b]
    return y
""", lambda q, k, v: torch.softmax(0.5 * q @ k.mT, 2) @ v, ((2, 4, 3), (2, 5, 3), (2, 5, 3))),
    Case("round_by_round", """
def round_by_round(u : In[Tensor[I, R]]) -> Tensor[I]:
    l : Tensor[I, R]
    m : Tensor[R]
    e : Tensor[I, R]
    s : Tensor[I]
    for t in range(3):
        m[r] = max(l[i, r] for i in I)
        e[i, r] = exp(l[i, r] - m[r])
        s[i] = sum(u[i, r] * e[i, r] / sum(e[j, r] for j in I) for r in R)
        l[i, r] += u[i, r] * s[i]
    return s
""", _rounds, ((3, 4),)),
    Case("cross_entropy", """
def cross_entropy(x : In[Tensor[B, C]], t : In[IntTensor[B]]) -> float:
    m : Tensor[B]
    m[b] = max(x[b, c] for c in C)
    loss : float
    loss += (log(sum(exp(x[b, c] - m[b]) for c in C)) - (x[b, t[b]] - m[b])) / B
    return loss
""", lambda x, t: torch.nn.functional.cross_entropy(x, t), ((3, 4), Ints(4, (3,)))),
)  # fmt: skip

_SUM = "sum(exp(a[i, k] - m[i]) for k in N)"
STAYS = {
    "a constant beside the sum": f"y[i] = exp(a[i, 0] - m[i]) / ({_SUM} + 0.001)",
    "the maximum itself": f"y[i] = 2.0 * m[i] + log({_SUM})",
    "that of another row": "y[i] = m[i] + log(sum(exp(a[i, k] - m[k]) for k in N))",
    "a sum of shifted values": "y[i] = sum(a[i, k] - m[i] for k in N)",
    "in an exponent's factor": "y[i] = log(sum(exp(a[i, k] * m[i]) for k in N)) - m[i]",
    "only some elements": f"y[i] = log({_SUM})\n    y[i + 0] += m[i] if i > 0 else 0.0",
    "times what another branch makes zero": (
        "if N > 2:\n        y[i] = a[i, 0]\n    else:\n        zero(y)\n    y[i] = y[i] * m[i]"
    ),
}


def _derivatives(text: str) -> str:
    return print_module(split_pairs(parse(text))[0])


@pytest.mark.parametrize("case", CANCELS, ids=lambda case: case.name)
def test_maxima_that_cancel(case: Case) -> None:
    assert re.search(r"\barg(max|min)\(", _derivatives(case.text)) is None
    check(Program([case.text]), entry(case.text), case.arguments(), case.reference, libtorch=False)


@pytest.mark.parametrize("statement", STAYS.values(), ids=STAYS)
def test_maxima_that_count(statement: str) -> None:
    head = "def f(a : In[Tensor[N, N]]) -> Tensor[N]:\n    m : Tensor[N]\n    y : Tensor[N]\n"
    top = "    m[i] = max(a[i, j] for j in N)\n"
    assert "argmax(" in _derivatives(f"{head}{top}    {statement}\n    return y\n")


def test_a_value_of_an_iteration_before() -> None:
    text = """
def f(a : In[Tensor[N, N]]) -> Tensor[N]:
    s : Tensor[N]
    y : Tensor[N]
    for t in range(3):
        y[i] = y[i] + s[i] * a[i, t]
        m : Tensor[N]
        m[i] = max(a[i, j] * t for j in N)
        s[i] = sum(exp(a[i, k] - m[i]) for k in N)
    return y
"""
    assert "argmax(" in _derivatives(text)


MASKED = """
def masked(x : In[Tensor[B, T]], keep : In[BoolTensor[B, T]]) -> Tensor[B, T]:
    y : Tensor[B, T]
    for b in range(B):
        m : float = -1e30
        for t in range(T):
            if keep[b, t] and x[b, t] > m:
                m = x[b, t]
        s : float = 0.0
        for t in range(T):
            if keep[b, t]:
                y[b, t] = exp(x[b, t] - m)
                s += y[b, t]
        for t in range(T):
            y[b, t] = y[b, t] / s
    return y
"""


def test_the_largest_that_a_loop_has_seen() -> None:
    """Nor does the sum ask again for the mask, without which an element is zero."""
    backward = pipeline.stage_text(MASKED, "optimised", "masked__backward")
    assert "_place" not in backward
    assert "sum(y[b, t] for t in T)" in pipeline.stage_text(MASKED, "optimised", "masked__forward")
    x = torch.randn(5, 37, dtype=torch.float64, requires_grad=True)
    keep = torch.rand(5, 37) > 0.5
    keep[:, 1] = True
    found = oracle.compiled(MASKED).masked(x, keep)
    expected = torch.softmax(x.masked_fill(~keep, -torch.inf), 1)
    torch.testing.assert_close(found, expected)
    weight = torch.randn(5, 37, dtype=torch.float64)
    ours, theirs = (torch.autograd.grad(y, x, weight) for y in (found, expected))
    torch.testing.assert_close(ours, theirs)
