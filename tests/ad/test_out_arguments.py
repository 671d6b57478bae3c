"""``Out`` tensors whose value on entry a derivative needs: gradients, and what is kept of them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import oracle
import pytest
from sampled import one_in
import torch


PROGRAM = """
def scale(x : In[Tensor[N]], m : Out[Tensor[N]]):
    m[i] = x[i] * m[i]

def scale_and_sum(x : In[Tensor[N]], m : Out[Tensor[N]]) -> float:
    m[i] = x[i] * m[i]
    s : float
    s += m[i] * m[i]
    return s

def average(x : In[Tensor[N]], a : In[float], m : Out[Tensor[N]]) -> Tensor[N]:
    m[i] = a * m[i] + (1.0 - a) * x[i]
    y : Tensor[N]
    y[i] = x[i] * m[i] * m[i]
    return y

def steps(x : In[Tensor[N]], n : In[int], m : Out[Tensor[N]]):
    for t in range(n):
        m[i] = m[i] * m[i] * x[i]
"""
D = torch.float64
A = torch.tensor(0.9, requires_grad=True)


@pytest.fixture(scope="module")
def module() -> Any:
    return oracle.compiled(PROGRAM)


def _results(module: Any, x: torch.Tensor, m: torch.Tensor, name: str) -> torch.Tensor:
    result: torch.Tensor
    match name:
        case "average":
            result = module.average(x, A, m).sum() + m.sum()
        case "scale_and_sum":
            result = module.scale_and_sum(x, m)
        case "steps":
            module.steps(x, 2, m)
            result = m.sum()
        case _:
            module.scale(x, m)
            result = m.sum()
    return result


def _drop(loss: torch.Tensor) -> None:
    del loss


def _backward(loss: torch.Tensor) -> None:
    loss.backward()


def _retained(loss: torch.Tensor) -> None:
    loss.backward(retain_graph=True)


def _differentiated(loss: torch.Tensor) -> None:
    (x,) = [leaf for leaf in _leaves(loss) if leaf is not A]
    torch.autograd.grad(loss, x, create_graph=True)


def _leaves(loss: torch.Tensor) -> list[torch.Tensor]:
    found: dict[int, torch.Tensor] = {}
    waiting: list[Any] = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if hasattr(node, "variable"):
            found[id(node.variable)] = node.variable
        waiting += [other for other, _ in getattr(node, "next_functions", ()) if other is not None]
    return list(found.values())


NAMES = ("scale", "scale_and_sum", "average", "steps")
USES = (
    *((name, use) for name in NAMES for use in (_drop, _backward, _retained)),
    ("average", _differentiated),
    *(pytest.param(n, _differentiated, marks=pytest.mark.full) for n in NAMES if n != "average"),
)


@pytest.mark.parametrize(("name", "use"), USES)
def test_an_out_tensor_is_freed_with_its_graph(
    module: Any, name: str, use: Callable[[torch.Tensor], None]
) -> None:
    gc.freeze()  # what was there before need not be gone through
    memory = np.full(5, 0.5, np.float32)
    freed = weakref.ref(memory)
    m = torch.from_numpy(memory)
    use(_results(module, torch.full((5,), 0.7, requires_grad=True), m, name))
    del memory, m
    gc.collect()
    assert freed() is None


@pytest.mark.parametrize("name", one_in(3, ["scale", "average", "steps"], 2))
@pytest.mark.parametrize("history", [False, pytest.param(True, marks=pytest.mark.full)])
def test_second_derivatives_through_an_out_tensor(module: Any, name: str, history: bool) -> None:
    """With and without a history of its own before the call."""

    generator = torch.Generator().manual_seed(3)
    x, start = (torch.rand(3, generator=generator, dtype=D, requires_grad=True) for _ in range(2))

    def f(x: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
        m = given[0] * given[0] if history else start.detach().clone()
        return _results(module, x, m, name) * x

    inputs = (x, start) if history else (x,)
    assert torch.autograd.gradcheck(f, inputs)
    assert torch.autograd.gradgradcheck(f, inputs)


@pytest.mark.full
def test_an_out_tensor_under_torch_compile(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config

    # a header that one small file needs is compiled with it, in half the time
    monkeypatch.setattr(config, "cpp_cache_precompile_headers", False)

    def step(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        module.scale(x, m)
        return (m * m).sum()

    x, m = torch.tensor([1.0, 2.0, 3.0], requires_grad=True), torch.tensor([0.5, 0.6, 0.7])
    before = m.clone()
    torch.compile(step, fullgraph=True)(x, m).backward()
    torch.testing.assert_close(x.grad, 2 * x.detach() * before * before)
    torch.testing.assert_close(m.detach(), x.detach() * before)
