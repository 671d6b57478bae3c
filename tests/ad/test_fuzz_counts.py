"""Random loops whose counts only running tells, against Python and autograd: values, first and
second derivatives, in all modes."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from sampled import one_in
import torch
from fuzz_counts import BOUNDS, changing_counts
from fuzz_recurrences import PLACES, SIZE, WIDTH
from oracle import Program, check, jvp, plain
from torch import Tensor

from loma.ad import differentiate
from loma.backends.interpreter import Interpreter
from loma.frontend import parse


def _arguments(seed: int) -> list[Any]:
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(SIZE, generator=generator, dtype=torch.float64) - 0.5
    ones = torch.rand(WIDTH, generator=generator, dtype=torch.float64)
    bounds = torch.tensor([rng.randint(0, 4) for _ in range(BOUNDS)])
    return [x, ones, torch.tensor(PLACES), rng.randint(0, 4), bounds]


def _reference(seed: int) -> Any:
    program = changing_counts(seed)

    def run(x: Tensor, ones: Tensor, places: Tensor, n: int, p: Tensor) -> tuple[Tensor, Tensor]:
        return program.reference(x, ones, n, p.tolist())

    return run


def _check(seed: int) -> None:
    text, args = changing_counts(seed).text, _arguments(seed)
    reference = _reference(seed)
    check(Program([text]), "f", args, reference, smooth=False, libtorch=False, tolerance=1e-8)
    x, ones, *ints = args
    along = (torch.sin(torch.arange(SIZE) + 1.0).double(), torch.rand(WIDTH).double())
    _, tangents = jvp(lambda x, ones: reference(x, ones, *ints), (x, ones), along)
    forward = Interpreter(differentiate(parse(f"{text}\ndf = fwd_diff(f)\n")))
    given = [x, along[0], ones, along[1], *ints]
    found = forward.call("df", *map(plain, given))
    for value, wanted in zip(found[1::2], tangents, strict=True):
        np.testing.assert_allclose(value, wanted.numpy(), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("seed", one_in(2, [1, 5]))
def test_interpreted(seed: int) -> None:
    _check(seed)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(200))
def test_more_of_them(seed: int) -> None:
    _check(seed)


@pytest.mark.full
@pytest.mark.parametrize("first", range(0, 24, 8))
def test_compiled(first: int) -> None:
    seeds = range(first, first + 8)
    texts = [changing_counts(seed).text.replace("def f(", f"def f_{seed}(") for seed in seeds]
    program = Program(texts, first=())
    for seed in seeds:
        check(program, f"f_{seed}", _arguments(seed), _reference(seed), smooth=False,
              tolerance=1e-8)  # fmt: skip
