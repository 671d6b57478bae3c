"""Loops whose counts follow from data, calls as statements, and names that come again, against
hand-written PyTorch; functions that give nothing back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from control_cases import CONTROL
from oracle import Program, check, entry

import loma

BY_NAME = {case.name: case for case in CONTROL}


@pytest.fixture(scope="module")
def program() -> Program:
    return Program([case.text for case in CONTROL], first=[entry(case.text) for case in CONTROL])


@pytest.mark.parametrize("name", BY_NAME)
def test_control_flow(program: Program, name: str) -> None:
    case = BY_NAME[name]
    check(program, name, case.arguments(), case.reference, smooth=case.smooth, second=case.second)


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
