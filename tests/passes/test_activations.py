"""Activations that are written out get their names, and logarithms of shares are finite."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative
from sampled import name_of, one_in

from loma import passes
from loma.backends.interpreter import Interpreter
from loma.core.printer import print_function
from loma.frontend import parse

ABOVE = "log1p(exp(-abs(x[i, j])))"
# name, statements, what is left of them
NAMED: tuple[tuple[str, str, str], ...] = (
    ("sigmoid", "y[i, j] = 1.0 / (1.0 + exp(-x[i, j]))", "sigmoid(x[i, j])"),
    ("mirrored", "y[i, j] = 1.0 / (exp(x[i, j]) + 1.0)", "sigmoid(-x[i, j])"),
    ("share", "y[i, j] = exp(x[i, j]) / (1.0 + exp(x[i, j]))", "sigmoid(x[i, j])"),
    ("silu", "y[i, j] = x[i, j] / (1.0 + exp(-x[i, j]))", "x[i, j] * sigmoid(x[i, j])"),
    ("by_statements", """
e : Tensor[N, M]
e[i, j] = exp(-x[i, j])
y[i, j] = 1.0 / (1.0 + e[i, j])
""", "sigmoid(x[i, j])"),
    ("by_loops", """
for i in range(N):
    for j in range(M):
        s : float = 1.0 + exp(-x[i, j])
        y[i, j] = 1.0 / s
""", "sigmoid(x[i, j])"),
    ("tanh", "y[i, j] = (exp(x[i, j]) - exp(-x[i, j])) / (exp(-x[i, j]) + exp(x[i, j]))",
     "tanh(x[i, j])"),
    ("softplus", f"y[i, j] = max(x[i, j], 0.0) + {ABOVE}", "softplus(x[i, j])"),
    ("terms_between", f"y[i, j] = {ABOVE} - x[i, j] * 2.0 + relu(x[i, j])",
     "softplus(x[i, j]) - x[i, j] * 2.0"),
    ("taken_away", f"y[i, j] = 1.0 - max(-x[i, j], 0.0) - {ABOVE}", "1.0 - softplus(-x[i, j])"),
    ("chosen", f"y[i, j] = {ABOVE} + (-x[i, j] if x[i, j] < 0.0 else 0.0)", "softplus(-x[i, j])"),
    ("added_in_a_branch", """
for i in range(N):
    for j in range(M):
        s : float = log1p(exp(-abs(x[i, j])))
        if x[i, j] < 0.0:
            s += -x[i, j]
        y[i, j] = s * 2.0
""", "softplus(-x[i, j]) * 2.0"),
    ("undone", "s = exp(0.5 * x)\ny[i, j] = log(s[i, j])", "0.5 * x[i, j]"),
    ("power", "y[i, j] = (1.0 + x[i, j] ** 2) ** 0.75", "pow(1.0 + x[i, j] ** 2, 0.75)"),
    ("power_of_logarithm", "y[i, j] = exp(-0.75 * log(1.0 + x[i, j] ** 2))",
     "pow(1.0 + x[i, j] ** 2, -0.75)"),
    ("square", "y[i, j] = pow(x[i, j] - 1.0, 2.0)", "(x[i, j] - 1.0) ** 2"),
    ("logarithm_of_cosh", "y[i, j] = log(cosh(x[i, j]))",
     f"x[i, j] + (softplus(-2.0 * x[i, j]) - {math.log(2.0)})"),
    ("logarithm", "y[i, j] = log(1.0 + exp(2.0 * x[i, j]))", "softplus(2.0 * x[i, j])"),
    ("precise_logarithm", "y[i, j] = log1p(exp(x[i, j]))", "softplus(x[i, j])"),
    ("log_sigmoid", "y = log(sigmoid(x))", "-softplus(-x[_i0, _i1])"),
    ("log_of_the_other", "p = sigmoid(x)\ny[i, j] = log(1.0 - p[i, j])", "-softplus(x[i, j])"),
)  # fmt: skip
PLAIN: tuple[tuple[str, str], ...] = (
    ("other_sign", f"y[i, j] = max(x[i, j], 0.0) - {ABOVE}"),
    ("other_number", f"y[i, j] = max(x[i, 0], 0.0) + {ABOVE}"),
    ("cut_elsewhere", f"y[i, j] = max(x[i, j], 1.0) + {ABOVE}"),
    ("two", "y[i, j] = 1.0 / (2.0 + exp(-x[i, j]))"),
    ("of_a_difference", "y[i, j] = 1.0 / (1.0 - exp(-x[i, j]))"),
    ("not_odd", "y[i, j] = (exp(x[i, j]) - exp(-x[i, 0])) / (exp(x[i, j]) + exp(-x[i, 0]))"),
)


def text(body: str) -> str:
    lines = "".join(f"    {line}\n" for line in body.strip().split("\n"))
    return (
        f"def f(x : In[Tensor[N, M]]) -> Tensor[N, M]:\n    y : Tensor[N, M]\n{lines}    return y\n"
    )


def optimised(body: str) -> str:
    return print_function(passes.optimise(passes.canonical_form(parse(text(body)))).function("f"))


@pytest.mark.parametrize("case", NAMED, ids=name_of)
def test_what_is_left(case: tuple[str, str, str]) -> None:
    _, body, left = case
    shown = optimised(body)
    assert f"] = {left}\n" in shown
    assert "exp(" not in shown


@pytest.mark.parametrize("case", PLAIN, ids=name_of)
def test_what_stays(case: tuple[str, str]) -> None:
    assert "exp(" in optimised(case[1])


@pytest.mark.parametrize("case", one_in(3, (*NAMED, *PLAIN)), ids=name_of)
def test_values_and_derivatives(case: tuple[str, ...]) -> None:
    source = with_derivative(text(case[1]))
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    for change in (passes.canonical_form, passes.optimise):
        compare(Point(case[0], source, "f", (x,)), Changed(source, verified(change)))


@pytest.mark.parametrize("case", NAMED, ids=name_of)
def test_it_overflows_nowhere(case: tuple[str, str, str]) -> None:
    """And is what is written out where that is a number."""
    x = np.array([[-800.0, -90.0, -1.0, 0.0], [1.0, 90.0, 800.0, math.nan]])
    module = parse(text(case[1]))
    (found,) = Interpreter(passes.optimise(module)).call("f", x)
    with np.errstate(all="ignore"):
        (plain,) = Interpreter(module).call("f", x)
    assert np.isfinite(found.ravel()[:-1]).all()
    assert np.isnan(found[1, 3])
    fine = np.isfinite(plain)
    np.testing.assert_allclose(found[fine], plain[fine], 1e-12, 1e-12)


SOFTMAX: tuple[tuple[str, str], ...] = (
    ("operators", "y = log(softmax(x, 1))"),
    ("named", "p = softmax(x, 1)\ny = log(p)"),
    ("elements", "p = softmax(x * 1.0, 1)\ny[i, j] = log(p[i, j])"),
    ("rows", "for i in range(N):\n    p : Tensor[M] = softmax(x[i], 0)\n    y[i, j] = log(p[j])"),
    ("beside_shares", "p = softmax(x, 1)\ny[i, j] = log(p[i, j]) * p[i, j] * 0.0 + log(p[i, j])"),
)  # fmt: skip


@pytest.mark.parametrize("case", SOFTMAX, ids=name_of)
def test_logarithms_of_softmax(case: tuple[str, str]) -> None:
    """In inference, and where derivatives are made."""
    canonical = passes.canonical_form(parse(text(case[1])))
    assert "log_softmax(" in print_function(
        passes.canonical.softmax(parse(text(case[1]))).function("f")
    )
    x = np.array([[0.0, -300.0, -800.0], [1.0, 2.0, 0.5]])
    right = torch.log_softmax(torch.tensor(x), 1).numpy()
    for module in (canonical, passes.optimise(canonical)):
        (found,) = Interpreter(module).call("f", x)
        np.testing.assert_allclose(found, right, 1e-12)


@pytest.mark.parametrize("case", one_in(2, SOFTMAX), ids=name_of)
def test_derivatives_of_logarithms_of_softmax(case: tuple[str, str]) -> None:
    source = with_derivative(text(case[1]))
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    compare(Point(case[0], source, "f", (x,)), Changed(source, verified(passes.canonical_form)))


def test_what_was_overwritten_is_another_softmax() -> None:
    body = "p = softmax(x, 1)\ny = log(p)\np[i, j] = 1.0\ny[i, j] += log(p[i, j])"
    x = np.array([[0.0, -300.0, 1.0]])
    module = parse(text(body))
    (found,) = Interpreter(passes.canonical_form(module)).call("f", x)
    np.testing.assert_allclose(found, Interpreter(module).call("f", x)[0], 1e-12)


BOTH_WAYS = """
def f(x : In[Tensor[N]], t : In[Tensor[N]]) -> tuple[Tensor[N], float]:
    y : Tensor[N]
    y[i] = t[i] * softplus({0})
    z : float
    z += softplus({1}) * t[i] * t[i]
    return y, z
"""


@pytest.mark.parametrize("ends", [("x[i]", "-x[i]"), ("-x[i]", "x[i]"), ("x[i]", "x[i]")])
def test_softplus_of_a_number_and_of_its_opposite_have_one_logarithm(ends: tuple[str, str]) -> None:
    program = with_derivative(BOTH_WAYS.format(*ends))
    shown = print_function(passes.optimise(parse(program)).function("f"))
    assert shown.count("log1p(exp(-abs(x[i])))") == (ends[0] != ends[1])
    x = torch.tensor([-900.0, -20.0, -1e-3, 0.0, 0.5, 20.0, 900.0], dtype=torch.float64)
    point = Point("f", program, "f", (x, torch.cos(x)))
    compare(point, Changed(program, verified(passes.optimise)))
