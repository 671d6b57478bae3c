"""Random programs and their derivatives: Python's calls give what the C functions give.

``pytest --fuzz-examples N tests/c/test_fuzz_calls.py`` compiles N programs that no run had before.
"""

from __future__ import annotations

import random
import types
from typing import Any

import numpy as np
import pytest
from c_host import CProgram, merged
from scalar_oracle import FIRST, Scalars
from test_fuzz_c import calls, random_program

import loma
from loma.backends.c import Options
from loma.core.ir import FLOAT, INT, ArrayType, Param, StructType, Type
from loma.core.printer import print_module

PROGRAMS = 8
Value = Any


def given(scalars: Scalars, value: Value, type_: Type) -> Value:
    """A value as a Python caller holds it: structs as any objects, arrays as lists or arrays."""
    match type_:
        case StructType(name):
            members = scalars.structs[name].members
            return types.SimpleNamespace(**{m: given(scalars, value[m], t) for m, t in members})
        case ArrayType(element) if element in (FLOAT, INT):
            return np.array(value, np.float32 if element == FLOAT else np.int32)
        case ArrayType(element):
            return [given(scalars, item, element) for item in value]
        case _:
            return value


def argument(scalars: Scalars, value: Value, param: Param) -> Value:
    """A number that is written stands in an array."""
    if param.mode == "Out" and param.type in (FLOAT, INT):
        return np.array(value, np.float32 if param.type == FLOAT else np.int32)
    return given(scalars, value, param.type)


def taken(scalars: Scalars, value: Value, type_: Type) -> Value:
    """What a call gave or wrote, as the interpreter has it."""
    match type_:
        case StructType(name):
            members = scalars.structs[name].members
            return {m: taken(scalars, getattr(value, m), t) for m, t in members}
        case ArrayType(element):
            return [taken(scalars, item, element) for item in value]
        case _:
            return np.asarray(value).item()


@pytest.mark.full
def test_values_and_derivatives(request: pytest.FixtureRequest) -> None:
    wanted = request.config.getoption("--fuzz-examples")
    first = random.randrange(2**40) if wanted else 1000
    programs = {seed: random_program(seed) for seed in range(first, first + (wanted or PROGRAMS))}
    known = {
        seed: Scalars(program.text + FIRST, program.items or 1)
        for seed, program in programs.items()
    }
    whole = merged((f"p{seed}_", scalars.module) for seed, scalars in known.items())
    c = CProgram(whole, Options("float", "slices"))
    module = loma.compile(print_module(whole))
    for seed, scalars in known.items():
        program = programs[seed]
        items = () if program.items is None else (program.items,)
        for name, values in calls(program, scalars).items():
            params = scalars.params(name)
            args = [argument(scalars, v, p) for v, p in zip(values, params, strict=True)]
            results = getattr(module, f"p{seed}_{name}")(*args, *items)
            count = len(scalars.function(name).results)
            found = [results] if count == 1 else list(results or ())
            found += [arg for arg, p in zip(args, params, strict=True) if p.mode == "Out"]
            types_ = scalars.outputs(name)
            left = [taken(scalars, v, t) for v, t in zip(found, types_, strict=True)]
            np.testing.assert_allclose(
                scalars.flat(left, types_),
                scalars.flat(c.call(f"p{seed}_{name}", *values, *items), types_),
                rtol=1e-5,
                atol=1e-5,
                err_msg=f"seed {seed}: {name}{values}\n{program.text}",
            )
