"""What a round of a loop takes of a tensor at its counter is read where it lies."""

from __future__ import annotations

import re

import pytest
from sampled import diagonals, name_of
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative

from loma import passes
from loma.core.printer import print_function
from loma.frontend import parse

HEAD = "def f(x : In[Tensor[N, M]], n : In[int]) -> Tensor[N, M]:\n"

# name, body, what the canonical form has
READ: tuple[tuple[str, str, str], ...] = (
    ("column", """
s = zeros([N])
for t in range(M):
    s = 0.5 * s + x[:, t]
    y[:, t] = s
""", "s[_i0] = 0.5 * s[_i0] + x[_i0, t]"),
    ("running_sum", """
s = zeros([N])
for t in range(M):
    s = s + x[:, t]
    y[:, t] = s
""", "y[_i0, t] = sum(x[_i0, _t_before] for _t_before in range(t + 1))"),
    ("from_the_end", """
s = zeros([N])
for t in range(M):
    s = s * x[:, M - 1 - t] + 1.0
    y[:, t] = s
""", "x[_i0, M - t - 1]"),
    ("later_rows", """
s = zeros([M])
for t in range(1, N):
    s = tanh(s + x[t] - x[t - 1])
    y[t] = s
""", "tanh(s[_i0] + x[_t + 1, _i0] - x[_t, _i0])"),
    ("changed_behind", """
s = zeros([N, M])
for t in range(M):
    q = cat([s[0:N], reshape(x[:, t], [N, 1])], 1)
    y[:, 0:M] = y[:, 0:M] * q[:, 0:M] + q[:, 1:]
    s = tanh(y + x * s[:, t:t + 1])
""", "q[_i0, M] = x[_i0, t]"),
    ("triangle", """
s = zeros([N])
for t in range(M):
    for u in range(t + 1):
        s = s * 0.5 + x[:, t - u]
        y[:, u] = s
""", "x[_i0, t - u]"),
)  # fmt: skip

# what may lie outside, or has a range that changes meanwhile
LEFT: tuple[tuple[str, str], ...] = (
    ("as_long_as_told", """
s = zeros([N])
for t in range(n):
    s = s * 0.5 + x[:, t]
    y[:, t] = s
"""),
    ("its_own_neighbours", """
s = x + 0.0
for t in range(N):
    s[1:N] = s[0:N - 1] * x[t, 0]
    s[0] = s[N - 1] + tanh(x[t])
    y = y + s
"""),
    ("next_one", """
s = zeros([N])
for t in range(M):
    if t + 1 < M:
        s = s * 0.5 + x[:, t + 1]
    y[:, t] = s
"""),
    ("range_that_changes", """
s = zeros([N])
k = M
for t in range(k):
    k = k - t
    s = s * 0.5 + x[:, t]
    y[:, t] = s
"""),
)  # fmt: skip


def text(body: str) -> str:
    lines = "".join(f"    {line}\n" for line in body.strip("\n").split("\n"))
    return f"{HEAD}    y : Tensor[N, M]\n{lines}    return y\n"


def shown(body: str) -> str:
    found = print_function(passes.canonical_form(parse(text(body))).function("f"))
    return re.sub(r"(_i\d)_\d", r"\1", found)


@pytest.mark.parametrize("case", READ, ids=lambda case: case[0])
def test_read_where_it_lies(case: tuple[str, str, str]) -> None:
    found = shown(case[1])
    assert case[2] in found
    assert "slice" not in found


@pytest.mark.parametrize("case", LEFT, ids=lambda case: case[0])
def test_what_may_lie_outside(case: tuple[str, str]) -> None:
    assert "slice" in shown(case[1])


@pytest.mark.parametrize(
    ("shape", "case"), diagonals(3, [(3, 4), (3, 1), (0, 3)], [*READ, *LEFT]), ids=name_of
)
def test_values_and_derivatives(case: tuple[str, ...], shape: tuple[int, int]) -> None:
    whole = with_derivative(text(case[1]))
    x = torch.randn(shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    for change in (passes.canonical_form, passes.optimise):
        compare(Point(case[0], whole, "f", (x, shape[1])), Changed(whole, verified(change)))
