"""What rounds only add to a large tensor is added behind the loop: which loops, and the values."""

from __future__ import annotations

import pytest
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative
from sampled import diagonals, name_of

from loma import passes
from loma.core.ir import Module
from loma.core.printer import print_function
from loma.frontend import parse

PARAMS = "x : In[Tensor[T, N]], v : In[Tensor[N, M]], s : In[Tensor[T, N, M]], w : In[Tensor[M]]"

# name, body, what stands behind the loop, what is kept in it
LEAVING: tuple[tuple[str, str, str, str], ...] = (
    ("set_in_each_round", """
for t in range(T):
    a[n] = tanh(x[t, n] + b[n, 0])
    b[n, m] += a[n] * s[t, n, m]
    y[n, m] += a[n] * w[m]
""", "y[n, m] = sum(a[t, n] * w[m] for t in T)", "a[t, n] = tanh(x[t, n] + b[n, 0])"),
    ("changed_later", """
for t in range(T):
    y[n, m] += a[n] * w[m]
    a[n] += sin(x[t, n] + a[n])
""", "y[n, m] = sum(_kept_a[t, n] * w[m] for t in T)", "_kept_a[t, _i0] = a[_i0]"),
    ("reversed", """
for t in reversed(range(T)):
    a[n] = a[n] * x[t, n] + 1.0
    y[n, m] += a[n] * w[m] if t + 1 < T else 0.0
    a[n] = cos(a[n])
""", "y[n, m] = sum(_kept_a[t, n] * w[m] if t + 1 < T else 0.0 for t in T)",
     "_kept_a[t, _i0] = a[_i0]"),
    ("two_factors_of_the_round", """
for t in range(T):
    a[n] = a[n] * x[t, n] + 1.0
    c[m] = sum(a[n] * v[n, m] for n in N)
    y[n, m] += a[n] * c[m]
    z[0] += s[t, 0, 0]
""", "y[n, m] = sum(_kept_a[t, n] * c[t, m] for t in T)",
     "c[t, m] = sum(a[n] * v[n, m] for n in N)"),
)  # fmt: skip

# name, body: the addition stays in the loop
STAYING: tuple[tuple[str, str], ...] = (
    ("read_in_the_loop", """
for t in range(T):
    a[n] += x[t, n] * y[n, 0]
    y[n, m] += a[n] * w[m]
"""),
    ("as_large_as_what_is_added", """
for t in range(T):
    b[n, m] = tanh(b[n, m] + s[t, n, m])
    y[n, m] += b[n, m] * w[m]
"""),
    ("more_memory_than_there_is", """
for t in range(T):
    c[m] = cos(c[m]) + x[t, 0]
    y[n, m] += c[m] * v[n, 0]
"""),
    ("of_some_elements", """
for t in range(T):
    a[n] += sin(x[t, n] + a[n])
    y[n, 0] += a[n]
"""),
    ("not_in_each_round", """
for t in range(T):
    a[n] += sin(x[t, n] + a[n])
    if t > 1:
        y[n, m] += a[n] * w[m]
"""),
)  # fmt: skip


def program(body: str) -> str:
    inner = "\n".join(f"    {line}" for line in body.strip().split("\n"))
    return f"""
def f({PARAMS}) -> Tensor[N, M]:
    y : Tensor[N, M]
    a : Tensor[N]
    b : Tensor[N, M]
    c : Tensor[M]
    z : Tensor[1]
{inner}
    y[n, m] += z[0]
    return y
"""


def gathered(body: str) -> Module:
    return passes.gathering(passes.canonical_form(parse(program(body))))


def lines(module: Module) -> list[str]:
    return print_function(module.function("f")).split("\n")


@pytest.mark.parametrize("case", LEAVING, ids=name_of)
def test_what_leaves(case: tuple[str, str, str, str]) -> None:
    _, body, behind, kept = case
    found = lines(gathered(body))
    assert f"        {kept}" in found
    assert any(line.startswith("    ") and line.strip().startswith(behind) for line in found), found
    assert not any(line.startswith("        y[") for line in found)


@pytest.mark.parametrize("case", STAYING, ids=name_of)
def test_what_stays(case: tuple[str, str]) -> None:
    _, body = case
    module = passes.canonical_form(parse(program(body)))
    assert lines(passes.gathering(module)) == lines(module)


@pytest.mark.parametrize(
    ("case", "sizes"),
    diagonals(2, [*LEAVING, *STAYING], [(3, 4, 2), (1, 2, 1), (0, 2, 3)]),
    ids=name_of,
)
def test_values_and_derivatives(case: tuple[str, ...], sizes: tuple[int, int, int]) -> None:
    name, body = case[:2]
    t, n, m = sizes
    generator = torch.Generator().manual_seed(2)
    args = tuple(
        torch.randn(shape, generator=generator, dtype=torch.float64)
        for shape in ((t, n), (n, m), (t, n, m), (m,))
    )
    whole = with_derivative(program(body))
    for change in (lambda module: passes.gathering(passes.canonical_form(module)), passes.optimise):
        compare(Point(name, whole, "f", args), Changed(whole, verified(change)))
