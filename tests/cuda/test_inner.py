"""Loops inside of a kernel's iteration whose values a few lanes take each, with their numbers in
registers: at sizes on both sides of what makes them worth it, in float32 and float64."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sampled import diagonals
import torch
from torch import Tensor

import capsnet_loma
import loma
from capsnet_loma import reference
from loma import pipeline
from loma.backends.cuda import images as known_kernels

ROUTING = (Path(capsnet_loma.__file__).parent / "digit_capsules.loma").read_text()
PROGRAM = """
def mixture(x : In[Tensor[B, K, N, D]], m : In[Tensor[B, K, D]],
            rounds : In[int]) -> Tensor[B, K, D]:
    y : Tensor[B, K, D]
    a : Tensor[B, N, K]
    c : Tensor[B, N, K]
    z : Tensor[B, N]
    s : Tensor[B, K]
    for b in range(B):
        for k in range(K):
            for d in range(D):
                y[b, k, d] = m[b, k, d]
    for t in range(rounds):
        a[b, n, k] = exp(-sum(abs(x[b, k, n, d] - y[b, k, d]) for d in D))
        z[b, n] = sum(a[b, n, k] for k in K)
        c[b, n, k] = a[b, n, k] / z[b, n]
        s[b, k] = sum(c[b, n, k] for n in N)
        y[b, k, d] = sum(c[b, n, k] * x[b, k, n, d] for n in N)
        y[b, k, d] = y[b, k, d] / (1.0 + s[b, k])
    return y

def rounds(x : In[Tensor[B, N, D]], v : In[Tensor[B, D]], t : In[int]) -> Tensor[B, D]:
    a : Tensor[B, N]
    y : Tensor[B, D]
    for k in range(t):
        if k > 0:
            a[b, n] += sum(x[b, n, d] * y[b, d] for d in D)
        a[b, n] = tanh(a[b, n] + x[b, n, 0])
        y[b, d] = sum(a[b, n] * x[b, n, d] for n in N)
        y[b, d] = y[b, d] / (1.0 + v[b, d] * v[b, d])
    return y

def once(x : In[Tensor[B, N, D]], v : In[Tensor[B, D]]) -> Tensor[B, D]:
    a : Tensor[B, N]
    y : Tensor[B, D]
    a[b, n] = tanh(sum(x[b, n, d] * v[b, d] for d in D))
    y[b, d] = sum(a[b, n] * x[b, n, d] for n in N)
    return y

def two_sums(x : In[Tensor[B, N, D]], v : In[Tensor[B, N]]) -> Tensor[B, D]:
    p : Tensor[B, D]
    q : Tensor[B, D]
    y : Tensor[B, D]
    p[b, d] = sum(x[b, n, d] * v[b, n] for n in N)
    q[b, d] = sum(x[b, n, d] * x[b, n, d] for n in N)
    y[b, d] = p[b, d] / (1.0 + q[b, d])
    return y

def kept(x : In[Tensor[B, N, D]], v : In[Tensor[B, D]],
         a : Out[Tensor[B, N]], y : Out[Tensor[B, D]]):
    e : Tensor[B, N]
    e[b, n] = sum(x[b, n, d] * v[b, d] for d in D)
    a[b, n] += tanh(e[b, n])
    y[b, d] += a[b, n] * x[b, n, d]
"""


@pytest.fixture(scope="module")
def routing() -> Any:
    return loma.compile(ROUTING)


@pytest.fixture(scope="module")
def module() -> Any:
    return loma.compile(PROGRAM)


def numbers(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    seed = torch.Generator().manual_seed(5)
    return [0.5 * torch.randn(shape, dtype=dtype, generator=seed) for shape in shapes]


# Images, digits, input capsules, components: too few values, enough, of no power of 2, longer than
# a warp reads at once, none
SIZES = [
    (2, 3, 5, 4),
    (3, 10, 40, 16),
    (1, 7, 33, 12),
    (2, 3, 70, 7),
    (2, 2, 9, 40),
    (70, 3, 35, 1),
]
SIZES += [(0, 3, 40, 8), (2, 1, 1, 8), (2, 33, 40, 8)]
# In float32: what lanes have by 16 bytes, by numbers, both; more lanes than elements of a row.
NARROW = [(65, 10, 40, 16), (65, 4, 52, 12), (64, 2, 41, 1), (66, 3, 35, 36)]
if torch.cuda.is_available():  # which has enough with more
    NARROW += [(100, 10, 1152, 16), (65, 7, 1100, 12), (65, 5, 2050, 20), (64, 4, 4100, 7)]
    NARROW += [(65, 1, 100, 260), (64, 6, 515, 64), (1000, 10, 600, 16), (70, 33, 1152, 16)]


@pytest.mark.parametrize(("sizes", "over_inputs"), diagonals(2, SIZES, [0, 1]), ids=str)
def test_routing(routing: Any, sizes: tuple[int, int, int, int], over_inputs: int) -> None:
    if over_inputs and sizes not in SIZES[1:4]:
        pytest.skip("at three sizes")
    for rounds in (3,) if sizes != SIZES[1] else (0, 1, 2, 4):
        _compare(
            lambda u, rounds=rounds: routing.routing(u, rounds, over_inputs),
            lambda u, rounds=rounds: _routing(u, rounds, over_inputs),
            numbers(sizes),
        )


@pytest.mark.parametrize("sizes", NARROW)
def test_in_float32(routing: Any, sizes: tuple[int, int, int, int]) -> None:
    """Results and gradients are those of kernels for known numbers, too, which come later."""
    (u,) = numbers(sizes)
    weight = torch.randn((*sizes[:2], sizes[3]), generator=torch.Generator().manual_seed(1))

    def called(function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> list[Tensor]:
        given = u.to(dtype).requires_grad_()
        y = function(given)
        return [y.detach(), *torch.autograd.grad(y, given, weight.to(dtype))]

    first = called(lambda u: routing.routing(u, 3, 0), torch.float32)
    expected = called(lambda u: reference.routing(u, 3, 0), torch.float64)
    for one, other in zip(first, expected, strict=True):
        error = (one.double() - other).norm() / other.norm()
        assert error < (1e-5 if sizes[3] > 1 else 1e-2)  # sums of one component may be about zero
    for _ in range(4):
        again = called(lambda u: routing.routing(u, 3, 0), torch.float32)
        assert all(map(torch.equal, first, again))
        assert known_kernels.wait(120)


def test_in_bfloat16(routing: Any) -> None:
    (u,) = numbers(NARROW[0], dtype=torch.bfloat16)
    found = routing.routing(u, 3, 0)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(
        found.float(), reference.routing(u.float(), 3, 0), rtol=1e-2, atol=1e-2
    )


@pytest.mark.parametrize(
    "sizes", [(66, 40, 8, 3), (64, 9, 5, 2), (65, 70, 12, 33), (64, 33, 33, 4)]
)
def test_mixture(module: Any, sizes: tuple[int, int, int, int]) -> None:
    images, values, length, parts = sizes

    def expected(x: Tensor, y: Tensor) -> Tensor:
        for _ in range(3):
            c = (-(x - y.unsqueeze(2)).abs().sum(3)).softmax(1)
            y = torch.einsum("bkn,bknd->bkd", c, x) / (1 + c.sum(2)).unsqueeze(2)
        return y

    args = numbers((images, parts, values, length), (images, parts, length))
    _compare(lambda x, y: module.mixture(x, y, 3), expected, args)


@pytest.mark.parametrize("sizes", [(64, 40, 8), (70, 33, 5), (3, 60, 64), (64, 7, 8), (65, 0, 4)])
def test_rounds(module: Any, sizes: tuple[int, int, int]) -> None:
    def expected(x: Tensor, v: Tensor, count: int) -> Tensor:
        a, y = 0 * x[:, :, 0], 0 * v
        for _ in range(count):
            a = (a + torch.einsum("bnd,bd->bn", x, y) + x[:, :, 0]).tanh()
            y = torch.einsum("bn,bnd->bd", a, x) / (1 + v * v)
        return y

    args = numbers(sizes, (sizes[0], sizes[2]))
    for count in (1, 3):
        _compare(
            lambda x, v, count=count: module.rounds(x, v, count),
            lambda x, v, count=count: expected(x, v, count),
            args,
        )


@pytest.mark.parametrize("sizes", [(64, 40, 8), (70, 33, 5), (3, 600, 64), (64, 7, 8)])
def test_without_rounds(module: Any, sizes: tuple[int, int, int]) -> None:
    images, values, length = sizes
    x, v = numbers(sizes, (images, length))

    def weights(x: Tensor, v: Tensor) -> Tensor:
        return torch.einsum("bnd,bd->bn", x, v).tanh()

    _compare(module.once, lambda x, v: torch.einsum("bn,bnd->bd", weights(x, v), x), [x, v])
    w = v[:, :1] + x[:, :, 0]

    def quotient(x: Tensor, w: Tensor) -> Tensor:
        return torch.einsum("bnd,bn->bd", x, w) / (1.0 + x.square().sum(1))

    assert "inner n" in pipeline.stage_text(PROGRAM, "schedule", "two_sums", device="cuda")
    _compare(module.two_sums, quotient, [x, w])
    a, y = numbers((images, values), (images, length))
    both = a + weights(x, v)
    sums = y + torch.einsum("bn,bnd->bd", both, x)
    module.kept(x, v, a, y)
    torch.testing.assert_close(a, both)
    torch.testing.assert_close(y, sums)


def test_values_that_are_not_finite(routing: Any) -> None:
    (u,) = numbers((65, 3, 40, 8))
    u[3, 1, 7, 2], u[9, 0, 39, 0] = torch.inf, torch.nan
    found, expected = routing.routing(u, 3, 0), reference.routing(u, 3, 0)
    assert torch.equal(found.isnan(), expected.isnan())
    torch.testing.assert_close(found, expected, equal_nan=True)


def test_rounds_begin_where_rows_are_read_once() -> None:
    for function in ("routing", "routing__forward", "routing__backward"):
        text = pipeline.stage_text(ROUTING, "schedule", function, device="cuda")
        _, loop = text.split("inner r")
        lines = [line for line in loop.split("join")[0].splitlines() if "#" not in line]
        assert sum(" U[" in line for line in lines) == 1


def test_what_the_condition_of_all_loops_leaves() -> None:
    """The host asks it first: nothing of the other branch is there, nor are zeros for its sake."""
    text = pipeline.stage_text(ROUTING, "schedule", "routing__backward", device="cuda")
    before, loops, otherwise = text.split("kernel for b in range(B)")
    assert "if _taken == 0 and R values of O are many" in before
    for part in ("if _taken", "M_inputs_2", "clear C_2"):
        assert part in otherwise
        assert part not in loops
    assert "clear _d_L" in loops  # which rounds add to


def _routing(u: Tensor, rounds: int, over_inputs: int) -> Tensor:
    logits, out = u.new_zeros(u.shape[:3]), 0.0 * u.sum(2)
    for _ in range(rounds):
        weights = logits.softmax(2 if over_inputs else 1)
        out = reference.squash(torch.einsum("bir,biro->bio", weights, u))
        logits = logits + torch.einsum("biro,bio->bir", u, out)
    return out


def _compare(
    found: Callable[..., Tensor],
    expected: Callable[..., Tensor],
    args: list[Tensor],
    tolerance: float = 1e-10,
) -> None:
    """Results and gradients; those of two calls are the same."""
    results: list[list[Tensor]] = []
    for function in (found, expected, found):
        given = [arg.clone().requires_grad_() for arg in args]
        y = function(*given)
        weight = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(1))
        grads = torch.autograd.grad(y, given, weight, allow_unused=True)
        results.append([y.detach(), *(g if g is not None else torch.zeros(()) for g in grads)])
    for one, other, again in zip(*results, strict=True):
        if other.shape == one.shape:
            torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
        assert torch.equal(one, again)
