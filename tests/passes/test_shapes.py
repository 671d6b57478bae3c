"""Tensors that are each other in another shape: which get one, and that no value changes."""

from __future__ import annotations

import pytest
from sampled import diagonals, name_of
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative
from test_loops import program

from loma import passes
from loma.core.ir import Module
from loma.core.printer import print_function
from loma.frontend import parse
from loma.passes import canonical

X = "x : In[Tensor[B, 2 * C, P]]"
MADE = "z : Tensor[B, 2 * C, P]\nz[b, c, p] = x[b, c, p] * (c + 1)\n"
Case = tuple[str, str, str, str, tuple[tuple[int, ...], ...]]

# name, parameters, result, body, shapes of the arguments
ONE: tuple[Case, ...] = (
    ("groups", f"{X}, w : In[Tensor[2 * C]]", "B, 2 * C, P", """
z = reshape(x, [B, 2, C * P])
z = z - mean(z, [2], keepdim=True)
t = reshape(z, [B, 2 * C, P])
y[b, c, p] = t[b, c, p] * w[c]
""", ((2, 6, 5), (6,))),
    ("rows", X, "B * 2, C * P", f"""
{MADE}t = reshape(z, [B * 2, C * P])
y[r, d] = t[r, d] * (r + 2 * d) - sum(t[r, k] for k in range(C * P))
""", ((2, 4, 3),)),
    ("thrice", X, "B * 2 * C * P", f"""
{MADE}t = reshape(z, [B, 2, C * P])
u = reshape(t, [B * 2, C, P])
v = reshape(u, [B * 2 * C * P])
y[i] = v[i] * v[i]
""", ((2, 4, 3),)),
    ("positions", X, "B, 2", f"""
{MADE}t = reshape(z, [B, 2, C * P])
y[b, g] = argmax(t[b, g, k] for k in range(C * P)) * sum(t[b, g, k] for k in range(C * P))
""", ((2, 4, 3),)),
    ("two_sums", X, "B, 2, C * P", f"""
{MADE}t = reshape(z, [B, 2, C * P])
y[b, g, k] = t[b, g, k] * sum(t[b, g, j] for j in range(C * P)) + sum(t[b, i, k] for i in range(2))
""", ((2, 4, 3),)),
    ("whole", X, "B, 2, C * P", f"""
{MADE}t = reshape(z, [B, 2, C * P])
u = cumsum(t, 2)
y[b, g, k] = t[b, g, k] + u[b, g, k]
""", ((2, 4, 3),)),
)  # fmt: skip

APART: tuple[Case, ...] = (
    ("no_divisor", "x : In[Tensor[B, 6]]", "4, 3 * B", """
z : Tensor[6, 2 * B]
z[i, j] = x[j // 2, i] + j
t = reshape(z, [4, 3 * B])
y[i, j] = t[i, j] * t[i, j]
""", ((2, 6),)),
    ("names_again", X, "B, 2, C * P", f"""
{MADE}t = reshape(z, [B, 2, C * P])
y[b, g, k] = t[b, g, k] * sum(t[b, g, j] for j in range(C * P)) + sum(t[b, j, k] for j in range(2))
""", ((2, 4, 3),)),
    ("units", X, "B, 1, 2, C * P", f"""
{MADE}t = reshape(z, [B, 1, 2, C * P])
y[b, 0, g, k] = t[b, 0, g, k] + 1.0
""", ((2, 4, 3),)),
    ("later_change", X, "B, 2, C * P", f"""
{MADE}t = reshape(z, [B, 2, C * P])
z[b, c, p] = 2.0 * z[b, c, p]
u = reshape(z, [B, 2, C * P])
t[b, g, k] += u[b, g, k]
y[b, g, k] = t[b, g, k] * u[b, g, k]
""", ((2, 4, 3),)),
    ("in_loops", X, "B, 2, C * P", f"""
{MADE}t = reshape(z, [B, 2, C * P])
for r in range(2):
    if r > 0:
        y[b, g, k] += t[b, g, k] * r
        t[b, g, k] = y[b, g, k] + k
    z[b, c, p] = z[b, c, p] * 1.5 + c
""", ((2, 4, 3),)),
    ("shifted", X, "B, 2, C * P", f"""
{MADE}t = reshape(z, [B, 2, C * P])
y[b, g, k] = t[b, g, k] + zero_pad(t[b, g, k - 1])
""", ((2, 4, 3),)),
    ("counter", X, "B, 2 * C * P", f"""
{MADE}t = reshape(z, [B, 2 * C * P])
for k in range(2 * C * P):
    y[b, k] = t[b, k] + (y[b, k - 1] if k > 0 else 0.0)
""", ((2, 4, 3),)),
    ("product", f"{X}, w : In[Tensor[D, C * P]]", "B, 2, D", f"""
{MADE}t = reshape(z, [B, 2, C * P])
y[b, g, d] = sum(t[b, g, k] * w[d, k] for k in range(C * P))
""", ((2, 4, 3), (5, 6))),
    ("on_its_side", X, "2 * C, B * P", """
z : Tensor[P, B, 2 * C]
z[p, b, c] = x[b, c, p] + 1.0
t = reshape(z, [2 * C, B * P])
y[i, j] = t[i, j] * t[i, j]
""", ((2, 4, 3),)),
)  # fmt: skip


def in_shapes(text: str) -> Module:
    """Behind what stands in front of the pass in the canonical form, too."""
    return canonical.shapes(canonical.operators(canonical.inline(parse(text)), every=True))


def made_of_locals(text: str) -> list[str]:
    """The statements that give a local tensor, or a part of one, another shape."""
    printed = print_function(in_shapes(text).function("f")).split("\n")
    return [s for s in printed if "= reshape(" in s and "= reshape(x" not in s]


@pytest.mark.parametrize("case", ONE, ids=lambda case: case[0])
def test_what_gets_one_shape(case: Case) -> None:
    _, params, result, body, _ = case
    text = program(params, result, body)
    assert "reshape" in text
    assert [s for s in made_of_locals(text) if "cumsum" not in s] == []
    assert canonical.shapes(in_shapes(text)) == in_shapes(text)


@pytest.mark.parametrize("case", APART, ids=lambda case: case[0])
def test_what_stays_apart(case: Case) -> None:
    _, params, result, body, _ = case
    assert made_of_locals(program(params, result, body))


@pytest.mark.parametrize(("rows", "case"), diagonals(4, [2, 1, 0], [*ONE, *APART]), ids=name_of)
def test_values_and_derivatives(case: Case, rows: int) -> None:
    name, params, result, body, (first, *others) = case
    generator = torch.Generator().manual_seed(2)
    shapes = ((rows, *first[1:]), *others)
    args = tuple(torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
    text = with_derivative(program(params, result, body))
    point = Point(f"{name}{rows}", text, "f", args)
    change = verified(lambda module: canonical.shapes(canonical.operators(module, every=True)))
    compare(point, Changed(text, change))
    compare(point, Changed(text, verified(passes.optimise)))


def test_a_helper_among_operands_is_put_in_place() -> None:
    """What a function makes of rows is in the loops of what its caller makes of channels."""
    text = """
def _centred(x : In[Tensor[R, D]]) -> Tensor[R, D]:
    y : Tensor[R, D]
    y[r, d] = x[r, d] - sum(x[r, k] for k in D) / D
    return y


def f(x : In[Tensor[B, 2 * C, P]], w : In[Tensor[2 * C]]) -> Tensor[B, 2 * C, P]:
    z = reshape(_centred(reshape(x, [B * 2, C * P])), [B, 2 * C, P])
    y : Tensor[B, 2 * C, P]
    y[b, c, p] = z[b, c, p] * w[c]
    return y
"""
    printed = print_function(passes.canonical_form(parse(text)).function("f"))
    assert "_centred" not in printed
    assert "reshape(x, [B, 2, C, P])" in printed
    assert sum("reshape" in line for line in printed.split("\n")) == 2  # of x, and of the result
