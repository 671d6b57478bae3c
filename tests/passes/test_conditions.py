"""Conditions on indices: what is left of them, and that no value changes."""

from __future__ import annotations

import pytest
from sampled import diagonals, name_of
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative
from test_loops import program

from loma import passes
from loma.core.printer import print_function
from loma.frontend import parse
from loma.passes import canonical

X = "x : In[Tensor[N, M]], w : In[Tensor[3]]"

# statement, and its value behind the pass
SHORTER = [
    ("y[i, j] = x[i, j] * 2.0 if 0 <= i and j < M else 1.0", "x[i, j] * 2.0"),
    ("y[i, j] = x[i, j] if j > 0 and i < N else 1.0", "x[i, j] if j > 0 else 1.0"),
    ("y[i, j] = x[i, j - 1] if 0 <= j - 1 < M else 0.0", "zero_pad(x[i, j - 1])"),
    ("y[i, j] = x[i, j - 1] if j > 0 else 0.0", "zero_pad(x[i, j - 1])"),
    ("y[i, j] = x[i, j + i] if i + j <= M - 1 else 0.0", "zero_pad(x[i, j + i])"),
    ("y[i, j] = 3.0 * (x[N - 1 - i, j + 1] if j + 1 < M else 0.0)",
     "3.0 * zero_pad(x[N - 1 - i, j + 1])"),
    ("y[i, j] = zero_pad(x[i, j]) + zero_pad(x[N - 1 - i, j])", "x[i, j] + x[N - 1 - i, j]"),
    ("y[i, j] = (x[i, j - 1] * i if j >= 1 else 0.0) if i > 0 else 0.0",
     "x[i, j - 1] * i if i > 0 and j >= 1 else 0.0"),
    ("y[i, j] = zero_pad(x[i, j - 1]) + 1.0 if j > 0 else 2.0",
     "x[i, j - 1] + 1.0 if j > 0 else 2.0"),
    ("y[i, j] = sum(x[i, j - p] if p <= j and p < 3 else 0.0 for p in range(3))",
     "sum(zero_pad(x[i, j - p]) for p in range(3))"),
    ("y[i, j] = x[i, j] if (1.0 if j <= i else 0.0) > 0.0 else 2.0", "x[i, j] if j <= i else 2.0"),
    ("y[i, j] = x[i, j] if 0.5 > (1.0 if j <= i else 0.0) else 2.0", "x[i, j] if j > i else 2.0"),
    ("y[i, j] = 2.0 if (-1.0 if i == j and x[i, j] > 0.0 else 3.0) < 0.0 else 1.0",
     "2.0 if i == j and x[i, j] > 0.0 else 1.0"),
    ("y[i, j] += x[i, j] if i < N else w[p]", "sum(x[i, j] for p in range(3))"),
    ("y[i, j] = 2.0 if (1.0 if x[i, j] > 0.0 else 0.0) == 0.0 else x[i, j]",
     "2.0 if not x[i, j] > 0.0 else x[i, j]"),  # of NaN neither holds
    ("y[i, j] = x[i, j] if w[0] > 0.0 and (2.0 if w[0] > 0.0 else x[i, j]) > x[i, j] else 3.0",
     "x[i, j] if w[0] > 0.0 and 2.0 > x[i, j] else 3.0"),
    ("y[i, j] = (x[i, j] if w[0] > 0.0 else 1.0) if w[0] > 0.0 and w[0] > 0.0 else 2.0",
     "x[i, j] if w[0] > 0.0 else 2.0"),
    ("y[i, j] = abs(-x[i, j]) + cos(-w[0])", "abs(x[i, j]) + cos(w[0])"),
    ("y[i, j] = exp(-abs(-(x[i, j] - w[0])))", "exp(-abs(x[i, j] - w[0]))"),
    ("y[i, j] = 1.0 if -x[i, j] < 0.5 else 2.0", "1.0 if x[i, j] > -0.5 else 2.0"),
    ("y[i, j] = 1.0 if relu(-x[i, j]) <= 0.0 else 2.0", "1.0 if x[i, j] >= 0.0 else 2.0"),
    ("y[i, j] = 1.0 if max(x[i, j], 0.0) > 0.0 else 2.0", "1.0 if x[i, j] > 0.0 else 2.0"),
]  # fmt: skip

AS_THEY_ARE = [
    "y[i, j] = x[i, j - 1] if j > 0 else 1.0",
    "y[i, j] = x[i, j - 1] if j > 1 else 0.0",  # not x[i, 0]
    "y[i, j] = x[i, j - 1] if j > 0 and x[i, j] > 0.0 else 0.0",
    "y[i, j] = x[i, j - 1] if j > 0 or i > 0 and j > 0 else 0.0",
    "y[i, j] = x[i, j - 1] * w[0] if j > 0 else 0.0",  # w may be infinite
    "y[i, j] = x[i, j - 1] if j > 0 and i > 0 else 0.0",
    "y[i, j] = 2.0 if (1.0 if j <= i else 3.0) > 0.0 else 1.0",  # the condition decides nothing
    "y[i, j] = 2.0 if (1.0 if j <= i else x[i, j]) > 0.0 else 1.0",
    "y[i, j] = sin(-x[i, j])",
    "y[i, j] = 1.0 if relu(x[i, j]) >= 0.0 else 2.0",  # always, but for NaN
    "y[i, j] = x[i, j] if j // i >= 0 else 0.0",  # fails where i is 0
    "y[i, j] = sum(w[p] if p < 3 else 0.0 for p in M)",  # else M has to be 3
]


def value(statement: str) -> str:
    module = canonical.conditions(parse(program(X, "N, M", statement)))
    assert canonical.conditions(module) == module
    printed = print_function(module.function("f"))
    assert parse(printed).functions == module.functions
    (line,) = (line for line in printed.split("\n") if "=" in line and "->" not in line)
    return line.split("= ", 1)[1]


@pytest.mark.parametrize(("statement", "expected"), SHORTER)
def test_what_becomes_shorter(statement: str, expected: str) -> None:
    assert value(statement) == expected


@pytest.mark.parametrize("statement", AS_THEY_ARE)
def test_what_stays(statement: str) -> None:
    assert value(statement) == statement.split(" = ", 1)[1]


def test_ranges_of_loops_and_what_hides_them() -> None:
    text = """
for i in range(N):
    y[i, j] = x[i, j] if i < N else 0.0
for i in range(N):
    for t in range(i):
        y[i, j] += x[t, j] if t < i else 0.0
"""
    printed = print_function(canonical.conditions(parse(program(X, "N, M", text))).function("f"))
    assert "i < N" not in printed
    assert "if t < i" in printed


def test_a_round_that_differs_from_the_others_stays_one() -> None:
    text = """
for t in range(M):
    y[i, t] = x[i, t] + (y[i, t - 1] if t > 0 else 0.0)
"""
    printed = print_function(canonical.conditions(parse(program(X, "N, M", text))).function("f"))
    assert "y[i, t - 1] if t > 0 else 0.0" in printed


@pytest.mark.parametrize(
    ("shape", "statement"),
    diagonals(
        4,
        [(3, 4), (1, 1), (0, 3), (2, 0)],
        [*(s for s, _ in SHORTER), *AS_THEY_ARE[:-2]],
    ),
    ids=name_of,
)
def test_values_and_derivatives(statement: str, shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(4)
    args = tuple(torch.randn(s, generator=generator, dtype=torch.float64) for s in (shape, (3,)))
    text = with_derivative(program(X, "N, M", statement))
    point = Point("conditions", text, "f", args)
    compare(point, Changed(text, verified(canonical.conditions)))
    compare(point, Changed(text, verified(passes.optimise)))


GUARDED = """
def f(x : In[Tensor[N, M]], w : In[Tensor[3]]) -> Tensor[N]:
    y : Tensor[N]
    a : Tensor[N, M]
    z : Tensor[N]
    if M > 0:
        {statement}
        y[i] = max(a[i, j] for j in M)
    z[i] += x[i, j] * x[i, j] * 2.0
    y[i] += z[i]
    return y
"""


@pytest.mark.parametrize(
    ("statement", "moves"),
    [
        ("a[i, j] = x[i, j] * 2.0", True),
        ("a[i, j] = sum(x[i, k] for k in M)", True),
        ("a[i, j] = x[i, 0] * 2.0", False),  # which need not be there
        ("a[i, j] = x[i, float2int(w[0])]", False),
        ("a[i, j] += x[i, j]", False),
        ("z[i] = w[0]", False),  # is also set where the condition does not hold
    ],
)
def test_what_runs_over_an_index_needs_no_guard(statement: str, moves: bool) -> None:
    source = with_derivative(GUARDED.format(statement=statement))
    made = canonical.guards(parse(source))
    assert (made != parse(source)) == moves
    assert canonical.guards(made) == made
    for shape in ((3, 4), (2, 0), (0, 3)):
        x = torch.randn(*shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
        args = (x, torch.ones(3, dtype=torch.float64))
        compare(Point("guard", source, "f", args), Changed(source, verified(canonical.guards)))


def test_a_sum_behind_a_guard_is_found_in_front() -> None:
    text = """
def attention(q : In[Tensor[T, D]], k : In[Tensor[S, D]]) -> Tensor[T]:
    z : Tensor[T]
    for t in range(T):
        m : float = -1e30
        for s in range(S):
            m = max(m, sum(q[t, d] * k[s, d] for d in D))
        for s in range(S):
            z[t] += exp(sum(q[t, d] * k[s, d] for d in D) - m)
    return z
"""
    shown = print_function(passes.optimise(parse(text)).function("attention"))
    assert (
        shown.count("for d in D") + shown.count("for d_1 in D") + shown.count("for d_2 in D") == 1
    )


@pytest.mark.parametrize(
    ("between", "left"),
    [
        ("", False),
        ("x[i, j] = 1.0", True),
        ("a[0, 0] = w[0]", True),
        ("if M > 2:\n    a[i, 0] = 1.0", True),
    ],
)
def test_what_is_zero_anyway_needs_no_condition(between: str, left: bool) -> None:
    source = program(
        "x : Out[Tensor[N, M]], w : In[Tensor[3]]",
        "N",
        f"""
a : Tensor[N, M]
a[i, j] = exp(x[i, j]) if x[i, j] > w[0] else 0.0
{between}
y[i] = sum(a[i, k] if x[i, k] > w[0] else 0.0 for k in M)
y[i] += a[i, 0] if M > 0 and x[i, 0] > w[0] else 0.0
""",
    )
    shown = print_function(canonical.conditions(parse(source)).function("f"))
    assert ("a[i, k] if " in shown) == left
    assert "a[i, 0] if " in shown  # which need not be there
