"""Dimensions in parts of ``D // H`` elements: what becomes even, and that no value changes."""

from __future__ import annotations

import oracle
import pytest
import torch
from torch import Tensor

from loma import passes
from loma.core.printer import print_function
from loma.frontend import parse
from loma.passes import canonical

HEAD = "q : In[Tensor[T, D]], k : In[Tensor[S, D]], v : In[Tensor[S, D]]"
SCORES = """
s : Tensor[H, T, S]
s[h, t, j] = sum(q[t, h * (D // H) + d] * k[j, h * (D // H) + d] for d in range(D // H))
"""
MADE = "p[t, i] = q[t, i] + 0.0 * sum(q[t, e] for e in D)"

# name, arguments, body, whether it ends in an error unless H divides D
PROGRAMS = (
    ("quotient", f"{HEAD}, H : In[int]", f"""{SCORES}
y[t, i] = sum(s[i // (D // H), t, j] * v[j, i] for j in S)
""", True),
    ("length", f"{HEAD}, C : In[int]", """
s : Tensor[D // C, T, S]
for h in range(D // C):
    s[h, t, j] = sum(q[t, h * C + d] * k[j, h * C + d] for d in range(C))
y[t, i] = sum(s[i // C, t, j] * v[j, i] for j in S)
""", True),
    ("loops", f"{HEAD}, H : In[int]", f"""{SCORES}
for h in range(H):
    for d in range(D // H):
        y[t, h * (D // H) + d] = sum(s[h, t, j] * v[j, h * (D // H) + d] for j in S)
""", False),
    ("rows", f"{HEAD}, H : In[int]", """
c : int = D // H
s : Tensor[T, S]
for h in range(H):
    zero(s)
    for d in range(c):
        s[t, j] += q[t, h * c + d] * k[j, h * c + d]
    for d in range(c):
        y[t, h * c + d] = sum(s[t, j] * v[j, h * c + d] for j in S)
""", False),
    ("local", f"{HEAD}, H : In[int]", f"""{SCORES.replace("q[", "p[")}
y[t, i] = sum(s[i // (D // H), t, j] * v[j, i] for j in S)
""".replace("s :", f"p : Tensor[T, D]\n{MADE}\ns :"), True),
)  # fmt: skip


def source(arguments: str, body: str) -> str:
    lines = "".join(f"    {line}\n" for line in body.strip("\n").split("\n"))
    return f"def f({arguments}) -> Tensor[T, D]:\n    y : Tensor[T, D]\n{lines}    return y\n"


def heads(args: list[Tensor], count: int) -> Tensor:
    width = args[0].shape[1] // count
    parts = [x[:, : count * width].reshape(len(x), count, width) for x in args]
    made = torch.einsum("thd,jhd,jhe->the", *parts).flatten(1)
    return torch.nn.functional.pad(made, (0, args[0].shape[1] - count * width))


@pytest.mark.parametrize(("name", "arguments", "body", "divides"), [*PROGRAMS[:3], PROGRAMS[4]])
def test_each_head_has_a_matrix(name: str, arguments: str, body: str, divides: bool) -> None:
    module = passes.canonical_form(parse(source(arguments, body)))
    shown = print_function(module.function("f"))
    assert parse(shown).functions == module.functions
    statements = [
        line for line in shown.split("\n") if "sum(" in line and "+ 0.0 * sum" not in line
    ]
    assert not any("//" in line.split(" for ")[0] or "* C" in line for line in statements)
    assert ("slice(" not in shown) == divides


@pytest.mark.parametrize(("width", "count"), [(6, 2), (7, 3), (4, 4), (5, 1), (2, 3), (8, 3)])
@pytest.mark.parametrize(("name", "arguments", "body", "divides"), PROGRAMS)
def test_values_and_derivatives(
    name: str, arguments: str, body: str, divides: bool, width: int, count: int
) -> None:
    generator = torch.Generator().manual_seed(5)
    args = [torch.randn(rows, width, generator=generator, dtype=torch.float64).requires_grad_()
            for rows in (3, 5, 5)]  # fmt: skip
    program = oracle.compiled(source(arguments, body))
    given = count
    if name == "length":
        given = max(width // count, 1)
        count = width // given
    if divides and width % count:
        with pytest.raises((RuntimeError, ValueError), match="line"):
            program.f(*args, given)
        return
    found, expected = program.f(*args, given), heads(args, count)
    torch.testing.assert_close(found, expected)
    weight = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    gradients = [torch.autograd.grad(y, args, weight) for y in (found, expected)]
    torch.testing.assert_close(gradients[0], gradients[1])


@pytest.mark.parametrize("statement", [
    "y[t, i] = q[t, i] * w[i // (D // H)] if i < H * (D // H) else 0.0",  # may have a rest
    "y[t, i] = q[t, i] * zero_pad(w[i // (D // H)])",
    "y[t, i] = q[t, i] * w[i // H]",
])  # fmt: skip
def test_what_stays(statement: str) -> None:
    text = source("q : In[Tensor[T, D]], w : In[Tensor[H]]", statement)
    assert "H * (D // H)" not in print_function(canonical.even(parse(text)).function("f")).replace(
        "i < H * (D // H)", ""
    )


NORM = """
def f(x : In[Tensor[N, C, M]], w : In[Tensor[C]], G : In[int]) -> Tensor[N, C, M]:
    m : Tensor[N, G]
    y : Tensor[N, C, M]
    m[n, g] = sum(x[n, g * (C // G) + c, i] for c in range(C // G) for i in M) / 8.0
    y[n, c, i] = (x[n, c, i] - m[n, c // (C // G)]) * w[c] + C
    return y
"""


def test_groups_of_channels() -> None:
    shown = print_function(passes.canonical_form(parse(NORM)).function("f"))
    assert "_y[n, _g, c, i] = (" in shown
    x, w = torch.randn(2, 6, 4, dtype=torch.float64), torch.randn(6, dtype=torch.float64)
    x.requires_grad_()
    groups = x.reshape(2, 3, 2, 4)
    expected = (groups - groups.sum((2, 3), keepdim=True) / 8).reshape(2, 6, 4) * w[:, None] + 6
    found = oracle.compiled(NORM).f(x, w, 3)
    torch.testing.assert_close(found, expected)
    given = torch.randn(2, 6, 4, dtype=torch.float64)
    ours, theirs = (torch.autograd.grad(y, x, given) for y in (found, expected))
    torch.testing.assert_close(ours, theirs)
