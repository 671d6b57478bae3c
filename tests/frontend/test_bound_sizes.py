"""Sizes that dimensions like ``2 * D`` bind: values, derivatives, and calls that do not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from oracle import Program, check

from loma import errors
from loma.ad import differentiate
from loma.backends.interpreter import Interpreter
from loma.core.printer import print_module
from loma.frontend import parse
from loma.tools.samples import Given, SampleError, sample_arguments

GATED = """
def gated(x : In[Tensor[B, T, 2 * D]]) -> Tensor[B, T, D]:
    y : Tensor[B, T, D]
    y[b, t, d] = x[b, t, d + 0] / (1.0 + exp(-x[b, t, d + D]))
    return y
"""
# What the backward part needs of D, no tensor shows: it is passed.
SLOPES = """
def slopes(x : In[Tensor[D + 1, N]], k : In[int]) -> Tensor[N]:
    y : Tensor[N]
    for t in range(D):
        y[n] += k * D * x[t, n] * x[t + 1, n]
    return y
"""
CALLS = """
def inner(x : In[Tensor[3 * E - 1, N]]) -> Tensor[E, N]:
    y : Tensor[E, N]
    y[e, n] = x[3 * e, n] * x[3 * e + 1, n]
    return y

def calls(x : In[Tensor[L, N]], z : In[Tensor[M, N]]) -> Tensor[N]:
    y = inner(x)
    return slopes(y, 2) + slopes(z, 3)
"""


def gated(x: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return a * torch.sigmoid(b)


def slopes(x: torch.Tensor, k: int) -> torch.Tensor:
    return k * (len(x) - 1) * (x[:-1] * x[1:]).sum(0)


def calls(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return slopes(x[::3] * x[1::3], 2) + slopes(z, 3)


def real(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def program() -> Program:
    made = Program([SLOPES, GATED, CALLS], first=[])
    made.parts = ["".join(made.parts)]  # one module
    return made


CASES: list[tuple[str, tuple[Any, ...], Any]] = [
    ("gated", (real(2, 3, 8),), gated),
    ("gated", (real(2, 3, 0),), gated),
    ("gated", (real(2, 8, 3).transpose(1, 2),), gated),
    ("slopes", (real(5, 2), 3), slopes),
    ("slopes", (real(1, 2), 3), slopes),
    ("calls", (real(5, 2), real(3, 2)), calls),
]


@pytest.mark.parametrize(("name", "args", "reference"), CASES)
def test_values_and_derivatives(
    program: Program, name: str, args: tuple[Any, ...], reference: Callable[..., Any]
) -> None:
    check(program, name, args, reference)


@pytest.mark.full
def test_second_derivatives_by_autograd(program: Program) -> None:
    for name, x in (("gated", real(2, 3, 4)), ("slopes", real(3, 2))):
        function, more = program.compiled(name), (2,) if name == "slopes" else ()
        assert torch.autograd.gradgradcheck(
            lambda x, f=function, m=more: f(x, *m), x.requires_grad_()
        )


NOT_WHOLE = "expected 2 \\* D with a whole D, 0 or more"
WRONG: list[tuple[str, tuple[Any, ...], str]] = [
    ("gated", (real(2, 3, 7),), f"gated: argument 'x' has size 7 in dimension 2, {NOT_WHOLE}"),
    ("slopes", (real(0, 2), 1), "slopes: argument 'x' has size 0 in dimension 0, expected D \\+ 1"),
]


@pytest.mark.parametrize(("name", "args", "message"), WRONG)
def test_calls_that_do_not_fit(
    program: Program, name: str, args: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        program.compiled(name)(*args)
    with pytest.raises(ValueError, match=message):
        program.value(name, args)


def test_calls_from_inside_that_do_not_fit(program: Program) -> None:
    for x, z in ((real(4, 2), real(3, 2)), (real(5, 2), real(0, 2))):
        with pytest.raises(ValueError, match=r"(inner|slopes): argument 'x'"):
            program.compiled("calls")(x, z)
        with pytest.raises(ValueError, match=r"(inner|slopes): argument 'x'"):
            program.value("calls", (x, z))


def test_dynamic_shapes(program: Program) -> None:
    function = program.compiled("gated")
    torch._dynamo.reset()
    from torch._dynamo.utils import counters

    counters.clear()
    compiled = torch.compile(lambda x: 2.0 * function(x), backend="aot_eager", dynamic=True)
    for size in (4, 6, 10):
        x = real(2, 3, size).requires_grad_()
        (found,) = torch.autograd.grad(compiled(x).sum(), x)
        (expected,) = torch.autograd.grad(2.0 * gated(x).sum(), x)
        torch.testing.assert_close(found, expected)
    assert counters["stats"]["unique_graphs"] == 1


def test_text() -> None:
    module = differentiate(parse(f"{GATED}\nd_gated = rev_diff(gated)\n"))
    text = print_module(module)
    assert "_d_x : Out[Tensor[B, T, 2 * D]]" in text
    assert parse(text) == module


@pytest.mark.parametrize("size", ["c * N + 2", "N * N", "M + N", "4 - N", "max(N, 1)", "0 * N"])
def test_what_binds_nothing(size: str) -> None:
    text = (
        f"def f(x : In[Tensor[{size}]], y : In[Tensor[M]], c : In[int]) -> float:\n    return 1.0"
    )
    with pytest.raises(errors.UnknownSizeVariable, match="is bound by no dimension"):
        parse(text)


def test_the_dimension_where_a_size_stands_alone_binds_it() -> None:
    text = """
def f(x : In[Tensor[2 * N]], y : In[Tensor[N]], z : In[Tensor[N + N + 1 - 2]]) -> int:
    return N
"""
    interpreter = Interpreter(parse(text))
    assert interpreter.call("f", real(6).numpy(), real(3).numpy(), real(5).numpy()) == (3,)
    with pytest.raises(ValueError, match=r"'x' has size 5 in dimension 0, expected 2 \* N = 6"):
        interpreter.call("f", real(5).numpy(), real(3).numpy(), real(5).numpy())


def test_constant_sizes_are_checked_when_it_is_compiled() -> None:
    for size in (4, 1):
        with pytest.raises(errors.ShapeMismatch, match=r"must be Tensor\[2 \* D \+ 3\], found"):
            parse(f"""
def f(x : In[Tensor[2 * D + 3]]) -> int:
    return D

def g(x : In[Tensor[{size}]]) -> int:
    return f(x)
""")


def test_samples() -> None:
    text = (
        "def f(x : In[Tensor[3 * D - 7, 2 * E]], y : In[Tensor[E - 4]]) -> int:\n    return D + E"
    )
    function = parse(text).function("f")
    made = sample_arguments(function)
    assert [tuple(value.shape) for value in made.values()] == [(2, 12), (2,)]
    made = sample_arguments(function, Given(shapes={"x": (5, 10)}))
    assert [tuple(value.shape) for value in made.values()] == [(5, 10), (1,)]
    made = sample_arguments(function, Given(sizes={"D": 3, "E": 4}))
    assert [tuple(value.shape) for value in made.values()] == [(2, 8), (0,)]
    made = sample_arguments(function, Given(shapes={"y": (1,)}))
    assert [tuple(value.shape) for value in made.values()] == [(2, 10), (1,)]
    with pytest.raises(SampleError, match="size E is 5 by dimension 1 of 'x', but 6 by dim"):
        sample_arguments(function, Given(shapes={"x": (5, 10), "y": (2,)}))
    with pytest.raises(SampleError, match="so its dimension 0 cannot be 4"):
        sample_arguments(function, Given(shapes={"x": (4, 10)}))
