"""Random programs: text, values and derivatives, each way of computing them against the others.

``pytest --fuzz-examples N tests/ad/test_fuzz.py`` tries N programs at random; without it they are
few and always the same, with --full twice as many.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import hypothesis
import pytest
import fuzz_tensors
import numpy as np
import oracle
import torch
from fuzz_programs import Generator, Program
from hypothesis import Phase
from hypothesis import strategies as st
from scalar_oracle import (
    FIRST, Scalars, check_adjoint, check_derivatives, check_differences, random_floats,
)  # fmt: skip

from loma import errors
from loma.core.ir import ArrayType
from loma.core.printer import print_module
from loma.core.verify import verify
from loma.frontend import parse

FORWARD = "fwd_f = fwd_diff(f)\n"
Check = Callable[[Any], None]


@pytest.fixture
def fuzz(request: pytest.FixtureRequest) -> Callable[..., None]:
    """``fuzz(check, examples, **options)``: checks programs that a Generator makes."""
    wanted = request.config.getoption("--fuzz-examples")
    part = 1 if request.config.getoption("--full") else 4

    def run(check: Check, examples: int, generator: Any = Generator, **options: bool) -> None:
        @hypothesis.settings(
            max_examples=wanted or examples // part,
            derandomize=wanted is None,
            database=None,
            # what has failed is printed as it is: to make it smaller takes minutes
            phases=[Phase.generate, Phase.shrink] if wanted else [Phase.generate],
            deadline=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(st.randoms(use_true_random=False))
        def explore(rng: random.Random) -> None:
            program = generator(rng).program(**options)
            hypothesis.note(f"{program.text}\nargs = {program.args}")
            check(program)

        explore()

    return run


# ------------------------------------------------------------------------------------------ text


@pytest.mark.full
def test_text(fuzz: Any) -> None:
    """A program and its derivatives verify, and print as text that parses to the same module."""

    def check(program: Program) -> None:
        parsed = parse(program.text)
        verify(parsed)
        assert parse(print_module(parsed)) == parsed
        module = Scalars(program.text + FIRST).module
        again = parse(print_module(module))
        verify(again)
        assert again.functions == module.functions
        # The text mentions the differential types that it needs.
        assert set(again.structs) <= set(module.structs)

    fuzz(check, 15, reads_outs=False)


# ----------------------------------------------------------------------------------- derivatives


@pytest.mark.parametrize("simd", [False, True])
def test_forward_mode(fuzz: Any, simd: bool) -> None:
    """Against differences."""

    def check(program: Program) -> None:
        if "no_diff" not in program.text:
            scalars = Scalars(program.text + FORWARD, program.items or 1)
            along = random_floats(scalars.inputs("f", program.args).size, 0)
            check_differences(scalars, "f", "fwd_f", program.args, along)

    fuzz(check, 8 if simd else 24, simd=simd)


@pytest.mark.parametrize("simd", [False, True])
def test_reverse_mode(fuzz: Any, simd: bool) -> None:
    """Against forward mode."""

    def check(program: Program) -> None:
        scalars = Scalars(program.text + FIRST, program.items or 1)
        check_adjoint(scalars, "f", "fwd_f", "rev_f", program.args)

    fuzz(check, 8 if simd else 24, simd=simd, reads_outs=False)


@pytest.mark.full
@pytest.mark.parametrize("simd", [False, True])
def test_derivatives_of_derivatives(fuzz: Any, simd: bool) -> None:
    def check(program: Program) -> None:
        params = parse(program.text).function("f").params
        # Not every adjoint of an array of unknown length has an adjoint in turn.
        sized = all(not isinstance(p.type, ArrayType) or p.type.size for p in params)
        sized &= "class V:" not in program.text
        check_derivatives(
            program.text,
            program.args,
            items=program.items or 1,
            differences="no_diff" not in program.text,
            reverse_of=sized,
        )

    fuzz(check, 3 if simd else 8, simd=simd, reads_outs=False)


# --------------------------------------------------------------------------------------- tensors


def _dot(left: Sequence[Any], right: Sequence[Any]) -> float:
    pairs = zip(left, right, strict=True)
    return sum(float(np.sum(oracle.plain(a) * oracle.plain(b))) for a, b in pairs)


def _size(values: Sequence[Any]) -> float:
    return max((float(np.max(np.abs(oracle.plain(v)), initial=1.0)) for v in values), default=1.0)


def test_tensor_derivatives(fuzz: Any) -> None:
    """Of first and second order, against central differences on the interpreter."""

    def check(made: fuzz_tensors.Program) -> None:
        has_outs = " : Out" in made.text
        program, args = oracle.Program([made.text]), list(made.args)
        try:
            program.value("f", args)
        except errors.NotDifferentiable:  # rev_diff is not given what Out arguments hold on entry
            assert has_outs
            program = oracle.Program([made.text], derivatives=False)
        generator = torch.Generator().manual_seed(1)
        values = program.value("f", args)
        where = oracle.differentiable(args)
        weights = oracle.random_weights(values, generator)
        along = oracle.random_weights([args[k] for k in where], generator)
        found = program.split_adjoint("f", args, weights, where)
        first = [found[k] for k in where]
        if not _size([*values, *first]) < 1e6 or "no_diff" in made.text:
            return
        ahead = _dot(weights, oracle.difference(program, "f", args, along))
        assert abs(ahead - _dot(along, first)) <= 1e-5 * max(abs(ahead), _size(first))
        if not program.first:
            return
        for k, right in zip(where, program.adjoint("f", args, weights), strict=not has_outs):
            oracle.close(found[k], right, 1e-9, f"argument {k}")
        if has_outs:
            return
        directions = oracle.random_weights(weights, generator)

        def slope(step: float) -> float:
            moved = list(args)
            for k, v in zip(where, along, strict=True):
                moved[k] = args[k] + step * v
            turned = [w + step * v for w, v in zip(weights, directions, strict=True)]
            return _dot(along, program.adjoint("f", moved, turned))

        twice = program.second_adjoint("f", args, weights, along)
        ahead = (slope(1e-6) - slope(-1e-6)) / 2e-6
        behind = _dot([*along, *directions], twice)
        assert abs(ahead - behind) <= 1e-4 * max(abs(ahead), _size(twice))

    fuzz(check, 8, fuzz_tensors.Generator)
