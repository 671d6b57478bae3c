"""Sums of which a thread has a tile, where there are enough of them."""

from __future__ import annotations

from typing import Any

import pytest
import shim
import torch

import loma

PROGRAM = """
def predicted(W : In[Tensor[I, R, O, K]], X : In[Tensor[B, R, K]]) -> Tensor[B, I, R, O]:
    U : Tensor[B, I, R, O]
    U[b, i, r, o] = sum(W[i, r, o, k] * X[b, r, k] for k in K)
    return U
"""


@pytest.fixture(scope="module")
def predicted() -> Any:
    return loma.compile(PROGRAM).predicted


@pytest.mark.parametrize(
    "sizes",
    [
        (8, 10, 512, 16, 4),  # tiles in the product, and in the gradient of W
        (8, 7, 600, 16, 3),  # of another axis
        (2, 3, 5, 4, 2),  # too few sums
    ],
    ids=str,
)
def test_products_and_their_gradients(predicted: Any, sizes: tuple[int, ...]) -> None:
    b, i, r, o, k = sizes
    draw = torch.Generator().manual_seed(b)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randint(-9, 10, shape, generator=draw).to(torch.float32)

    w, x = numbers(i, r, o, k).requires_grad_(), numbers(b, r, k).requires_grad_()
    weight = numbers(b, i, r, o)
    expected = torch.einsum("irok,brk->biro", w, x)
    for _ in range(4):  # the last ones by kernels for these numbers
        found = predicted(w, x)
        assert torch.equal(found, expected)
        for mine, other in zip(
            torch.autograd.grad(found, (w, x), weight),
            torch.autograd.grad(expected, (w, x), weight, retain_graph=True),
            strict=True,
        ):
            assert torch.equal(mine, other)


DIFFERENCES = """
def apart(a : In[Tensor[N, D]], b : In[Tensor[M, D]]) -> Tensor[N, M]:
    s : Tensor[N, M]
    s[i, j] = sum((a[i, d] - b[j, d]) ** 2 + b[j, d] for d in D)
    return s
"""


def test_sums_of_other_than_products(request: pytest.FixtureRequest) -> None:
    a = torch.randn(1028, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    b = torch.randn(520, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    expected = torch.cdist(a, b) ** 2 + b.sum(1)
    if request.config.getoption("--device") != "cpu":
        found = loma.compile(DIFFERENCES).apart(a, b)
    else:
        with shim.compiled(DIFFERENCES) as module:
            found = module.apart(a, b)
    torch.testing.assert_close(found, expected)
