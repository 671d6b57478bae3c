"""Elements that a choice wraps round a dimension: no loop is left, and one place of each end."""

from __future__ import annotations

import pytest
from sampled import diagonals
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative

import loma
from loma import passes
from loma.core.printer import print_function
from loma.frontend import parse

ROWS = "for i in range(N):\n        for j in range(M):\n            "
# name, body: all say the same of row i
CASES = {
    "next": ROWS + "y[i, j] = x[i, j + 1] if j + 1 < M else x[i, 0]",
    "before": ROWS + "y[i, j] = x[i, j - 1] if j > 0 else x[i, M - 1]",
    "both": ROWS + "\n            ".join((
        "l : float = x[i, j - 1] if j >= 1 else x[i, M - 1]",
        "r : float = x[i, j + 1] if j < M - 1 else x[i, 0]",
        "y[i, j] = (l + r) * x[i, j]",
    )),
    "rows": ROWS + "y[i, j] = x[i + 1, j] * 2.0 if i != N - 1 else x[0, j]",
    "branches": ROWS + "\n            ".join((
        "if j + 1 < M:", "    y[i, j] = x[i, j + 1]", "else:", "    y[i, j] = x[i, 0] * x[i, j]",
    )),
    "statement": "y[i, j] = x[i, j + 1] if j + 1 < M else x[i, 0]",
}  # fmt: skip


def _text(body: str) -> str:
    head = "def f(x : In[Tensor[N, M]]) -> Tensor[N, M]:\n    y : Tensor[N, M]\n    "
    return f"{head}{body}\n    return y\n"


@pytest.mark.parametrize("name", CASES)
def test_no_loop_is_left(name: str) -> None:
    shown = print_function(passes.canonical_form(parse(_text(CASES[name]))).function("f"))
    assert "for " not in shown, shown


@pytest.mark.parametrize(
    ("name", "shape"),
    diagonals(2, CASES, [(3, 4), (1, 1), (2, 1), (3, 2), (2, 0), (0, 2), (0, 0)]),
)
def test_values_and_derivatives(name: str, shape: tuple[int, int]) -> None:
    text = with_derivative(_text(CASES[name]))
    x = torch.randn(shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    point = Point(f"{name}{shape}", text, "f", (x,))
    for change in (passes.canonical.loops, passes.canonical_form, passes.optimise):
        compare(point, Changed(text, verified(change)))


def test_an_end_is_one_place() -> None:
    text = (
        "def f(x : In[Tensor[N, M]]) -> Tensor[N, M]:\n    y : Tensor[N, M]\n    {}\n    return y\n"
    )
    for test, place in (("not j + 1 < M", "M - 1"), ("j <= 0", "0"), ("not i < N - 1", "N - 1")):
        body = f"y[i, 0] += x[i, j] if {test} else 0.0"
        if "i" in test:
            body = f"y[0, j] += x[i, j] if {test} else 0.0"
        shown = print_function(passes.canonical.conditions(parse(text.format(body))).function("f"))
        read = f"x[{place}, j]" if "i" in test else f"x[i, {place}]"
        assert f"+= {read}" in shown, shown
        assert "else" not in shown
    for test in ("not j + 2 < M", "j <= 1", "j > 0"):  # more than one place, or none
        body = f"y[i, 0] += x[i, j] if {test} else 0.0"
        shown = print_function(passes.canonical.conditions(parse(text.format(body))).function("f"))
        assert body in shown


@pytest.mark.parametrize("shape", [(3, 5), (2, 0), (0, 3), (1, 1)])
def test_both_ends_in_torch(shape: tuple[int, int]) -> None:
    module = loma.compile(_text(CASES["both"]))
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(shape, dtype=torch.float64)
    right = (x.roll(1, 1) + x.roll(-1, 1)) * x
    found = module.f(x)
    torch.testing.assert_close(found, right)
    pair = [torch.autograd.grad(y, x, weight)[0] for y in (found, right)]
    torch.testing.assert_close(*pair)
