"""Running reductions along memory, which teams of threads share: their trees, and on the shim rows
that a thread, lanes, a block or several blocks have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sampled import diagonals
import shim
import torch
from torch import Tensor
from tree_runs import run_program
from trees import nodes_of, tree_of

from loma import pipeline
from loma.backends import registry
from loma.backends.schedule.ir import Scan
from loma.passes.device.numbers import on_device

HEAD = "def {name}(x : In[Tensor[R, N]], q : In[IntTensor[R, N]]) -> {type}[R, N]:\n"
# The statements; what they compute; what is shared of them, twice where a kernel's statements may
# be launched one by one.
CASES: dict[str, tuple[str, Callable[[Tensor, Tensor], Tensor], list[str]]] = {
    "sums": ("y[r, i] = sum(x[r, j] for j in range(i + 1))", lambda x, q: x.cumsum(1), ["sum"]),
    "products": ("y[r, i] = prod(x[r, j] for j in range(i + 1))",
                 lambda x, q: x.cumprod(1), ["prod"]),
    "greatest": ("y[r, i] = max(x[r, j] for j in range(i + 1))",
                 lambda x, q: x.cummax(1)[0] if x.numel() else x, ["max"]),
    "least": ("y[r, i] = min(x[r, j] for j in range(i, N))",
              lambda x, q: x.flip(1).cummin(1)[0].flip(1) if x.numel() else x, ["min"]),
    "counts": ("y[r, i] = sum(q[r, j] % 3 for j in range(i + 1))",
               lambda x, q: (q % 3).cumsum(1), ["sum"]),
    "logarithms": ("y[r, i] = log(sum(exp(x[r, j]) for j in range(i + 1)))",
                   lambda x, q: x.logcumsumexp(1), 2 * ["sum"]),
    "left": ("""\
a : Tensor[R, N]
    a[r, i] = sigmoid(x[r, i])
    for r in range(R):
        s : float = 2.0
        for i in range(N):
            y[r, i] = s * a[r, i]
            s *= 1.0 - a[r, i]""",
             lambda x, q: 2.0 * x.sigmoid() * torch.cat(
                 [torch.ones_like(x[:, :1]), (1.0 - x.sigmoid()).cumprod(1)[:, :-1]], 1),
             2 * ["prod"]),
    "decaying": ("""\
for r in range(R):
        s : float = 1.0
        for i in range(N):
            s = 0.9 * x[r, i] * s + x[r, i]
            y[r, i] = s""",
                 lambda x, q: _followed(0.9 * x, x, 1.0), ["sum"]),
    "in_place": ("y = x\n    for i in range(N - 1):\n        y[r, i + 1] += y[r, i]",
                 lambda x, q: x.cumsum(1), 2 * ["sum"]),
}  # fmt: skip


def _followed(factor: Tensor, more: Tensor, state: float) -> Tensor:
    """``s = factor * s + more``, one after the other."""
    last, found = torch.full_like(factor[:, 0], state) if factor.shape[1] else factor, []
    for one, other in zip(factor.unbind(1), more.unbind(1), strict=True):
        last = one * last + other
        found.append(last)
    return torch.stack(found, 1) if found else factor


# Rows inside of a kernel's iteration: many for a warp each, few for all threads.
MATRICES = """
def matrices(x : In[Tensor[B, R, N]]) -> Tensor[B, R, N]:
    s : Tensor[B]
    z : Tensor[B, R, N]
    y : Tensor[B, R, N]
    s[b] = sum(x[b, r, n] * x[b, r, n] for r in R for n in N)
    z[b, r, n] = x[b, r, n] / s[b]
    for n in range(N - 1):
        z[b, r, n + 1] += z[b, r, n]
    y[b, r, n] = z[b, r, n] * s[b]
    return y
"""
# Columns of memory, of one matrix and of several.
COLUMNS = """
def columns(x : In[Tensor[N, R]]) -> Tensor[N, R]:
    return cumsum(x, 0)

def of_several(x : In[Tensor[B, N, R]]) -> Tensor[B, N, R]:
    return cumprod(x, 1)

def decaying_columns(x : In[Tensor[N, R]], a : In[Tensor[R]]) -> Tensor[N, R]:
    y = x
    for n in range(N - 1):
        y[n + 1, r] += a[r] * y[n, r]
    return y
"""
LINE = "def line(x : In[Tensor[N]]) -> Tensor[N]:\n    return cumsum(x, 0)\n"
# Rows of a thread, of a few lanes, of a warp, of a block in one round and in several, of blocks.
SHAPES = ((0, 3), (3, 0), (2, 1), (5, 7), (70, 13), (9, 100), (3, 515), (2, 3000), (2, 4160))


def _text(name: str) -> str:
    type_ = "IntTensor" if name == "counts" else "Tensor"
    lines = f"    y : {type_}[R, N]\n    {CASES[name][0]}\n    return y\n"
    return HEAD.format(name=name, type=type_) + lines


@pytest.fixture(scope="module")
def module(request: pytest.FixtureRequest) -> Iterator[Any]:
    program = "\n".join([*map(_text, CASES), MATRICES, COLUMNS, LINE])
    with shim.on_gpu(program, request) as found:
        yield found


@pytest.mark.parametrize("name", CASES)
def test_trees(name: str) -> None:
    stage = on_device(pipeline.program(_text(name), name).module)
    inside = list(nodes_of(tree_of(stage.function(name), stage, registry.CUDA)))
    assert [node.kind for node in inside if isinstance(node, Scan)] == CASES[name][2]
    assert all(run_program(_text(name), name, tries=3, device=registry.CUDA).values())


@pytest.mark.parametrize(("name", "shape"), diagonals(4, CASES, SHAPES), ids=str)
def test_rows(module: Any, name: str, shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(shape[1])
    x = torch.randn(shape, dtype=torch.float64, generator=generator)
    if name == "products":
        x = 1.0 + 0.1 * x
    q = torch.randint(0, 9, shape, generator=generator)
    expected = CASES[name][1](x, q)
    found = getattr(module, name)(x, q)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    if name != "counts":
        single = getattr(module, name)(x.float(), q)
        torch.testing.assert_close(single, expected.float(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("length", [1, 8192, 4 * 8192, 4 * 8192 + 77])
def test_blocks_share_a_row(module: Any, length: int) -> None:
    x = torch.randn(length, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = module.line(x)
    torch.testing.assert_close(found, x.cumsum(0), rtol=1e-10, atol=1e-10)
    assert torch.equal(found, module.line(x))
    assert torch.equal(found[: length // 2], module.line(x)[: length // 2])


@pytest.mark.parametrize("shape", [(3, 20, 70), (2, 3, 700), (1, 1, 40), (2, 0, 4), (0, 3, 5)])
def test_rows_of_an_iteration(module: Any, shape: tuple[int, int, int]) -> None:
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    torch.testing.assert_close(module.matrices(x), x.cumsum(2))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 4), (7, 5), (70, 33), (2100, 3), (300, 70)])
def test_columns(module: Any, shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_()
    a = torch.rand(shape[1], dtype=torch.float64, generator=generator)
    weight = torch.randn(shape, dtype=torch.float64, generator=generator)
    found = module.columns(x)
    torch.testing.assert_close(found, x.cumsum(0))
    (gradient,) = torch.autograd.grad(found, x, weight)
    torch.testing.assert_close(gradient, weight.flip(0).cumsum(0).flip(0))
    several = (1.0 + 0.1 * x.detach()).repeat(2, 1, 1)
    torch.testing.assert_close(module.of_several(several), several.cumprod(1))
    decayed = module.decaying_columns(x.detach(), a)
    expected = [*x.detach()[:1]]
    for row in x.detach()[1:]:
        expected.append(row + a * expected[-1])
    torch.testing.assert_close(decayed, torch.stack(expected) if expected else x.detach())


def test_column_forms() -> None:
    for name in ("columns", "columns__backward", "of_several", "decaying_columns"):
        shown = pipeline.stage_text(COLUMNS, "schedule", name, device="cuda")
        assert shown.count("a team for N across") + shown.count("a team for N - 1 across") == 1
        assert " for n in range(N - 1):" not in shown


def test_numbers_that_are_none(module: Any) -> None:
    x, q = torch.ones(2, 1500, dtype=torch.float64), torch.zeros(2, 1500, dtype=torch.int64)
    for place, value in ((0, torch.nan), (40, torch.inf), (700, torch.nan), (1499, -torch.inf)):
        x[1, place] = value
        for name in ("sums", "products", "greatest"):
            expected = CASES[name][1](x, q)
            torch.testing.assert_close(getattr(module, name)(x, q), expected, equal_nan=True)
        x[1, place] = 1.0


@pytest.mark.parametrize("length", [40, 700])
def test_factors_whose_product_is_too_large(module: Any, length: int) -> None:
    """Steps that cannot be joined are taken one after the other."""
    x = torch.zeros(2, length)
    x[0] = 1e30
    x[0, : length // 2] = 1e-30
    x[1, 5] = torch.inf
    q = torch.zeros(2, length, dtype=torch.int64)
    expected = _followed(0.9 * x, x, 1.0)
    torch.testing.assert_close(module.decaying(x, q), expected, equal_nan=True)
    expected = x.cumprod(1)
    torch.testing.assert_close(module.products(x, q), expected, equal_nan=True)


def test_rows_that_blocks_share() -> None:
    """Sums: of products one may be too large, and another block cannot take their steps again."""
    for name, share in (("sums", True), ("products", False)):
        shown = pipeline.stage_text(_text(name), "cpp", name, device="cuda")
        assert ("/*splits=*/false" not in shown) == share


def test_what_a_choice_leaves_out_is_nothing(module: Any) -> None:
    """The gradient of a greatest element reaches those before it that are equal, no others."""
    x = torch.arange(300.0, dtype=torch.float64).repeat(2, 1).requires_grad_()
    weight = torch.ones_like(x)
    weight[0, 70] = torch.inf
    weight[1, 200] = torch.nan
    module.greatest(x, torch.zeros(2, 300, dtype=torch.int64)).backward(weight)
    torch.testing.assert_close(x.grad, weight, equal_nan=True)


def test_gradients(module: Any) -> None:
    x = 0.1 * torch.randn(3, 70, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    q = torch.zeros(3, 70, dtype=torch.int64)
    weight = torch.randn(3, 70, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    for name in ("sums", "products", "greatest", "least", "logarithms", "left", "decaying"):
        ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        getattr(module, name)(ours, q).backward(weight)
        CASES[name][1](theirs, q).backward(weight)
        torch.testing.assert_close(ours.grad, theirs.grad, msg=name)
