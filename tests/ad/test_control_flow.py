"""Loops whose counts follow from data, calls as statements, and names that come again, against
hand-written PyTorch; functions that give nothing back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from control_cases import CONTROL
from oracle import Program, check_case, entry

import loma
from loma import pipeline

BY_NAME = {case.name: case for case in CONTROL}


@pytest.fixture(scope="module")
def program(pytestconfig: pytest.Config) -> Program:
    names = [entry(case.text) for case in CONTROL]
    full = pytestconfig.getoption("--full")
    return Program(
        [case.text for case in CONTROL],
        first=names if full else (),
        compiles=names if full else names[::2],
    )


@pytest.mark.parametrize("name", BY_NAME)
def test_control_flow(program: Program, name: str) -> None:
    check_case(program, BY_NAME[name])


# ---------------------------------------------------------------------- what data make is not saved


def test_a_tape_whose_length_data_say_is_made_again() -> None:
    """No operator has a result whose shape depends on data, for meta and fake tensors know none."""
    stage = pipeline.program(BY_NAME["count_from_data"].text)
    (pair,) = stage.pairs
    assert [source.kind for source in pair.sources] == ["arg", "arg", "grad", "need"]
    assert "_tape_y : Tensor[" in pipeline.stage_text(
        stage.module.source, "optimised", pair.backward
    )


@pytest.mark.full
def test_counts_from_data_stand_in_graphs() -> None:
    module = loma.compile(BY_NAME["count_from_data"].text)
    operator = module.count_from_data.operator
    x = torch.randn(3, dtype=torch.float64, requires_grad=True)
    found = torch.library.opcheck(operator, (x, torch.tensor([7, 3])))
    assert set(found.values()) == {"SUCCESS"}


UNKNOWN_COUNT = """
def f(x : In[Tensor[N]], n : In[IntTensor[N]]) -> Tensor[N]:
    y : Tensor[N] = x
    for t in range(N):
        for u in range(n[t]):
            y[i] = y[i] * y[i]
    return y
"""


def test_the_forward_sweep_finds_the_length_of_a_tape_in_a_loop() -> None:
    text = pipeline.stage_text(UNKNOWN_COUNT + "d_f = rev_diff(f)\n", "adjoint", "d_f")
    assert "= max(_most_1, _trips_1)" in text
    assert "_tape_y_1 : Tensor[_longest, N]" in text


def test_a_sum_in_such_a_loop_needs_no_tape() -> None:
    text = UNKNOWN_COUNT.replace("y[i] * y[i]", "y[i] + x[i]")
    assert "_tape" not in pipeline.stage_text(text + "d_f = rev_diff(f)\n", "adjoint", "d_f")


# ------------------------------------------------------------------------ functions without results

NOTHING = """
def scalar(x : In[float], n : In[int]):
    pass

def tensor(x : In[Tensor[N]], a : In[float]):
    y : Tensor[N]
    y[i] = x[i] * a
    tensor_of_nothing()

def tensor_of_nothing():
    pass

def outs(y : Out[Tensor[N]]):
    y[i] = 2.0

d_scalar = rev_diff(scalar)
f_scalar = fwd_diff(scalar)
d_tensor = rev_diff(tensor)
dd_tensor = rev_diff(d_tensor)
d_outs = rev_diff(outs)
dd_outs = rev_diff(d_outs)
"""


@pytest.fixture(scope="module")
def nothing() -> Any:
    return loma.compile(NOTHING)


def test_functions_that_give_nothing_back(nothing: Any) -> None:
    x = torch.ones(3, requires_grad=True)
    assert nothing.scalar(1.0, 2) is None
    assert nothing.tensor(x, 2.0) is None
    assert nothing.tensor_of_nothing() is None
    y = torch.zeros(2)
    assert nothing.outs(y) is None
    assert y.tolist() == [2.0, 2.0]


def test_derivatives_of_functions_that_give_nothing_back(nothing: Any) -> None:
    x = torch.ones(3)
    assert nothing.d_scalar(1.0, 2) == (0.0, 0)
    assert nothing.f_scalar(nothing._dfloat(1.0, 1.0), 2) is None
    adjoints = nothing.d_tensor(x, 2.0)
    assert [a.tolist() for a in adjoints] == [[0.0, 0.0, 0.0], 0.0]
    assert nothing.d_outs(x) is None
