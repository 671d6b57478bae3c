"""Local tensors have their dimensions in the order in which they are read."""

from __future__ import annotations

import re

import pytest
from sampled import diagonals, name_of
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative

from loma import passes
from loma.core.printer import print_function
from loma.frontend import parse
from loma.passes import canonical

HEAD = "def f(x : In[Tensor[N, M]], w : In[Tensor[N, K]]) -> Tensor[N, M]:\n    y : Tensor[N, M]\n"

# name, body, what the program has then
CHANGED: tuple[tuple[str, str, str], ...] = (
    ("elements", "t : Tensor[M, N]\nt[j, i] = exp(x[i, j])\ny[i, j] = t[j, i] * w[i, 0]",
     "t[i, j] = exp(x[i, j])"),
    ("view", "t : Tensor[M, N]\nt[j, i] = exp(x[i, j])\nreturn transpose(t, 0, 1)",
     "return t\n"),
    ("one_after_another", """t : Tensor[M, N]
s : Tensor[M, N]
t[j, i] = exp(x[i, j])
s[j, i] = t[j, i] * w[i, 0]
y[i, j] = s[j, i] + x[i, j]""", "t[i, j] = exp(x[i, j])"),
    ("reduced", """t : Tensor[M, N]
z : Tensor[N]
t[j, i] = exp(x[i, j])
z[i] = sum(t[j, i] for j in M)
y[i, j] = t[j, i] / z[i]""", "z[i] = sum(t[i, j] for j in M)"),
    ("in_a_product", """t : Tensor[M, N]
t[j, i] = exp(x[i, j])
y[i, j] = sum(w[k, 0] * t[j, k] for k in N) + t[j, i]""", "t[i, j] = exp(x[i, j])"),
    ("three", """t : Tensor[M, K, N]
t[j, k, i] = exp(x[i, j] * w[i, k])
z : Tensor[N, M, K]
z[i, j, k] = t[j, k, i] * x[i, j]
y[i, j] = sum(z[i, j, k] for k in K)""", "t[i, j, k] = exp(x[i, j] * w[i, k])"),
    ("batch_of_a_product", """t : Tensor[M, N, K]
t[j, i, k] = exp(x[i, j] * w[i, k])
y[i, j] = sum(t[j, i, k] * w[i, k] for k in K)""", "t[i, j, k] = exp(x[i, j] * w[i, k])"),
    ("batch_added_up", """t : Tensor[M, K, N]
t[j, k, i] = exp(x[i, j] * w[i, k])
y[i, j] += t[j, k, i]""", "t[i, k, j] = exp(x[i, j] * w[i, k])"),
    ("added_to", """t : Tensor[M, N]
t[j, i] += x[i, j] * w[i, k]
t[j, i] += x[i, j]
y[i, j] = t[j, i] * x[i, j]""", "t[i, j] += x[i, j]"),
)  # fmt: skip
LEFT: tuple[tuple[str, str], ...] = (
    ("read_by_reductions", """t : Tensor[M, N]
s : Tensor[N]
t[j, i] = exp(x[i, j])
s[i] = sum(t[j, i] for j in M)
s[i] += t[j, i] * x[i, j]
y[i, j] = s[i] * x[i, j]"""),
    ("in_order_but_for_a_sum", """t : Tensor[K, N, M]
t[k, i, j] = exp(x[i, j] * w[i, k])
y[i, j] = sum(t[k, i, j] * w[i, k] for k in K)"""),
    ("both_ways", """t : Tensor[M, N]
s : Tensor[M, N]
t[j, i] = exp(x[i, j])
s[j, i] = tanh(t[j, i])
y[i, j] = t[j, i] + sum(s[l, i] for l in M)
s[j, i] = s[j, i] * t[j, i]
y[i, j] += sum(s[j, k] for k in N)"""),
    ("used_as_a_whole", """t : Tensor[M, N]
t[j, i] = exp(x[i, j])
y = transpose(cumsum(t, 0), 0, 1)"""),
    ("at_other_places", """t : Tensor[M, N]
t[j, i] = exp(x[i, j])
y[i, j] = t[M - 1 - j, i] + t[j, i]"""),
    ("by_a_loop", """t : Tensor[N, M]
t[i, j] = exp(x[i, j])
for j in range(M - 1):
    y[i, j + 1] = y[i, j] + t[i, j]"""),
    ("returned", "t : Tensor[N, M]\nt[i, j] = exp(x[i, j])\ny = t + 0.0\nreturn t"),
)  # fmt: skip


def text(body: str) -> str:
    lines = "".join(f"    {line}\n" for line in body.split("\n"))
    return f"{HEAD}{lines}" + ("" if "return" in body else "    return y\n")


@pytest.mark.parametrize("case", CHANGED, ids=lambda case: case[0])
def test_another_order(case: tuple[str, str, str]) -> None:
    found = print_function(canonical.layouts(parse(text(case[1]))).function("f"))
    assert case[2] in re.sub(r"(_\w+)_\d", r"\1", found) + "\n"


@pytest.mark.parametrize("case", LEFT, ids=lambda case: case[0])
def test_the_same_order(case: tuple[str, str]) -> None:
    module = parse(text(case[1]))
    before = print_function(module.function("f"))
    assert print_function(canonical.layouts(module).function("f")) == before


@pytest.mark.parametrize(
    ("case", "sizes"),
    diagonals(4, [*CHANGED, *LEFT], [(3, 4, 2), (1, 1, 1), (0, 3, 1)]),
    ids=name_of,
)
def test_values_and_derivatives(case: tuple[str, ...], sizes: tuple[int, int, int]) -> None:
    whole = with_derivative(text(case[1]))
    generator = torch.Generator().manual_seed(6)
    n, m, k = sizes
    x, w = (torch.randn(s, generator=generator, dtype=torch.float64) for s in ((n, m), (n, k)))
    for change in (canonical.layouts, passes.optimise):
        compare(Point(case[0], whole, "f", (x, w)), Changed(whole, verified(change)))
