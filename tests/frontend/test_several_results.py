"""Calls of scalar functions with several results for elements of tensors."""

from __future__ import annotations

import pytest
import torch
from oracle import Program, as_tuple, check, check_case, close, plain
from several_cases import SEVERAL

import loma
from loma import pipeline
from loma.backends.interpreter import Interpreter
from loma.core.printer import print_module

BY_NAME = {case.name: case for case in SEVERAL}


@pytest.fixture(scope="module")
def program() -> Program:
    return Program([case.text for case in SEVERAL], first=())


@pytest.mark.parametrize("name", BY_NAME)
def test_interpreted(program: Program, name: str) -> None:
    check_case(program, BY_NAME[name], libtorch=False)


@pytest.mark.full
@pytest.mark.parametrize("name", BY_NAME)
def test_compiled(program: Program, name: str) -> None:
    check_case(program, BY_NAME[name])


@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize("size", [0, 1])
def test_small_sizes(program: Program, name: str, size: int) -> None:
    case = BY_NAME[name]
    args = [a[tuple(slice(size) for _ in a.shape)] for a in case.arguments()]
    if size or name not in ("lstm", "running", "powers"):  # whose references stack what there is
        check(program, name, args, case.reference, libtorch=False)


def test_what_is_printed_reads_back() -> None:
    for case in SEVERAL:
        module = pipeline.parsed(case.text)
        assert pipeline.parsed(print_module(module)) == module


COPIES = {"swapped": True, "turned": True, "polar": False, "lstm": False, "running": False}


@pytest.mark.parametrize("name", COPIES)
def test_results_wait_only_where_a_later_one_reads_the_target(name: str) -> None:
    text = pipeline.stage_text(BY_NAME[name].text, "parsed", name)
    assert ("_new_" in text) == COPIES[name]


OWN = """
def pair(x : In[float], n : In[int]) -> tuple[float, int, float]:
    return x * x, n, x * n

@derivative(pair)
def pair_back(x : In[float], dx : Out[float], n : In[int], dn : Out[int],
              g : In[float], gn : In[int], h : In[float]):
    dx += 10.0 * x * g + 100.0 * h

def f(x : In[Tensor[N]]) -> tuple[Tensor[N], IntTensor[N], Tensor[N]]:
    y : Tensor[N]
    n : IntTensor[N]
    z : Tensor[N]
    y[i], n[i], z[i] = pair(x[i], i)
    return y, n, z

d_f = rev_diff(f)
dd_f = rev_diff(d_f)
"""


def test_a_derivative_of_its_own_serves_each_result() -> None:
    interpreter = Interpreter(pipeline.adjoint(pipeline.parsed(OWN)))
    x, g, h = torch.tensor([[3.0, 2.0], [1.0, 7.0], [4.0, 5.0]], dtype=torch.float64).numpy()
    none = torch.zeros(2, dtype=torch.int64).numpy()
    (found,) = interpreter.call("d_f", x, 0 * x, g, none, h)
    assert found.tolist() == (10 * x * g + 100 * h).tolist()
    text = pipeline.stage_text(OWN, "parsed")
    assert pipeline.stage_text(text, "parsed") == text


@pytest.mark.parametrize("name", ["swapped", "turned", "lstm", "stats"])
def test_forward_mode(name: str) -> None:
    case = BY_NAME[name]
    interpreter = Interpreter(
        pipeline.adjoint(pipeline.parsed(f"{case.text}\nt_{name} = fwd_diff({name})\n"))
    )
    args = case.arguments()
    along = [torch.cos(3.0 * arg) for arg in args]
    values, tangents = torch.autograd.functional.jvp(case.reference, tuple(args), tuple(along))
    given = [plain(each) for pair in zip(args, along, strict=True) for each in pair]
    found = interpreter.call(f"t_{name}", *given)
    for k, (value, tangent) in enumerate(zip(as_tuple(values), as_tuple(tangents), strict=True)):
        close(found[2 * k], value)
        close(found[2 * k + 1], tangent)


@pytest.mark.full
def test_compiled_gradients_of_both_results() -> None:
    module = loma.compile(BY_NAME["swapped"].text)
    leaves = [torch.randn(64, 3)[:, 1].double().requires_grad_() for _ in range(2)]
    assert torch.autograd.gradcheck(module.swapped, leaves)
    assert torch.autograd.gradgradcheck(module.swapped, [leaf[:5] for leaf in leaves])
