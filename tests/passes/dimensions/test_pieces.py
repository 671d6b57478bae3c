"""Tensors in pieces, and ranges of an index that conditions tell apart."""

from __future__ import annotations

import re

import pytest
from sampled import diagonals
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative

from loma import passes
from loma.core.printer import print_function, print_module
from loma.core.ir import For
from loma.core.walk import statements
from loma.frontend import parse
from loma.passes import canonical

HEAD = "x : In[Tensor[N, 2 * D]], c : In[Tensor[D]], s : In[Tensor[D]], w : In[Tensor[2 * D]]"
LOW = "x[n, d] * c[d + 0] - x[n, D + d] * s[d + 0]"
HIGH = "x[n, d] * c[d - D] + x[n, d - D] * s[d - D]"
# Pairs of elements turned by an angle, in one form.
TURNED = {
    "halves": """
a, b = x[:, :D], x[:, D:]
return cat([a * c - b * s, b * c + a * s], 1)
""",
    "a name": """
a = x[:, :D]
b = x[:, D:]
y = cat([a * c - b * s, b * c + a * s], 1)
return y
""",
    "turned before": """
r = cat([-x[:, D:], x[:, :D]], 1)
return x * cat([c, c], 0) + r * cat([s, s], 0)
""",
    "a choice": """
y : Tensor[N, 2 * D]
y[n, d] = {low} if d < D else {high}
return y
""",
    "a choice from the end": """
y : Tensor[N, 2 * D]
y[n, d] = {high} if d >= D else {low}
return y
""",
    "a loop": """
y : Tensor[N, 2 * D]
for n in range(N):
    for d in range(D):
        y[n, d] = c[d] * x[n, d] - s[d] * x[n, D + d]
        y[n, D + d] = s[d] * x[n, d] + c[d] * x[n, D + d]
return y
""",
}
# What is read elsewhere, of no dimension, in unequal pieces, or of other pieces than another one.
OTHERS = {
    "no dimension of its own": """
r = cat([-x[:, D:], x[:, :D]], 1)
return r * w
""",
    "a choice without": """
y : Tensor[N, 2 * D]
y[n, d] = x[n, d] * 2.0 if d < D else x[n, d] * w[d]
return y
""",
    "a loop without": """
y : Tensor[N, 2 * D]
for i in range(D):
    y[n, i] = x[n, i] * 2.0
    y[n, i + D] = x[n, i + D] * w[i]
return y
""",
    "a choice in a temporary": """
r : Tensor[N, 2 * D]
r[n, d] = -x[n, d + D] if d < D else x[n, d - D]
y : Tensor[N, 2 * D]
y[n, d] = x[n, d] * c[d % D] + r[n, d] * s[d % D] * w[(d + D) % (2 * D)]
return y
""",
    "halves of what is no even number": """
r = cat([-w[D // 2:2 * D], w[0:D // 2]], 0)
return x * w + r * x
""",
    "a loop that adds to parts": """
y : Tensor[N, 2 * D]
for i in range(D):
    y[n, i] = x[n, i + D] * c[i]
    y[n, i + D] = x[n, i] * w[i + D]
    y[n, i] += x[n, i] * x[n, i]
for i in range(D // 2):
    y[n, i] += s[i]
return y
""",
    "a row": """
r = cat([x[:, :1] * 2.0, x[:, 1:] * 3.0], 1)
return r * w
""",
    "other pieces": """
r = cat([c, x[0], s], 0)
q = cat([s, c, x[0]], 0)
y : Tensor[N, 2 * D]
y[n, d] = x[n, d] * sum(r[e] * q[e] for e in range(4 * D))
return y
""",
    "a sum": """
r = cat([c * 2.0, s * s], 0)
y : Tensor[N, 2 * D]
y[n, d] = sum(x[n, e] * r[e] for e in range(2 * D)) * w[d]
return y
""",
    "changed": """
p : Tensor[D]
p[d] = c[d] * c[d]
r = cat([p, s], 0)
p[d] += 1.0
y : Tensor[N, 2 * D]
y[n, d] = x[n, d] * r[d] * p[0]
return y
""",
    "itself": """
y : Tensor[N, 2 * D]
y[n, d] = x[n, d]
y[n, d] = y[n, d] * c[d + 0] if d < D else y[n, d] * s[d - D] + y[n, 0]
return y
""",
    "in a loop": """
r = cat([c * 2.0, s * s], 0)
y : Tensor[N, 2 * D]
for t in range(2):
    y[n, d] += tanh(x[n, d] * r[d] + y[n, d])
return y
""",
}


def program(body: str) -> str:
    body = body.replace("{low}", LOW).replace("{high}", HIGH)
    lines = "".join(f"    {line}\n" for line in body.strip("\n").split("\n"))
    return f"def f({HEAD}) -> Tensor[N, 2 * D]:\n{lines}"


@pytest.mark.parametrize("size", ["D", "8"])
@pytest.mark.parametrize("name", TURNED)
def test_pieces_have_statements(name: str, size: str) -> None:
    text = re.sub(r"\bD\b", size, program(TURNED[name]))
    made = passes.canonical_form(parse(text))
    printed = print_function(made.function("f"))
    assert "cat(" not in printed
    assert " if " not in printed
    assert "for " not in printed
    stored = [line for line in printed.split("\n") if line.lstrip().startswith(("y[", "_result["))]
    assert len(stored) == 2
    assert canonical.pieces(made) == made


@pytest.mark.parametrize("name", ["a row", "other pieces", "a sum", "changed"])
def test_what_is_joined(name: str) -> None:
    made = passes.canonical_form(parse(program(OTHERS[name])))
    assert "cat(" in print_function(made.function("f"))


@pytest.mark.parametrize(
    ("name", "shape"), diagonals(2, [*TURNED, *OTHERS], [(2, 3), (1, 1), (0, 2)])
)
def test_values_and_derivatives(name: str, shape: tuple[int, int]) -> None:
    rows, half = shape
    generator = torch.Generator().manual_seed(2)
    shapes = ((rows, 2 * half), (half,), (half,), (2 * half,))
    if rows == 0 and name == "other pieces":
        shapes = ((1, 2 * half), *shapes[1:])
    args = tuple(torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
    text = with_derivative(program({**TURNED, **OTHERS}[name]))
    point = Point(f"{name}{shape}", text, "f", args)
    compare(point, Changed(text, verified(lambda m: canonical.pieces(canonical.operators(m)))))
    compare(point, Changed(text, verified(passes.optimise)))


def test_loops_that_say_a_range_are_none_when_they_run() -> None:
    """The text of what runs has them, as no index stands alone that says how far it runs."""
    module = parse(program(OTHERS["a loop without"]))
    canonical_form = passes.canonical_form(module)
    assert any(isinstance(s, For) for s in statements(canonical_form.function("f").body))
    made = passes.optimise(canonical_form)
    assert not any(isinstance(s, For) for s in statements(made.function("f").body))
    printed = print_module(made)
    assert "for i in range(D):" in printed
    assert passes.optimise(parse(printed)) == made
