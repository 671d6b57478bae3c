"""Random tensor programs through libtorch: values, gradients and what is freed afterwards.

``pytest --fuzz-examples N tests/ad/test_fuzz_tensors.py`` compiles N programs that no run had
before.
"""

from __future__ import annotations

import gc
import random
import re
import weakref
from typing import Any

import numpy as np
import oracle
import pytest
import torch
from fuzz_tensors import Generator, Program

PROGRAMS = 1  # with --full: 4


def _made(rng: random.Random) -> Program:
    """A program whose values and gradients have a moderate size."""
    while True:
        made = Generator(random.Random(rng.randrange(1 << 30))).program()
        program = oracle.Program([made.text], derivatives=False)
        values = program.value("f", made.args)
        weights = oracle.random_weights(values, torch.Generator().manual_seed(1))
        where = oracle.differentiable(made.args)
        found = program.split_adjoint("f", made.args, weights, where)
        largest = [np.max(np.abs(v), initial=0.0) for v in (*values, *found.values())]
        if max(map(float, largest)) < 1e4:
            return made


def _numbered(made: Program, number: int) -> str:
    """Under names that no other program has."""
    return re.sub(r"\b([fg])\(", rf"\g<1>{number}(", made.text)


def _given(made: Program) -> tuple[list[Any], list[torch.Tensor]]:
    """Arguments, those that need gradients as leaves, and the Out tensors among them, which lie in
    memory that NumPy frees."""
    outs = len(re.findall(r" : Out\[", made.text))
    floats = oracle.differentiable(made.args)
    written = floats[len(floats) - outs :]
    args: list[Any] = list(made.args)
    owned: list[torch.Tensor] = []
    for k in floats:
        if k in written:
            args[k] = torch.from_numpy(args[k].numpy().copy())
            owned.append(args[k])
        else:
            args[k] = args[k].clone().requires_grad_()
    return args, owned


def _check(made: Program, compiled: Any) -> None:
    program = oracle.Program([made.text], derivatives=False)
    expected = program.value("f", made.args)
    weights = oracle.random_weights(expected, torch.Generator().manual_seed(2))
    where = oracle.differentiable(made.args)
    right = program.split_adjoint("f", made.args, weights, where)

    args, outs = _given(made)
    values = [*oracle.as_tuple(compiled(*args)), *outs]
    for k, (value, wanted) in enumerate(zip(values, expected, strict=True)):
        oracle.close(value, wanted, 1e-8, f"result {k}")
    leaves = {k: args[k] for k in where if args[k].is_leaf and args[k].requires_grad}
    live = [(v, w) for v, w in zip(values, weights, strict=True) if v.requires_grad]
    found = torch.autograd.grad(
        [v for v, _ in live], list(leaves.values()), [w for _, w in live], allow_unused=True
    )
    for k, value in zip(leaves, found, strict=True):
        # What nothing depends on has no gradient.
        gradient = torch.zeros_like(args[k]) if value is None else value
        oracle.close(gradient, right[k], 1e-8, f"gradient of argument {k}")

    args, outs = _given(made)
    memory = [weakref.ref(out.numpy().base) for out in outs]
    values = compiled(*args)
    del args, outs, values
    gc.collect()
    assert [reference() for reference in memory] == [None] * len(memory)


def test_values_gradients_and_memory(request: pytest.FixtureRequest) -> None:
    wanted = request.config.getoption("--fuzz-examples")
    count = 4 if request.config.getoption("--full") else PROGRAMS
    rng = random.Random() if wanted else random.Random(4)
    programs = [_made(rng) for _ in range(wanted or count)]
    texts = [_numbered(made, k) for k, made in enumerate(programs)]
    compiled = oracle.Program(texts, derivatives=False)
    for k, made in enumerate(programs):
        try:
            _check(made, compiled.compiled(f"f{k}"))
        except Exception as error:
            raise AssertionError(f"{made.text}\nargs = {made.args}") from error
