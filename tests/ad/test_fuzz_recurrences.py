"""Random recurrences against Python and autograd: values, first and second derivatives."""

from __future__ import annotations

import random

import numpy as np
import pytest
from sampled import one_in
import torch
from fuzz_recurrences import PLACES, SIZE, WIDTH, recurrence

import loma
from loma.ad import differentiate
from loma.backends.interpreter import Interpreter
from loma.core.verify import verify
from loma.frontend import parse

DERIVATIVES = "d_f = rev_diff(f)\ndd_f = rev_diff(d_f)\n"
ONES, NONE = np.ones(WIDTH), np.zeros(WIDTH)
WHERE, NOWHERE = np.array(PLACES), np.zeros(WIDTH, np.int64)


def _expected(
    seed: int,
) -> tuple[int, list[torch.Tensor], tuple[torch.Tensor, ...], torch.Tensor, torch.Tensor]:
    """Arguments and weights; results, gradient, and that of its product with the last weight."""
    generator = torch.Generator().manual_seed(seed)
    x, *weights = (torch.rand(SIZE, generator=generator, dtype=torch.float64) for _ in range(4))
    x = (x - 0.5).requires_grad_()
    n = random.Random(seed).choice((0, 1, 2, 3, 4))
    results = recurrence(seed).reference(x, torch.ones(WIDTH), n)
    loss = (results[0] * weights[0]).sum() + (results[1] * weights[1]).sum()
    (first,) = torch.autograd.grad(loss, x, create_graph=True)
    second = torch.zeros_like(x)
    if first.requires_grad:
        (second,) = torch.autograd.grad((first * weights[2]).sum(), x)
    return n, [x, *weights], results, first, second


def _check(seed: int) -> None:
    n, tensors, results, first, second = _expected(seed)
    x, left, right, along = (t.detach().numpy() for t in tensors)
    module = differentiate(parse(recurrence(seed).text + DERIVATIVES))
    verify(module)
    interpreter = Interpreter(module)
    zero = np.zeros(SIZE)
    found = interpreter.call("f", x, ONES, WHERE, n)
    for value, wanted in zip(found, results, strict=True):
        np.testing.assert_allclose(value, wanted.detach().numpy(), rtol=1e-8, atol=1e-9)
    adjoint = interpreter.call("d_f", x, zero, ONES, NONE, WHERE, NOWHERE, n, 0, left, right)
    np.testing.assert_allclose(adjoint[0], first.detach().numpy(), rtol=1e-7, atol=1e-8)
    twice = interpreter.call(
        "dd_f",
        x,
        zero,
        along,
        ONES,
        NONE,
        NONE,
        WHERE,
        NOWHERE,
        NOWHERE,
        n,
        0,
        0,
        left,
        zero,
        right,
        zero,
    )
    np.testing.assert_allclose(twice[0], second.numpy(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("seed", one_in(3, range(8)))
def test_interpreted(seed: int) -> None:
    _check(seed)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(8, 200))
def test_more_of_them(seed: int) -> None:
    _check(seed)


@pytest.mark.full
@pytest.mark.parametrize("first", range(0, 60, 20))
def test_compiled(first: int) -> None:
    seeds = range(first, first + 20)
    texts = [recurrence(seed).text.replace("def f(", f"def f_{seed}(") for seed in seeds]
    module = loma.compile("\n".join(texts))
    for seed in seeds:
        n, tensors, results, gradient, _ = _expected(seed)
        x = tensors[0].detach().requires_grad_()
        found = getattr(module, f"f_{seed}")(x, torch.from_numpy(ONES), torch.tensor(PLACES), n)
        for value, wanted in zip(found, results, strict=True):
            torch.testing.assert_close(value, wanted)
        loss = sum((value * w).sum() for value, w in zip(found, tensors[1:3], strict=True))
        (back,) = torch.autograd.grad(loss, x)
        torch.testing.assert_close(back, gradient.detach())
