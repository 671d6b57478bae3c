"""Tensor functions on the interpreter, as programs have them and as trees: both do the same."""

from __future__ import annotations

import random
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from oracle import plain
from trees import tree_of

from loma import passes, pipeline
from loma.backends import registry
from loma.backends.cfamily.device import Device
from loma.backends.interpreter import Interpreter
from loma.backends.interpreter.evaluate import evaluate
from loma.backends.interpreter.frame import Frame
from tree_host import LoweredInterpreter
from loma.core.ir import Function, IntType, Module, TensorType, Var, is_tensor_function
from loma.core.sizes import bindings
from loma.core.walk import aggregates
from loma.passes.device.numbers import on_device

REFUSED = (ValueError, IndexError, RuntimeError, ZeroDivisionError)


def arguments(function: Function, known: Mapping[str, Any], rng: random.Random) -> list[Any]:
    """Small random arguments of a function; ``known`` are some by name."""
    numbers = np.random.default_rng(rng.randrange(1 << 30))
    env: dict[str, Any] = {}
    for size, at in bindings(function.params).items():
        given = known.get(function.params[at.param].name)
        env[size] = rng.randint(0, 4)
        if given is not None:
            env[size] = (np.shape(given)[at.dim] - at.offset) // at.scale
    for param in function.params:
        if isinstance(param.type, IntType):
            env[param.name] = known.get(param.name, rng.randint(0, 3))
    frame = Frame(function, {}, {}, lambda *_: (), 64, env=env)
    found: list[Any] = []
    for param in function.params:
        value = known.get(param.name, env.get(param.name))
        if value is None and isinstance(param.type, TensorType):
            dims = param.type.dims
            shape = [2, 3] if dims is None else [max(int(evaluate(frame, d)), 0) for d in dims]
            value = numbers.normal(size=shape)
            if param.type.integer:
                # No value twice: some programs take positions that must be distinct.
                value = numbers.permutation(int(np.prod(shape))).reshape(shape)
                value = value % 2 == 0 if param.type.element == "bool" else value
        found.append(numbers.normal() if value is None else plain(value))
    return found


def lowered(module: Module, seed: int = 0, device: Device | None = None) -> LoweredInterpreter:
    if device is registry.CUDA:
        module = on_device(module)
    return LoweredInterpreter(module, lambda function: tree_of(function, module, device), seed)


def for_sizes(module: Module, function: Function, args: list[Any]) -> Module:
    """The function, and what it calls, for the sizes and ints of a call."""
    values: dict[str, int] = {}
    for param, arg in zip(function.params, args, strict=True):
        if isinstance(param.type, IntType):
            values[param.name] = int(arg)
        elif isinstance(param.type, TensorType) and param.type.dims is not None:
            sizes = zip(param.type.dims, np.shape(arg), strict=False)
            values |= {dim.name: size for dim, size in sizes if isinstance(dim, Var)}
    return passes.optimise(pipeline.known_sizes(module, function.name, values))


def compare(interpreter: Interpreter, trees: Interpreter, name: str, args: list[Any]) -> bool:
    """Whether the function takes the arguments; what it gives must be the same with trees."""
    try:
        expected = interpreter.call(name, *args)
    except REFUSED as error:
        try:
            trees.call(name, *args)
        except REFUSED:
            return False
        raise AssertionError(f"{name}: the trees do not refuse what is wrong: {error}") from error
    found = trees.call(name, *args)
    for k, (value, wanted) in enumerate(zip(found, expected, strict=True)):
        if not _same(value, wanted):
            raise AssertionError(f"{name}: result {k} is\n{value}\nnot\n{wanted}")
    return True


def _same(found: Any, expected: Any) -> bool:
    if np.asarray(expected).dtype.kind in "ib":
        return np.array_equal(found, expected)
    return np.shape(found) == np.shape(expected) and np.allclose(
        found, expected, 1e-9, 1e-12, equal_nan=True
    )


def run_program(
    text: str,
    name: str,
    known: Mapping[str, Any] | None = None,
    tries: int = 4,
    specialised: bool = False,
    device: Device | None = None,
) -> dict[str, int]:
    """Runs all tensor functions of a program, and of its derivatives, with random arguments.
    ``known`` are the arguments of one of them; ``specialised``: each call runs what is made for its
    sizes; ``device``: whose trees they are. How often each function has taken its arguments."""
    module = pipeline.program(text, name).module
    rng = random.Random(zlib.crc32(text.encode()))
    interpreter, trees = Interpreter(module), lowered(module, rng.randrange(1 << 30), device)
    taken: dict[str, int] = {}
    for function in filter(is_tensor_function, module.functions):
        if any(aggregates(function)):
            continue
        taken[function.name] = 0
        for given in [*[{}] * tries, known or {}]:
            try:
                args = arguments(function, given, rng)
            except ValueError:  # there are no such sizes
                continue
            if specialised:
                own = for_sizes(module, function, args)
                interpreter, trees = Interpreter(own), lowered(own, 0, device)
            taken[function.name] += compare(interpreter, trees, function.name, args)
    return taken
