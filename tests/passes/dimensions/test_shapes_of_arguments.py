"""Local tensors that are an argument, or a result, in another shape."""

from __future__ import annotations

import pytest
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative

from loma import passes
from loma.core.printer import print_function
from loma.frontend import parse
from loma.passes import canonical

X = "x : In[Tensor[B, C, D, P]]"
OWN = "Tensor[B, C, D, P]"
MADE = "y[r, d] = t[r, d] * sum(t[r, k] * t[r, k] for k in range(D * P)) * (r + 2 * d)"

# What a program is made of, its result, its body, and how many views are left.
CASES = {
    "both": (OWN, f"""
t = reshape(x, [B * C, D * P])
y : Tensor[B * C, D * P]
{MADE}
return reshape(y, [B, C, D, P])
""", 0),
    "a result of other dimensions": ("Tensor[B, C * D, P]", f"""
t = reshape(x, [B * C, D * P])
y : Tensor[B * C, D * P]
{MADE}
return reshape(y, [B, C * D, P])
""", 1),
    "twice": (f"tuple[{OWN}, Tensor[B * C, D * P]]", f"""
t = reshape(x, [B * C, D * P])
y : Tensor[B * C, D * P]
{MADE}
return reshape(y, [B, C, D, P]), y
""", 2),
    "the argument": (f"tuple[{OWN}, Tensor[B * C, D * P]]", f"""
t = reshape(x, [B * C, D * P])
y : Tensor[B * C, D * P]
{MADE}
return reshape(y, [B, C, D, P]), t
""", 1),
    "written": (OWN, f"""
t = reshape(x, [B * C, D * P])
y : Tensor[B * C, D * P]
t[r, d] = 2.0 * t[r, d] + d
{MADE}
return reshape(y, [B, C, D, P])
""", 0),
    "no divisor": (OWN, """
t = reshape(x, [P, D * C * B])
y : Tensor[P, D * C * B]
y[r, d] = t[r, d] * sum(t[r, k] * t[r, k] for k in range(D * C * B)) * (r + 2 * d)
return reshape(y, [B, C, D, P])
""", 2),
    "a product of matrices": (OWN, """
t = reshape(x, [B * C * D, P])
y : Tensor[B * C * D, P]
y[r, d] = sum(t[r, k] * x[r // (C * D), 0, k % D, d] for k in P)
return reshape(y, [B, C, D, P])
""", 2),
}  # fmt: skip


def program(result: str, body: str) -> str:
    lines = "".join(f"    {line}\n" for line in body.strip("\n").split("\n"))
    return f"def f({X}) -> {result}:\n{lines}"


@pytest.mark.parametrize("name", CASES)
def test_which_views_are_left(name: str) -> None:
    result, body, left = CASES[name]
    printed = print_function(passes.canonical_form(parse(program(result, body))).function("f"))
    assert printed.count("reshape(") == left


@pytest.mark.parametrize("rows", [2, 1, 0])
@pytest.mark.parametrize("name", CASES)
def test_values_and_derivatives(name: str, rows: int) -> None:
    result, body, _ = CASES[name]
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(rows, 2, 4, 3, generator=generator, dtype=torch.float64)
    text = with_derivative(program(result, body))
    point = Point(f"{name}{rows}", text, "f", (x,))
    compare(point, Changed(text, verified(canonical.shapes)))
    compare(point, Changed(text, verified(passes.optimise)))
