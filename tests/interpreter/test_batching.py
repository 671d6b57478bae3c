"""Functions for many samples: what the pass makes gives each sample what the function gives it."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import oracle
import pytest
from sampled import one_in
from changed_programs import (
    INDEX_POINTS, LAYER_POINTS, OPERATOR_POINTS, TRAP_POINTS, Point, of_cases,
)  # fmt: skip
from control_cases import CONTROL
from recurrence_cases import RECURRENCES

from loma.ad import split_pairs
from loma.backends.interpreter import Interpreter
from loma.core.ir import FLOAT, Module, TensorType
from loma.core.verify import verify
from loma.frontend import parse
from loma.passes import optimise
from loma.passes.batching import batched

SAMPLES = 3
POINTS = [
    *INDEX_POINTS, *TRAP_POINTS, *OPERATOR_POINTS, *of_cases(CONTROL), *of_cases(RECURRENCES),
    *{point.function: point for point in LAYER_POINTS}.values(),
]  # fmt: skip
ANY_RANK = "In[Tensor]"


@functools.cache
def optimised(text: str) -> Module:
    """What the runtime asks for batched functions of, with both parts of each function."""
    return optimise(split_pairs(parse(text))[0])


def varied(value: Any, k: int) -> Any:
    """Another argument of the same kind for a sample: smooth changes of floats, ints in another
    order."""
    value = np.asarray(oracle.plain(value))
    if value.dtype.kind == "f":
        return value * (1.0 + 0.07 * k)
    return np.roll(value, k)


def sets(module: Module, name: str, args: Sequence[Any]) -> Iterator[tuple[int, ...]]:
    """Arguments that may be batched: all of them, and the first float one alone."""
    params = module.function(name).params
    every = [k for k, p in enumerate(params) if isinstance(p.type, TensorType) or p.type == FLOAT]
    outs = [k for k in every if params[k].mode == "Out"]
    yield tuple(every)
    some = [k for k in every if not getattr(params[k].type, "integer", False)]
    if some and len(every) > 1:
        yield tuple(sorted({some[0], *outs}))


def check(module: Module, name: str, args: Sequence[Any], where: tuple[int, ...]) -> bool:
    """Compares with one sample after the other; whether there is a batched form."""
    made = batched(module, name, where)
    if made is None:
        return False
    verify(made)
    samples = [
        [varied(a, s) if k in where else oracle.plain(a) for k, a in enumerate(args)]
        for s in range(SAMPLES)
    ]
    plain, wide = Interpreter(module), Interpreter(made)
    expected = [plain.call(name, *sample) for sample in samples]
    stacked = [
        np.stack([sample[k] for sample in samples]) if k in where else samples[0][k]
        for k in range(len(args))
    ]
    found = wide.call(name, *stacked)
    for k, value in enumerate(found):
        own = [np.asarray(results[k]) for results in expected]
        value = np.asarray(value)
        if value.ndim == own[0].ndim:  # depends on no sample
            value = np.stack([value] * SAMPLES)
        np.testing.assert_allclose(value, np.stack(own), rtol=1e-9, atol=1e-9)
    return True


@pytest.mark.parametrize("point", one_in(4, POINTS), ids=lambda point: point.name)
def test_samples_together_and_apart(point: Point) -> None:
    module = optimised(point.text)
    for where in sets(module, point.function, point.args):
        ranks = ANY_RANK in point.text or "TorchTensorFloat" in point.text
        assert check(module, point.function, point.args, where) or ranks
