"""Functions for devices: numbers as 0-dim tensors, so that programs do what they did, and wait for
less, and biases of convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from control_cases import CONTROL
from count_cases import COUNTS
from guard_cases import CASES as GUARDS
from index_cases import CASES as INDEX_CASES
from operator_cases import CASES as OPERATOR_CASES
from oracle import entry, given_backward, plain
from paper_cases import PAPERS
from recurrence_cases import RECURRENCES
from sampled import one_in
from scatter_cases import CASES as SCATTER
from several_cases import SEVERAL
from trap_cases import TRAPS

from conftest import ROOT
from loma import pipeline
from loma.backends.interpreter import Interpreter
from loma.core.ir import (
    FLOAT, INT, Index, IndexAssign, Module, TensorType, While, is_tensor_function,
)  # fmt: skip
from loma.core.printer import print_module
from loma.core.verify import verify
from loma.core.verify_expressions import printed
from loma.core.walk import expressions, statements, walk
from loma.frontend import parse
from loma.passes.device.numbers import on_device

ALL: list[Any] = [
    *INDEX_CASES, *TRAPS, *CONTROL, *OPERATOR_CASES, *COUNTS, *GUARDS, *PAPERS, *RECURRENCES,
    *SCATTER, *SEVERAL,
]  # fmt: skip


def moved(module: Module) -> Module:
    """The module with its numbers on the device, which is well formed."""
    new = on_device(module)
    verify(new)
    for before, after in zip(module.functions, new.functions, strict=True):
        assert [p.name for p in before.params] == [p.name for p in after.params]
        if is_tensor_function(before):
            assert FLOAT not in [*(p.type for p in after.params), *after.results]
        else:
            assert before == after
    return new


def outcome(interpreter: Interpreter, name: str, args: Sequence[Any]) -> Any:
    try:
        return interpreter.call(name, *args)
    except (ValueError, ArithmeticError, IndexError) as error:
        return type(error), str(error).split(":")[0]


def agree(old: Interpreter, new: Interpreter, name: str, args: Sequence[Any]) -> Any:
    """Runs a function both ways; gives its results."""
    params = old.module.function(name).params
    given = [
        np.float64(arg) if param.type == FLOAT else arg
        for arg, param in zip(args, params, strict=True)
    ]
    expected, found = outcome(old, name, given), outcome(new, name, given)
    assert len(found) == len(expected)
    for value, right in zip(found, expected, strict=True):
        if isinstance(right, str | type):
            assert value == right, name
        else:
            assert np.shape(value) == np.shape(right), name
            np.testing.assert_allclose(value, right, rtol=1e-12, atol=1e-12, err_msg=name)
    return expected


@pytest.mark.parametrize("case", one_in(8, ALL), ids=lambda case: case.name)
def test_programs_and_their_derivatives(case: Any) -> None:
    final = pipeline.program(case.text, every=True)
    old, new = Interpreter(final.module), Interpreter(moved(final.module))
    name, given = entry(case.text), [plain(arg) for arg in case.arguments()]
    agree(old, new, name, given)
    for pair in final.pairs:
        if pair.primal != name:
            continue
        outs = agree(old, new, pair.forward, given)
        generator = np.random.default_rng(3)
        seeds = [generator.normal(size=np.shape(out)) for out in outs]
        primal, every = final.module.function(name), range(len(given))
        values = given_backward(pair, primal, given, outs, seeds, every)
        agree(old, new, pair.backward, values)


# What is given to each function of these is made of its types. Text, and the statements of the
# function of which the host waits for the device.
PROGRAMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "loss": ("""
def f(x : In[Tensor[N, D]], w : In[Tensor[D]], scale : In[float], k : In[int]) -> float:
    s : float
    s += x[n, d] * w[d] * scale
    m : float = 0.5
    for i in range(k):
        m = m * 0.9
    if s > 0.0:
        s = 2.0 * s
    else:
        s = s * s - m
    return s * m
""", ()),
    "adam": ("""
def f(p : Out[Tensor[N]], m : Out[Tensor[N]], g : In[Tensor[N]], rate : In[float], b : In[float],
      step : In[int]):
    scale : float = rate / (1.0 - b ** step)
    m[i] = b * m[i] + (1.0 - b) * g[i]
    p[i] += -scale * m[i] / (1.0 + abs(m[i]))
""", ()),
    "changed_arguments": ("""
def g(x : In[Tensor[N]], a : In[float], total : Out[float]):
    a = a * 2.0
    total += a * x[0]

def f(x : In[Tensor[N]], a : In[float], total : Out[float]) -> tuple[float, float, float]:
    b : float
    g(x, a, total)
    g(x, total + a, b)
    total = total + b
    return a, a, total
""", ()),
    "passed_on": ("""
def g(x : In[Tensor[N]], a : In[float]) -> float:
    return a

def f(x : In[Tensor[N]], a : In[float]) -> float:
    r : float = g(x, a)
    s : float = r
    r = r + 1.0
    return r * s + g(x, 2.0) + g(x, x[0] * 2.0) + g(x, N)
""", ()),
    "several_results": ("""
def g(x : In[Tensor[N]], a : In[float]) -> tuple[float, int, Tensor[N]]:
    y : Tensor[N]
    y[i] = x[i] * a
    return a * y[0], N, y

def f(x : In[Tensor[N]]) -> tuple[float, int, float]:
    s : float = 1.0
    k : int
    for i in range(3):
        s, k, y = g(x, s)
        s += y[0]
    return s, k, s
""", ()),
    "scalar_function_with_out": ("""
def g(a : In[float], n : In[int], b : Out[float], c : Out[int]):
    b = b + a * n
    c = c + n

def f(x : In[Tensor[N]], a : In[float]) -> float:
    b : float = x[0]
    h : float = 1.0
    c : int = 2
    g(a, 3, b, c)
    k : int
    g(2.0, c, h, k)
    return b * k + h
""", ("_number = b[()]", "g(a[()], 3, _number, c)")),
    "calls_under_conditions": ("""
def g(x : In[Tensor[N]], a : In[float]) -> float:
    return sum(x[i] * a for i in range(N))

def f(x : In[Tensor[N]], a : In[float]) -> float:
    s : float = g(x, a) if a > 100.0 else g(x, 1.0) * a
    t : float = 0.0
    while (g(x, t) < 3.0 and t < 5.0, max_iter := 10):
        t = t + g(x, 1.0) * g(x, 1.0) + 1.0
    return s + t
""", ("if a[()] > 100.0:", "if not a[()] > 100.0:")),
    "operators": ("""
def f(a : In[Tensor[N, M]], w : In[Tensor[M, K]], s : In[float]) -> Tensor[N, K]:
    y = matmul(a * s, w)
    z = where(y > s, y / (s * 2.0 + 3.0), max(y, s))
    r = sum(z) / (1.0 + s)
    t : float = r[()] * s
    return softmax(z * t, 1) + r
""", ()),
    "nested_branches": ("""
def f(x : In[Tensor[N]], a : In[float]) -> float:
    s : float = sum(x[i] for i in range(N))
    t : float = 1.0
    big : int = 0
    if s > a:
        s = s - 1.0
        big = 1
        if s > 0.5:
            t = s / a
        else:
            t = -s
            s = 0.0
    elif s < 0.0:
        t = s
    y : float = t * s if big else t
    if big:
        y = y * 2.0
    return y
""", ()),
    "guarded_by_branches": ("""
def f(x : In[Tensor[N]], k : In[int], a : In[float]) -> float:
    s : float = a
    if a > 1e9:
        s = x[N + 5 * k] + 7 // (k - 1)
    return s
""", ()),
    "recurrence": ("""
def f(c : In[Tensor[N]], a : In[float]) -> tuple[Tensor[N], float, int]:
    y : Tensor[N]
    last : float = 1.0
    count : int = 0
    for i in range(N):
        m : float = max(c[i], last)
        if m > a:
            m = m * 0.5
            count += 1
        last = m - 0.1
        y[i] = m * last
    return y, last, count
""", ("m = max(c[i], last[()])", "if m > a[()]:", "return y, last, count[()]")),
}  # fmt: skip


def arguments(module: Module, name: str) -> list[Any]:
    generator = np.random.default_rng(11)
    sizes = {"N": 3, "M": 4, "K": 2, "D": 4}
    args: list[Any] = []
    for param in module.function(name).params:
        match param.type:
            case TensorType(dims):
                shape = [sizes[dim.name] for dim in dims or ()]  # type: ignore[union-attr]
                args.append(generator.normal(size=shape))
            case _:
                args.append(1 if param.type == INT else np.float64(generator.normal()))
    return args


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_a_program_does(name: str) -> None:
    text, _ = PROGRAMS[name]
    differentiable = name != "scalar_function_with_out"
    for module in (parse(text), *([pipeline.program(text).module] if differentiable else [])):
        new = moved(module)
        for sign in (1.0, -1.0):
            args = [sign * a if isinstance(a, np.ndarray) else a for a in arguments(module, "f")]
            agree(Interpreter(module), Interpreter(new), "f", args)


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_the_host_waits_for(name: str) -> None:
    text, waits = PROGRAMS[name]
    function = moved(parse(text)).function("f")
    found = [
        printed(stmt)
        for stmt in statements(function.body)
        if not isinstance(stmt, IndexAssign | While)
        and any(isinstance(e, Index) for x in expressions(stmt) for e in walk(x))
    ]
    assert found == list(waits)


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_it_prints_is_a_program(name: str) -> None:
    module = parse(PROGRAMS[name][0])
    again = parse(print_module(moved(module)))
    agree(Interpreter(module), Interpreter(again), "f", arguments(module, "f"))


FOLDERS = ("capsnet_loma", "loma/optim", "examples", "benchmarks")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.loma"))


@pytest.mark.parametrize("path", one_in(16, FILES), ids=lambda path: path.stem)
def test_programs_stay_well_formed(path: Path) -> None:
    moved(pipeline.program(path.read_text("utf-8"), str(path), every=True).module)


CONVOLVED = """
def f(x : In[Tensor[B, C, H, W]], w : In[Tensor[F, C, P, Q]], bias : In[Tensor[F]]
      ) -> Tensor[B, F, H - P + 1, W - Q + 1]:
    t : Tensor[B, F, H - P + 1, W - Q + 1] = conv2d(x, w, bias)
    y : Tensor[B, F, H - P + 1, W - Q + 1]
    READ
    return y
"""


@pytest.mark.parametrize(
    ("read", "later"),
    [
        ("y[b, f, h, v] = max(t[b, f, h, v], 0.5)", True),
        ("y[b, f, h, v] = t[b, f, h, v] * bias[f]", True),
        ("y[b, f, h, v] = t[b, f, h, v] * t[b, f, 0, 0]", False),  # read twice
        ("y[b, f, h, v] = t[b, f, h, 0] + h + v", False),  # an element for several
        ("t[0, 0, 0, 0] = 3.0\n    y[b, f, h, v] = 2.0 * t[b, f, h, v]", False),
        ("y = 2.0 * t + t", False),
    ],
)
def test_biases_are_added_where_convolutions_are_read(read: str, later: bool) -> None:
    module = parse(CONVOLVED.replace("READ", read))
    new = moved(module)
    assert ("conv2d(x, w)" in print_module(new)) == later
    draw = np.random.default_rng(0)
    args = [draw.standard_normal(shape) for shape in ((2, 3, 5, 4), (2, 3, 2, 3), (2,))]
    agree(Interpreter(module), Interpreter(new), "f", args)
