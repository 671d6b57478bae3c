"""Numbers that rounds add up or multiply are running reductions, and their loops are gone."""

from __future__ import annotations

import re

import numpy as np
import pytest
from sampled import one_in
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative

from loma import passes, pipeline
from loma.backends.interpreter import Interpreter
from loma.core.printer import print_function
from loma.frontend import parse
from loma.passes.canonical import accumulated, loops
from loma.passes.powers import powers

HEAD = """
def f(x : In[Tensor[N, T]], c : In[Tensor[T, 2]]) -> tuple[Tensor[N, T], Tensor[N, 2], Tensor[N]]:
    y : Tensor[N, T]
    o : Tensor[N, 2]
    z : Tensor[N]
    for n in range(N):
"""
RENDER = """
left : float = 1.0
for t in range(T):
    alpha : float = 1.0 - exp(-abs(x[n, t]))
    for d in range(2):
        o[n, d] += left * alpha * c[t, d]
    left *= 1.0 - alpha
"""
# name, body for row n, whether a loop of rounds is left
CASES: tuple[tuple[str, str, bool], ...] = (
    ("render", RENDER, False),
    ("read_behind", RENDER + "z[n] = left * x[n, 0] if T > 0 else left\n", False),
    ("read_after_the_sum", """
total : float = 0.5
for t in range(T):
    total += x[n, t]
    y[n, t] = tanh(total)
z[n] = total
""", False),
    ("before_and_after", """
p : float = 1.5
for t in range(T):
    y[n, t] = p * x[n, t]
    p = p * (1.0 - 0.5 * x[n, t])
    z[n] += p * c[t, 0]
""", False),
    ("the_same_in_each_round", """
p : float = 1.0
q : float = x[n, 0] if T > 0 else 1.0
for t in range(T):
    y[n, t] = p * q + x[n, t]
    p *= c[0, 0]
    z[n] += p * c[t, 1]
for t in reversed(range(T)):
    q *= p
    y[n, t] += q * c[t, 0]
z[n] += q
""", False),
    ("backwards", """
total : float = 0.0
for t in reversed(range(T)):
    y[n, t] = sin(total) + x[n, t]
    total = total - x[n, t] * c[t, 0]
""", False),
    ("sums_of_rows", """
total : float = 0.0
for t in range(T):
    for d in range(2):
        total += c[t, d] * x[n, t]
    y[n, t] = cos(total)
""", False),
    ("two_numbers", """
p : float = 1.0
s : float = 0.0
for t in range(T):
    w : float = p * x[n, t]
    s += w
    y[n, t] = s * w
    p *= 0.5 + x[n, t] * x[n, t]
""", False),
    ("product", """
p : float = 2.0
for t in range(T):
    p *= x[n, t] + 0.5
z[n] = p
""", False),
    ("greatest", """
m : float = -1.0
for t in range(T):
    m = max(m, x[n, t])
    y[n, t] = m * c[t, 0]
""", False),
    ("greatest_before", """
m : float = -1.0
for t in range(T):
    y[n, t] = m * c[t, 0]
    m = max(m, x[n, t])
""", True),
    ("recurrence", """
h : float = 0.0
for t in range(T):
    h = 0.5 * h + x[n, t]
    y[n, t] = h
""", True),
    ("of_itself", """
h : float = 0.1
for t in range(T):
    g : float = h * x[n, t]
    h += sin(g)
    y[n, t] = g
""", True),
    ("of_the_round_before", """
s : float = 0.1
g : float = 0.2
for t in range(T):
    s += g
    g = x[n, t] * x[n, t]
    y[n, t] = s
""", True),
    ("beside_a_recurrence", """
h : float = 0.0
s : float = 0.0
for t in range(T):
    s += x[n, t]
    h = 0.5 * h * s + x[n, t]
    y[n, t] = h
""", True),
)  # fmt: skip


# Statements of a function, whose numbers are floats; how many loops of rounds are left
ALONE: tuple[tuple[str, str, bool], ...] = (
    ("total", """
total : float = 0.0
for t in range(T):
    total += w[t]
    v[t] = tanh(total * w[0])
""", False),
    ("read_behind", """
total : float = 2.0
for t in range(T):
    share : float = w[t] * w[t]
    v[t] = total + share
    total = total - share
total = total * total
v[t] = v[t] * total
""", False),
    ("greatest", """
m : float = -0.5
for t in range(T):
    m = max(m, w[t])
    v[t] = m * w[t]
""", False),
    ("starts_elsewhere", """
p : float = sum(w[t] for t in T)
for t in reversed(range(T)):
    v[t] = p * w[t]
    p *= w[t] + 1.5
""", False),
    ("product", """
p : float = 1.5
for t in range(T):
    p *= 1.0 + w[t] * w[t]
v[t] = p * w[t]
""", False),
    ("least_of_sums", """
s : float = 0.0
for t in range(T):
    s = max(s + w[t], 0.0)
    v[t] = s
""", True),
    ("outer_product", """
s : Tensor[T, T]
for t in range(T):
    s[i, j] += w[i] * w[j] * w[t]
    v[t] = sum(s[t, j] for j in T)
""", True),
    ("of_a_count", """
k : int = 0
s : float = 0.0
for t in range(T):
    k += 2
    s += w[t] * k
    v[t] = s
""", True),
)  # fmt: skip


def _alone(body: str) -> str:
    lines = "".join(f"    {line}\n" for line in body.strip("\n").split("\n"))
    return f"def f(w : In[Tensor[T]]) -> Tensor[T]:\n    v : Tensor[T]\n{lines}    return v\n"


def _text(body: str) -> str:
    lines = "".join(f"        {line}\n" for line in body.strip("\n").split("\n"))
    return HEAD + lines + "    return y, o, z\n"


def _points() -> list[tuple[np.ndarray, np.ndarray]]:
    numbers = np.random.default_rng(3)
    shapes = ((3, 5), (2, 1), (2, 0), (0, 3), (1, 20))
    found = [(numbers.normal(size=(n, t)), numbers.normal(size=(t, 2))) for n, t in shapes]
    zeros = found[0][0].copy()
    zeros[1, 2] = 0.0
    return [*found, (zeros, found[0][1])]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_no_rounds_are_left(case: tuple[str, str, bool]) -> None:
    shown = print_function(accumulated(loops(parse(_text(case[1])))).function("f"))
    assert ("    for " in shown) == case[2], shown


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_values(case: tuple[str, str, bool]) -> None:
    before = parse(_text(case[1]))
    for args in _points():
        right = Interpreter(before).call("f", *args)
        rounds = accumulated(loops(before))
        for made in (rounds, passes.optimise(before), powers(passes.optimise(before))):
            found = Interpreter(verified(lambda _: made)(before)).call("f", *args)  # noqa: B023
            for got, wanted in zip(found, right, strict=True):
                np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("case", one_in(2, CASES), ids=lambda case: case[0])
def test_derivatives(case: tuple[str, str, bool]) -> None:
    text = with_derivative(_text(case[1]))
    for args in _points()[:1] + _points()[-1:]:
        point = Point(case[0], text, "f", tuple(map(torch.tensor, args)))
        compare(point, Changed(text, verified(passes.canonical_form)))
        compare(point, Changed(text, verified(passes.optimise)))


@pytest.mark.parametrize("case", ALONE, ids=lambda case: case[0])
def test_numbers_of_a_function(case: tuple[str, str, bool]) -> None:
    text = _alone(case[1])
    before = parse(text)
    shown = print_function(accumulated(before).function("f"))
    assert ("    for " in shown) == case[2], shown
    for size in (0, 1, 6, 40):
        w = np.random.default_rng(size).uniform(-1.0, 1.0, size)
        for change in (accumulated, passes.optimise):
            if size == 0 and case[0] in ("total", "greatest"):
                continue  # there is no w[0], but for no element
            (found,) = Interpreter(verified(change)(before)).call("f", w)
            (right,) = Interpreter(before).call("f", w)
            np.testing.assert_allclose(found, right, rtol=1e-12, atol=1e-14)
    point = Point(case[0], with_derivative(text), "f", (torch.linspace(-0.7, 0.9, 7).double(),))
    for derived in (passes.canonical_form, passes.optimise):
        compare(point, Changed(point.text, verified(derived)))


def test_derivatives_take_as_many_steps_as_rounds() -> None:
    """What rounds add up has a tensor, unless it is a product: the adjoint of a sum of choices
    along all earlier rounds would go through these for each round."""
    choice = """
total : float = 0.0
for t in range(T):
    total += max(x[n, t], c[t, 0])
    y[n, t] = cos(total)
"""
    text = with_derivative(_text(choice))
    shown = pipeline.stage_text(text, "schedule", "f__backward")
    assert not re.search(r"range\(T - .*_before", shown), shown
