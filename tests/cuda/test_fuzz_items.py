"""Random @simd functions and their derivatives: a GPU computes what the CPU does.

``pytest --fuzz-examples N tests/cuda/test_fuzz_items.py`` runs N programs that no run had before.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from fuzz_programs import Generator
from scalar_oracle import FIRST, Scalars
from test_items import There, _flat, _plain, there

import loma
from loma.core.ir import INT, ArrayType, FloatType, Param, StructType, Type

__all__ = ["there"]  # the fixture
Value = Any
PROGRAMS = 2


class Arguments:
    """Values of the interpreter as a module takes them, for the CPU and for a GPU."""

    def __init__(self, module: loma.LomaModule, scalars: Scalars, there: There) -> None:
        self.module, self.scalars, self.there = module, scalars, there

    def passed(self, param: Param, value: Value, on_gpu: bool) -> Value:
        if param.mode == "Out" or isinstance(param.type, ArrayType):
            array = self._array(param.type, value)
            if not on_gpu:
                return self._object(param.type, value) if array.dtype.names and (
                    isinstance(param.type, StructType)
                ) else array  # fmt: skip
            if array.dtype.names is not None:
                words = array.dtype.itemsize // 4
                array = np.ascontiguousarray(array).reshape(-1).view(np.int32)
                shape = self._shape(param.type)
                array = array.reshape((*shape, words))
                if not any(self._has(param.type, kind) for kind in (INT,)):
                    array = array.view(np.float32)
            return self.there(torch.from_numpy(array.copy()))
        return self._object(param.type, value)

    def _has(self, type_: Type, wanted: Type) -> bool:
        match type_:
            case ArrayType(element, _):
                return self._has(element, wanted)
            case StructType(name):
                return any(self._has(t, wanted) for _, t in self.scalars.structs[name].members)
            case _:
                return type_ == wanted

    def _shape(self, type_: Type) -> tuple[int, ...]:
        if isinstance(type_, ArrayType):
            return (type_.size or 4, *self._shape(type_.element))
        return ()

    def _dtype(self, type_: Type) -> Any:
        match type_:
            case ArrayType(element, _):
                return self._dtype(element)
            case StructType(name):
                return getattr(self.module, name).dtype
            case FloatType():
                return np.dtype(np.float32)
            case _:
                return np.dtype(np.int32)

    def _tuple(self, type_: Type, value: Value) -> Value:
        """As NumPy builds arrays of structures."""
        match type_:
            case ArrayType(element, _):
                return [self._tuple(element, item) for item in value]
            case StructType(name):
                members = self.scalars.structs[name].members
                return tuple(self._tuple(t, value[member]) for member, t in members)
            case _:
                return value

    def _array(self, type_: Type, value: Value) -> Any:
        return np.array(self._tuple(type_, value), self._dtype(type_))

    def _object(self, type_: Type, value: Value) -> Value:
        match type_:
            case ArrayType(element, _) if isinstance(self._leaf(element), StructType):
                return [self._object(element, item) for item in value]
            case ArrayType():
                return self._array(type_, value)
            case StructType(name):
                members = self.scalars.structs[name].members
                parts = {member: self._object(t, value[member]) for member, t in members}
                return getattr(self.module, name)(**parts)
            case _:
                return value

    def _leaf(self, type_: Type) -> Type:
        return self._leaf(type_.element) if isinstance(type_, ArrayType) else type_

    def words(self, type_: Type, value: Value) -> list[float]:
        """The floats of what a call wrote or gave, whatever it is: ints are left out."""
        leaf = self._leaf(type_)
        if isinstance(value, torch.Tensor) and isinstance(leaf, StructType):
            rows = value.cpu().contiguous().view(torch.int32).numpy().reshape(-1)
            value = rows.view(self._dtype(leaf))
        return list(self._floats(type_, value))

    def _floats(self, type_: Type, value: Value) -> Value:
        match type_:
            case FloatType():
                return _flat(_plain(value))
            case ArrayType(element, _) if isinstance(self._leaf(element), StructType):
                items = value.reshape(-1) if isinstance(value, np.ndarray) else value
                own = self._leaf(element) if isinstance(value, np.ndarray) else element
                return [x for item in items for x in self._floats(own, item)]
            case ArrayType(element, _):
                return _flat(_plain(value)) if self._leaf(element) != INT else []
            case StructType(name):
                if isinstance(value, np.ndarray) and value.ndim == 1:
                    (value,) = value
                get = value.__getitem__ if isinstance(value, np.void | np.ndarray) else None
                return [
                    x
                    for member, t in self.scalars.structs[name].members
                    for x in self._floats(t, get(member) if get else getattr(value, member))
                ]
            case _:
                return []


def test_values_and_derivatives(request: pytest.FixtureRequest, there: There) -> None:
    wanted = request.config.getoption("--fuzz-examples")
    first = random.randrange(2**40) if wanted else 0
    for seed in range(first, first + (wanted or PROGRAMS)):
        program = Generator(random.Random(seed)).program(simd=True, reads_outs=False)
        assert program.items is not None
        scalars = Scalars(program.text + FIRST, program.items)
        arguments = Arguments(loma.compile(program.text + FIRST), scalars, there)
        for name, args in _calls(program.args, scalars).items():
            found = _run(arguments, name, args, program.items, on_gpu=True)
            of_cpu = _run(arguments, name, args, program.items, on_gpu=False)
            what = f"seed {seed}: {name}{args}\n{program.text}"
            np.testing.assert_allclose(found, of_cpu, rtol=1e-4, atol=1e-4, err_msg=what)


def _calls(args: Value, scalars: Scalars) -> dict[str, list[Value]]:
    rng = np.random.default_rng(0)
    left = iter(rng.normal(size=scalars.inputs("f", args).size).tolist())
    duals = [scalars.dual(a, p.type, left) for a, p in zip(args, scalars.params("f"), strict=True)]
    weights = rng.normal(size=scalars.run("f", args).size)
    adjoints = scalars.adjoint_arguments("f", args, weights)
    return {"f": list(args), "fwd_f": duals, "rev_f": adjoints}


def _run(
    arguments: Arguments, name: str, args: list[Value], items: int, on_gpu: bool
) -> list[float]:
    """The floats of what a call writes and gives."""
    function = arguments.scalars.function(name)
    reverse = function.primal is not None
    pairs = list(zip(function.params, args, strict=True))
    given = [
        (param, arguments.passed(param, value, on_gpu))
        for param, value in pairs
        if not (reverse and param.mode == "Out" and param.name not in function.used_up)
    ]
    results = getattr(arguments.module, name)(*(value for _, value in given), items)
    loma.check_device()
    if not reverse:
        outs = [(param, value) for param, value in given if param.mode == "Out"]
        return [x for param, value in outs for x in arguments.words(param.type, value)]
    adjoints = [p for p in function.params if p.mode == "Out" and p.name not in function.used_up]
    parts = zip(adjoints, results, strict=True)
    return [x for param, value in parts for x in arguments.words(param.type, value)]
