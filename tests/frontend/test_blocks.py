"""Declarations in blocks of tensor functions: they start anew, and end with the block."""

from __future__ import annotations

import pytest
import torch
from oracle import Program, check

from loma import errors, pipeline
from loma.backends.interpreter import Interpreter
from loma.core.printer import print_module
from loma.frontend import parse

TEXT = """
def blocks(x : In[Tensor[N]], n : In[int]) -> tuple[Tensor[N], int]:
    y : Tensor[N] = x
    k : int
    for t in range(n):
        if t % 2 == 0:
            s : float
            s += y[i]
            y[i] = y[i] * s
        else:
            s : Tensor[N] = relu(y)
            s[i] += 0.5 * y[i]
            y[i] += s[i]
        for u in range(2):
            s : float
            k_here : int
            k_here += 1
            s += 0.5
            y[i] = y[i] * s
            k += k_here
    return y, k
"""


def _blocks(x: torch.Tensor, n: int) -> tuple[torch.Tensor, int]:
    y = x
    for t in range(n):
        y = y * y.sum() if t % 2 == 0 else y + torch.relu(y) + 0.5 * y
        y = y * 0.25
    return y, 2 * n


def test_what_a_block_declares_starts_anew() -> None:
    program = Program([TEXT], first=())
    x = torch.tensor([0.5, -1.5, 2.0], dtype=torch.float64)
    check(program, "blocks", [x, 3], _blocks)


def test_what_all_branches_declare_exists_behind_them() -> None:
    text = """
def branches(x : In[Tensor[N]], c : In[int]) -> float:
    if c == 0:
        s = 0.5
        v = 2.0 * x
    elif c > 2:
        s : float = 2.0 * x[1]
        v = x * x
    else:
        s = x[0]
        v = x + 1.0
    for t in range(N):
        if x[t] > 0.0:
            w = x[t]
        else:
            w = -2.0 * x[t]
        s = s + w * v[t]
    v[i] = 2.0 * v[i]
    s += v[i] * x[i]
    if c > 3:
        s = s * s
    return s
"""

    def reference(x: torch.Tensor, c: int) -> torch.Tensor:
        zero, other = torch.full_like(x[0], 0.5), (2.0 * x[1], x * x) if c > 2 else (x[0], x + 1.0)
        s, v = (zero, 2.0 * x) if c == 0 else other
        s = s + (torch.where(x > 0, x, -2.0 * x) * v).sum() + (2.0 * v * x).sum()
        return s * s if c > 3 else s

    program = Program([text], first=())
    x = torch.tensor([0.5, -1.5, 2.0], dtype=torch.float64)
    for c in (0, 1, 3, 4):
        check(program, "branches", [x, c], reference, libtorch=False)


def test_a_name_in_subscripts_stays_an_index_behind_branches() -> None:
    text = """
def f(x : In[Tensor[N]], c : In[int]) -> Tensor[N]:
    y : Tensor[N]
    if c:
        i = 0.5
    else:
        i = 1.0
    y[i] = x[i] * i
    return y
"""
    (y,) = Interpreter(parse(text)).call("f", torch.ones(3).numpy(), 1)
    assert y.tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("then", "other"), [("s = 0.0", "pass"), ("s = 0", "s = x[0]"), ("s = 0.0", "s = x")]
)
def test_what_one_branch_declares_ends_with_it(then: str, other: str) -> None:
    text = f"""
def f(x : In[Tensor[N]], c : In[int]) -> float:
    if c:
        {then}
    else:
        {other}
    return s
"""
    with pytest.raises(errors.UndeclaredVariable, match="variable 's' is not declared"):
        parse(text)


def test_a_name_is_an_index_elsewhere() -> None:
    text = """
def places(x : In[Tensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    for i in range(2):
        y[i] += x[i]
    for t in range(2):
        y[i] *= 3.0
        i = N - 1
        k = N - 2
        y[k] += x[i]
    y[k] += 2.0 * x[k]
    for k in reversed(range(1, N)):
        y[k] *= 1.0 + y[k - 1]
    return y * sum(x[k] for k in N)
"""

    def reference(x: torch.Tensor) -> torch.Tensor:
        y = torch.cat([x[:2], 0 * x[2:]])
        for _ in range(2):
            y = y * 3 + x[-1] * torch.eye(len(x), dtype=x.dtype)[-2]
        y = y + 2 * x
        return torch.cat([y[:1], y[1:] * (1 + y[:-1])]) * x.sum()

    program = Program([text], first=())
    x = torch.tensor([0.5, -1.5, 2.0], dtype=torch.float64)
    check(program, "places", [x], reference, libtorch=False)
    module = parse(text)
    assert parse(print_module(module)) == module


PLACES = """
def sorted_(a : In[Array[float, 4]]) -> float:
    b : Array[float, 4]
    for i in range(4):
        b[i] = a[i]
    for i in range(3):
        for j in range(3):
            if b[j] > b[j + 1]:
                b[j], b[j + 1] = b[j + 1], b[j]
    return b[0] + 2.0 * b[1] + 3.0 * b[2] + 4.0 * b[3]

def swaps(x : In[Tensor[N, M]], i : In[int]) -> Tensor[N, M]:
    y : Tensor[N, M]
    y = x * x
    a = 2.0
    for t in range(N - 1):
        y[t], y[t + 1] = y[t + 1], sin(y[t])
    y[i, 0], y[i + 1, 1], a = y[i + 1, 1] * a, sum(y), y[i, 0]
    return y * a
"""


def test_places_swap_their_values() -> None:
    program = Program([PLACES], first=())

    def reference(x: torch.Tensor, i: int) -> torch.Tensor:
        rows = list(x * x)
        for t in range(len(rows) - 1):
            rows[t], rows[t + 1] = rows[t + 1], torch.sin(rows[t])
        y = torch.stack(rows)
        a = y[i, 0]
        out = y.clone()
        out[i, 0] = y[i + 1, 1] * 2.0
        out[i + 1, 1] = y.sum()
        return out * a

    x = torch.tensor([[0.5, -1.5], [2.0, 0.7], [0.3, 1.1]], dtype=torch.float64)
    check(program, "swaps", [x, 1], reference)
    made = Interpreter(parse(PLACES))
    assert made.call("sorted_", [4.0, 1.0, 3.0, 2.0]) == (1.0 + 4.0 + 9.0 + 16.0,)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("y[0], y[1] = y[1], y[0], 2.0", "there are 2 places for 3 values"),
        ("y[i], z[i] = z[i], y[i]", "no variable can keep this value while others are assigned"),
    ],
)
def test_places_that_swap_nothing(body: str, message: str) -> None:
    with pytest.raises(errors.UserError) as caught:
        parse(f"def f(y : Out[Tensor[N]], z : Out[Tensor[N]]):\n    {body}\n")
    assert caught.value.message == message


def test_several_values_are_those_from_before() -> None:
    text = """
def series(x : In[float], n : In[int]) -> float:
    a : float = x
    b : float = 1.0
    for k in range(n):
        a, b = b, sin(a) + b
    return a

def turns(x : In[Tensor[N]], n : In[int]) -> Tensor[N]:
    a, b = x, x * 0.5
    s, t = 1.0, sum(x)
    for k in range(n):
        a, b = b, a * b + 0.1
        s, t = t, s + t
    c : Tensor[N]
    c[i] = series(x[i], n)
    return a + b * s * t + c
"""

    def reference(x: torch.Tensor, n: int) -> torch.Tensor:
        a, b, c, d = x, x * 0.5, x, x * 0 + 1
        s, t = torch.ones((), dtype=x.dtype), x.sum()
        for _ in range(n):
            a, b, c, d = b, a * b + 0.1, d, torch.sin(c) + d
            s, t = t, s + t
        return a + b * s * t + c

    x = torch.tensor([0.5, -1.5, 2.0], dtype=torch.float64)
    check(Program([text], first=()), "turns", [x, 3], reference, libtorch=False)


HEAD = "def f(x : In[Tensor[N]], n : In[int]) -> Tensor[N]:\n    y : Tensor[N] = x\n"


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        ("for t in range(n):\n        s : float = 1.0\n    y[i] += s", errors.UndeclaredVariable,
         "exists until the block ends"),
        ("for t in range(n):\n        s : float\n        s : int", errors.DuplicateVariable,
         "'s' is already a variable"),
        ("for t in range(n):\n        y : float", errors.DuplicateVariable, "'y' is already"),
        ("for t in range(n):\n        s : float\n    s : float", errors.DuplicateVariable,
         "'s' is declared in a block before"),
        ("for t in range(n):\n        k : int = t\n        s : Tensor[k]",
         errors.UnknownSizeVariable, "a size must be known when the function is called"),
    ],
)  # fmt: skip
def test_mistakes(body: str, error: type[errors.UserError], message: str) -> None:
    with pytest.raises(error) as caught:
        pipeline.parsed(f"{HEAD}    {body}\n    return y\n")
    assert message in caught.value.to_string()


def test_scalar_functions_declare_outermost() -> None:
    with pytest.raises(errors.DeclarationNotOutmostLevel):
        pipeline.parsed("def f(n : In[int]):\n    for t in range(n):\n        s : float\n")
