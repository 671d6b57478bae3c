"""Elements of several rows beside each other, which one loop of vectors puts together."""

from __future__ import annotations

import pytest
from sampled import diagonals, name_of
import torch
from trees import tree_of

import loma
from loma import pipeline
from loma.backends.schedule.host_printer import print_lowered

X = "x : In[Tensor[N, M]]"
# name, result, body, how many values a vector's iteration writes
CASES: tuple[tuple[str, str, str, int], ...] = (
    ("halves", "Tensor[2 * N, 2 * M]", "y[i, j] = x[i // 2, j // 2]", 2),
    ("thirds", "Tensor[N, 3 * M]", "y[i, j] = x[i, j // 3] * x[i, j // 3]", 3),
    ("apart", "Tensor[N, M, 2]", "y[i, j, k] = x[i, j] * (k + 1)", 2),
    ("loops", "Tensor[N, 2 * M]", """for k in range(2):
        y[i, 2 * j + k] = x[i, j] + k""", 2),
    ("choice", "Tensor[2 * N, 2 * M]", """for k in range(2):
        for l in range(2):
            y[2 * i + k, 2 * j + l] = x[i, j] if x[i, j] > k else (2.0 if x[i, j] > l else 0.0)""",
     4),
    ("longer_parts", "Tensor[N, 8 * M]", "y[i, j] = x[i, j // 8]", 1),
    ("across", "Tensor[M, N]", "y[j, i] = x[i, j]", 1),
)  # fmt: skip


def _text(case: tuple[str, str, str, int]) -> str:
    return f"def f({X}) -> {case[1]}:\n    y : {case[1]}\n    {case[2]}\n    return y\n"


def _tree(text: str) -> str:
    module = pipeline.program(text, "text").module
    return print_lowered(module.function("f"), tree_of(module.function("f"), module))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_loops(case: tuple[str, str, str, int]) -> None:
    tree = _tree(_text(case))
    assert tree.count("parallel for") == 1
    lines = [line.strip() for line in tree.split("vector for", 1)[-1].splitlines()[1:]]
    assert sum(line.startswith("y[") for line in lines) == case[3]
    assert "zeros" not in tree
    assert "clamped" not in tree


def test_each_element_is_read_once() -> None:
    tree = _tree(_text(CASES[4]))
    assert "$e1 = x[" in tree
    assert "$e2" not in tree


@pytest.mark.parametrize(
    ("case", "shape"), diagonals(2, CASES, [(3, 21), (1, 1), (2, 0)]), ids=name_of
)
def test_values_and_gradients(
    case: tuple[str, str, str, int], shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    y = loma.compile(_text(case)).f(x)
    (grad,) = torch.autograd.grad(y, x, torch.cos(y.detach()))
    monkeypatch.setenv("LOMA_OPT", "-neighbours,-divisions")
    plain = loma.compile(_text(case)).f(x)
    torch.testing.assert_close(y, plain, rtol=0, atol=0)
    (wanted,) = torch.autograd.grad(plain, x, torch.cos(plain.detach()))
    torch.testing.assert_close(grad, wanted)


@pytest.mark.parametrize("count", [0, 1, 6, 37])
def test_a_shorter_last_pair(count: int) -> None:
    text = """
def f(x : In[Tensor[M]], y : Out[Tensor[N]]):
    y[i] = x[i // 2]
"""
    x = torch.randn((count + 1) // 2)
    y = torch.zeros(count)
    loma.compile(text).f(x, y)
    assert y.equal(x.repeat_interleave(2)[:count])


SHUFFLE = """
def f(x : In[Tensor[C, 2, 3, H, W]]) -> Tensor[C, H, 2, W, 3]:
    y : Tensor[C, H, 2, W, 3]
    y[c, i, p, j, q] = x[c, p, q, i, j]
    return y
"""


def test_rows_that_are_put_between_each_other_and_taken_apart_again() -> None:
    module = pipeline.program(SHUFFLE, "text").module
    for name, target in (("f", "y"), ("f__backward", "_d_x")):
        tree = print_lowered(module.function(name), tree_of(module.function(name), module))
        assert tree.count("parallel for") == 1
        lines = [line.strip() for line in tree.split("vector for", 1)[-1].splitlines()[1:]]
        assert sum(line.startswith(f"{target}[") for line in lines) == 3
    compiled = loma.compile(SHUFFLE, path="shuffle").f
    for sizes in ((2, 2, 3, 3, 19), (1, 2, 3, 1, 1), (2, 2, 3, 0, 4)):
        x = torch.randn(sizes, dtype=torch.float64, requires_grad=True)
        weight = torch.randn(sizes[0], sizes[3], 2, sizes[4], 3, dtype=torch.float64)
        expected = x.permute(0, 3, 1, 4, 2)
        assert torch.equal(compiled(x), expected)
        (compiled(x) * weight).sum().backward()
        assert x.grad is not None
        assert torch.equal(x.grad, weight.permute(0, 2, 4, 1, 3))
