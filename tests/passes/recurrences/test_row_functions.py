"""Rows of their own number of rounds are calls of a function of numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative

import loma
from loma import passes
from loma.backends.interpreter import Interpreter
from loma.core.printer import print_function
from loma.frontend import parse

HEAD = """
def f(x : In[Tensor[N, 3]], c : In[Tensor[K]], w : In[int]) -> tuple[Tensor[N], Tensor[N]]:
    y : Tensor[N]
    z : Tensor[N]
"""
ROOT = """
for n in range(N):
    a : float = x[n, 0] * x[n, 0] + 1.0
    s : float = a
    while (abs(s * s - a) > 1e-5 * a, max_iter := 50):
        s = 0.5 * (s + a / s)
"""
# name, body, whether the loop over rows stays
CASES: tuple[tuple[str, str, bool], ...] = (
    ("newton", ROOT + "    y[n] = s\n", False),
    ("two_results", ROOT.replace("    while", "    k : int = 0\n    while") + """
        k += 1
    y[n] = s * x[n, 1]
    z[n] = k
""", False),
    ("elements_of_rounds", """
for n in range(N):
    t : float = 0.5
    k : int = 0
    while (t < 4.0 and k < 20, max_iter := 20):
        total : float = 0.3 * w + 1.0
        for d in range(3):
            p : float = x[n, d] + 0.1 * t
            total += p * p
        t += sqrt(total)
        k += 1
    y[n] = t
""", False),
    ("its_own_element", """
for n in range(N):
    y[n] = x[n, 0]
    while (y[n] < 2.0, max_iter := 40):
        y[n] = y[n] * 0.5 + 1.25
""", False),
    ("where_a_branch_is_taken", """
z[n] = x[n, 1]
for n in range(N):
    if x[n, 0] > 0.0:
        s : float = x[n, 0]
        while (s < 3.0, max_iter := 60):
            s = s * 1.5 + 0.1
        z[n] = s * x[n, 2]
""", False),
    ("a_loop_around", """
for n in range(N):
    s : float = x[n, 0]
    for k in range(4):
        while (abs(s) > 1.0 + k, max_iter := 30):
            s = 0.5 * s + w * 0.1
    y[n] = s
""", False),
    ("other_rows", """
for n in range(N):
    s : float = x[n, 0] if n == 0 else y[n - 1]
    while (s < 2.0, max_iter := 30):
        s = s + 0.7
    y[n] = s - 2.0
""", True),
    ("goes_on", """
s : float = 0.1
for n in range(N):
    while (s < n, max_iter := 30):
        s = s + 0.7 + x[n, 0] * x[n, 0]
    y[n] = s
""", True),
    ("elements_that_move", """
for n in range(N):
    k : int = 0
    s : float = 0.0
    while (k < K and s < 1.0, max_iter := 30):
        s = s + c[k] * c[k]
        k = k + 1
    y[n] = s * x[n, 0]
""", True),
    ("what_may_not_exist", """
for n in range(N):
    s : float = 0.0
    k : int = 0
    while (k < min(K - 3, 2), max_iter := 30):
        s = s + c[3] * x[n, 0]
        k = k + 1
    y[n] = s
""", True),
)  # fmt: skip


def _text(body: str) -> str:
    return (
        HEAD
        + "".join(f"    {line}\n" for line in body.strip("\n").split("\n"))
        + "    return y, z\n"
    )


def _args(rows: int, columns: int) -> tuple[np.ndarray, np.ndarray, int]:
    numbers = np.random.default_rng(11)
    return numbers.standard_normal((rows, 3)), numbers.standard_normal(columns), 2


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_no_rows_are_left(case: tuple[str, str, bool]) -> None:
    shown = print_function(passes.canonical_form(parse(_text(case[1]))).function("f"))
    assert ("for n in range(N)" in shown) == ("while" in shown) == case[2], shown


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_values(case: tuple[str, str, bool]) -> None:
    before = parse(_text(case[1]))
    for rows, columns in ((5, 4), (1, 5), (0, 4), (3, 0)):
        args = _args(rows, columns)
        right = Interpreter(before).call("f", *args)
        found = Interpreter(verified(passes.optimise)(before)).call("f", *args)
        for got, wanted in zip(found, right, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-12)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_derivatives(case: tuple[str, str, bool]) -> None:
    text = with_derivative(_text(case[1]))
    x, c, w = _args(4, 5)
    args = (torch.tensor(x), torch.tensor(c), w)
    compare(Point(case[0], text, "f", args), Changed(text, verified(passes.canonical_form)))


def test_names_of_the_program_stay() -> None:
    other = "def f__row(x : In[float]) -> float:\n    return x\n\n\n"
    module = passes.canonical_form(parse(other + _text(CASES[0][1]).lstrip()))
    assert [function.name for function in module.functions] == ["f__row", "f__row_1", "f"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_in_torch(dtype: torch.dtype) -> None:
    module = loma.compile(_text(CASES[1][1]))
    x, c, w = _args(70, 1)
    leaf = torch.tensor(x, dtype=dtype, requires_grad=True)
    y, _ = module.f(leaf, torch.tensor(c, dtype=dtype), w)
    right = torch.sqrt(leaf[:, 0].square() + 1.0) * leaf[:, 1]
    torch.testing.assert_close(y, right, rtol=1e-4, atol=1e-4)
    (found,) = torch.autograd.grad(y.sum(), leaf)
    wanted = torch.autograd.grad(right.sum(), leaf)[0]
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)


def test_too_many_rounds() -> None:
    module = loma.compile(_text(CASES[0][1].replace("max_iter := 50", "max_iter := 3")))
    x = torch.tensor([[0.1, 0.0, 0.0], [30.0, 0.0, 0.0]], dtype=torch.float64)
    with pytest.raises(RuntimeError, match=r"^f: line 8: the while loop passed its max_iter of 3"):
        module.f(x, torch.zeros(1, dtype=torch.float64), 0)
