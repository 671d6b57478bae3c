"""Rows times matrices in loops are one product, and tensors have no dimensions of size 1."""

from __future__ import annotations

import re

import pytest
from sampled import diagonals, name_of
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative

from loma import passes
from loma.core.printer import print_function
from loma.frontend import parse

HEAD = (
    "def f(x : In[Tensor[N, M]], w : In[Tensor[M, K]], v : In[Tensor[N, M, K]]) -> Tensor[N, K]:\n"
)

# name, body, what the canonical form has, what it has not
CASES: tuple[tuple[str, str, str, str], ...] = (
    ("row", "for n in range(N):\n    y[n] = tanh(x[n] @ w)",
     "_product[n, _i1] = sum(x[n, _k] * w[_k, _i1] for _k in M)", "for n in range"),
    ("row_made_in_the_round", "for n in range(N):\n    a = softmax(x[n], 0)\n    y[n] = a @ v[n]",
     " * v[n, _k, ", "for n in range"),
    ("softmax_of_what_a_round_sets", """for n in range(N):
    s : Tensor[M]
    s[m] = x[n, m] * x[n, m]
    a = softmax(s, 0)
    y[n, k] = sum(a[m] * v[n, m, k] for m in M)""", "sum(a[n, m] * v[n, m, k]", "for n in range"),
    ("softmax_of_a_state", """s = zeros([M])
for n in range(N):
    s = s + x[n]
    a = softmax(s, 0)
    y[n, k] = sum(a[m] * v[n, m, k] for m in M)
    s[m] += a[m] * y[n, 0]""", "softmax(s, dim=0)", "exp("),
    ("recurrent", "h = zeros([K])\nfor n in range(N):\n    h = tanh(x[n] @ w + h)\n    y[n] = h",
     "_product[_i1] = sum(x[n, _k] * w[_k, _i1] for _k in M)", "matmul"),
    ("kept_dimension", "s = sum(x, [1], keepdim=True)\ny = s * tanh(s + x @ w)",
     "s : Tensor[N]", "s : Tensor[N, 1]"),
    ("differences", """for n in range(N):
    for k in range(K):
        e = x[n] - w[:, k]
        y[n, k] = sum(e * e, [0])""",
     "= sum((x[n, _k0] - w[_k0, k]) * (x[n, _k0] - w[_k0, k])", "for n in range"),
    ("used_as_a_whole", "s = sum(x, [1], keepdim=True)\ny = s @ reshape(w[0], [1, K]) + x @ w",
     "s : Tensor[N, 1]", "s : Tensor[N]"),
    ("joined_rows_that_data_say", """p : IntTensor[N]
p[n] = N - 1 - n
a = cat([w, w], 0)
for n in range(N):
    z = cat([x[p[n]], x[n]], 0)
    h = z @ a
    y[p[n]] += tanh(h)""", "h[n, _i0] = sum(z[n, _k] * a[_k, _i0]", "for n in range"),
    ("layer_of_a_row_in_parts", """a = transpose(cat([w, w], 0), 0, 1)
b = sum(w, [0])
for n in range(N):
    z : Tensor[2 * M]
    z[:M] = x[n]
    z[M:] = x[N - 1 - n]
    h = linear(z, a, b)
    y[n] = tanh(h)""", "_product[n, _i0] = sum(z[n, _k] * a[_i0, _k] for", "for n in range"),
    ("one_element", "s : Tensor[1]\ns[0] = x[0, 0]\ny[n, k] = s[0] * w[0, k] + x[n, 0]",
     "y[n, k] = ", "s : Tensor[()]"),
)  # fmt: skip


def text(case: tuple[str, str, str, str]) -> str:
    lines = "".join(f"    {line}\n" for line in case[1].split("\n"))
    declared = "" if "\ny = " in case[1] else "    y : Tensor[N, K]\n"
    return f"{HEAD}{declared}{lines}    return y\n"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_what_becomes_of_it(case: tuple[str, str, str, str]) -> None:
    found = print_function(passes.canonical_form(parse(text(case))).function("f"))
    shown = re.sub(r"(_[ik]\d?)_\d", r"\1", found)
    assert case[2] in shown
    assert case[3] not in shown


@pytest.mark.parametrize(
    ("case", "sizes"), diagonals(3, CASES, [(3, 4, 2), (1, 1, 1), (2, 3, 1)]), ids=name_of
)
def test_values_and_derivatives(
    case: tuple[str, str, str, str], sizes: tuple[int, int, int]
) -> None:
    whole = with_derivative(text(case))
    generator = torch.Generator().manual_seed(5)
    n, m, k = sizes
    x, w, v = (
        torch.randn(s, generator=generator, dtype=torch.float64)
        for s in ((n, m), (m, k), (n, m, k))
    )
    for change in (passes.canonical_form, passes.optimise):
        compare(Point(case[0], whole, "f", (x, w, v)), Changed(whole, verified(change)))
