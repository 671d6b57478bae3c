"""Products of rows with matrices that data choose, which a library computes group by group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import loma

PROGRAM = """
def one(x : In[Tensor[M, K]], w : In[Tensor[G, K, N]], group : In[IntTensor[M]]) -> Tensor[M, N]:
    y : Tensor[M, N]
    y[m, n] = sum(x[m, k] * w[group[m], k, n] for k in K)
    return y

def loops(x : In[Tensor[M, K]], w : In[Tensor[G, K, N]], group : In[IntTensor[M]]) -> Tensor[M, N]:
    y : Tensor[M, N]
    for m in range(M):
        e : int = group[m]
        for n in range(N):
            for k in range(K):
                y[m, n] += x[m, k] * w[e, k, n]
    return y

def added(x : In[Tensor[M, K]], w : In[Tensor[G, K, N]], group : In[IntTensor[M]]) -> Tensor[M, N]:
    y : Tensor[M, N]
    y[m, n] = x[m, 0]
    y[m, n] += x[m, k] * w[group[m], k, n]
    return y

def biased(x : In[Tensor[M, K]], w : In[Tensor[G, N, K]], group : In[IntTensor[M]]) -> Tensor[N, M]:
    y : Tensor[N, M]
    y[n, m] = tanh(sum(w[group[m], n, k] * x[m, k] for k in K) + w[group[m], n, 0])
    return y
"""
PEERS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "one": lambda x, w, group: torch.einsum("mk,mkn->mn", x, w[group]),
    "loops": lambda x, w, group: torch.einsum("mk,mkn->mn", x, w[group]),
    "added": lambda x, w, group: x[:, :1] + torch.einsum("mk,mkn->mn", x, w[group]),
    "biased": lambda x, w, group: (torch.einsum("mnk,mk->nm", w[group], x)
                                   + w[group][:, :, 0].mT).tanh(),
}  # fmt: skip
# Rows, columns of both, groups: products large enough for calls, and others.
SIZES = [(600, 80, 90, 3), (1, 800, 800, 5), (70, 9, 8, 4), (0, 90, 90, 2), (600, 0, 90, 2)]


@pytest.fixture(scope="module")
def module() -> Any:
    return loma.compile(PROGRAM)


def _arguments(name: str, sizes: tuple[int, ...], order: str) -> tuple[Tensor, Tensor, Tensor]:
    rows, columns, others, groups = sizes
    generator = torch.Generator().manual_seed(rows)
    group = torch.randint(0, groups, (rows,), generator=generator)
    if order == "sorted":
        group = group.sort().values
    if order == "one":
        group[:] = groups - 1
    shape = (groups, others, columns) if name == "biased" else (groups, columns, others)
    x, w = (torch.randn(*s, dtype=torch.float64, generator=generator) for s in
            ((rows, columns), shape))  # fmt: skip
    return x.requires_grad_(), (w / 9).requires_grad_(), group


@pytest.mark.parametrize("order", ["random", "sorted", "one"])
@pytest.mark.parametrize("sizes", SIZES)
def test_values_and_gradients(module: Any, sizes: tuple[int, ...], order: str) -> None:
    for name, peer in PEERS.items():
        if sizes[1] == 0 and name in ("added", "biased"):
            continue  # x[m, 0] is not there
        x, w, group = _arguments(name, sizes, order)
        found, expected = getattr(module, name)(x, w, group), peer(x, w, group)
        torch.testing.assert_close(found, expected)
        weight = torch.cos(torch.arange(expected.numel(), dtype=torch.float64)).view_as(expected)
        for own, wanted in zip(*(torch.autograd.grad(y, (x, w), weight, create_graph=True)
                                 for y in (found, expected)), strict=True):  # fmt: skip
            torch.testing.assert_close(own, wanted)


def test_second_derivatives(module: Any) -> None:
    x, w, group = _arguments("one", SIZES[0], "random")
    twice = []
    for function in (module.one, PEERS["one"]):
        value = (function(x, w, group) ** 3).sum()
        first = torch.autograd.grad(value, (x, w), create_graph=True)
        (of_x, of_w) = first
        twice.append(torch.autograd.grad((of_x * of_x).sum() + (of_w * of_w).sum(), (x, w)))
    for found, expected in zip(*twice, strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("wrong", [-1, 3, 1 << 40])
def test_a_group_that_is_not_there(module: Any, wrong: int) -> None:
    x, w, group = _arguments("one", SIZES[0], "random")
    group[77] = wrong
    message = rf"line 4: subscript 'group\[m\]' of 'w' is {wrong}, outside dimension 0 of size 3"
    with pytest.raises(ValueError, match=message):
        module.one(x, w, group)


def test_any_number_of_threads(module: Any) -> None:
    x, w, group = _arguments("one", SIZES[0], "random")
    before = torch.get_num_threads()
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found.append(module.one(x.detach(), w.detach(), group))
    torch.set_num_threads(before)
    assert torch.equal(*found)
