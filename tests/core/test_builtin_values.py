"""Every built-in function on a grid of arguments, against PyTorch in float64: values, and the first
two derivatives, in the scalar layer (interpreter, C) and on tensors (interpreter, libtorch)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import pytest
import torch
from c_host import CProgram, differentiated
from torch import Tensor

import loma
from loma.backends.c import Options
from loma.backends.interpreter import Interpreter
from loma.core.builtins import BUILTINS

INF, NAN = math.inf, math.nan
GRID = [0.0, -0.0, 0.3, -0.3, 0.5, -0.5, 1.0, -1.0, 1.5, 2.5, -2.5, 7.25, -7.25, 100.0, -100.0,
        100.5, -100.5, 1e4, -1e4, 1e30, -1e30, INF, -INF, NAN]  # fmt: skip
FEW = [0.0, -0.5, 1.5, 2.0, -3.0, 1e4, INF, -INF, NAN]
ALONG = (1.0, 0.75, -0.5)  # the direction in which second derivatives are taken


def clamp(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return torch.minimum(torch.maximum(x, low), high)


REFERENCES: dict[str, Callable[..., Tensor]] = {
    "abs": torch.abs,
    "pow": torch.pow,
    "min": torch.minimum,
    "max": torch.maximum,
    "clamp": clamp,
    "atan2": torch.atan2,
    "isnan": lambda x: torch.isnan(x) + 0.0 * torch.zeros_like(x),
    "isfinite": lambda x: torch.isfinite(x) + 0.0 * torch.zeros_like(x),
    "mul_no_nan": lambda x, y: torch.where(y == 0, 0.0, x * y),
    "polygamma": lambda x: torch.polygamma(2, x),
    "softplus": lambda x: torch.logaddexp(x, torch.zeros_like(x)),
}
CALLS = {"polygamma": "polygamma(2, {})"}
NAMES = [name for name, info in BUILTINS.items() if not info.scalar_only]
LETTERS = "xyz"


def arity(name: str) -> int:
    return 1 if name in CALLS else BUILTINS[name].arity


def reference(name: str) -> Callable[..., Tensor]:
    return REFERENCES.get(name) or getattr(torch, name)


def call(name: str, args: Sequence[str]) -> str:
    return CALLS.get(name, name + "({})").format(", ".join(args))


def points(name: str) -> list[tuple[float, ...]]:
    if arity(name) == 1:
        return [(x,) for x in GRID]
    return list(itertools.product(FEW, repeat=arity(name)))


COLUMNS = max(len(points(name)) for name in NAMES)


def scalar_program() -> str:
    parts = []
    for name in NAMES:
        args = LETTERS[: arity(name)]
        params = ", ".join(f"{x} : In[float]" for x in args)
        parts.append(f"def f_{name}({params}) -> float:\n    return {call(name, args)}\n")
        parts.append(f"t_{name} = fwd_diff(f_{name})\nd_{name} = rev_diff(f_{name})\n"
                     f"dd_{name} = rev_diff(d_{name})\n")  # fmt: skip
    return "\n".join(parts)


def expected(name: str, columns: Sequence[Tensor]) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """The value at each point, the gradient, and the gradient's derivative along ``ALONG``."""
    args = [column.double().requires_grad_() for column in columns]
    value = reference(name)(*args)
    if not value.requires_grad:
        return value, [torch.zeros_like(x) for x in args], [torch.zeros_like(x) for x in args]
    first = torch.autograd.grad(value.sum(), args, create_graph=True)
    along = sum(c * g.sum() for c, g in zip(ALONG, first, strict=False))
    assert isinstance(along, Tensor)
    if not along.requires_grad:
        return value.detach(), list(first), [torch.zeros_like(x) for x in args]
    second = torch.autograd.grad(along, args, allow_unused=True)
    return (
        value.detach(),
        [g.detach() for g in first],
        [torch.zeros_like(x) if g is None else g for g, x in zip(second, args, strict=True)],
    )


def is_declared(name: str, columns: Sequence[Tensor]) -> Tensor:
    """Where the language's derivative is its own choice: ties, and NaN, whose adjoint goes on."""
    x, rest = columns[0], columns[1:]
    own = torch.zeros_like(x, dtype=torch.bool)
    if name in ("max", "min", "clamp"):
        for one, other in itertools.combinations(columns, 2):
            own |= (one == other) | one.isnan() | other.isnan()
    if name in ("pow", "sqrt", "rsqrt", "atan2"):
        own |= x == 0
        if rest:
            own |= rest[0] == 0
    if name in ("lgamma", "digamma", "polygamma"):  # PyTorch misses poles, and has limits as NaN
        own |= ((x <= 0) & (x == x.floor())) | x.isinf()
    return own | (name == "mul_no_nan" and rest[0] == 0)


def compare(
    what: str, found: Tensor, wanted: Tensor, points: Sequence[Tensor], tolerance: float
) -> None:
    wanted = wanted.to(found.dtype).double()
    error = (found.double() - wanted).abs() / wanted.abs().clamp(min=1.0)
    same = (error <= tolerance) | (found == wanted) | (found.isnan() & wanted.isnan())
    at = [tuple(p[k].item() for p in points) for k in (~same).nonzero().flatten().tolist()]
    bad = [(p, float(f), float(w))
           for p, f, w in zip(at, found[~same], wanted[~same], strict=True)]  # fmt: skip
    assert not bad, f"{what}: (arguments, found, expected) {bad}"


def check(
    name: str, columns: Sequence[Tensor], value: Tensor, first: Sequence[Tensor],
    second: Sequence[Tensor], tolerance: float,
) -> None:  # fmt: skip
    """Values agree everywhere; derivatives where PyTorch's are finite, and none of 1e4 or less is
    NaN where the value is a number."""
    wanted, gradients, along = expected(name, columns)
    usual = ~is_declared(name, columns)
    same = usual if name == "polygamma" else torch.ones_like(usual)
    compare(name, value[same], wanted[same], [c[same] for c in columns], tolerance)
    if name in ("lgamma", "digamma"):
        tolerance = max(tolerance, 1e-9)  # of PyTorch's trigamma
    tame = usual & wanted.isfinite()
    for column in columns:
        tame &= column.abs() <= 1e4
    for order, found, exact in ((1, first, gradients), (2, second, along)):
        for k, (f, w) in enumerate(zip(found, exact, strict=True)):
            kept = usual & w.to(f.dtype).isfinite()
            compare(f"{name}, derivative {order} by argument {k}", f[kept], w[kept],
                    [c[kept] for c in columns], 10 * tolerance)  # fmt: skip
            lost = f.isnan() & tame & ~w.isnan()
            assert not lost.any(), f"{name}, derivative {order}: NaN at {columns[0][lost].tolist()}"


@pytest.fixture(scope="module")
def module() -> Any:
    return differentiated(scalar_program())


@pytest.mark.parametrize(
    "backend", ["interpreter", "double", pytest.param("float", marks=pytest.mark.full)]
)
def test_scalar_functions(module: Any, backend: Literal["interpreter", "double", "float"]) -> None:
    dtype = torch.float32 if backend == "float" else torch.float64
    host: Any = Interpreter(module)
    if backend != "interpreter":
        host = CProgram(module, Options(backend, "pointers"))
    for name in NAMES:
        count = arity(name)
        columns = list(torch.tensor(points(name), dtype=dtype).T)
        rows: list[list[float]] = []
        for point in torch.stack(columns, 1).double().tolist():
            (value,) = host.call(f"f_{name}", *point)
            first = host.call(f"d_{name}", *(a for x in point for a in (x, 0.0)), 1.0)
            paired = [a for x, c in zip(point, ALONG, strict=False) for a in (x, 0.0, c)]
            second = host.call(f"dd_{name}", *paired, 1.0, 0.0)[:count]
            duals = [{"val": x, "dval": c} for x, c in zip(point, ALONG, strict=False)]
            (dual,) = host.call(f"t_{name}", *duals)
            forward = float(np.dot(ALONG[:count], first)) if np.isfinite(first).all() else NAN
            tame = math.isfinite(forward) and all(abs(x) <= 1e4 for x in point)
            if tame and BUILTINS[name].result != "int":
                assert dual["dval"] == pytest.approx(forward, rel=1e-4, abs=1e-6), (name, point)
            rows.append([value, *first, *second])
        found = torch.tensor(rows, dtype=dtype).T
        check(name, columns, found[0], list(found[1 : 1 + count]), list(found[1 + count :]),
              1e-5 if backend == "float" else 1e-11)  # fmt: skip


def tensor_program() -> str:
    """Each function in a row of its own, by index statements."""
    rows = []
    for number, name in enumerate(NAMES):
        elements = [f"{x}[{number}, i]" for x in LETTERS[: arity(name)]]
        rows.append(f"    r[{number}, i] = 1.0 * {call(name, elements)}")
    params = ", ".join(f"{x} : In[Tensor[{len(NAMES)}, N]]" for x in LETTERS)
    result = f"Tensor[{len(NAMES)}, N]"
    return "\n".join(
        [f"def elements({params}) -> {result}:", f"    r : {result}", *rows, "    return r\n"]
    )


def library_program() -> str:
    """Each on whole tensors of unknown rank, which calls PyTorch's."""
    params = ", ".join(f"{x} : In[Tensor]" for x in LETTERS)
    values = ", ".join(f"no_diff({call(name, LETTERS[: arity(name)])} * 1.0)" for name in NAMES)
    results = ", ".join(["Tensor"] * len(NAMES))
    return f"def library({params}) -> tuple[{results}]:\n    return {values}\n"


def arguments(dtype: torch.dtype) -> list[Tensor]:
    """The points of each function in its row, the first ones again to fill it."""
    rows = []
    for name in NAMES:
        own = torch.tensor(points(name), dtype=dtype)
        own = own[torch.arange(COLUMNS) % len(own)].T
        rows.append(torch.cat([own, torch.ones(3 - len(own), COLUMNS, dtype=dtype)]))
    return list(torch.stack(rows, 1))


@pytest.mark.full
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_index_statements(dtype: torch.dtype) -> None:
    args = [x.requires_grad_() for x in arguments(dtype)]
    value = loma.compile(tensor_program()).elements(*args)
    first = torch.autograd.grad(value.sum(), args, create_graph=True)
    along = sum(c * g.sum() for c, g in zip(ALONG, first, strict=True))
    assert isinstance(along, Tensor)
    second = torch.autograd.grad(along, args)
    for number, name in enumerate(NAMES):
        count = arity(name)
        rows = [[t[number].detach() for t in of[:count]] for of in (args, first, second)]
        check(name, rows[0], value[number].detach(), rows[1], rows[2],
              2e-5 if dtype == torch.float32 else 1e-11)  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_whole_tensors_of_unknown_rank(dtype: torch.dtype) -> None:
    columns = list(torch.tensor(list(itertools.product(FEW, repeat=3)), dtype=dtype).T)
    for name, value in zip(NAMES, loma.compile(library_program()).library(*columns), strict=True):
        own = columns[: arity(name)]
        usual = (
            ~is_declared(name, own)
            if name == "polygamma"
            else torch.ones_like(own[0], dtype=torch.bool)
        )
        wanted, _, _ = expected(name, own)
        compare(name, value[usual], wanted[usual], [c[usual] for c in own],
                2e-5 if dtype == torch.float32 else 1e-11)  # fmt: skip


def operator_program() -> str:
    parts = []
    for name in NAMES:
        args = LETTERS[: arity(name)]
        params = ", ".join(f"{x} : In[Tensor[N]]" for x in args)
        parts.append(f"def f_{name}({params}) -> Tensor[N]:\n    return {call(name, args)} * 1.0\n")
        parts.append(f"d_{name} = rev_diff(f_{name})\ndd_{name} = rev_diff(d_{name})\n")
    return "\n".join(parts)


def test_operators_on_whole_tensors() -> None:
    """Their rules are those of the scalar functions, on tensors."""
    host = Interpreter(differentiated(operator_program()))
    for name in NAMES:
        columns = list(torch.tensor(points(name), dtype=torch.float64).T)
        args = [c.numpy() for c in columns]
        one, zero = np.ones(len(args[0])), np.zeros(len(args[0]))
        (value,) = host.call(f"f_{name}", *args)
        first = host.call(f"d_{name}", *(a for x in args for a in (x, zero)), one)
        paired = [a for x, c in zip(args, ALONG, strict=False) for a in (x, zero, c * one)]
        second = host.call(f"dd_{name}", *paired, one, zero)[: len(args)]
        found = [[torch.as_tensor(x) for x in part] for part in ([value], first, second)]
        check(name, columns, found[0][0], found[1], found[2], 1e-11)


def test_polygamma_is_precise() -> None:
    module = differentiated(
        "def f(n : In[int], x : In[float]) -> float:\n    return polygamma(n, x)\n"
    )
    hosts: list[Any] = [Interpreter(module), CProgram(module, Options("double", "pointers"))]
    apery, pi = 1.2020569031595943, math.pi
    known = [((1, 1.0), pi**2 / 6), ((1, 0.5), pi**2 / 2), ((2, 1.0), -2 * apery),
             ((3, 0.5), pi**4), ((0, 1.0), -0.5772156649015329), ((1, -0.5), pi**2 / 2 + 4),
             ((2, -0.5), 16 - 14 * apery), ((1, -100.5), 9.859703491870086), ((2, 0.0), -INF),
             ((1, -3.0), INF), ((1, INF), 0.0), ((-1, 2.0), NAN), ((171, 2.0), NAN),
             ((20, 3.0), -233141556.11225683)]  # fmt: skip
    for host, (args, value) in itertools.product(hosts, known):
        (found,) = host.call("f", *args)
        assert found == pytest.approx(value, rel=1e-13, nan_ok=True), args
