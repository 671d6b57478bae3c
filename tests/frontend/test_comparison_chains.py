"""Chains of comparisons with comparisons in them, which are ints: ``0 <= (a < b) + k < n``."""

from __future__ import annotations

import itertools

import pytest
import torch
from c_host import CProgram, differentiated
from scalar_oracle import check_derivatives

import loma
from loma import compat, errors
from loma.backends.c import Options
from loma.backends.interpreter import Interpreter
from loma.core.printer import print_module
from loma.frontend import parse


def test_a_comparison_inside_a_chain() -> None:
    text = """
def f(a : In[float], b : In[float], k : In[int], n : In[int]) -> int:
    return 0 <= (a < b) + k < n
"""
    module = parse(text)
    interpreter = Interpreter(module)
    _, lib = compat.compile(text)
    for a, k, n in itertools.product((0.5, 1.5), (-2, -1, 0, 1), (-1, 0, 1, 2)):
        expected = int(0 <= (a < 1.0) + k < n)
        assert interpreter.call("f", a, 1.0, k, n) == (expected,)
        assert lib.f(a, 1.0, k, n) == expected
    assert parse(print_module(module)) == module


def test_many_levels_make_no_large_program() -> None:
    """Each level would double what is in it."""
    condition = "k"
    for _ in range(60):
        condition = f"(0 <= {condition} < n) + k"
    text = f"def f(k : In[int], n : In[int]) -> int:\n    return {condition}\n"
    printed = print_module(parse(text))
    assert len(printed) < 6000
    _, lib = compat.compile(text)
    for k, n in itertools.product((-1, 0, 1), (0, 1, 2)):
        assert lib.f(k, n) == eval(condition, {"k": k, "n": n})


ANYWHERE = """
def f(x : In[Array[float, 3]], k : In[int], n : In[int], y : Out[Array[float, 2]]) -> float:
    z : float = 1.0 if 0 <= (x[0] < x[1]) + k < n else x[2]
    i : int
    while (0 < (0 <= (x[0] < z) + i < n) + 1 <= n - i < 9, max_iter := 10):
        i += 1
        if i < 3 and 0 <= (x[i] < z) + i < n:
            z += x[0] * (0 <= 1 < (x[0] < z) + k < n)
        elif 1 <= (i < 1 < n) + (2 < n) <= 2:
            z = z * sin(x[(0 <= (z < 1.0) + 0 < 2)])
        for j in range((0 <= (z < 2.0) + k < 2)):
            y[(0 <= (j < 1) + 0 <= 1) - 1] = z * z
    return z * (1 + (0 <= (0 <= (0 <= (x[0] < z) + k < n) + k < n) + k < n))
"""


@pytest.mark.parametrize("k", [-1, 0, 1])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_chains_anywhere(k: int, n: int) -> None:
    """In loops' conditions, which are evaluated again and again, and behind conditions that keep a
    subscript inside its array; with derivatives."""
    args = ([0.3, 0.7, -0.4], k, n, [0.0, 0.0])
    check_derivatives(ANYWHERE, args, reverse_of=False)
    module = differentiated(ANYWHERE)
    expected = Interpreter(module).call("f", *args)
    found = CProgram(module, Options("double"), ("-O0",)).call("f", *args)
    assert found[0] == pytest.approx(expected[0])
    assert found[1] == pytest.approx(expected[1])


def test_chains_in_index_statements() -> None:
    module = loma.compile("""
def f(x : In[Tensor[N]], k : In[int]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = x[i] * x[i] if 0 <= (x[i] < 1.0) + i - 1 < k else zero_pad(x[i - 1])
    if 0 <= (k < 1) + k < 3:
        y[i] = 2.0 * y[i]
    return y
""")
    x = torch.tensor([0.5, 2.0, 0.25, 3.0], dtype=torch.float64, requires_grad=True)
    factor = torch.tensor([True, True, False, False])
    for k, scale in ((2, 2.0), (4, 1.0)):
        taken = factor if k == 2 else torch.tensor([True, True, True, True])
        shifted = torch.cat([torch.zeros(1, dtype=torch.float64), x[:-1]])
        expected = scale * torch.where(taken, x * x, shifted)
        torch.testing.assert_close(module.f(x, k), expected)
        assert torch.autograd.gradcheck(lambda x, k=k: module.f(x, k), x)


def test_chains_that_cannot_be_taken_out_have_a_limit() -> None:
    condition = "k"
    for _ in range(12):
        condition = f"(0 <= {condition} < n) + i"
    text = "def f(x : In[Tensor[N]], k : In[int], n : In[int]) -> Tensor[N]:\n    y : Tensor[N]\n"
    text += f"    y[i] = x[i] * ({condition})\n    return y\n"
    with pytest.raises(errors.SyntaxNotSupported, match="a chain of comparisons inside") as caught:
        parse(text)
    assert caught.value.lineno == 3
    assert "give it a name" in str(caught.value.hint)
