"""Reads that are others at the border of their tensor: in it loops neither test nor divide."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from oracle import Program
from tree_runs import lowered

from loma import pipeline
from loma.backends.interpreter import Interpreter

HEAD = "(x : In[Tensor[N, M]], k : In[int]) -> Tensor[N, M]:\n    y : Tensor[N, M]\n"
# Each the sum of the four neighbours on a torus; ``far`` goes round more than once.
BODIES = {
    "remainders": "x[(i + 1) % N, j] + x[(i - 1) % N, j] + x[i, (j + 1) % M] + x[i, (j - 1) % M]",
    "choices": "(x[i + 1, j] if i + 1 < N else x[0, j]) + (x[i - 1, j] if i > 0 else x[N - 1, j])"
    " + (x[i, j + 1] if j + 1 < M else x[i, 0]) + (x[i, j - 1] if j > 0 else x[i, M - 1])",
    "far": "x[(i + 7) % N, j] * x[i, (j - k) % M]",
    "mixed": "(x[(i + 1) % N, j + 1] if j + 1 < M else 2.0 * x[i, j]) / x[i, j]",
    "clamped": "x[i, j + 1 if j + 1 < M else j] - x[i, max(j - 1, 0)]",
}
TEXTS = {
    name: f"def {name}{HEAD}    y[i, j] = {body}\n    return y\n" for name, body in BODIES.items()
}
SHAPES = [(1, 1), (2, 1), (1, 40), (5, 67), (3, 0), (0, 3)]


def expected(name: str, x: torch.Tensor, k: int) -> torch.Tensor:
    if name == "far":
        return x.roll(-7, 0) * x.roll(k, 1)
    right = torch.cat([x[:, 1:], x[:, -1:]], 1)
    if name == "clamped":
        return right - torch.cat([x[:, :1], x[:, :-1]], 1)
    if name == "mixed":
        return torch.cat([x.roll(-1, 0)[:, 1:], 2.0 * x[:, -1:]], 1) / x
    return x.roll(-1, 0) + x.roll(1, 0) + x.roll(-1, 1) + x.roll(1, 1)


@pytest.mark.parametrize("name", BODIES)
def test_the_loops_say_what_the_program_says(name: str) -> None:
    module = pipeline.program(TEXTS[name], name).module
    trees, interpreter, rng = lowered(module), Interpreter(module), random.Random(name)
    for shape in (*SHAPES, (7, 9)):
        x = np.array([[rng.uniform(1, 2) for _ in range(shape[1])] for _ in range(shape[0])])
        args = x.reshape(shape), 5
        (found,), (right,) = trees.call(name, *args), interpreter.call(name, *args)
        np.testing.assert_allclose(found, right, 1e-12)


@pytest.mark.parametrize("name", ["remainders", "choices", "far"])
def test_loops_inside_of_the_tensor_only_read(name: str) -> None:
    shown = pipeline.stage_text(TEXTS[name], "schedule", name)
    (inside,) = [k for k, line in enumerate(shown.split("\n")) if "vector for" in line]
    line = shown.split("\n")[inside + 1]
    assert "y[" in line
    assert "%" not in line
    assert "$read_if" not in line
    assert " if " not in line
    assert name == "far" or "%" not in shown.partition("parallel")[2]


@pytest.fixture(scope="module")
def program() -> Program:
    return Program(list(TEXTS.values()), first=())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", BODIES)
def test_compiled(name: str, shape: tuple[int, int], program: Program) -> None:
    generator = torch.Generator().manual_seed(4)
    x = torch.rand(shape, generator=generator, dtype=torch.float64) + 1.0
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    found, right = program.compiled(name)(ours, 5), expected(name, theirs, 5)
    torch.testing.assert_close(found, right)
    weights = torch.rand(shape, generator=generator, dtype=torch.float64)
    found.backward(weights)
    right.backward(weights)
    torch.testing.assert_close(ours.grad, theirs.grad)
