"""What a condition, ``zero_pad`` or an empty range leaves out is not read, forward and backward."""

from __future__ import annotations

from typing import Any

import math
import re

import pytest
import torch
from guard_cases import CASES
from oracle import Program, check_case, differentiable, entry
from sampled import one_in

import loma
from loma import pipeline

BY_NAME = {case.name: case for case in CASES}
COMPILED_TWICE = ("any_rank", "causal")


@pytest.fixture(scope="module")
def program(pytestconfig: pytest.Config) -> Program:
    if not pytestconfig.getoption("--full"):
        return Program(list({case.text: None for case in CASES[::6]}), first=())
    texts = {entry(case.text): case.text for case in CASES}
    return Program(list(texts.values()), COMPILED_TWICE, first=COMPILED_TWICE)


@pytest.mark.parametrize("name", one_in(6, BY_NAME))
def test_guarded(program: Program, name: str) -> None:
    check_case(program, BY_NAME[name])


@pytest.mark.parametrize("place", ["p + i - 2", "i + p - 2", "2 + i - p"])
def test_an_adjoint_goes_through_the_shorter_range(place: str) -> None:
    """In whatever order the indices stand: through the longer one it would be quadratic."""
    text = f"""
def f(x : In[Tensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = sum((p + 1.0) * x[{place}] if 0 <= {place} and {place} < N else 0.0 for p in range(5))
    return y
"""
    shown = pipeline.stage_text(text, "optimised", "f__backward")
    assert "_d_x[i_x" in shown
    assert "in N)" not in shown


@pytest.mark.full
@pytest.mark.parametrize("name", ["any_rank", "any_rank_in_a_branch"])
@pytest.mark.parametrize("wanted", [0, 1])
def test_second_derivatives_of_any_rank(program: Program, name: str, wanted: int) -> None:
    """Autograd differentiates the backward part, also in one argument only."""
    case = BY_NAME[name]
    args = case.arguments()
    found: list[torch.Tensor] = []
    for function in (program.compiled(name), case.reference):
        leaves = [args[0].clone().requires_grad_(), args[1].clone().requires_grad_()]
        y = function(*leaves, *args[2:])
        first = torch.autograd.grad(y.sin().sum(), leaves, create_graph=True)
        found += torch.autograd.grad(first[0].sum() + first[1].cos().sum(), leaves[wanted])
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.full
@pytest.mark.parametrize(
    "name", ["a_negative_count", "one_less_than_nothing", "sums_of_negative_counts", "nothing_of_w"]
)
def test_gradients_of_an_empty_range_are_zeros(program: Program, name: str) -> None:
    """Not None, as for what a function does not depend on: it does, over an empty range."""
    case = BY_NAME[name]
    args = case.arguments()
    leaves = [args[k].requires_grad_() for k in differentiable(args)]
    y = program.compiled(name)(*args)
    first = torch.autograd.grad(y.sum(), leaves, create_graph=True, allow_unused=True)
    assert [g is not None for g in first] == [True] * len(leaves)
    second = torch.autograd.grad(
        torch.stack([g.sum() for g in first]).sum(), leaves, allow_unused=True
    )
    for leaf, gradient in zip(leaves, second, strict=True):
        assert gradient is not None
        torch.testing.assert_close(gradient, torch.zeros_like(leaf))


# ---------------------------------------------------------------------------- what is refused

D = torch.float64
FAILING = """
def far(x : In[Tensor[N]], d : In[int]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = x[i - d] if i >= d else 0.0
    return y

def beyond(x : In[Tensor[N]], t : In[IntTensor[M]]) -> Tensor[M]:
    y : Tensor[M]
    y[i] = x[t[i]] if t[i] >= 0 else 1.0
    return y

def beside(z : In[Tensor[N]], x : In[Tensor[M]], t : In[IntTensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = zero_pad(z[i - 1]) * x[t[i]]
    return y

def shifted(x : In[Tensor[N]], s : In[int]) -> float:
    return sum(x[i + s]*x[i] for i in range(3))

def operators(z : In[Tensor[N]], x : In[Tensor[M]]) -> Tensor[N]:
    w : Tensor[N] = exp(z) * x
    return w

def product(z : In[Tensor[N, K]], x : In[Tensor[J, M]]) -> Tensor[N, M]:
    w : Tensor[N, M] = matmul(z, x)
    return w

def third(x : In[Tensor[N, M]]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = x[i, 2] if x[i, 0] > 0.0 else 0.0
    return y

d_far = rev_diff(far)
d_beyond = rev_diff(beyond)
d_beside = rev_diff(beside)
d_shifted = rev_diff(shifted)
d_operators = rev_diff(operators)
d_product = rev_diff(product)
d_third = rev_diff(third)
"""
X = torch.ones(3, dtype=D)
PADDING = "; wrap the read in zero_pad(...) if zero is meant"
SIZES = "The size of tensor a (3) must match the size of tensor b (4) at non-singleton dimension 0"
ERRORS: dict[str, tuple[tuple[Any, ...], str]] = {
    "far": ((X, -2), "far: line 4: subscript 'i - d' of 'x' is 3, outside dimension 0 of size 3"),
    "d_far": (
        (X, -2, X),
        "far: line 4, backward: subscript 'i - d' of 'x' is 3, outside dimension 0 of size 3",
    ),
    "beyond": (
        (X, torch.tensor([-1, 3])),
        "beyond: line 9: subscript 't[i]' of 'x' is 3, outside dimension 0 of size 3",
    ),
    "d_beyond": (
        (X, torch.tensor([-1, 3]), X[:2]),
        "beyond: line 9, backward: subscript 't[i]' of 'x' is 3, outside dimension 0 of size 3",
    ),
    "d_beside": (
        (X, X, torch.tensor([0, 1, 3]), X),
        "beside: line 14, backward: subscript 't[i]' of 'x' is 3, outside dimension 0 of size 3",
    ),
    "d_shifted": (
        (torch.ones(4, dtype=D), 2, 1.0),
        "shifted: line 18, backward: subscript 'i + s' of 'x' runs from 2 to 4, outside dimension "
        f"0 of size 4{PADDING}",
    ),
    "operators": ((X, torch.ones(4, dtype=D)), f"operators: line 21: in 'exp(z) * x': {SIZES}"),
    "d_operators": (
        (X, torch.ones(4, dtype=D), X),
        f"operators: line 21, backward: in 'w : Tensor[N] = exp(z) * x': {SIZES}",
    ),
    "product": (
        (torch.ones(3, 4, dtype=D), torch.ones(5, 6, dtype=D)),
        "product: line 25: in 'matmul(z, x)': mat1 and mat2 shapes cannot be multiplied (3x4 and "
        "5x6)",
    ),
    # The same column for all rows, which only some of them read.
    "third": (
        (torch.ones(3, 2, dtype=D),),
        "third: line 30: subscript '2' of 'x' is 2, outside dimension 1 of size 2",
    ),
    "d_third": (
        (torch.ones(3, 2, dtype=D), X),
        "third: line 30, backward: subscript '2' of 'x' is 2, outside dimension 1 of size 2",
    ),
    "d_product": (
        (torch.ones(3, 4, dtype=D), torch.ones(5, 6, dtype=D), torch.ones(3, 6, dtype=D)),
        "product: line 25, backward: sizes [3, 5] do not come of broadcasting [3, 4]",
    ),
}


@pytest.fixture(scope="module")
def failing() -> Program:
    return Program([FAILING], derivatives=False)


@pytest.mark.parametrize("name", one_in(2, ERRORS))
def test_messages_have_the_names_and_the_line_of_the_program(
    failing: Program, name: str, on_cpu: bool
) -> None:
    """In derivatives too, where an element is checked when its adjoint is written. On a GPU any of
    the elements that are outside may be the first."""
    args, message = ERRORS[name]

    def comparable(text: str) -> str:
        return text if on_cpu else re.sub(r"' is -?\d+, ", "' is outside, ", text)

    with pytest.raises((ValueError, RuntimeError)) as caught:
        failing.compiled(name)(*args)
    assert comparable(str(caught.value)) == comparable(message)
    if not name.startswith("d_"):  # the same with autograd
        leaf = args[0].clone().requires_grad_()
        with pytest.raises((ValueError, RuntimeError)) as caught:
            failing.compiled(name)(leaf, *args[1:])
        assert comparable(str(caught.value)) == comparable(message)


@pytest.mark.parametrize("name", ["far", "beyond"])
def test_a_guard_that_lets_too_much_through(failing: Program, name: str) -> None:
    args, _ = ERRORS[name]
    with pytest.raises(ValueError, match="line"):
        failing.value(name, args)


def test_adjoints_of_what_stands_in_several_places_go_down_together() -> None:
    text = """
def f(x : In[Tensor[N]], w : In[Tensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = (x[i] - w[i]) * sin(x[i] - w[i]) if x[i] > 0.0 else exp(x[i] - w[i])
    return y
"""
    shown = pipeline.stage_text(text, "optimised", "f__backward").replace("\n", " ")
    assert shown.count("sin(") == shown.count("cos(") == 1
    assert "_d_w[i] = -_d_x[i]" in shown


def test_what_a_condition_guards_every_time_stays_under_it() -> None:
    text = """
def f(x : In[Tensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    y[i] = sqrt(x[i]) * exp(sqrt(x[i])) if x[i] > 0.0 else 0.0
    return y
"""
    x = torch.tensor([0.0, 4.0], dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(loma.compile(text).f(x).sum(), x)
    torch.testing.assert_close(found, torch.tensor([0.0, 0.75 * math.e**2], dtype=torch.float64))


def test_terms_under_one_condition_are_one_choice() -> None:
    text = """
def f(x : In[Tensor[N]], w : In[Tensor[N]]) -> float:
    s : float
    s += x[i] * w[i] + sin(x[i]) if x[i] > 0.0 else exp(x[i])
    return s
"""
    shown = pipeline.stage_text(text, "optimised", "f__backward")
    written = next(part for part in shown.split("_d_x[i] = ")[1:]).split("if _need_w")[0]
    assert written.count(" if ") == 1


def test_what_is_read_beside_a_place_is_read_there() -> None:
    """The adjoint of ``x[c + k] ** 2`` has x at its own place, which no sum goes through."""
    text = (
        "def f(x : In[Tensor[C]]) -> Tensor[C]:\n    y : Tensor[C]\n"
        "    y[c] = sum(zero_pad(x[c + k - 2]) ** 2 for k in range(5))\n    return y\n"
    )
    shown = pipeline.stage_text(text, "optimised", "f__backward")
    places = re.findall(r"(?<!_)\bx\[(.*?)\]", shown)
    assert places
    assert not any(" " in place for place in places)
