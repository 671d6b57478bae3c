"""Random programs: text, values and derivatives, each way of computing them against the others.

``pytest --fuzz-examples N tests/test_fuzz.py`` tries N programs at random; without it they are few
and always the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
from fuzz_programs import Generator, Program
from hypothesis import Phase
from hypothesis import strategies as st
from scalar_oracle import (
    FIRST, Scalars, check_adjoint, check_derivatives, check_differences, random_floats,
)  # fmt: skip

from loma.frontend import parse
from loma.ir import ArrayType
from loma.printer import print_module
from loma.verify import verify

FORWARD = "fwd_f = fwd_diff(f)\n"
Check = Callable[[Program], None]


@pytest.fixture
def fuzz(request: pytest.FixtureRequest) -> Callable[..., None]:
    """``fuzz(check, examples, **options)``: checks programs that a Generator makes."""
    wanted = request.config.getoption("--fuzz-examples")

    def run(check: Check, examples: int, **options: bool) -> None:
        @hypothesis.settings(
            max_examples=wanted or examples,
            derandomize=wanted is None,
            database=None,
            # what has failed is printed as it is: to make it smaller takes minutes
            phases=[Phase.generate, Phase.shrink] if wanted else [Phase.generate],
            deadline=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(st.randoms(use_true_random=False))
        def explore(rng: random.Random) -> None:
            program = Generator(rng).program(**options)
            hypothesis.note(f"{program.text}\nargs = {program.args}")
            check(program)

        explore()

    return run


# ------------------------------------------------------------------------------------------ text


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


@pytest.mark.parametrize("simd", [False, True])
def test_derivatives_of_derivatives(fuzz: Any, simd: bool) -> None:
    def check(program: Program) -> None:
        params = parse(program.text).function("f").params
        # Not every adjoint of an array of unknown length has an adjoint in turn.
        sized = all(not isinstance(p.type, ArrayType) or p.type.size for p in params)
        check_derivatives(
            program.text,
            program.args,
            items=program.items or 1,
            differences="no_diff" not in program.text,
            reverse_of=sized,
        )

    fuzz(check, 3 if simd else 8, simd=simd, reads_outs=False)
