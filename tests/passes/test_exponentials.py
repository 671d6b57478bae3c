"""What a softmax is, in any words, becomes an exponential over its sum."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative
from sampled import name_of, one_in
from test_loops import program

from loma import passes
from loma.ad import split_pairs
from loma.backends.interpreter import Interpreter
from loma.core.printer import print_function
from loma.frontend import parse

X = "x : In[Tensor[N, M]]"
LARGEST = """
m : Tensor[N]
m[i] = max(x[i, j] for j in M)
"""
SUM = """
z : Tensor[N]
z[i] = sum(exp(x[i, j] - m[i]) for j in M)
"""
# name, body
SOFTMAX: tuple[tuple[str, str], ...] = (
    ("one_by_one", LARGEST + SUM + "y[i, j] = exp(x[i, j] - m[i] - log(z[i]))"),
    ("together", LARGEST + SUM + "y[i, j] = exp(x[i, j] - (log(z[i]) + m[i]))"),
    ("in_place", LARGEST + SUM + "y[i, j] = exp(-(log(z[i]) - (x[i, j] - m[i])))"),
    ("named", LARGEST + SUM + """
l : Tensor[N]
l[i] = m[i] + log(z[i])
y[i, j] = exp(x[i, j] - l[i])
"""),
    ("shifted_under_a_name", """
s : Tensor[N, M]
s[i, j] = x[i, j] - max(x[i, k] for k in M)
y[i, j] = exp(s[i, j] - log(sum(exp(s[i, k]) for k in M)))
"""),
    ("exponentials_named", LARGEST + """
e : Tensor[N, M]
z : Tensor[N]
e[i, j] = exp(x[i, j] - m[i])
z[i] = sum(e[i, j] for j in M)
y[i, j] = exp(x[i, j] - m[i] - log(z[i]))
"""),
    ("reciprocal", LARGEST + """
e : Tensor[N, M]
r : Tensor[N]
e[i, j] = exp(x[i, j] - m[i])
r[i] = 1.0 / sum(e[i, j] for j in M)
y[i, j] = r[i] * e[i, j]
"""),
    ("logsumexp", "y = exp(x - logsumexp(x, [1], keepdim=True))"),
    ("scaled", """
m : Tensor[N]
z : Tensor[N]
m[i] = max(x[i, j] for j in M) / 4.0
z[i] = sum(exp(x[i, j] / 4.0 - m[i]) for j in M)
y[i, j] = exp(x[i, j] / 4.0 - m[i] - log(z[i]))
"""),
    ("rows", "for i in range(N):\n    y[i] = exp(x[i] - logsumexp(x[i], [0]))"),
    ("log_softmax", "y = exp(log_softmax(x, 1))"),
    ("log_softmax_named", "l = log_softmax(x, 1)\ny = exp(l)"),
    ("across", "y = exp(x - logsumexp(x, [0], keepdim=True))"),
)  # fmt: skip
OTHERS: tuple[tuple[str, str], ...] = (
    ("no_maximum", """
z : Tensor[N]
z[i] = sum(exp(x[i, j]) for j in M)
y[i, j] = exp(x[i, j] - log(z[i]))
"""),
    ("another_maximum", """
m : Tensor[N]
m[i] = max(x[i, j] for j in range(M // 2 + 1))
""" + SUM + "y[i, j] = exp(x[i, j] - m[i] - log(z[i]))"),
    ("another_sum", LARGEST + """
z : Tensor[N]
z[i] = sum(exp(x[i, j] - m[i]) for j in range(M // 2 + 1))
y[i, j] = exp(x[i, j] - m[i] - log(z[i]))
"""),
    ("the_maximum_of_others", LARGEST + SUM + """
y[i, j] = exp(x[i, j] - x[i, 0] - log(z[i]))
"""),
    ("changed", LARGEST + SUM + """
m[i] = m[i] + 1.0
y[i, j] = exp(x[i, j] - m[i] - log(z[i]))
"""),
    ("changed_in_rounds", LARGEST + SUM + """
for t in range(2):
    y[i, j] = y[i, j] + exp(x[i, j] - m[i] - log(z[i]))
    z[i] = z[i] + 1.0
"""),
    ("twice_the_logarithm", LARGEST + SUM + """
y[i, j] = exp(x[i, j] - m[i] - 2.0 * log(z[i]))
"""),
)  # fmt: skip
ALL = (*SOFTMAX, *OTHERS)
LOGARITHMS: tuple[tuple[str, str], ...] = (
    ("operators", "y = log(softmax(x, 1))"),
    ("statements", LARGEST + SUM + "y[i, j] = log(exp(x[i, j] - m[i]) / z[i])"),
    (
        "at_an_index",
        """
p : Tensor[N, M] = softmax(x, 1)
y[i, j] = log(p[i, float2int(x[i, j]) % M])
""",
    ),
    (
        "in_a_loop",
        """
p : Tensor[N, M] = softmax(x, 1)
for i in range(N):
    for j in range(M):
        q : float = p[i, j]
        y[i, j] = log(q)
""",
    ),
)

BESIDE: tuple[tuple[str, str], ...] = (
    ("operators", "y = softmax(2.0 * x, 1) * log_softmax(2.0 * x, 1)"),
    ("the_logarithm_first", """
l = log_softmax(x, 1)
p : Tensor[N, M] = softmax(x, 1)
y[i, j] = p[i, j] * l[i, j]
"""),
    ("of_elements", "p = softmax(x, 1)\ny[i, j] = p[i, j] * log(p[i, j])"),
)  # fmt: skip
APART: tuple[tuple[str, str], ...] = (
    ("of_other_tensors", "y = softmax(x, 1) * log_softmax(2.0 * x, 1)"),
    ("along_others", "y = softmax(x, 1) * log_softmax(x, 0)"),
    ("changed", """
z : Tensor[N, M]
z[i, j] = x[i, j]
p = softmax(z, 1)
z[i, j] = 2.0 * x[i, j]
y = p * log_softmax(z, 1)
"""),
)  # fmt: skip


def text(body: str) -> str:
    return program(X, "N, M", body)


@pytest.mark.parametrize("case", SOFTMAX, ids=lambda case: case[0])
def test_softmax_has_one_exponential(case: tuple[str, str]) -> None:
    shown = print_function(passes.optimise(parse(text(case[1]))).function("f"))
    assert shown.count("exp(") == 1
    assert "log(" not in shown


@pytest.mark.parametrize("case", SOFTMAX, ids=lambda case: case[0])
def test_the_backward_part_has_none(case: tuple[str, str]) -> None:
    module, _ = split_pairs(passes.canonical_form(parse(text(case[1]))))
    backward = passes.optimise(module).function("f__backward")
    assert "exp(" not in print_function(backward)
    assert "x" not in [param.name for param in backward.params]


@pytest.mark.parametrize("case", LOGARITHMS, ids=lambda case: case[0])
def test_logarithms_of_shares_need_no_exponential(case: tuple[str, str]) -> None:
    shown = print_function(passes.optimise(parse(text(case[1]))).function("f"))
    assert (shown.count("exp("), shown.count("log(")) == (1, 1)  # of the sum, and the sum's
    x = np.array([[800.0, 1.0, -800.0], [1.0, 2.0, 0.5], [math.inf, 1.0, 2.0]])
    (logs,) = Interpreter(parse(text("y = log_softmax(x, 1)"))).call("f", x)
    if case[0] == "at_an_index":
        x, logs = x[:2], np.take_along_axis(logs[:2], np.array([[2, 1, 1], [1, 2, 0]]), 1)
    (found,) = Interpreter(passes.optimise(parse(text(case[1])))).call("f", x)
    np.testing.assert_allclose(found, logs, 1e-12)


@pytest.mark.parametrize("case", BESIDE, ids=lambda case: case[0])
def test_a_softmax_beside_its_logarithm_has_the_same_sum(case: tuple[str, str]) -> None:
    shown = print_function(passes.optimise(parse(text(case[1]))).function("f"))
    assert "softmax(" not in shown
    assert (shown.count("exp("), shown.count("log("), shown.count("max(")) == (1, 1, 1)


@pytest.mark.parametrize("case", APART, ids=lambda case: case[0])
def test_a_softmax_beside_another_logarithm(case: tuple[str, str]) -> None:
    assert "= softmax(" in print_function(
        passes.canonical.softmax(parse(text(case[1]))).functions[0]
    )


@pytest.mark.parametrize("case", OTHERS, ids=lambda case: case[0])
def test_what_is_left_alone(case: tuple[str, str]) -> None:
    module = parse(text(case[1]))
    assert passes.canonical.exponentials(module) == module


@pytest.mark.parametrize("case", one_in(3, (*ALL, *LOGARITHMS, *BESIDE, *APART)), ids=name_of)
def test_values_and_derivatives(case: tuple[str, str]) -> None:
    name, body = case
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    for change in (passes.canonical.exponentials, passes.canonical_form, passes.optimise):
        compare(Point(name, with_derivative(text(body)), "f", (x,)), Changed(
            with_derivative(text(body)), verified(change)))  # fmt: skip


@pytest.mark.parametrize("case", ALL, ids=lambda case: case[0])
def test_what_is_not_finite(case: tuple[str, str]) -> None:
    inf, nan = math.inf, math.nan
    rows = [[1.0, 2.0, 3.0], [-inf, 2.0, 3.0], [inf, 2.0, -inf], [-inf] * 3, [inf] * 3,
            [nan, 1.0, inf], [-800.0, -900.0, -1000.0], [800.0, 1.0, -800.0]]  # fmt: skip
    before = parse(text(case[1]))
    for x in (np.array(rows), np.zeros((2, 0)) if case[0] != "the_maximum_of_others" else rows):
        try:
            (right,) = Interpreter(before).call("f", np.array(x))
        except Exception:  # the maximum of nothing
            continue
        for change in (passes.canonical.exponentials, passes.optimise):
            (found,) = Interpreter(change(before)).call("f", np.array(x))
            np.testing.assert_allclose(found, right, 1e-12)


def test_a_softmax_of_a_row_stands_beside_a_matrix() -> None:
    source = """
def f(x : In[Tensor[N, M]], w : In[Tensor[M]]) -> Tensor[N, M]:
    return log_softmax(w, 0) - x * x + softmax(w, 0)
"""
    shown = print_function(passes.canonical_form(parse(source), every=True).function("f"))
    assert "softmax(" not in shown
    x, w = np.random.default_rng(1).normal(size=(3, 4)), np.arange(4.0)
    (found,) = Interpreter(passes.canonical_form(parse(source), every=True)).call("f", x, w)
    (expected,) = Interpreter(parse(source)).call("f", x, w)
    np.testing.assert_allclose(found, expected)
