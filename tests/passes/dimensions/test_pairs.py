"""Rotations of pairs: what lies beside each other is one statement, in any words."""

from __future__ import annotations

import pytest
from sampled import diagonals, name_of
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative

from loma import passes
from loma.core.ir import IndexAssign
from loma.core.printer import print_function, print_module
from loma.core.walk import statements
from loma.frontend import parse
from loma.passes import canonical

# name, statements of y: Tensor[B, 2 * D] from x of that size, c and s: Tensor[D]
PAIRS: tuple[tuple[str, str], ...] = (
    ("statements", """
y[b, 2 * d] = x[b, 2 * d] * c[d] - x[b, 2 * d + 1] * s[d]
y[b, 2 * d + 1] = x[b, 2 * d] * s[d] + x[b, 2 * d + 1] * c[d]
"""),
    ("operators", """
z = reshape(x, [B, D, 2])
u = z[:, :, 0]
v = z[:, :, 1]
y = reshape(stack([u * c - v * s, u * s + v * c], 2), [B, 2 * D])
"""),
    ("choice", """
y[b, i] = x[b, i] * c[i // 2] + (
    x[b, i - 1] * s[i // 2] if i % 2 == 1 else -x[b, i + 1] * s[i // 2])
"""),
    ("loop", """
for b in range(B):
    for d in range(D):
        u : float = x[b, 2 * d]
        v : float = x[b, 2 * d + 1]
        y[b, 2 * d + 1] = v * c[d] + u * s[d]
        y[b, 2 * d] = u * c[d] - v * s[d]
"""),
    ("added", """
y[b, 2 * d] += x[b, 2 * d] * c[d]
y[b, 2 * d + 1] += x[b, 2 * d + 1] * c[d]
y[b, 2 * d] += -x[b, 2 * d + 1] * s[d]
y[b, 2 * d + 1] += x[b, 2 * d] * s[d]
"""),
)  # fmt: skip
OTHERS: tuple[tuple[str, str], ...] = (
    ("one_of_two", "y[b, 2 * d] = x[b, 2 * d] * c[d]"),
    ("twice", "y[b, 2 * d] = x[b, 2 * d] * c[d]\ny[b, 2 * d] = x[b, 2 * d + 1] * s[d]"),
    ("read_between", """
y[b, 2 * d] = x[b, 2 * d] * c[d]
y[b, 2 * d + 1] = x[b, 2 * d + 1] - y[b, 2 * d] * s[d]
"""),
    ("changed_between", """
t : Tensor[D]
t[d] = c[d]
y[b, 2 * d] = x[b, 2 * d] * t[d]
t[d] = t[d] * t[d] + s[d]
y[b, 2 * d + 1] = x[b, 2 * d + 1] * t[d]
"""),
    ("of_a_sum", """
y[b, 2 * d] = x[b, 2 * d] * c[d]
y[b, 2 * d + 1] = s[d] * sum(s[e] for e in D)
"""),
    ("a_step_further", """
for d in range(1, D):
    y[0, 2 * d] = x[0, 2 * d] * c[d]
    y[0, 2 * d - 2] = x[0, 2 * d - 1] * s[d]
"""),
    ("a_moving_place", """
for d in range(D):
    k : int = d % 2
    y[0, 2 * d + k] = x[0, 2 * d] + y[0, 2 * d + 1 - k]
"""),
    ("three", """
for i in range(2 * D):
    y[b, i] = x[b, i] * 2.0 if i % 3 == 0 else x[b, i]
"""),
    ("encoded", """
y[b, i] = x[b, i] + (sin(b / (1.0 + i // 2)) if i % 2 == 0 else cos(b / (1.0 + i // 2)))
"""),
    ("a_remainder_of_a_sum", """
y[b, i] = x[b, i] * sum((c[e] if e % 2 == 1 else s[e]) * e for e in D)
"""),
    ("stacked_and_read", """
u : Tensor[B, D]
u[b, d] = x[b, 2 * d] * c[d]
y = reshape(stack([u, u * 2.0], 2), [B, 2 * D])
y[b, 2 * d] += u[b, d]
"""),
)  # fmt: skip


def text(body: str) -> str:
    lines = "".join(f"    {line}\n" for line in body.strip().split("\n"))
    args = "x : In[Tensor[B, 2 * D]], c : In[Tensor[D]], s : In[Tensor[D]]"
    declared = "" if "\ny = " in body else "    y : Tensor[B, 2 * D]\n"
    return f"def f({args}) -> Tensor[B, 2 * D]:\n{declared}{lines}    return y\n"


@pytest.mark.parametrize("case", PAIRS, ids=lambda case: case[0])
def test_one_statement_makes_both(case: tuple[str, str]) -> None:
    function = passes.optimise(passes.canonical_form(parse(text(case[1])))).function("f")
    (made,) = [s for s in statements(function.body) if isinstance(s, IndexAssign)]
    assert "// 2" not in print_function(function)
    assert "cat(" not in print_function(function)
    assert len(made.axes) == 3


@pytest.mark.parametrize(
    ("case", "size"), diagonals(2, [*PAIRS, *OTHERS], [(2, 3), (1, 1), (2, 0), (0, 2)]), ids=name_of
)
def test_values_and_derivatives(case: tuple[str, str], size: tuple[int, int]) -> None:
    name, body = case
    if size[0] == 0 and "x[0" in body:
        size = (1, 2)
    generator = torch.Generator().manual_seed(4)
    shapes = ((size[0], 2 * size[1]), (size[1],), (size[1],))
    args = tuple(torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
    program = with_derivative(text(body))
    point = Point(name, program, "f", args)
    for change in (passes.canonical_form, passes.optimise):
        compare(point, Changed(program, verified(change)))


@pytest.mark.parametrize("name", ["one_of_two", "a_remainder_of_a_sum", "three"])
def test_what_stays_in_one_piece(name: str) -> None:
    module = canonical.loops(canonical.inline(parse(text(dict(OTHERS)[name]))))
    assert print_module(canonical.channels(canonical.remainders(module))) == print_module(module)
    assert passes.interleaving(module) == module


FOURS: tuple[str, ...] = (
    """
y[n, 2 * i, 2 * j] = x[4 * n, i, j]
y[n, 2 * i, 2 * j + 1] = x[4 * n + 1, i, j]
y[n, 2 * i + 1, 2 * j] = x[4 * n + 2, i, j]
y[n, 2 * i + 1, 2 * j + 1] = x[4 * n + 3, i, j]
""",
    """
y[n, 2 * i, 2 * j] = x[4 * n, i, j]
y[n, 2 * i + 1, 2 * j] = x[4 * n + 2, i, j]
y[n, 2 * i + 1, 2 * j + 1] = x[4 * n + 3, i, j]
y[n, 2 * i, 2 * j + 1] = x[4 * n + 1, i, j]
""",
)
FOURS += (
    "y[n, i, j] = x[4 * n + 2 * (i % 2) + j % 2, i // 2, j // 2]",
    """
for n in range(N):
    for i in range(H):
        for j in range(W):
            for p in range(2):
                for q in range(2):
                    y[n, 2 * i + p, 2 * j + q] = x[4 * n + 2 * p + q, i, j]
""",
)


SHUFFLED = (
    *FOURS,
    "y = reshape(permute(reshape(x, [N, 2, 2, H, W]), [0, 3, 1, 4, 2]), [N, 2 * H, 2 * W])",
    """
z = reshape(x, [N, 2, 2, H, W])
t = permute(z, [0, 3, 1, 4, 2])
y = reshape(t, [N, 2 * H, 2 * W])
""",
    """
for p in range(2):
    for q in range(2):
        y[n, 2 * i + p, 2 * j + q] = x[4 * n + 2 * p + q, i, j]
""",
)
OTHER_FOURS = (
    """
y[n, 2 * i, 2 * j] = x[4 * n, i, j]
y[n, 2 * i, 2 * j + 1] = x[4 * n + 1, i, j]
y[n, 2 * i + 1, 2 * j] = x[4 * n + 3, i, j]
y[n, 2 * i + 1, 2 * j + 1] = x[4 * n + 2, i, j]
""",
    """
y[n, 2 * i, 2 * j] = x[4 * n, i, j] * 2.0
y[n, 2 * i, 2 * j + 1] = x[4 * n + 1, i, j] * 2.0
y[n, 2 * i + 1, 2 * j] = x[4 * n + 2, i, j] / 2.0
y[n, 2 * i + 1, 2 * j + 1] = x[4 * n + 3, i, j] / 2.0
""",
    """
y[n, 2 * i, 2 * j] = x[4 * n, i, j] * (0 + 1)
y[n, 2 * i, 2 * j + 1] = x[4 * n + 1, i, j] * (1 + 1)
y[n, 2 * i + 1, 2 * j] += x[4 * n + 2, i, j] * (2 + 1)
y[n, 2 * i + 1, 2 * j + 1] += x[4 * n + 3, i, j] * (3 + 1)
""",
)


@pytest.mark.parametrize(
    ("body", "size"),
    diagonals(2, SHUFFLED + OTHER_FOURS, [(2, 3, 2), (1, 1, 1), (0, 2, 3), (2, 0, 1)]),
)
def test_rows_of_pairs(body: str, size: tuple[int, int, int]) -> None:
    lines = "".join(f"    {line}\n" for line in body.strip().split("\n"))
    declared = "" if " y = " in lines else "    y : Tensor[N, 2 * H, 2 * W]\n"
    source = with_derivative(
        "def f(x : In[Tensor[4 * N, H, W]]) -> Tensor[N, 2 * H, 2 * W]:\n"
        f"{declared}{lines}    return y\n"
    )
    function = passes.optimise(passes.canonical_form(parse(source))).function("f")
    made = len([s for s in statements(function.body) if isinstance(s, IndexAssign)])
    assert made == 1 if body in SHUFFLED else made > 1
    x = torch.randn(4 * size[0], *size[1:], dtype=torch.float64)
    compare(Point("f", source, "f", (x,)), Changed(source, verified(passes.optimise)))


def test_a_place_that_stands_alone_nowhere_has_no_condition() -> None:
    function = passes.optimise(parse(text(dict(OTHERS)["encoded"]))).function("f")
    assert "% 2" not in print_function(function)
    assert "// 2" not in print_function(function)
