"""Programs of the teaching language are read as they are, and what is printed means the same."""

from __future__ import annotations

import pytest
from teaching_derivatives import DERIVATIVES
from teaching_programs import PROGRAMS, Program

from loma.core.printer import print_module
from loma.core.verify import verify
from loma.frontend import parse

EVERY = (*PROGRAMS, *DERIVATIVES)


@pytest.mark.parametrize("program", EVERY, ids=lambda p: p.name)
def test_reads_and_prints(program: Program) -> None:
    module = parse(program.source, f"{program.name}.py")
    verify(module)
    assert parse(print_module(module)) == module


@pytest.mark.parametrize("program", EVERY, ids=lambda p: p.name)
def test_calls_fit(program: Program) -> None:
    module = parse(program.source)
    names = {f.name for f in module.functions} | {d.name for d in module.derivatives}
    for call in program.calls:
        assert call.function in names
        if call.function in {f.name for f in module.functions}:
            function = module.function(call.function)
            assert len(call.args) == len(function.params)
            assert len(call.outs) == sum(p.mode == "Out" for p in function.params)
            assert (call.items is not None) == function.simd


def test_names_are_unique() -> None:
    names = [program.name for program in EVERY]
    assert len(set(names)) == len(names) >= 60
