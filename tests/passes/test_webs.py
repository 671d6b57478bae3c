"""Names: which lives of a variable get names of their own, which copies need no name of theirs, and
that values and derivatives stay."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative
from test_loops import program

from loma import passes
from loma.core.ir import For, Module
from loma.core.printer import print_function
from loma.frontend import parse
from loma.passes.canonical import copies
from loma.passes.canonical.webs import webs

X = "x : In[Tensor[N, M]]"

Case = tuple[str, str, str, str | None]
Pass = Callable[[Module], Module]

# name, result, body, the body that becomes of it (None: it stays), declarations of names aside
CASES: tuple[Case, ...] = (
    ("operators", "N, M", """
s : Tensor[N, M] = exp(x)
s = s / sum(s, 1, True)
s = s * x
y = s
""", """
s_1 : Tensor[N, M] = exp(x)
s_2 = s_1 / sum(s_1, [1], keepdim=True)
s = s_2 * x
y = s
"""),
    ("index_statements", "N, M", """
y[i, j] = x[i, j] - max(x[i, k] for k in M)
y[i, j] = exp(y[i, j] - log(sum(exp(y[i, k]) for k in M)))
""", """
y_1[i, j] = x[i, j] - max(x[i, k] for k in M)
y[i, j] = exp(y_1[i, j] - log(sum(exp(y_1[i, k]) for k in M)))
"""),
    ("sibling_loops", "N", """
for i in range(N):
    a = 0.0
    for j in range(M):
        a += x[i, j]
    y[i] = a
for i in range(N):
    a = 1.0
    for j in range(M):
        a = a * x[i, j]
    y[i] += a
""", """
for i in range(N):
    a_1 = 0.0
    for j in range(M):
        a_1 += x[i, j]
    y[i] = a_1
for i in range(N):
    a = 1.0
    for j in range(M):
        a = a * x[i, j]
    y[i] += a
"""),
    ("inside_a_loop", "N", """
for i in range(N):
    for j in range(M):
        a = x[i, j]
        y[i] += a * a
    for j in range(M):
        a = exp(x[i, j])
        y[i] += a
""", """
for i in range(N):
    for j in range(M):
        a_1 = x[i, j]
        y[i] += a_1 * a_1
    for j in range(M):
        a = exp(x[i, j])
        y[i] += a
"""),
    ("branches", "N", """
a : float = 0.0
if M > 2:
    a = x[0, 0]
else:
    a = x[0, 1]
y[i] = a * x[i, 0]
a = x[0, 2]
y[i] += a
""", """
a_1 : float = 0.0
if M > 2:
    a_1 = x[0, 0]
else:
    a_1 = x[0, 1]
y[i] = a_1 * x[i, 0]
a = x[0, 2]
y[i] += a
"""),
    ("what_a_loop_leaves", "N", """
a : float = 2.0
for j in range(M):
    a = x[0, j]
y[i] = a * x[i, 0]
""", None),
    ("looked_at_before_it_is_set", "N", """
a : float = 2.0
for j in range(M - 4):
    a = x[0, j]
a = a * 3.0
y[i] = a
""", """
a_1 : float = 2.0
for j in range(M - 4):
    a_1 = x[0, j]
a = a_1 * 3.0
y[i] = a
"""),
    ("around_a_loop", "N", """
a : float = 2.0
for i in range(N):
    y[i] = a
    a = x[i, 0]
    y[i] += a
    a = x[i, 1] * a
""", None),
    ("a_part", "N, M", """
y[i, j] = x[i, j] * 2.0
for i in range(N - 1):
    y[i + 1, j] = y[i, j] * x[i, j]
y[0, j] = x[1, j]
""", None),
    ("zeros_first", "N, M", """
y[i, j] += x[i, j]
y[i, j] = y[i, j] * y[i, j] + y[N - 1 - i, j]
""", """
y_1[i, j] += x[i, j]
y[i, j] = y_1[i, j] * y_1[i, j] + y_1[N - 1 - i, j]
"""),
)  # fmt: skip

COPIES: tuple[Case, ...] = (
    ("of_all_elements", "N, M", """
s : Tensor[N, M]
s[i, j] += x[i, j] * x[i, j]
s[0, j] += x[0, j]
y[i, j] = s[i, j]
y[1, j] *= 2.0
""", """
s[i, j] += x[i, j] * x[i, j]
s[0, j] += x[0, j]
s[1, j] = s[1, j] * 2.0
"""),
    ("of_what_began_as_an_argument", "N, M", """
s : Tensor[N, M] = x
s[0, j] += x[1, j]
y[i, j] = s[i, j]
""", """
s : Tensor[N, M] = x
s[0, j] += x[1, j]
"""),
    ("of_an_argument", "N, M", "y[i, j] = x[i, j]", None),
    ("of_a_view", "N, M", "s = reshape(x, [N, M])\ny[i, j] = s[i, j]", None),
    ("of_what_a_view_shows", "N, M", """
s : Tensor[N, M]
s[i, j] = 2.0 * x[i, j]
v = reshape(s, [M, N])
y[i, j] = s[i, j]
y[i, j] += v[j, i]
""", None),
    ("read_later", "N, M", """
s : Tensor[N, M]
s[i, j] = 2.0 * x[i, j]
y[i, j] = s[i, j]
y[i, j] *= s[i, M - 1 - j]
""", None),
    ("into_what_has_a_value", "N, M", """
s : Tensor[N, M]
s[i, j] = 2.0 * x[i, j]
z = 3.0
if M > 3:
    y[0, j] = x[0, j]
    z = y[0, 0]
y[i, j] = s[i, j]
y[i, j] *= z
""", None),
    ("in_another_order", "N, N", """
s : Tensor[N, N]
s[i, j] = x[i, 0] - x[j, 1]
y[i, j] = s[j, i]
""", None),
    ("in_a_loop", "N, M", """
s : Tensor[N, M]
for t in range(2):
    s[i, j] += x[i, j]
    y[i, j] = s[i, j]
    s[i, j] *= x[i, j]
""", None),
)  # fmt: skip
EVERY: list[tuple[Case, Pass]] = [(case, webs) for case in CASES]
EVERY += [(case, copies) for case in COPIES]
NAMES = [f"{change.__name__}_{case[0]}" for case, change in EVERY]


def _same(text: str, shape: tuple[int, int], change: Pass) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    for changed in (change, passes.optimise):
        compare(Point("f", text, "f", (x,)), Changed(text, verified(changed)))


@pytest.mark.parametrize(("case", "change"), EVERY, ids=NAMES)
def test_names(case: Case, change: Pass) -> None:
    _, result, body, wanted = case
    module = parse(program(X, result, body))
    after = change(module)
    assert change(after) == after
    if wanted is None:
        assert after == module
    else:
        lines = print_function(after.function("f")).strip().split("\n")[1:-1]
        found = [line[4:] for line in lines if " : " not in line or " = " in line]
        assert found == wanted.strip().split("\n")


@pytest.mark.parametrize("columns", [3, 4])
@pytest.mark.parametrize(("case", "change"), EVERY, ids=NAMES)
def test_values_and_derivatives(case: Case, change: Pass, columns: int) -> None:
    _, result, body, _ = case
    _same(with_derivative(program(X, result, body)), (3, columns), change)


def test_loops_that_begin_with_the_same_variable_are_index_statements() -> None:
    text = """
def f(q : In[Tensor[T, D]], k : In[Tensor[S, D]], v : In[Tensor[S, D]]) -> Tensor[T, D]:
    s : Tensor[T, S]
    y : Tensor[T, D]
    for i in range(T):
        for j in range(S):
            a = 0.0
            for c in range(D):
                a += q[i, c] * k[j, c]
            s[i, j] = a / sqrt(D)
    w = softmax(s, 1)
    for i in range(T):
        for c in range(D):
            a = 0.0
            for j in range(S):
                a += w[i, j] * v[j, c]
            y[i, c] = a
    return y
"""
    body = passes.canonical_form(parse(text)).function("f").body
    assert not any(isinstance(stmt, For) for stmt in body)
