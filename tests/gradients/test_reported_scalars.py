"""Scalar programs that other systems were reported to get wrong, in the interpreter and in plain C.

Values, reverse and forward mode, and second derivatives, against autograd in float64 and against
gradients by hand. docs/gradients.md tells where each was reported.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from c_host import CProgram
from numpy.typing import NDArray
from reported import Reported, each, texts
from reported_scalars import REPORTED
from scalar_oracle import Scalars, check_adjoint, close, random_floats

import loma
from loma import errors
from loma.ad import differentiate
from loma.backends.c import Options
from loma.frontend import parse

TEXTS = texts("scalars")
EACH_CASE = each(REPORTED)


def requests(name: str) -> str:
    """Both modes, and all four of one after the other."""
    return "".join(
        f"{prefix}_{of} = {prefix}_diff({of})\n"
        for of in (name, f"fwd_{name}", f"rev_{name}")
        for prefix in ("fwd", "rev")
    )


@functools.cache
def interpreted() -> Scalars:
    return Scalars("\n".join([*TEXTS.values(), *map(requests, TEXTS)]))


@functools.cache
def in_c() -> Scalars:
    """The same, calling C of doubles."""
    made = copy.copy(interpreted())
    run: Any = CProgram(made.module, Options("double"), ("-O0",))
    made.interpreter = run
    return made


@pytest.fixture(params=["interpreter", "C"])
def program(request: pytest.FixtureRequest) -> Scalars:
    return interpreted() if request.param == "interpreter" else in_c()


@functools.cache
def module() -> Any:
    """What users have: C of floats of 32 bits, called from Python."""
    names = [f"rev_{name} = rev_diff({name})\n" for name in TEXTS]
    return loma.compile("\n".join([*TEXTS.values(), *names]))


class Autograd:
    """A case's reference, at its arguments."""

    def __init__(self, case: Reported) -> None:
        self.leaves: list[torch.Tensor] = []
        self.args = [
            self._argument(arg, is_out) for arg, is_out in zip(case.args, _outs(case), strict=True)
        ]
        results = case.reference(*self.args)
        results = results if isinstance(results, tuple) else (results,)
        self.results = torch.cat([y.reshape(-1) for y in results])

    def _argument(self, arg: Any, is_out: bool) -> Any:
        parts = arg if isinstance(arg, list) else [arg]
        if is_out or isinstance(parts[0], int):
            return arg
        leaf = torch.tensor(arg, dtype=torch.float64, requires_grad=True)
        self.leaves.append(leaf)
        return leaf

    def gradient(self, of: torch.Tensor) -> torch.Tensor:
        """In all float arguments, as one vector that can be differentiated again."""
        found = torch.autograd.grad(of, self.leaves, create_graph=True, materialize_grads=True)
        return torch.cat([part.reshape(-1) for part in found])

    def second(self, weights: NDArray[np.float64], along: NDArray[np.float64]) -> Any:
        """The derivative of the gradient of ``weights @ results`` in a direction."""
        first = self.gradient(self.results @ torch.from_numpy(weights))
        if not first.requires_grad:
            return np.zeros(len(along))
        return self.gradient(first @ torch.from_numpy(along)).detach().numpy()


def _outs(case: Reported) -> Iterator[bool]:
    head = (
        TEXTS[case.name].rsplit(f"def {case.name}(", 1)[1].partition("):")[0].partition(") ->")[0]
    )
    return ("Out[" in part for part in head.split(" : ")[1:])


def moves(program: Scalars, case: Reported) -> list[bool]:
    """For each float of the arguments, whether it is one of an ``In`` argument."""
    pairs = zip(case.args, program.params(case.name), strict=True)
    return [p.mode == "In" for arg, p in pairs for _ in program.floats(arg, p.type)]


def test_every_program_is_here() -> None:
    assert set(TEXTS) == {case.name for case in REPORTED}


@EACH_CASE
def test_values_and_gradients(program: Scalars, case: Reported) -> None:
    right = Autograd(case)
    values = program.run(case.name, case.args)
    assert np.isfinite(values).all()
    close(values, right.results.detach().numpy(), 1e-12, "values")
    weights = random_floats(values.size, 1)
    expected = right.gradient(right.results @ torch.from_numpy(weights)).detach().numpy()
    # The adjoints are added to what is there: 0.5 everywhere.
    found = program.reverse(case.name, f"rev_{case.name}", case.args, weights, start=0.5)
    close(found, expected, 1e-12, "reverse mode against autograd")
    if case.known is not None:
        ones = np.ones(values.size)
        found = program.reverse(case.name, f"rev_{case.name}", case.args, ones)
        close(found, np.array(case.known), 1e-12, "reverse mode against what is known")


@EACH_CASE
def test_forward_mode(program: Scalars, case: Reported) -> None:
    right, ins = Autograd(case), moves(program, case)
    along = random_floats(len(ins), 2) * ins
    values, found = program.forward(case.name, f"fwd_{case.name}", case.args, along)
    np.testing.assert_array_equal(values, program.run(case.name, case.args))
    direction = torch.from_numpy(along[ins])
    expected = [(right.gradient(y) @ direction).item() for y in right.results]
    close(found, np.array(expected), 1e-12, "forward mode against autograd")


@EACH_CASE
def test_second_derivatives(program: Scalars, case: Reported) -> None:
    """Forward mode of the reverse derivative against autograd; the other three against forward."""
    name, right, ins = case.name, Autograd(case), moves(program, case)
    weights, along = random_floats(len(right.results), 3), random_floats(len(ins), 4) * ins
    given = program.adjoint_arguments(name, case.args, weights)
    tangents = list(_directions(program, case, given, along))
    _, found = program.forward(f"rev_{name}", f"fwd_rev_{name}", given, np.array(tangents))
    if case.kink:
        assert np.isfinite(found).all()
    else:
        expected = right.second(weights, along[ins])
        close(found[-len(expected) :], expected, 1e-11, "forward of reverse against autograd")
    left = iter(along.tolist())
    pairs = zip(case.args, program.params(name), strict=True)
    duals = [program.dual(arg, param.type, left) for arg, param in pairs]
    check_adjoint(program, f"fwd_{name}", f"fwd_fwd_{name}", f"rev_fwd_{name}", duals)
    check_adjoint(program, f"rev_{name}", f"fwd_rev_{name}", f"rev_rev_{name}", given)


def _directions(
    program: Scalars, case: Reported, given: Sequence[Any], along: NDArray[np.float64]
) -> Iterator[float]:
    """For the arguments of the reverse derivative: only the function's own ones move."""
    left = iter(along.tolist())
    own = {param.name for param in program.params(case.name) if param.mode == "In"}
    for arg, param in zip(given, program.params(f"rev_{case.name}"), strict=True):
        for _ in program.floats(arg, param.type):
            yield next(left) if param.name in own else 0.0


@each(REPORTED, known=True)
def test_called_from_python(case: Reported) -> None:
    pairs = list(zip(case.args, _outs(case), strict=True))
    ins = [arg for arg, is_out in pairs if not is_out]
    seeds = [[1.0] * len(arg) for arg, is_out in pairs if is_out]
    results = 0 if seeds else np.size(getattr(module(), case.name)(*ins))
    found = getattr(module(), f"rev_{case.name}")(*ins, *seeds, *[1.0] * results)
    found = found if isinstance(found, tuple) else (found,)
    floats = [np.ravel(g) for g, arg in zip(found, ins, strict=True) if _is_float(arg)]
    assert case.known is not None
    close(np.concatenate(floats), np.array(case.known), 1e-5)


def _is_float(arg: Any) -> bool:
    return isinstance(arg[0] if isinstance(arg, list) else arg, float)


def test_a_loop_that_does_not_end_is_an_error() -> None:
    """``zygote_1149`` where rounding, or a wrong step, keeps time from moving on."""
    program = Scalars(TEXTS["zygote_1149"] + requests("zygote_1149"))
    with pytest.raises(RuntimeError, match="line 4: the loop runs more than max_iter = 20 times"):
        program.call("rev_zygote_1149", (0.0, 0.0, 0.01, 0.0, 1.0, 0.0, 1.0))


OVERWRITTEN = """
def product(x : In[float], b : Out[float], loss : Out[float]):
    loss = x * b
    b += 100.0
rev_product = rev_diff(product)
"""


def test_a_value_that_the_caller_had_overwritten_is_refused() -> None:
    """``warp_947`` with ``b`` in the caller's memory, where its value would be gone."""
    with pytest.raises(errors.NotDifferentiable) as caught:
        differentiate(parse(OVERWRITTEN))
    assert "needs the value that its Out argument 'b' has on entry" in str(caught.value)
    assert "pass that value as an In argument" in caught.value.to_string()
