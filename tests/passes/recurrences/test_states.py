"""States whose rows but the first are the result."""

from __future__ import annotations

import pytest
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative

from loma import passes
from loma.frontend import parse
from loma.passes.canonical import states

# name, the state's rows, its loop and copy, whether it goes
CASES = (
    (
        "one_row_more",
        "T + 1",
        "for t in range(T):\n        h[t + 1, n] = x[t, n] * h[t, n] + x[t, 0]\n"
        "    y[t, n] = h[t + 1, n]",
        True,
    ),
    (
        "two_rows_more",
        "T + 2",
        "for t in range(T):\n        h[t + 2, n] = x[t, n] * h[t, n] + sin(h[t + 1, n]) + 1.0\n"
        "    y[t, n] = h[t + 2, n]",
        True,
    ),
    (
        "beside_others",
        "T + 1",
        "for t in range(T):\n        s += x[t, 0]\n        h[t + 1, n] = cos(h[t, n]) + s\n"
        "    y[t, n] = h[t + 1, n]",
        True,
    ),
    (
        "first_rows",
        "T + 1",
        "for t in range(T):\n        h[t + 1, n] = x[t, n] * h[t, n] + 1.0\n"
        "    y[t, n] = h[t + 0, n]",
        False,
    ),
    (
        "first_row_is_set",
        "T + 1",
        "h[0, n] = x[0, n]\n    for t in range(T):\n        h[t + 1, n] = x[t, n] * h[t, n]\n"
        "    y[t, n] = h[t + 1, n]",
        False,
    ),
    (
        "read_again",
        "T + 1",
        "for t in range(T):\n        h[t + 1, n] = x[t, n] * h[t, n] + 1.0\n"
        "    y[t, n] = h[t + 1, n]\n    y[t, n] += h[t + 0, n]",
        False,
    ),
    (
        "another_column",
        "T + 1",
        "for t in range(T):\n        h[t + 1, n] = x[t, n] + h[t, N - 1 - n]\n"
        "    y[t, n] = h[t + 1, n]",
        False,
    ),
    (
        "first_row_again",
        "T + 1",
        "for t in range(T):\n        h[t + 1, n] = x[t, n] + h[t, n] + h[0, n]\n"
        "    y[t, n] = h[t + 1, n]",
        False,
    ),
    (
        "backwards",
        "T + 1",
        "for t in reversed(range(T)):\n        h[t + 1, n] = x[t, n] + h[t, n]\n"
        "    y[t, n] = h[t + 1, n]",
        False,
    ),
    (
        "shorter",
        "T + 1",
        "for t in range(T - 1):\n        h[t + 1, n] = x[t, n] + h[t, n]\n"
        "    y[t, n] = h[t + 1, n]",
        False,
    ),
)

# name, the loop and what is returned, whether the state goes
RETURNED = (
    ("without_first", "h[t + 1, n] = x[t, n] * h[t, n] + x[t, 0]", "h[1:]", "Tensor[T, N]", True),
    ("whole", "h[t + 1, n] = x[t, n] * h[t, n] + x[t, 0]", "h", "Tensor[T + 1, N]", False),
    ("without_last", "h[t + 1, n] = x[t, n] * h[t, n]", "h[:T]", "Tensor[T, N]", False),
    ("some", "h[t + 1, n] = x[t, n] + h[t, n]", "h[1:3]", "Tensor[2, N]", False),
    (
        "every_second",
        "h[t + 1, n] = x[t, n] + h[t, n]",
        "h[1::2]",
        "Tensor[(T + 1) // 2, N]",
        False,
    ),
)


@pytest.mark.parametrize("case", RETURNED, ids=lambda case: case[0])
def test_returned(case: tuple[str, str, str, str, bool]) -> None:
    _, step, value, result, goes = case
    head = f"def f(x : In[Tensor[T, N]]) -> {result}:\n"
    body = f"    h : Tensor[T + 1, N]\n    for t in range(T):\n        {step}\n    return {value}\n"
    _compare(head + body, goes, (2, 3, 5))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_states(case: tuple[str, str, str, bool]) -> None:
    _, rows, body, goes = case
    declared = f"    s : float = 0.0\n    h : Tensor[{rows}, N]\n    y : Tensor[T, N]\n"
    head = "def f(x : In[Tensor[T, N]]) -> Tensor[T, N]:\n"
    text = f"{head}{declared}    {body}\n    return y\n"
    _compare(text, goes, (1, 2, 4))


def _compare(text: str, goes: bool, lengths: tuple[int, ...]) -> None:
    """Checks what the pass does, and that values and gradients stay, for some lengths of x."""
    module = parse(text)
    assert (states(module) != module) == goes
    assert states(states(module)) == states(module)
    whole = with_derivative(text)
    values = torch.Generator().manual_seed(5)
    for steps in lengths:
        x = torch.randn(steps, 3, generator=values, dtype=torch.float64)
        for change in (states, passes.optimise):
            compare(Point("f", whole, "f", (x,)), Changed(whole, verified(change)))
