"""Loops whose counts follow from data, calls as statements, and names that come again, against
hand-written PyTorch."""

from __future__ import annotations

import pytest
from control_cases import CONTROL
from oracle import Program, check, entry

BY_NAME = {case.name: case for case in CONTROL}


@pytest.fixture(scope="module")
def program() -> Program:
    return Program([case.text for case in CONTROL], first=[entry(case.text) for case in CONTROL])


@pytest.mark.parametrize("name", BY_NAME)
def test_control_flow(program: Program, name: str) -> None:
    case = BY_NAME[name]
    check(program, name, case.arguments(), case.reference, smooth=case.smooth, second=case.second)
