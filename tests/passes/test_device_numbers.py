"""Numbers as 0-dim tensors: programs do what they did, and wait for less."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from control_cases import CONTROL
from count_cases import COUNTS
from guard_cases import CASES as GUARDS
from index_cases import CASES as INDEX_CASES
from operator_cases import CASES as OPERATOR_CASES
from oracle import entry, plain
from paper_cases import PAPERS
from recurrence_cases import RECURRENCES
from scatter_cases import CASES as SCATTER
from several_cases import SEVERAL
from trap_cases import TRAPS

from loma import pipeline
from loma.backends.interpreter import Interpreter
from loma.core.ir import FLOAT, Module, is_tensor_function
from loma.core.verify import verify
from loma.passes.device_numbers import on_device

ALL: list[Any] = [
    *INDEX_CASES, *TRAPS, *CONTROL, *OPERATOR_CASES, *COUNTS, *GUARDS, *PAPERS, *RECURRENCES,
    *SCATTER, *SEVERAL,
]  # fmt: skip


def moved(module: Module) -> Module:
    """The module with its numbers on the device, which is well formed."""
    new = on_device(module)
    verify(new)
    for before, after in zip(module.functions, new.functions, strict=True):
        assert [p.name for p in before.params] == [p.name for p in after.params]
        if is_tensor_function(before):
            assert FLOAT not in [*(p.type for p in after.params), *after.results]
        else:
            assert before == after
    return new


def outcome(interpreter: Interpreter, name: str, args: Sequence[Any]) -> Any:
    try:
        return interpreter.call(name, *args)
    except (ValueError, ArithmeticError, IndexError) as error:
        return type(error), str(error).split(":")[0]


def agree(old: Interpreter, new: Interpreter, name: str, args: Sequence[Any]) -> Any:
    """Runs a function both ways; gives its results."""
    params = old.module.function(name).params
    given = [
        np.float64(arg) if param.type == FLOAT else arg
        for arg, param in zip(args, params, strict=True)
    ]
    expected, found = outcome(old, name, given), outcome(new, name, given)
    assert len(found) == len(expected)
    for value, right in zip(found, expected, strict=True):
        if isinstance(right, str | type):
            assert value == right, name
        else:
            assert np.shape(value) == np.shape(right), name
            np.testing.assert_allclose(value, right, rtol=1e-12, atol=1e-12, err_msg=name)
    return expected


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_programs_and_their_derivatives(case: Any) -> None:
    final = pipeline.program(case.text, every=True)
    old, new = Interpreter(final.module), Interpreter(moved(final.module))
    name, given = entry(case.text), [plain(arg) for arg in case.arguments()]
    agree(old, new, name, given)
    for pair in final.pairs:
        if pair.primal != name:
            continue
        outs = agree(old, new, pair.forward, given)
        primal = final.module.function(name)
        count = len(primal.results) + sum(param.mode == "Out" for param in primal.params)
        generator = np.random.default_rng(3)
        values: list[Any] = []
        for source in pair.sources:
            match source.kind:
                case "arg":
                    values.append(given[source.index])
                case "result":
                    values.append(outs[source.index])
                case "saved":
                    values.append(outs[count + source.index])
                case "grad":
                    values.append(generator.normal(size=np.shape(outs[source.index])))
                case "size":
                    shown = np.shape(given[source.index])[source.dim]
                    values.append((shown - source.offset) // source.scale)
                case "need":
                    values.append(1)
        agree(old, new, pair.backward, values)
