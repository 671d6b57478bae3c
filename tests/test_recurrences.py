"""Reads of other parts of a statement's target, against hand-written PyTorch: what is written in
loops sees new values, what is written at once sees old ones; what is copied, and what is kept."""

from __future__ import annotations

import pytest
from oracle import Program, check
from recurrence_cases import RECURRENCES


BY_NAME = {case.name: case for case in RECURRENCES}


@pytest.fixture(scope="module")
def program() -> Program:
    return Program([case.text for case in RECURRENCES], first=())


@pytest.mark.parametrize("name", BY_NAME)
def test_recurrence(program: Program, name: str) -> None:
    case = BY_NAME[name]
    check(program, name, case.arguments(), case.reference)
