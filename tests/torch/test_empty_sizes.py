"""Operators along dimensions of size 0 and 1: PyTorch's values and derivatives, or its errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from oracle import Program, check
from torch import Tensor

pytestmark = pytest.mark.filterwarnings("ignore:.*degrees of freedom")  # torch's
ROWS: dict[str, tuple[str, str, Callable[[Tensor], Any]]] = {
    "sum": ("Tensor[N]", "sum(x, 1)", lambda x: x.sum(1)),
    "mean": ("Tensor[N]", "mean(x, 1)", lambda x: x.mean(1)),
    "prod": ("Tensor[N]", "prod(x, 1)", lambda x: x.prod(1)),
    "prod_all": ("float", "prod(x)", lambda x: x.prod()),
    "var": ("Tensor[N]", "var(x, 1)", lambda x: x.var(1)),
    "std": ("Tensor[N]", "std(x, 1, correction=0)", lambda x: x.std(1, correction=0)),
    "norm": ("Tensor[N]", "norm(x, [1])", lambda x: x.norm(dim=1)),
    "logsumexp": ("Tensor[N]", "logsumexp(x, 1)", lambda x: x.logsumexp(1)),
    "logsumexp_all": ("Tensor[1, 1]", "logsumexp(x, [0, 1], True)",
                      lambda x: x.logsumexp((0, 1), keepdim=True)),
    "logsumexp_any": ("Tensor", "logsumexp(x, 0)", lambda x: x.logsumexp(0)),
    "softmax": ("Tensor[N, M]", "softmax(x, 1)", lambda x: x.softmax(1)),
    "log_softmax": ("Tensor[N, M]", "log_softmax(x, 0)", lambda x: x.log_softmax(0)),
    "layer_norm": ("Tensor[N, M]", "layer_norm(x, [M])", lambda x: F.layer_norm(x, x.shape[1:])),
    "cumsum": ("Tensor[N, M]", "cumsum(x, 0)", lambda x: x.cumsum(0)),
    "cumprod": ("Tensor[N, M]", "cumprod(x, 1)", lambda x: x.cumprod(1)),
    "sorted": ("Tensor[N, M]", "gather(x, 1, argsort(x, 1))", lambda x: x.sort(1).values),
    "joined": ("Tensor[N, 2 * M]", "cat([x, flip(x, [1])], 1)",
               lambda x: torch.cat([x, x.flip(1)], 1)),
    "rolled": ("Tensor[N, M]", "tril(roll(x, 1, 1))", lambda x: x.roll(1, 1).tril()),
    "product": ("Tensor[N, N]", "x @ transpose(x, 0, 1)", lambda x: x @ x.T),
}  # fmt: skip
COMPILED = ("mean", "prod", "std", "logsumexp", "logsumexp_any", "softmax", "cumprod")
SHAPES = [(0, 3), (3, 0), (0, 0), (1, 1), (1, 3), (3, 1)]


def _text(name: str) -> str:
    result, value, _ = ROWS[name]
    given = "Tensor" if name == "logsumexp_any" else "Tensor[N, M]"
    return f"def on_{name}(x : In[{given}]) -> {result}:\n    return {value}\n"


@pytest.fixture(scope="module")
def program() -> Program:
    return Program([_text(name) for name in ROWS], first=())


@pytest.fixture(scope="module")
def compiled() -> Program:
    return Program([_text(name) for name in COMPILED], first=())


def _check(program: Program, name: str, libtorch: bool) -> None:
    for shape in SHAPES:
        x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
        # A difference of infinities says nothing; PyTorch's root has no second derivative at 0.
        smooth = bool(torch.as_tensor(ROWS[name][2](x)).isfinite().all())
        check(program, f"on_{name}", (x,), ROWS[name][2], smooth=smooth,
              second=smooth and name != "std", libtorch=libtorch)  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_sizes_of_zero_and_one(program: Program, name: str) -> None:
    _check(program, name, libtorch=False)


@pytest.mark.full
def test_compiled(compiled: Program) -> None:
    for name in COMPILED:
        _check(compiled, name, libtorch=True)


@pytest.mark.parametrize("name", ["amax", "amin", "argmax"])
def test_the_largest_of_nothing_is_an_error(name: str) -> None:
    result = "IntTensor[N]" if name == "argmax" else "Tensor[N]"
    text = f"def f(x : In[Tensor[N, M]]) -> {result}:\n    return {name}(x, 1)\n"
    program = Program([text], first=())
    assert program.value("f", (torch.ones(0, 2, dtype=torch.float64),))[0].shape == (0,)
    with pytest.raises(ValueError, match=r"zero-size array|empty sequence"):
        program.value("f", (torch.ones(2, 0, dtype=torch.float64),))
