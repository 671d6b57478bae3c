"""Tensor programs that other systems were reported to get wrong, in the interpreter and compiled.

Values, autograd's gradients and the explicit derivatives, forward mode and second derivatives,
against autograd of plain PyTorch in float64 and against gradients by hand. docs/gradients.md tells
where each was reported. With ``--device cuda`` what is compiled runs on a GPU.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import oracle
import pytest
import torch
from oracle import Program, as_tuple, close, differentiable, gradients, is_float, jvp, plain
from reported import Reported, each, texts
from reported_tensors import REPORTED
from torch import Tensor

from loma.ad import SplitPair, differentiate, split_pairs
from loma.backends.interpreter import Interpreter
from loma.core.verify import verify
from loma.frontend import parse

TEXTS = texts("tensors")
EACH_CASE = each(REPORTED)
COMPILED = list(TEXTS)[::2]  # with --full all
SMOOTH = list({case.name for case in REPORTED if not case.kink})


class Derived(Program):
    """With forward derivatives in the interpreter; some programs call derivatives themselves, so
    that these are made before functions are split."""

    @functools.cached_property
    def interpreter(self) -> Interpreter:
        tangents = [f"t_{name} = fwd_diff({name})\n" for name in TEXTS]
        module = differentiate(parse("".join([self.all_text, *tangents])))
        verify(module)
        return Interpreter(module)

    @functools.cached_property
    def _split(self) -> tuple[Interpreter, dict[str, SplitPair]]:
        module, pairs = split_pairs(differentiate(parse(self.text)), list(TEXTS))
        return Interpreter(module), {pair.primal: pair for pair in pairs}


@pytest.fixture(scope="module")
def program(pytestconfig: pytest.Config) -> Program:
    compiles = list(TEXTS) if pytestconfig.getoption("--full") else COMPILED
    return Derived(list(TEXTS.values()), first=(), compiles=compiles)


@pytest.fixture(scope="module")
def derivatives() -> Program:
    """All derivatives compiled, too."""
    return Derived(list(TEXTS.values()), second=SMOOTH)


def test_every_program_is_here() -> None:
    assert set(TEXTS) == {case.name for case in REPORTED}


@EACH_CASE
def test_interpreted(program: Program, case: Reported) -> None:
    smooth = not case.kink
    oracle.check(
        program, case.name, case.args, case.reference,
        smooth=smooth, second=smooth, libtorch=False, tolerance=1e-11,
    )  # fmt: skip


@EACH_CASE
def test_forward_mode(program: Program, case: Reported) -> None:
    """In the interpreter, in a random direction."""
    primal, along = program.function(case.name), iter(directions(case))
    given: list[Any] = []
    for param, arg in zip(primal.params, case.args, strict=True):
        given += [plain(arg), plain(next(along))] if is_float(param.type) else [plain(arg)]
    found = program.value(f"t_{case.name}", given)
    expected, tangents = autograd_tangents(case)
    close_all(found[0::2], expected)
    close_all(found[1::2], tangents)


def directions(case: Reported) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    floats = [case.args[k] for k in differentiable(case.args)]
    return [torch.randn(x.shape, generator=generator, dtype=torch.float64) for x in floats]


def autograd_tangents(case: Reported) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Of the reference: values, and their derivatives in these directions."""
    return tangents_of(case.reference, case)


def tangents_of(function: Any, case: Reported) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    where = differentiable(case.args)

    def of(*floats: Tensor) -> Any:
        full = list(case.args)
        for k, value in zip(where, floats, strict=True):
            full[k] = value
        return function(*full)

    point = tuple(case.args[k] for k in where)
    values, tangents = jvp(of, point, tuple(directions(case)))
    return as_tuple(values), as_tuple(tangents)


def close_all(found: Any, expected: Any) -> None:
    assert len(found) == len(expected)
    for value, right in zip(found, expected, strict=True):
        close(value, right, 1e-11)


@each([case for case in REPORTED if case.name in COMPILED])
def test_compiled(program: Program, case: Reported) -> None:
    """Values and autograd's gradients."""
    function = program.compiled(case.name)
    values = as_tuple(function(*case.args))
    weights = oracle.random_weights(values, torch.Generator().manual_seed(8))
    expected, first = gradients(case.reference, case.args, weights)
    close_all(values, expected)
    assert all(np.isfinite(plain(value)).all() for value in values)
    close_all(gradients(function, case.args, weights)[1], first)
    if case.known is not None:
        ones = [torch.ones_like(torch.as_tensor(v, dtype=torch.float64)) for v in values]
        close_all(gradients(function, case.args, ones)[1], case.known)


@pytest.mark.full
@each([case for case in REPORTED if case.name not in COMPILED])
def test_others_compiled(program: Program, case: Reported) -> None:
    test_compiled(program, case)


@pytest.mark.full
@EACH_CASE
def test_compiled_derivatives(derivatives: Program, case: Reported) -> None:
    """The explicit derivatives, second ones among them, and forward mode through ``torch.func``."""
    smooth = not case.kink
    oracle.check(
        derivatives, case.name, case.args, case.reference,
        smooth=smooth, second=smooth, tolerance=1e-11,
    )  # fmt: skip
    values, tangents = tangents_of(derivatives.compiled(case.name), case)
    expected, right = autograd_tangents(case)
    close_all(values, expected)
    close_all(tangents, right)
