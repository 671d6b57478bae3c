"""Which statements are a sweep on a GPU, and which are left alone."""

from __future__ import annotations

import pytest

from loma import pipeline

HEAD = """
def f(
    q : In[Tensor[B, T, D]], k : In[Tensor[B, S, D]], v : In[Tensor[B, S, E]],
    bias : In[Tensor[S]],
) -> {result}:
    s : Tensor[B, T, S]
    e : Tensor[B, T, S]
    m : Tensor[B, T]
    z : Tensor[B, T]
    y : Tensor[B, T, E]
"""
SCORES = "s[b, t, j] = sum(q[b, t, d] * k[b, j, d] for d in D)"
LARGEST = "m[b, t] = max(s[b, t, j] for j in S)"
SHARES = "e[b, t, j] = exp(s[b, t, j] - m[b, t])"
TOTAL = "z[b, t] = sum(e[b, t, j] for j in S)"
VALUES = "y[b, t, i] = sum(e[b, t, j] * v[b, j, i] for j in S)"
DIVIDED = "y[b, t, i] = y[b, t, i] / z[b, t]"


def kernels(lines: list[str], result: str = "Tensor[B, T, E]", value: str = "y") -> str:
    body = "".join(f"    {line}\n" for line in [*lines, f"return {value}"])
    return pipeline.stage_text(HEAD.format(result=result) + body, "kernels", "f", device="cuda")


@pytest.mark.parametrize(
    "lines",
    [
        [SCORES, LARGEST, SHARES, TOTAL, VALUES, DIVIDED],
        [SCORES, LARGEST, SHARES, VALUES, TOTAL, DIVIDED],
        [SCORES, LARGEST, SHARES, VALUES],
        [
            SCORES,
            "s[b, t, j] = tanh(s[b, t, j]) + bias[j]",
            LARGEST,
            SHARES,
            TOTAL,
            VALUES,
            DIVIDED,
        ],
        [SCORES, LARGEST, SHARES, TOTAL, "e[b, t, j] = e[b, t, j] / z[b, t] * bias[j]", VALUES],
        [SCORES, LARGEST, SHARES, TOTAL, "e[b, t, j] = e[b, t, j] if j > t else 0.0", VALUES],
    ],
    ids=["in order", "total last", "no total", "any score", "divided before", "condition"],
)
def test_found(lines: list[str]) -> None:
    assert "sweep over" in kernels(lines)


@pytest.mark.parametrize(
    "lines",
    [
        [SCORES, LARGEST, "e[b, t, j] = exp(2.0 * s[b, t, j] - m[b, t])", TOTAL, VALUES],
        [SCORES, "m[b, t] = max(s[b, t, j] + bias[j] for j in S)", SHARES, VALUES],
        [SCORES, LARGEST, "e[b, t, j] = exp(s[b, t, j] - m[b, t]) + 1.0", VALUES],
        [SCORES, LARGEST, "e[b, t, j] = exp(s[b, t, j] - m[b, t]) ** 2", VALUES],
        [SCORES, "m[b, t] = max(s[b, t, j] for j in range(min(t + 1, S)))", SHARES, VALUES],
        ["s[b, t, j] = sum(abs(q[b, t, d] - k[b, j, d]) for d in D)", LARGEST, SHARES, VALUES],
        [SCORES, LARGEST, SHARES, "y[b, t, i] = sum(e[b, t, j] * v[b, S - 1 - j, i] for j in S)"],
    ],
    ids=["other exponent", "other maximum", "sum of shares", "power", "some of the maximum",
         "no product", "other values"],
)  # fmt: skip
def test_left_alone(lines: list[str]) -> None:
    assert "sweep over" not in kernels(lines)


def test_scores_that_are_wanted() -> None:
    """What is returned has to be stored."""
    lines = [SCORES, LARGEST, SHARES, TOTAL, VALUES]
    result, value = "tuple[Tensor[B, T, E], Tensor[B, T, S]]", "y, e"
    assert "sweep over" not in kernels(lines, result, value)
    assert "sweep over" in kernels(lines, "tuple[Tensor[B, T, E], Tensor[B, T]]", "y, z")
