"""Tensor programs that other systems were reported to get wrong, in the interpreter and compiled.

Values, autograd's gradients and the explicit derivatives, forward mode and second derivatives,
against autograd of plain PyTorch in float64 and against gradients by hand. docs/gradients.md tells
where each was reported. With ``--device cuda`` all of it runs on a GPU.
"""

from __future__ import annotations

import functools
from typing import Any

import oracle
import pytest
import torch
from oracle import Program, as_tuple, close, gradients
from reported import Reported, each, texts
from reported_tensors import REPORTED

from loma.ad import SplitPair, differentiate, split_pairs
from loma.backends.interpreter import Interpreter
from loma.frontend import parse

TEXTS = texts("tensors")
EACH_CASE = each(REPORTED)


class Derived(Program):
    """Some of these programs call derivatives, so that these are made first."""

    @functools.cached_property
    def _split(self) -> tuple[Interpreter, dict[str, SplitPair]]:
        module, pairs = split_pairs(differentiate(parse(self.text)), list(TEXTS))
        return Interpreter(module), {pair.primal: pair for pair in pairs}


@pytest.fixture(scope="module")
def program() -> Program:
    return Derived(list(TEXTS.values()), first=())


def test_every_program_is_here() -> None:
    assert set(TEXTS) == {case.name for case in REPORTED}


@EACH_CASE
def test_interpreted(program: Program, case: Reported) -> None:
    oracle.check(
        program, case.name, case.args, case.reference,
        smooth=not case.kink, second=not case.kink, libtorch=False, tolerance=1e-11,
    )  # fmt: skip


@EACH_CASE
def test_compiled(program: Program, case: Reported) -> None:
    function = program.compiled(case.name)
    values = as_tuple(function(*case.args))
    weights = oracle.random_weights(values, torch.Generator().manual_seed(8))
    expected, first = gradients(case.reference, case.args, weights)
    for value, right in zip(values, expected, strict=True):
        close(value, right, 1e-11, "value")
    _, found = gradients(function, case.args, weights)
    for gradient, right in zip(found, first, strict=True):
        close(gradient, right, 1e-11, "gradient")


def ones(values: tuple[Any, ...]) -> list[torch.Tensor]:
    return [torch.ones_like(torch.as_tensor(value, dtype=torch.float64)) for value in values]


@each(REPORTED, known=True)
def test_what_is_known(program: Program, case: Reported) -> None:
    function = program.compiled(case.name)
    _, found = gradients(function, case.args, ones(as_tuple(function(*case.args))))
    assert case.known is not None
    for gradient, right in zip(found, case.known, strict=True):
        close(gradient, right, 1e-12)
