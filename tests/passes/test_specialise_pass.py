"""Functions for known sizes and ints: their text, and that they compute the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import oracle
import pytest
from index_cases import CASES as INDEX_CASES
from operator_cases import CASES as OPERATOR_CASES
from sampled import one_in

from loma.backends.interpreter import Interpreter
from loma.core.ir import Function, IntType, TensorType, Var
from loma.core.printer import print_function
from loma.core.verify import verify
from loma.frontend import parse
from loma.passes import optimise
from loma.passes.specialise import specialise

TEXT = """
def f(x : In[Tensor[N, M]], n : In[int], flag : In[int], k : In[int]) -> Tensor[2 * N + n, M]:
    y : Tensor[2 * N + n, M]
    z : Tensor[N * M]
    taken : int
    z[l] = x[l // M, l % M] / M
    for t in range(n):
        taken = flag != 0
        if taken:
            y[t, j] = x[t, j] * (N // 2) + sum(z[l] for l in range(max(N, M)))
        else:
            y[t, j] += int2float(M - N)
        if n - 3 > 0 and t > 1:
            y[t, j] = 1.0
    while (k < n, max_iter := 10):
        k += 1
        y[k, j] += 1.0
    return y
"""


def values_of(function: Function, args: Any) -> dict[str, int]:
    """The sizes and ints of a call, by name."""
    values: dict[str, int] = {}
    for param, arg in zip(function.params, args, strict=True):
        if isinstance(param.type, IntType):
            values[param.name] = int(arg)
        elif isinstance(param.type, TensorType) and param.type.dims is not None:
            for dim, size in zip(param.type.dims, np.shape(arg), strict=True):
                if isinstance(dim, Var):
                    values.setdefault(dim.name, size)
    return values


class Specialising(Interpreter):
    """Runs each function that is called, and what becomes of it for the sizes of the call."""

    def call(self, name: str, *args: Any) -> tuple[Any, ...]:
        expected = super().call(name, *args)
        function = self.module.function(name)
        own = specialise(function, values_of(function, args))
        assert [p.name for p in own.params] == [p.name for p in function.params]
        functions = tuple(own if f.name == name else f for f in self.module.functions)
        module = optimise(replace(self.module, functions=functions))
        verify(module)
        found = Interpreter(module).call(name, *args)
        for value, right in zip(found, expected, strict=True):
            oracle.close(value, right, 1e-12)
        return expected


class Program(oracle.Program):
    @property
    def interpreter(self) -> Interpreter:
        return Specialising(super().interpreter.module)

    @property
    def _split(self) -> Any:
        interpreter, pairs = super()._split
        return Specialising(interpreter.module), pairs


@pytest.mark.parametrize(
    "case", one_in(8, [*INDEX_CASES, *OPERATOR_CASES]), ids=lambda case: case.name
)
def test_same_results(case: Any) -> None:
    program = Program([case.text])
    name = oracle.entry(case.text)
    oracle.check(
        program, name, case.arguments(), case.reference, second=False, smooth=False, libtorch=False
    )


def specialised_text(**values: int) -> str:
    module = parse(TEXT)
    function = specialise(module.function("f"), values)
    verify(replace(module, functions=(function,)))
    return print_function(function)


def test_everything_known() -> None:
    assert (
        specialised_text(N=2, M=3, n=2, flag=1, k=0)
        == """\
def f(x : In[Tensor[2, 3]], n : In[int], flag : In[int], k : In[int]) -> Tensor[6, 3]:
    y : Tensor[6, 3]
    z : Tensor[6]
    taken : int
    z[l] = x[l // 3, l % 3] / 3
    for t in range(2):
        taken = 1
        y[t, j] = x[t, j] * 1 + sum(z[l] for l in range(3))
    while (k < 2, max_iter := 10):
        k += 1
        y[k, j] += 1.0
    return y"""
    )  # k is assigned, so it stays a variable


def test_some_known_and_no_iterations() -> None:
    assert (
        specialised_text(N=2, n=0, flag=1, unknown=7)
        == """\
def f(x : In[Tensor[2, M]], n : In[int], flag : In[int], k : In[int]) -> Tensor[4, M]:
    y : Tensor[4, M]
    z : Tensor[2 * M]
    taken : int
    z[l] = x[l // M, l % M] / M
    while (k < 0, max_iter := 10):
        k += 1
        y[k, j] += 1.0
    return y"""
    )


def test_variables_that_hold_constants() -> None:
    text = """
def g(x : In[Tensor[N]], n : In[int]) -> Tensor[N]:
    a : int
    b : int
    y : Tensor[N]
    a = n + 1
    if a == 3:
        b = a
    for t in range(2):
        if b == 3:
            y[t] += sum(x[i] for i in range(a))
        b = 4
    if b == 4:
        a = 5
    y[0] = a
    return y
"""
    module = parse(text)
    function = specialise(module.function("g"), {"n": 2})
    verify(replace(module, functions=(function,)))
    shown = print_function(function)
    assert "if a == 3" not in shown  # a is 3 there
    assert "range(3)" in shown
    assert "if b == 3" in shown  # only in the first iteration
    x = np.arange(1.0, 6.0)
    expected = Interpreter(module).call("g", x, 2)
    found = Interpreter(replace(module, functions=(function,))).call("g", x, 2)
    np.testing.assert_array_equal(found[0], expected[0])
