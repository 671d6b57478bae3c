"""Random programs of all of the tensor layer against PyTorch: values and derivatives.

``pytest --fuzz-examples N tests/ad/test_fuzz_twins.py`` tries N programs that no run had before.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

import oracle
import pytest
import torch
from fuzz_twins import CONSTANTS, Twin, twin
from oracle import as_tuple, close, differentiable, plain, zero
from test_tensor_forward_mode import interleaved, parted

import loma

LARGEST = 1e4  # beyond which a program says little of its digits
PROGRAMS = 5
COMPILED = 6
NESTED = "t_d_f = fwd_diff(d_f)\nd_t_f = rev_diff(t_f)\n"
Tensors = tuple[torch.Tensor, ...]


def _derivatives(
    made: Twin,
) -> tuple[list[torch.Tensor], list[torch.Tensor], tuple[Any, Tensors, Tensors]] | None:
    """Weights of the results, a direction of the arguments, and by autograd the results, their
    gradient, and the gradient of its product with the direction; None if any of it is large, or
    has elements of nothing."""
    try:
        values = as_tuple(made.reference(*made.args))
    except (AssertionError, IndexError, RuntimeError, ValueError, ZeroDivisionError):
        assert 0 in made.sizes.values()
        return None
    generator = torch.Generator().manual_seed(3)
    weights = oracle.random_weights(values, generator)
    floats = [made.args[k] for k in differentiable(made.args)]
    along = oracle.random_weights(floats, generator)
    found = oracle.derivatives(made.reference, made.args, weights, along)
    every = [torch.as_tensor(v).double().abs() for part in found for v in part]
    return (weights, along, found) if all(bool((v < LARGEST).all()) for v in every) else None


def _same(found: Sequence[Any], right: Sequence[Any], tolerance: float, what: str) -> None:
    for k, (value, wanted) in enumerate(zip(found, right, strict=True)):
        close(value, wanted, tolerance, f"{what} {k}")


def _check(made: Twin, nested: bool) -> None:
    """Interpreted: values, and derivatives of first and second order, in both modes."""
    known = _derivatives(made)
    if known is None:
        return
    weights, along, (values, first, second) = known
    requests = "t_f = fwd_diff(f)\n" + NESTED * nested
    program = oracle.Program([f"{CONSTANTS}{requests}{made.text}"])
    _same(program.value("f", made.args), values, 1e-9, "result")
    _same(program.adjoint("f", made.args, weights), first, 1e-8, "adjoint")
    where = differentiable(made.args)
    for wanted in (where, where[::2], where[1::2]):
        split = program.split_adjoint("f", made.args, weights, wanted)
        _same([split[k] for k in wanted], [first[where.index(k)] for k in wanted], 1e-8, "split")
    twice = program.second_adjoint("f", made.args, weights, along)
    _same(twice, second, 1e-7, "second derivative")

    hessian, tangents = second[: len(where)], second[len(where) :]
    primal, run = program.function("f"), program.interpreter.call
    forward = interleaved(primal, made.args, along)
    ahead = parted(primal, run("t_f", *forward))
    _same(ahead[0], values, 1e-9, "value beside a tangent")
    _same(ahead[1], tangents, 1e-8, "tangent")
    if nested:
        _check_nested(program, made, weights, along, hessian, first)


def _check_nested(
    program: oracle.Program, made: Twin, weights: Sequence[Any], along: Sequence[Any],
    hessian: Tensors, first: Tensors,
) -> None:  # fmt: skip
    """Each mode over the other one gives the same product with the Hessian."""
    adjoint = program.function("d_f")
    given, _ = program._adjoint_call("f", made.args, weights, "d_")
    moving = iter(along)
    tangents = [
        next(moving) if p.mode == "In" and not p.name.startswith("_d_") else zero(value)
        for p, value in zip(adjoint.params, given, strict=True) if oracle.is_float(p.type)
    ]  # fmt: skip
    found = parted(
        adjoint, program.interpreter.call("t_d_f", *interleaved(adjoint, given, tangents))
    )
    _same(found[1], hessian, 1e-7, "forward over reverse")

    tangent = program.function("t_f")
    primal, moving, args, seeds = program.function("f"), iter(along), [], []
    for param, arg in zip(primal.params, made.args, strict=True):
        args += [arg, next(moving)] if oracle.is_float(param.type) else [arg]
    for type_, weight in zip(primal.results, weights, strict=True):
        seeds += [zero(weight), weight] if oracle.is_float(type_) else [zero(weight)]
    names = [p.name for p in tangent.params if oracle.is_float(p.type)]
    by_name = dict(zip(names, program.adjoint("t_f", args, seeds), strict=True))
    _same([by_name[n] for n in names[0::2]], hessian, 1e-7, "reverse over forward")
    _same([by_name[n] for n in names[1::2]], first, 1e-8, "adjoint of a tangent")


def _check_all(seeds: range) -> None:
    for seed in seeds:
        made = twin(seed)
        try:
            _check(made, nested=seed % 3 == 0)
        except Exception as error:
            raise AssertionError(f"seed {seed}:\n{made.text}\nargs = {made.args}") from error


def test_interpreted(request: pytest.FixtureRequest) -> None:
    wanted = request.config.getoption("--fuzz-examples")
    start = random.randrange(1 << 30) if wanted else 0
    _check_all(range(start, start + (wanted or PROGRAMS)))


@pytest.mark.full
@pytest.mark.parametrize("start", range(PROGRAMS, 200, 20))
def test_more_of_them(start: int) -> None:
    _check_all(range(start, start + 20))


@pytest.fixture(scope="module")
def compiled(request: pytest.FixtureRequest) -> tuple[Any, list[int]]:
    """A module with several programs, and their numbers."""
    wanted = request.config.getoption("--fuzz-examples")
    start = random.randrange(1 << 30) if wanted else 0
    seeds = [
        s for s in range(start, start + (wanted or COMPILED)) if _derivatives(twin(s)) is not None
    ]
    texts = [re.sub(r"\b(f|bend|chain)\(", rf"\g<1>_{seed}(", twin(seed).text) for seed in seeds]
    return loma.compile(CONSTANTS + "\n".join(texts)), seeds


@pytest.mark.full
def test_compiled(compiled: tuple[Any, list[int]]) -> None:
    """Values, gradients and tangents in float64, ints in any dtype."""
    module, seeds = compiled
    for seed in seeds:
        made, function = twin(seed), getattr(module, f"f_{seed}")
        values = as_tuple(function(*made.narrow))
        weights = oracle.random_weights(values, torch.Generator().manual_seed(8))
        expected, first = oracle.gradients(made.reference, made.args, weights)
        _same(values, [plain(v) for v in expected], 1e-9, f"seed {seed}: result")
        _, found = oracle.gradients(function, made.narrow, weights)
        _same(found, first, 1e-8, f"seed {seed}: gradient")


def _in(dtype: torch.dtype, args: Sequence[Any]) -> list[Any]:
    return [
        a.to(dtype) if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args
    ]


@pytest.mark.full
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_floats(compiled: tuple[Any, list[int]], dtype: torch.dtype) -> None:
    """What float32 gives for the same numbers, rounded once. Operands of products and convolutions
    may be rounded, too, and what a backward part finds saved is."""
    module, seeds = compiled
    for seed in seeds:
        made, function = twin(seed), getattr(module, f"f_{seed}")
        given = _in(dtype, made.args)
        wide = _in(torch.float32, given)
        values, right = as_tuple(function(*given)), as_tuple(function(*wide))
        weights = [w.to(dtype) for w in oracle.random_weights(right, torch.Generator())]
        _, found = oracle.gradients(function, given, weights)
        _, first = oracle.gradients(function, wide, _in(torch.float32, weights))
        once = re.search("@|conv|matmul|linear", made.text) is None
        for k, (value, wanted) in enumerate(zip([*values, *found], [*right, *first], strict=True)):
            assert value.dtype == (dtype if wanted.is_floating_point() else wanted.dtype)
            steps = 0.51 if once and k < len(values) else 30
            close(
                value.float(), wanted.float(), steps * torch.finfo(dtype).eps, f"seed {seed}: {k}"
            )
