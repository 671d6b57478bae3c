"""Random programs and their derivatives: C computes what the interpreter does.

``pytest --fuzz-examples N tests/c/test_fuzz_c.py`` compiles N programs that no run had before.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from c_host import CProgram, merged
from fuzz_programs import Generator, Program
from scalar_oracle import FIRST, Scalars

from loma.backends.c import Options

PROGRAMS = 4  # with --full: 16


def random_program(seed: int) -> Program:
    options = {"simd": seed % 4 == 3, "reads_outs": False}
    return Generator(random.Random(seed)).program(**options)


def calls(program: Program, scalars: Scalars) -> dict[str, list[Any]]:
    """Arguments for the function and its two derivatives."""
    args = list(program.args)
    rng = np.random.default_rng(0)
    left = iter(rng.normal(size=scalars.inputs("f", args).size).tolist())
    duals = [
        scalars.dual(arg, p.type, left) for arg, p in zip(args, scalars.params("f"), strict=True)
    ]
    weights = rng.normal(size=scalars.run("f", args).size)
    adjoints = scalars.adjoint_arguments("f", args, weights, start=0.5)
    return {"f": args, "fwd_f": duals, "rev_f": adjoints}


@pytest.mark.parametrize(
    ("options", "level"),
    [
        pytest.param(Options("double", "slices"), "-O2", marks=pytest.mark.full),
        (Options("double", "pointers"), "-O0"),
        pytest.param(
            Options("double", "pointers", by_value=0, stack=0), "-O1", marks=pytest.mark.full
        ),
    ],
    ids=["slices", "pointers", "heap"],
)
def test_values_and_derivatives(
    request: pytest.FixtureRequest, options: Options, level: str
) -> None:
    wanted = request.config.getoption("--fuzz-examples")
    count = 16 if request.config.getoption("--full") else PROGRAMS
    first = random.randrange(2**40) if wanted else 0
    programs = {seed: random_program(seed) for seed in range(first, first + (wanted or count))}
    known = {
        seed: Scalars(program.text + FIRST, program.items or 1)
        for seed, program in programs.items()
    }
    whole = merged((f"p{seed}_", scalars.module) for seed, scalars in known.items())
    compiled = CProgram(whole, options, (level,))
    for seed, scalars in known.items():
        program = programs[seed]
        items = () if program.items is None else (program.items,)
        for name, args in calls(program, scalars).items():
            # atomic additions come in any order
            tolerance = 1e-9 if program.items is None else 1e-7
            found = compiled.call(f"p{seed}_{name}", *args, *items)
            np.testing.assert_allclose(
                scalars.flat(found, scalars.outputs(name)),
                scalars.run(name, args),
                rtol=tolerance,
                atol=tolerance,
                err_msg=f"seed {seed}: {name}{args}\n{program.text}",
            )
