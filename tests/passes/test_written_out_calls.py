"""Calls of scalar functions, replaced by what the functions compute."""

from __future__ import annotations

import pytest
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative

from loma import passes, pipeline
from loma.core.walk import calls
from loma.frontend import parse
from loma.passes.canonical import scalar_calls

# What a function of x, y and k does, and whether it is replaced
FUNCTIONS = {
    "branches": (
        "z : float\nif x > 1.0:\n    z = x\nelif x < y:\n    z = -y\n"
        "else:\n    z = x * y\nreturn z",
        True,
    ),
    "one_branch": ("z : float = x\nif x > y:\n    z = 2.0 * y\nreturn z * z", True),
    "added_to": ("z : float = x\nif x > y:\n    z += sin(y)\nreturn z", True),
    "nothing_at_first": ("z : float\nif k > 1:\n    z += x\nreturn z + y", True),
    "an_int": ("n : int = k\nif x > y:\n    n = 2 * k\nreturn x * n", True),
    "an_argument_changes": ("t : float = x\nif t > y:\n    t = y\nt = t * x\nreturn t", True),
    "both_change": (
        "a : float = x\nb : float = y\nif x < y:\n    a = y\n    b = x\nreturn a - b",
        True,
    ),
    "branch_in_a_branch": (
        "z : float\nif x > 0.0:\n    if y > 0.0:\n        z = x\n    else:\n        z = y * y\n"
        "else:\n    z = exp(x)\nreturn z",
        True,
    ),
    "a_loop": ("z : float = x\nfor i in range(3):\n    z = z * y\nreturn z", False),
    # What is not looked at where a branch is taken would not be refused.
    "may_fail": ("n : int = 6 // k\nz : float = x\nif x > y:\n    z = x * n\nreturn z", False),
}  # fmt: skip


def _program(body: str) -> str:
    indented = body.replace("\n", "\n    ")
    return (
        "def g(x : In[float], y : In[float], k : In[int]) -> float:\n    "
        f"{indented}\n\n"
        "def f(x : In[Tensor[N]], y : In[Tensor[N]]) -> Tensor[N]:\n"
        "    z : Tensor[N]\n    z[i] = g(x[i], y[i], i + 1)\n    return z\n"
    )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    body, goes = FUNCTIONS[name]
    text = _program(body)
    called = calls(scalar_calls(parse(text)).function("f").body)
    assert any(True for _ in called) != goes
    generator = torch.Generator().manual_seed(1)
    args = tuple(torch.randn(9, generator=generator, dtype=torch.float64) for _ in range(2))
    whole = with_derivative(text)
    for change in (scalar_calls, passes.optimise):
        compare(Point("f", whole, "f", args), Changed(whole, verified(change)))


def test_a_call_of_a_sum_is_written_out_where_that_is_a_tensor() -> None:
    """Each sum is taken once, whatever a function does with it."""
    head = "def g(x : In[float]) -> float:\n    y : float = x\n    if x < 0.0:\n        y = x * x\n"
    sums = "z[i] = g(sum(x[i, k] * w[k] for k in K))"
    text = (
        f"{head}    return y\n\n"
        "def f(x : In[Tensor[N, K]], w : In[Tensor[K]]) -> Tensor[N]:\n"
        f"    z : Tensor[N]\n    {sums}\n    return z\n"
    )
    shown = pipeline.stage_text(text, "optimised", "f")
    assert shown.count("w[k]") == 1
    assert "g(" not in shown
    generator = torch.Generator().manual_seed(1)
    args = tuple(torch.randn(s, generator=generator, dtype=torch.float64) for s in ((4, 3), (3,)))
    whole = with_derivative(text)
    compare(Point("f", whole, "f", args), Changed(whole, verified(passes.optimise)))
