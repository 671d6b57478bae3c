"""Values and derivatives of scalar functions on the interpreter, as flat vectors of floats.

A function's inputs are the floats in all its arguments, in order; its outputs are those in its
results and then in its ``Out`` arguments. Ints stay what they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loma.ad import differentiate
from loma.backends.interpreter import Interpreter
from loma.core.ir import ArrayType, FloatType, Function, Module, Param, Struct, StructType, Type
from loma.core.verify import verify
from loma.frontend import parse

Value = Any
Vector = NDArray[np.float64]
STEP = 1e-5


class Scalars:
    """A program with its derivatives, on the interpreter; @simd functions run for ``items``."""

    def __init__(self, text: str, items: int = 1) -> None:
        self.text = text
        self.items = items
        self.module: Module = differentiate(parse(text))
        verify(self.module)
        self.interpreter = Interpreter(self.module)
        self.structs: dict[str, Struct] = {struct.name: struct for struct in self.module.structs}

    def function(self, name: str) -> Function:
        return self.module.function(name)

    def params(self, name: str) -> tuple[Param, ...]:
        return self.function(name).params

    def outputs(self, name: str) -> tuple[Type, ...]:
        """Types of the results, then of the ``Out`` arguments."""
        function = self.function(name)
        return function.results + tuple(p.type for p in function.params if p.mode == "Out")

    def adjoints(self, name: str, values: Sequence[Value]) -> Vector:
        """Of what a reverse derivative gives, the floats that are adjoints of ``In`` arguments."""
        function = self.function(name)
        outs = [p for p in function.params if p.mode == "Out"]
        pairs = [
            (v, p) for v, p in zip(values, outs, strict=True) if p.name not in function.used_up
        ]
        return self.flat([v for v, _ in pairs], [p.type for _, p in pairs])

    # ------------------------------------------------------------------------- floats of values

    def floats(self, value: Value, type_: Type) -> Iterator[float]:
        """The floats in a value, in order."""
        match type_:
            case FloatType():
                yield float(value)
            case ArrayType(element, _):
                for item in value:
                    yield from self.floats(item, element)
            case StructType(name):
                for member, t in self.structs[name].members:
                    yield from self.floats(value[member], t)
            case _:
                pass

    def with_floats(self, value: Value, type_: Type, floats: Iterator[float]) -> Value:
        """A copy of a value with other floats."""
        match type_:
            case FloatType():
                return next(floats)
            case ArrayType(element, _):
                return [self.with_floats(item, element, floats) for item in value]
            case StructType(name):
                return {
                    member: self.with_floats(value[member], t, floats)
                    for member, t in self.structs[name].members
                }
            case _:
                return value

    def dual(self, value: Value, type_: Type, tangent: Iterator[float]) -> Value:
        """The differential of a value: each float with the next of ``tangent``."""
        match type_:
            case FloatType():
                return {"val": value, "dval": next(tangent)}
            case ArrayType(element, _):
                return [self.dual(item, element, tangent) for item in value]
            case StructType(name):
                return {
                    member: self.dual(value[member], t, tangent)
                    for member, t in self.structs[name].members
                }
            case _:
                return value

    def primal(self, value: Value, type_: Type, tangent: list[float]) -> Value:
        """The value of a differential; its derivatives are added to ``tangent``."""
        match type_:
            case FloatType():
                tangent.append(float(value["dval"]))
                return value["val"]
            case ArrayType(element, _):
                return [self.primal(item, element, tangent) for item in value]
            case StructType(name):
                return {
                    member: self.primal(value[member], t, tangent)
                    for member, t in self.structs[name].members
                }
            case _:
                return value

    def inputs(self, name: str, args: Sequence[Value]) -> Vector:
        """The floats of the arguments."""
        pairs = zip(args, self.params(name), strict=True)
        return np.array([x for arg, p in pairs for x in self.floats(arg, p.type)])

    def arguments(self, name: str, args: Sequence[Value], floats: Vector) -> list[Value]:
        """The arguments with other floats."""
        left = iter(floats.tolist())
        pairs = zip(args, self.params(name), strict=True)
        return [self.with_floats(arg, p.type, left) for arg, p in pairs]

    # -------------------------------------------------------------------------------- functions

    def call(self, name: str, args: Sequence[Value]) -> tuple[Value, ...]:
        """The results, then the final values of the ``Out`` arguments."""
        items = (self.items,) if self.function(name).simd else ()
        return self.interpreter.call(name, *args, *items)

    def run(self, name: str, args: Sequence[Value]) -> Vector:
        """The floats of the results and the ``Out`` arguments."""
        return self.flat(self.call(name, args), self.outputs(name))

    def flat(self, values: Sequence[Value], types: Sequence[Type]) -> Vector:
        """The floats of several values."""
        pairs = zip(values, types, strict=True)
        return np.array([x for value, t in pairs for x in self.floats(value, t)])

    def difference(
        self, name: str, args: Sequence[Value], along: Vector, step: float = STEP
    ) -> Vector:
        """J v by central differences."""
        at = self.inputs(name, args)
        ahead = self.run(name, self.arguments(name, args, at + step * along))
        behind = self.run(name, self.arguments(name, args, at - step * along))
        return (ahead - behind) / (2.0 * step)

    def forward(
        self, name: str, derivative: str, args: Sequence[Value], along: Vector
    ) -> tuple[Vector, Vector]:
        """Outputs and J v, by a forward derivative."""
        left = iter(along.tolist())
        duals = [
            self.dual(arg, p.type, left) for arg, p in zip(args, self.params(name), strict=True)
        ]
        found = self.call(derivative, duals)
        types = self.outputs(name)
        tangent: list[float] = []
        values = [self.primal(v, t, tangent) for v, t in zip(found, types, strict=True)]
        return self.flat(values, types), np.array(tangent)

    def adjoint_arguments(
        self, name: str, args: Sequence[Value], weights: Vector, start: float = 0.0
    ) -> list[Value]:
        """The arguments of a reverse derivative; what it adds to holds ``start`` everywhere.

        ``weights`` are the adjoints of the outputs, in order.
        """
        left = iter(weights.tolist())
        function = self.function(name)
        values = self.call(name, args)
        seeds = [
            self.with_floats(value, t, left)
            for value, t in zip(values, self.outputs(name), strict=True)
        ]
        results = seeds[: len(function.results)]
        outs = iter(seeds[len(function.results) :])
        given: list[Value] = []
        for arg, param in zip(args, function.params, strict=True):
            if param.mode == "Out":
                given.append(next(outs))
            else:
                zero = self.with_floats(arg, param.type, _repeat(start))
                given += [arg, zero]
        return [*given, *results]

    def reverse(
        self,
        name: str,
        derivative: str,
        args: Sequence[Value],
        weights: Vector,
        start: float = 0.0,
    ) -> Vector:
        """J^T w for the floats of the ``In`` arguments, by a reverse derivative."""
        given = self.adjoint_arguments(name, args, weights, start)
        return self.adjoints(derivative, self.call(derivative, given)) - start


def _repeat(value: float) -> Iterator[float]:
    while True:
        yield value


def close(found: Vector, expected: Vector, tolerance: float, what: str = "") -> None:
    """Equal up to the tolerance, relative to the largest expected element (or to one)."""
    assert found.shape == expected.shape, f"{what}: {found.shape[0]} not {expected.shape[0]} floats"
    scale = float(np.max(np.abs(expected[np.isfinite(expected)]), initial=1.0))
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * scale, err_msg=what)


def check_forward(
    program: Scalars,
    name: str,
    derivative: str,
    args: Sequence[Value],
) -> None:
    """A forward derivative computes the primal's outputs, and its J v is that of differences."""
    along = np.random.default_rng(0).normal(size=program.inputs(name, args).shape)
    values, tangent = program.forward(name, derivative, args, along)
    np.testing.assert_array_equal(values, program.run(name, args))
    expected = program.difference(name, args, along)
    close(tangent, expected, 1e-7, f"{derivative} against differences of {name}")


def is_tame(values: Vector) -> bool:
    """Whether differences and sums of products mean something at such values."""
    return bool(np.all(np.isfinite(values))) and float(np.max(np.abs(values), initial=0.0)) < 1e6


def random_floats(size: int, seed: int) -> Vector:
    return np.random.default_rng(seed).normal(size=size)


def check_differences(
    program: Scalars, name: str, derivative: str, args: Sequence[Value], along: Vector
) -> None:
    """A forward derivative computes the outputs, and J v where differences show no kink."""
    values, found = program.forward(name, derivative, args, along)
    here = program.run(name, args)
    np.testing.assert_array_equal(values, here)
    if not is_tame(here):
        return
    at, step = program.inputs(name, args), 1e-5

    def moved(distance: float) -> Vector:
        return program.run(name, program.arguments(name, args, at + distance * along))

    ahead, behind = moved(step) - here, here - moved(-step)
    whole = (ahead + behind) / (2 * step)
    half = (moved(step / 2) - moved(-step / 2)) / step
    scale = float(np.max(np.abs([*here, *half]), initial=1.0))
    smooth = (np.abs(ahead - behind) < 1e-3 * step * scale) & (np.abs(whole - half) < 1e-5 * scale)
    expected = np.where(smooth, half, found)
    close(found, expected, 1e-5, f"{derivative} against differences of {name}")


def check_adjoint(
    program: Scalars, name: str, forward: str, reverse: str, args: Sequence[Value]
) -> None:
    """<J v, w> = <v, J^T w>, where v does not move what ``Out`` arguments hold at the start."""
    moves: list[bool] = []
    for arg, param in zip(args, program.params(name), strict=True):
        moves += [param.mode == "In" for _ in program.floats(arg, param.type)]
    along = random_floats(len(moves), 1) * np.array(moves, dtype=np.float64)
    values, tangent = program.forward(name, forward, args, along)
    if not is_tame(values):
        return
    assert np.isfinite(tangent).all(), forward
    weights = random_floats(tangent.size, 2)
    adjoint = program.reverse(name, reverse, args, weights, start=0.5)
    left, right = float(tangent @ weights), float(along[moves] @ adjoint)
    scale = max(1.0, float(np.abs(tangent) @ np.abs(weights)))
    assert abs(left - right) < 1e-8 * scale, f"{reverse}: <Jv, w> = {left}, <v, J^T w> = {right}"


# Derivatives of ``f``: first ones, and those of derivatives.
FIRST = "fwd_f = fwd_diff(f)\nrev_f = rev_diff(f)\n"
FORWARD_OF = "fwd_fwd = fwd_diff(fwd_f)\nfwd_rev = fwd_diff(rev_f)\n"
REVERSE_OF = "rev_fwd = rev_diff(fwd_f)\nrev_rev = rev_diff(rev_f)\n"


def check_derivatives(
    text: str, args: Sequence[Value], *, items: int = 1, differences: bool = True,
    reverse_of: bool = True,
) -> None:  # fmt: skip
    """First and second derivatives of ``f``, in all combinations of forward and reverse mode.

    ``differences`` False compares derivatives with each other only; ``reverse_of`` False leaves out
    reverse derivatives of derivatives.
    """
    program = Scalars(text + FIRST + FORWARD_OF + (REVERSE_OF if reverse_of else ""), items)
    size = program.inputs("f", args).size
    left = iter(random_floats(size, 6).tolist())
    pairs = zip(args, program.params("f"), strict=True)
    duals = [program.dual(arg, param.type, left) for arg, param in pairs]
    weights = random_floats(program.run("f", args).size, 5)
    given = program.adjoint_arguments("f", args, weights)
    if differences:
        check_differences(program, "f", "fwd_f", args, random_floats(size, 0))
        check_differences(program, "fwd_f", "fwd_fwd", duals, random_floats(2 * size, 8))
        along = random_floats(program.inputs("rev_f", given).size, 7)
        check_differences(program, "rev_f", "fwd_rev", given, along)
    check_adjoint(program, "f", "fwd_f", "rev_f", args)
    if reverse_of:
        check_adjoint(program, "fwd_f", "fwd_fwd", "rev_fwd", duals)
        check_adjoint(program, "rev_f", "fwd_rev", "rev_rev", given)
