"""Fusion, without C++: fused steps as plain functions again, see unfused.py, on the interpreter."""

from __future__ import annotations

import functools

import pytest
import torch
from changed_programs import (
    CAPSNET, INDEX_POINTS, LAYER_POINTS, OPERATOR_POINTS, TRAP_POINTS, Changed, Point, compare,
    random_points, with_derivative,
)  # fmt: skip
from sampled import diagonals, one_in
from unfused import Order, Seen, unfused_module

from loma.backends.kernels import lifetimes
from loma.backends.registry import CPU
from loma.core.ir import IndexAssign, Module
from loma.core.saving import SAVES, Save
from loma.passes import optimise

FEW, BACKWARDS, WHOLE = Order(), Order(block=3, panel=1, backwards=True), Order(block=99, panel=99)
POINTS = [
    *one_in(6, [*INDEX_POINTS, *TRAP_POINTS], 1),
    *(pytest.param(point, marks=pytest.mark.full) for point in (*OPERATOR_POINTS, *LAYER_POINTS)),
]


def nothing(_: IndexAssign) -> None:
    """No statement is left to a library: more of them fuse than with any backend."""


@functools.cache
def fused(text: str, save: Save, order: Order, library: bool) -> tuple[Changed, Seen]:
    seen = Seen()
    products = CPU.routine_of if library else nothing

    def change(module: Module) -> Module:
        return unfused_module(optimise(module), products, order, seen)

    return Changed(text, change, save), seen


@pytest.mark.parametrize("point", POINTS, ids=lambda p: p.name)
def test_fused(point: Point) -> None:
    program, seen = fused(point.text, "auto", FEW, library=True)
    compare(point, program)
    compare(point, fused(point.text, "all", BACKWARDS, library=False)[0])
    if seen.blocks or seen.panels:
        compare(point, fused(point.text, "inputs", WHOLE, library=False)[0])


def test_what_is_fused() -> None:
    """The tests above run kernels, blocks and panels of CapsNet's own functions."""
    text = (CAPSNET / "digit_capsules.loma").read_text(encoding="utf-8")
    program, seen = fused(text, "auto", FEW, library=True)
    assert program.interpreter.module.functions
    assert seen.kernels
    assert seen.private
    assert seen.panels


def test_a_lifetime_that_is_too_short_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors that a loop hands to its next iteration, as if they lived for one statement."""
    monkeypatch.setattr(lifetimes, "_carried", lambda body, after: frozenset())
    point = next(p for p in LAYER_POINTS if p.function == "routing")

    def change(module: Module) -> Module:
        return unfused_module(optimise(module), CPU.routine_of, FEW, Seen())

    with pytest.raises(AssertionError):
        compare(point, Changed(point.text, change))


# ---------------------------------------------------------------------- what must not share a loop

HARD = {
    "what ends in a result, and is read elsewhere by it": """
def f(x : In[Tensor[N, M]]) -> tuple[Tensor[N, M], Tensor[N, M]]:
    e : Tensor[N, M]
    t : Tensor[N, M]
    y : Tensor[N, M]
    z : Tensor[N, M]
    s : Tensor[N]
    r : Tensor[N]
    e[n, d] = cos(x[n, d])
    s[n] = sum(e[n, i] for i in M)
    y[n, d] = e[n, M - 1 - d] * s[n]
    t[n, d] = e[n, d] + y[n, d]
    r[n] = sum(t[n, i] ** 2 for i in M)
    z[n, d] = t[n, d] * r[n] + t[n, d]
    return y, z
""",
    "a tensor read at the index and at one place": """
def f(x : In[Tensor[N]]) -> Tensor[N]:
    y : Tensor[N]
    z : Tensor[N]
    y[i] = x[i] * x[0]
    z[i] = y[i] * x[i] + x[N - 1]
    return z
""",
    "a tensor read along two dimensions": """
def f(x : In[Tensor[N, N]]) -> Tensor[N, N]:
    y : Tensor[N, N]
    z : Tensor[N, N]
    y[i, j] = x[i, j] + sum(x[k, i] for k in N)
    z[i, j] = y[i, j] * x[j, i]
    return z
""",
    "a tensor that an outer loop hands on": """
def f(x : In[Tensor[N, M]]) -> Tensor[N, M]:
    y : Tensor[N, M]
    h : Tensor[N, M]
    s : Tensor[N]
    for t in range(3):
        s[i] = sum(y[k, j] for k in N for j in M)
        h[i, j] = tanh(0.5 * h[i, j] + x[i, j])
        y[i, j] += h[i, j] * h[i, j] + 0.1 * s[i]
    return y
""",
    "an int that starts with a value": """
def f(x : In[Tensor[N, M]]) -> Tensor[N, M]:
    y : Tensor[N, M]
    w : Tensor[N, M]
    k : int = 3
    for t in range(2):
        k = k + t
        w[i, j] = x[i, j] * k
        y[i, j] += w[i, j] * w[i, j]
    return y
""",
    "a loop that hands a tensor on to its next iteration": """
def f(x : In[Tensor[N, M]]) -> Tensor[N, M]:
    a : Tensor[N, M]
    b : Tensor[N, M]
    c : Tensor[N, M]
    y : Tensor[N, M]
    a[i, j] = x[i, j] * x[i, j]
    for t in range(3):
        b[i, j] = a[i, j] + 1.0
        c[i, j] = sin(b[i, j])
        y[i, j] += c[i, j]
        a[i, j] = y[i, j] * x[i, j]
    return y
""",
}


@pytest.mark.parametrize(("order", "name"), diagonals(2, [FEW, BACKWARDS], HARD))
def test_hard_cases(name: str, order: Order) -> None:
    """As they stand and simplified, for every way to save values."""
    x = torch.randn(
        (5, 4) if "N, M" in HARD[name] else (5, 5) if "N, N" in HARD[name] else (5,),
        generator=torch.Generator().manual_seed(0),
        dtype=torch.float64,
    )
    point = Point(name, with_derivative(HARD[name]), "f", (x,))
    for save in SAVES:
        compare(point, fused(point.text, save, order, library=False)[0])

    def change(module: Module) -> Module:
        return unfused_module(module, nothing, order, Seen())

    compare(point, Changed(point.text, change))


# -------------------------------------------------------------------------------- random programs


@pytest.mark.full
def test_random_programs(request: pytest.FixtureRequest) -> None:
    wanted = request.config.getoption("--fuzz-examples")
    orders = [FEW, BACKWARDS, WHOLE]
    seen = Seen()
    for number, point in enumerate(random_points(wanted)):

        def change(module: Module, number: int = number) -> Module:
            simpler = module if number % 3 == 0 else optimise(module)
            return unfused_module(simpler, nothing, orders[number % 3], seen)

        compare(point, Changed(point.text, change, SAVES[number // 3 % 3]))
    assert seen.kernels
    assert seen.private
    assert seen.blocks
