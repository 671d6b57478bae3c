"""Operators that turn dimensions round are reads of other elements, in front and behind."""

from __future__ import annotations

import pytest
import torch
from changed_programs import Changed, Point, compare, verified, with_derivative
from sampled import name_of, one_in

import loma
from loma import passes
from loma.core.printer import print_function
from loma.frontend import parse

# name, value, what stands in the loop instead of an operator, or nothing where that stays
CASES: tuple[tuple[str, str, str], ...] = (
    ("flip", "flip(x, [0]) * 2.0", "x[N - _i0 - 1, _i1]"),
    ("flip_of_two", "exp(flip(x, [0, -1]))", "x[N - _i0 - 1, M - _i1 - 1]"),
    ("roll", "roll(x, 1, 0) + x", "x[(_i0 - 1) % N, _i1]"),
    ("roll_of_two", "relu(roll(x, [-1, 2], [0, 1]))", "x[(_i0 + 1) % N, (_i1 - 2) % M]"),
    ("further_than_long", "roll(x, 7, 1) - x", "x[_i0, (_i1 - 7) % M]"),
    ("stencil", "roll(x, 1, 0) + roll(x, -1, 0) + roll(x, 1, 1) + roll(x, -1, 1) - 4.0 * x",
     "x[(_i0 + 1) % N, _i1]"),
    ("of_each_other", "flip(roll(x, 1, 0), [0]) + 1.0", "x[(N - _i0 - 1 - 1) % N, _i1]"),
    ("of_computed", "roll(x * x, 1, 0) + 1.0", "x[(_i0 - 1) % N, _i1] * x[(_i0 - 1) % N, _i1]"),
    ("of_transposed", "transpose(flip(transpose(x, 0, 1), [0]), 0, 1) + x", "x[_i0, M - _i1 - 1]"),
    ("of_a_row", "roll(x, 1, 0) + flip(sum(x, [0], keepdim=True), [0])", "+ _t_2[_i1]"),
    ("of_all_in_a_row", "roll(x, [1]) * 2.0", ""),
)  # fmt: skip


def text(value: str) -> str:
    return f"def f(x : In[Tensor[N, M]]) -> Tensor[N, M]:\n    return {value}\n"


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_what_is_left(case: tuple[str, str, str]) -> None:
    shown = print_function(
        passes.optimise(passes.canonical_form(parse(text(case[1])))).function("f")
    )
    assert ("roll(" in shown or "flip(" in shown) == (not case[2])
    assert case[2] in shown


def test_of_any_rank_they_stay() -> None:
    source = "def f(x : In[Tensor]) -> Tensor:\n    return flip(x, [0]) + roll(x, 1, -1)\n"
    shown = print_function(passes.optimise(parse(source)).function("f"))
    assert "roll(" in shown
    assert "flip(" in shown


@pytest.mark.parametrize("case", one_in(2, CASES), ids=name_of)
@pytest.mark.parametrize("shape", [(3, 4), (1, 5), (2, 1)])
def test_values_and_derivatives(case: tuple[str, str, str], shape: tuple[int, int]) -> None:
    source = with_derivative(text(case[1]))
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    for change in (passes.canonical_form, passes.optimise):
        compare(Point(case[0], source, "f", (x,)), Changed(source, verified(change)))


def test_against_pytorch_at_any_size() -> None:
    module = loma.compile(
        "def f(x : In[Tensor[N, M]]) -> Tensor[N, M]:\n"
        "    return roll(x, [1, -2], [0, 1]) * x + tanh(flip(roll(x, 3, 0), [1]))\n"
    )

    def expected(x: torch.Tensor) -> torch.Tensor:
        return x.roll((1, -2), (0, 1)) * x + x.roll(3, 0).flip(1).tanh()

    for shape in ((5, 7), (1, 1), (2, 33), (0, 3), (3, 0)):
        x = torch.randn(*shape, dtype=torch.float64, requires_grad=True)
        torch.testing.assert_close(module.f(x), expected(x))
        if x.numel():
            assert torch.autograd.gradcheck(module.f, (x,))
            assert torch.autograd.gradgradcheck(module.f, (x,))
        turned = torch.randn(*reversed(shape), dtype=torch.float64).t()
        torch.testing.assert_close(module.f(turned), expected(turned))
