"""Channels in groups: which dimensions are divided, and that no value changes."""

from __future__ import annotations

import pytest
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative
from test_loops import program

from loma import passes
from loma.core.printer import print_function
from loma.frontend import parse
from loma.passes import canonical

X = "x : In[Tensor[B, 2 * C, P]]"
SUM = "m : Tensor[B, 2]\nm[n, g] = sum(x[n, g * C + c, p] for c in range(C) for p in P)\n"
Case = tuple[str, str, str, str, tuple[tuple[int, ...], ...]]

# name, parameters, result, body, shapes of the arguments
DIVIDED: tuple[Case, ...] = (
    ("norm", f"{X}, w : In[Tensor[2 * C]]", "B, 2 * C, P", f"""
{SUM}y[n, c, p] = (x[n, c, p] - m[n, c // C]) * w[c]
""", ((2, 6, 3), (6,))),
    ("remainder", f"{X}, w : In[Tensor[C]]", "B, 2 * C, P", f"""
{SUM}y[n, c, p] = (x[n, c, p] - m[n, c // C]) * w[c % C] + c
""", ((2, 6, 3), (3,))),
    ("a neighbour", f"{X}, w : In[Tensor[2 * C]]", "B, 2 * C, P", f"""
{SUM}y[n, c, p] = x[n, c, p] * m[n, c // C] + (w[c - 1] if c > 0 else 2.0)
""", ((2, 6, 3), (6,))),
    ("a local tensor", X, "B, 2 * C, P", f"""
{SUM}z : Tensor[B, 2 * C, P]
z[n, c, p] = x[n, c, p] * x[n, c, p] - m[n, c // C]
m[n, g] = max(z[n, g * C + c, p] for c in range(C) for p in P) if C * P > 0 else 0.0
y[n, c, p] = z[n, c, p] * m[n, c // C]
y[n, c, p] += sum(z[n, k, p] * m[n, k // C] for k in range(2 * C))
""", ((2, 6, 3),)),
    ("in a loop", X, "B, 2 * C, P", f"""
{SUM}for t in range(3):
    y[n, c, p] += x[n, c, p] * m[n, c // C] * (t + 1)
    m[n, g] = sum(y[n, g * C + c, p] for c in range(C) for p in P)
""", ((2, 6, 3),)),
    ("added up", X, "B, 2 * C, P", """
m : Tensor[B, 2]
m[n, c // C] += x[n, c, p]
z : Tensor[B, 2, C]
z[n, g, c] = sum(x[n, g * C + c, p] for p in P) - m[n, g]
y[n, c, p] = x[n, c, p] * z[n, c // C, c % C]
""", ((2, 6, 3),)),
)  # fmt: skip

LEFT: tuple[Case, ...] = (
    ("one form", X, "B, 2 * C, P", """
y[n, c, p] = x[n, c, p] * (c // C)
""", ((2, 6, 3),)),
    ("no quotient", X, "B, 2 * C, P", f"""
{SUM}y[n, c, p] = x[n, c, p] * m[n, 0]
""", ((2, 6, 3),)),
    ("another divisor", X, "B, 2 * C, P", f"""
{SUM}y[n, c, p] = x[n, c, p] * m[n, c // (C + C)]
""", ((2, 6, 3),)),
    ("a part of it", X, "B, 2 * C, P", f"""
{SUM}y[n, c, p] = x[n, c, p] * m[n, c // C] + zero_pad(x[n, c + 1, p])
""", ((2, 6, 3),)),
    ("a position", X, "B, 2 * C, P", f"""
{SUM}k : IntTensor[B]
k[n] = argmax(x[n, c, 0] * m[n, c // C] for c in range(2 * C))
y[n, c, p] = x[n, c, p] * m[n, c // C] + k[n]
""", ((2, 6, 3),)),
    ("a place of a counter", X, "B, 2 * C, P", f"""
{SUM}for g in range(2):
    y[n, c, p] += x[n, g * C, p] * m[n, c // C]
""", ((2, 6, 3),)),
)  # fmt: skip


def divided(text: str) -> str:
    module = canonical.channels(parse(text))
    printed = print_function(module.function("f"))
    assert parse(printed).functions == module.functions
    return printed


@pytest.mark.parametrize("case", DIVIDED, ids=lambda case: case[0])
def test_what_is_divided(case: Case) -> None:
    _, params, result, body, _ = case
    printed = divided(program(params, result, body))
    assert "_x : Tensor[B, 2, C, P] = reshape(x, [B, 2, C, P])" in printed
    assert "//" not in printed
    assert "%" not in printed
    assert canonical.channels(parse(printed)) == parse(printed)


@pytest.mark.parametrize("case", LEFT, ids=lambda case: case[0])
def test_what_is_left(case: Case) -> None:
    _, params, result, body, _ = case
    text = program(params, result, body)
    assert canonical.channels(parse(text)) == parse(text)


@pytest.mark.parametrize("rows", [2, 0])
@pytest.mark.parametrize("case", [*DIVIDED, *LEFT], ids=lambda case: case[0])
def test_values_and_derivatives(case: Case, rows: int) -> None:
    name, params, result, body, (first, *others) = case
    generator = torch.Generator().manual_seed(2)
    shapes = ((rows, *first[1:]), *others)
    args = tuple(torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
    text = with_derivative(program(params, result, body))
    point = Point(f"{name}{rows}", text, "f", args)
    compare(point, Changed(text, verified(canonical.channels)))
    compare(point, Changed(text, verified(passes.optimise)))
