"""Random programs that may fail while they run: C fails where the interpreter does.

``pytest --fuzz-examples N tests/c/test_fuzz_failures.py`` compiles N programs that no run had
before.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from c_host import CProgram, merged
from fuzz_programs import Generator
from scalar_oracle import FIRST, Scalars

from loma.backends.c import Options
from loma.backends.interpreter import Interpreter

PROGRAMS = 24


def outcome(call: Any, name: str, args: Any) -> Any:
    """What a call gives, or why it fails: what fails first in an expression is left open."""
    try:
        return call(name, *args)
    except (IndexError, ZeroDivisionError, RuntimeError) as error:
        return str(error)


@pytest.mark.full
def test_failures(request: pytest.FixtureRequest) -> None:
    wanted = request.config.getoption("--fuzz-examples")
    first = random.randrange(2**40) if wanted else 0
    programs = {
        seed: Generator(random.Random(seed)).program(
            simd=seed % 4 == 3, reads_outs=False, fails=True
        )
        for seed in range(first, first + (wanted or PROGRAMS))
    }
    known = {
        seed: Scalars(program.text + FIRST, program.items or 1)
        for seed, program in programs.items()
    }
    whole = merged((f"p{seed}_", scalars.module) for seed, scalars in known.items())
    compiled, interpreter = CProgram(whole, Options("double", "slices")), Interpreter(whole)
    failed = 0
    for seed, scalars in known.items():
        program, what = programs[seed], f"seed {seed}: {programs[seed].args}\n{programs[seed].text}"
        items = () if program.items is None else (program.items,)
        name = f"p{seed}_f"
        expected = outcome(interpreter.call, name, (*program.args, *items))
        found = outcome(compiled.call, name, (*program.args, *items))
        left = iter([0.5] * 1000)
        pairs = zip(program.args, scalars.params("f"), strict=True)
        duals = [scalars.dual(arg, param.type, left) for arg, param in pairs]
        forward = outcome(compiled.call, f"p{seed}_fwd_f", (*duals, *items))
        failed += isinstance(expected, str)
        if isinstance(expected, str):
            assert isinstance(found, str), f"{expected}\n{what}"
            assert isinstance(forward, str), f"{expected}\n{what}"
            continue
        outputs = scalars.outputs("f")
        assert not isinstance(found, str), f"{found}\n{what}"
        values = scalars.flat(found, outputs), scalars.flat(expected, outputs)
        np.testing.assert_allclose(*values, rtol=1e-7, atol=1e-7, err_msg=what)
        for derivative, args in (
            ("fwd_f", duals),
            ("rev_f", scalars.adjoint_arguments("f", program.args, np.ones(values[0].size))),
        ):
            found = outcome(compiled.call, f"p{seed}_{derivative}", (*args, *items))
            assert not isinstance(found, str), f"{derivative}: {found}\n{what}"
    assert failed > 0
