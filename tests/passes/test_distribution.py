"""Products leave recurrences: what becomes of loops, which products stay, and that values and
derivatives are the same."""

from __future__ import annotations

import re

import pytest
from sampled import diagonals, name_of
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative
from test_loops import program

from loma import passes
from loma.ad import split_pairs
from loma.core.ir import Module
from loma.core.printer import print_function
from loma.frontend import parse

X = "x : In[Tensor[N, T, M]]"
W = "w : In[Tensor[M, K]]"
U = "u : In[Tensor[K, K]]"

# name, parameters, body, what stands in front of the loop
LEAVING: tuple[tuple[str, str, str, list[str]], ...] = (
    ("recurrent", f"{X}, {W}, {U}", """
for t in range(T):
    p : Tensor[N, K]
    p[n, k] = sum(x[n, t, m] * w[m, k] for m in M)
    y[n, k] = tanh(p[n, k] + sum(y[n, j] * u[j, k] for j in K))
""", ["p[n, t, k] = sum(x[n, t, m] * w[m, k] for m in M)"]),
    ("inside_an_expression", f"{X}, {W}, {U}", """
for t in range(T):
    y = tanh(x[:, t] @ w + y @ u)
""", ["_product[_i0, t, _i1] = sum(x[_i0, t, _k] * w[_k, _i1] for _k in M)"]),
    ("reversed", "x : In[Tensor[T, N, M]], v : In[Tensor[K, M]], " + U, """
for t in reversed(range(T)):
    y = tanh(x[t] @ transpose(v, 0, 1) + y @ u)
    y[n, k] = tanh(sum(2.0 * x[t, n, m] * v[k, m] for m in M) - y[n, k])
""", ["_product[t, _i0, _i1] = sum(x[t, _i0, _k] * v[_i1, _k] for _k in M)"]),
    ("costly_in_a_row", "z : In[Tensor[N, T]], u : In[Tensor[K]]", """
for t in range(T):
    a : Tensor[N]
    a[n] = exp(-z[n, t])
    y[n, k] = a[n] * y[n, k] + z[n, t] * u[k]
""", ["a[n, t] = exp(-z[n, t])"]),
)  # fmt: skip

# name, parameters, body: no product leaves its loop
STAYING: tuple[tuple[str, str, str], ...] = (
    ("of_the_state", f"{X}, {W}, {U}", """
for t in range(T):
    y[n, k] = tanh(sum(y[n, j] * u[j, k] for j in K)) + x[n, t, 0]
"""),
    ("changed_in_the_round", f"{X}, {W}, {U}", """
p : Tensor[N, K]
for t in range(T):
    p[n, k] = sum(x[n, t, m] * w[m, k] for m in M)
    p[n, 0] += y[n, 0]
    y[n, k] = tanh(p[n, k] + y[n, k])
"""),
    ("rounds_that_may_be_negative", f"{X}, {W}, {U}", """
for t in range(T - 2):
    y = tanh(x[:, t] @ w + y @ u)
"""),
    ("looked_at_behind_the_loop", f"{X}, {W}, {U}", """
p : Tensor[N, K]
for t in range(T):
    p[n, k] = sum(x[n, t, m] * w[m, k] for m in M)
    y[n, k] = tanh(p[n, k] + y[n, k])
y[n, k] += p[n, k]
"""),
    ("of_a_vector", f"{X}, {W}, {U}", """
for t in range(T):
    y[n, k] = tanh(sum(x[n, t, m] * w[m, 0] for m in M) + y[n, k])
"""),
    ("for_each_row", f"{X}, w : In[Tensor[M, N]], {U}", """
for t in range(T):
    y[n, k] = tanh(sum(x[n, t, m] * w[m, n] for m in M) + y[n, k])
"""),
    ("costly_beside_each_other", "z : In[Tensor[T, N]], u : In[Tensor[K]]", """
for t in range(T):
    a : Tensor[N]
    a[n] = exp(-z[t, n])
    y[n, k] = a[n] * y[n, k] + z[t, n] * u[k]
"""),
    ("large", f"x : In[Tensor[T, M]], v : In[Tensor[N, M, K]], {U}", """
for t in range(T):
    y[n, k] = tanh(sum(x[t, m] * v[n, m, k] for m in M) + y[n, k])
"""),
)  # fmt: skip


def declared(params: str, body: str) -> str:
    return program(params, "N, K", f"y = zeros([N, K])\n{body.strip()}")


def body_of(module: Module, function: str) -> list[str]:
    text = print_function(module.function(function)).strip().split("\n")
    return [line for line in text if " : " not in line]


@pytest.mark.parametrize("case", LEAVING, ids=lambda case: case[0])
def test_what_stands_in_front(case: tuple[str, str, str, list[str]]) -> None:
    _, params, text, expected = case
    found = body_of(passes.canonical_form(parse(declared(params, text))), "f")
    loop = next(k for k, line in enumerate(found) if line.startswith("    for t in"))
    front = [re.sub(r"(_[ik]\d?)_\d", r"\1", line.strip()) for line in found[:loop]]
    assert [line for line in front if "sum(" in line or "exp(" in line] == expected


@pytest.mark.parametrize("case", STAYING, ids=lambda case: case[0])
def test_what_stays(case: tuple[str, str, str]) -> None:
    _, params, text = case
    found = body_of(passes.canonical_form(parse(declared(params, text))), "f")
    loop = next(k for k, line in enumerate(found) if line.startswith("    for t in"))
    assert not any("sum(" in line or "exp(" in line for line in found[:loop])


def test_the_adjoint_of_a_weight_is_one_product() -> None:
    _, params, text, _ = LEAVING[0]
    module, _ = split_pairs(passes.canonical_form(parse(declared(params, text))))
    found = body_of(passes.optimise(module), "f__backward")
    assert "    _d_u[j, k] += _d_r[t, n, k] * _tape_y[t, n, j]" in found
    assert "        _d_w[m, k] = sum(_d_p[n, t, k] * x[n, t, m] for n in N for t in T)" in found


@pytest.mark.parametrize(
    ("case", "sizes"),
    diagonals(3, [*LEAVING, *STAYING], [(3, 4, 2, 5), (1, 2, 1, 1)]),
    ids=name_of,
)
def test_values_and_derivatives(case: tuple[object, ...], sizes: tuple[int, int, int, int]) -> None:
    n, t, m, k = sizes
    name, params, text = (str(part) for part in case[:3])
    generator = torch.Generator().manual_seed(2)
    axes = {"N": n, "T": t, "M": m, "K": k}
    shapes = (re.findall("[NTMK]", part) for part in re.findall(r"Tensor\[([^]]*)", params))
    args = tuple(
        torch.randn([axes[axis] for axis in shape], generator=generator, dtype=torch.float64)
        for shape in shapes
    )
    whole = with_derivative(declared(params, text))
    for change in (passes.canonical_form, passes.optimise):
        compare(Point(name, whole, "f", args), Changed(whole, verified(change)))
