"""What other systems computed in silence, and what is an error here; and gradients for each sample.

Warp 1350 and PyTorch 197887: an argument that the backward part reads is written in between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from reported import texts
from torch import Tensor

import loma
from conftest import ROOT
from loma import errors
from loma.ad import differentiate
from loma.frontend import parse

TEXTS = texts("tensors")
OVERWRITTEN = """
def product(x : In[Tensor[N]], b : Out[Tensor[N]]) -> Tensor[N]:
    loss : Tensor[N]
    loss[i] = x[i] * b[i]
    b[i] += 100.0
    return loss
"""
CHANGED = "modified by an inplace operation"


@pytest.fixture(scope="module")
def module() -> Any:
    return loma.compile(TEXTS["pytorch_197887"] + TEXTS["pytorch_188084"] + OVERWRITTEN)


def test_every_program_is_on_the_page() -> None:
    page = (ROOT / "docs" / "gradients.md").read_text(encoding="utf-8")
    names = {*TEXTS, *texts("scalars")} - {"warp_1740_steps"}
    assert [name for name in sorted(names) if f"`{name}`" not in page] == []


COMPILERS = [
    "eager",
    pytest.param("aot_eager", marks=pytest.mark.full),
    pytest.param("inductor", marks=pytest.mark.full),
]


def compiled(function: Callable[..., Any], backend: str) -> Callable[..., Any]:
    return function if backend == "eager" else torch.compile(function, backend=backend)


@pytest.mark.parametrize("backend", COMPILERS)
@pytest.mark.parametrize("changed", [0, 1])
def test_an_argument_that_changed(
    module: Any, request: pytest.FixtureRequest, backend: str, changed: int
) -> None:
    """Without the change the gradients are those of torch's own product."""
    device = "cuda" if request.config.getoption("--device") == "cuda" else "cpu"
    product = compiled(lambda x, w: module.pytorch_197887(x, w), backend)
    args = [torch.randn(2, 3, device=device), torch.randn(3, 4, device=device)]
    args[1 - changed].requires_grad_()
    y = product(*args)
    (gradient,) = torch.autograd.grad(y.sum(), args[1 - changed], retain_graph=True)
    (expected,) = torch.autograd.grad((args[0] @ args[1]).sum(), args[1 - changed])
    torch.testing.assert_close(gradient, expected)
    args[changed].add_(1.0)
    with pytest.raises(RuntimeError, match=CHANGED):
        y.sum().backward()


@pytest.mark.parametrize("backend", COMPILERS)
def test_gradients_for_each_sample(module: Any, backend: str) -> None:
    """PyTorch 188084: elements that are read several times, by samples of a batch."""
    table, places = torch.randn(5), torch.tensor([[2, 0, 2, 2], [1, 1, 4, 4], [0, 0, 0, 0]])

    def loss(table: Tensor, places: Tensor) -> Tensor:
        total: Tensor = module.pytorch_188084(table, places).sum()
        return total

    each = compiled(torch.func.vmap(torch.func.grad(loss), (None, 0)), backend)
    counts = torch.nn.functional.one_hot(places, 5).sum(1)
    torch.testing.assert_close(each(table, places), 2 * counts * table)


def test_a_value_that_the_call_itself_overwrites(module: Any) -> None:
    """Warp 947 with ``b`` in the caller's memory: autograd's forward part keeps what it held;
    ``rev_diff`` is not given it, and refuses."""
    x, b = torch.tensor([1.0, 2.0], requires_grad=True), torch.full((2,), 10.0)
    loss = module.product(x, b)
    torch.testing.assert_close(
        (loss.detach(), b), (torch.tensor([10.0, 20.0]), torch.full((2,), 110.0))
    )
    loss.sum().backward()
    torch.testing.assert_close(x.grad, torch.full((2,), 10.0))
    with pytest.raises(errors.NotDifferentiable, match="'b' has on entry"):
        differentiate(parse(OVERWRITTEN + "d_product = rev_diff(product)\n"))
