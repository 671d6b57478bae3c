"""Panels that do not meet run on several threads at once, as one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import oracle
import pytest
from sampled import one_in
import torch
from schedule_cases import ATTENTION
from torch import Tensor

from loma import memory, pipeline

UNSCALED = """
def attention(q : In[Tensor[B, T, D]], k : In[Tensor[B, S, D]], v : In[Tensor[B, S, E]]) -> Tensor[B, T, E]:
    s = softmax(q @ transpose(k, 1, 2), 2)
    return s @ v
"""  # noqa: E501

# No library multiplies here, so that no bit depends on the number of threads.
LOOPS = """
def loops(x : In[Tensor[B, T, D]], c : In[Tensor[B, S, D]], n : In[IntTensor[T]]) -> Tensor[B, T, D]:
    r : Tensor[B, T, S]
    m : Tensor[B, T]
    w : Tensor[B, T, S]
    y : Tensor[B, T, D]
    r[b, i, j] = sum(abs(x[b, i, d] - c[b, j, d]) for d in D)
    m[b, i] = max(r[b, i, j] for j in range(n[i]))
    w[b, i, j] = exp(r[b, i, j] - m[b, i])
    y[b, i, d] = sum(w[b, i, j] * abs(c[b, j, d]) for j in S)
    return y
"""  # noqa: E501


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets the number of threads."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def heads(text: str, function: str) -> list[str]:
    """What kind of panels a function has, from the outermost."""
    lines = pipeline.stage_text(text, "schedule", function).splitlines()
    return [line.partition(" of ")[0].strip() for line in lines if "panels of " in line]


def test_which_may_run_at_once() -> None:
    """Rows that are added to gradients of all columns come one after the other, as do batch
    elements that are added to the gradient of one number."""
    both = ["parallel panels", "parallel panels"]
    assert heads(ATTENTION, "attention__forward") == both
    assert heads(ATTENTION, "attention__backward") == ["panels", "panels"]
    assert heads(UNSCALED, "attention__forward") == both
    assert heads(UNSCALED, "attention__backward") == ["parallel panels", "panels"]


def test_what_may_depend_on_the_number_of_threads() -> None:
    """How many values a panel has, unless sums inside are taken panel by panel."""
    code = pipeline.stage_text(UNSCALED, "cpp", "attention__forward")
    assert code.count("loma::shared_panel(") == 2
    code = pipeline.stage_text(UNSCALED, "cpp", "attention__backward")
    assert code.count("loma::panel(") == 2


def arguments(B: int, T: int, S: int, D: int = 3, E: int = 2) -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    shapes = [(B, T, D), (B, S, D), (B, S, E)]
    made = [torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes]
    return [x.requires_grad_() for x in made]


# Panels of the batch; of the rows of one batch element; fewer than threads; nothing to do.
SIZES = [(40, 120, 130), (1, 700, 1500), (2, 700, 1500), (0, 3, 2), (2, 0, 3)]


@pytest.mark.parametrize("size", one_in(3, SIZES), ids=str)
def test_any_number_of_threads(size: tuple[int, int, int], threads: Callable[[int], None]) -> None:
    module = oracle.compiled(UNSCALED)
    args = arguments(*size)
    found = []
    for count in (1, 2, 3):
        threads(count)
        y = module.attention(*args)
        grads = torch.autograd.grad(y.square().sum(), args)
        with torch.inference_mode():
            torch.testing.assert_close(module.attention(*args), y.detach())
        found.append([y.detach(), *grads])
    for other in found[1:]:
        torch.testing.assert_close(other, found[0])


@pytest.mark.parametrize(
    "size", one_in(3, [(40, 120, 130), (1, 701, 1501), (33, 65, 257)]), ids=str
)
def test_every_bit(size: tuple[int, int, int], threads: Callable[[int], None]) -> None:
    module = oracle.compiled(LOOPS)
    x, c = (tensor.detach() for tensor in arguments(*size)[:2])
    n = torch.arange(size[1]) + 1
    assert heads(LOOPS, "loops") == ["parallel panels", "parallel panels"]
    found = []
    for count in (1, 2, 3, 7):
        threads(count)
        found.append(module.loops(x, c, n))
    assert all(torch.equal(other, found[0]) for other in found[1:])
    n[7] = 0
    with pytest.raises(ValueError, match="max of no elements"):
        module.loops(x, c, n)


def test_from_several_threads(threads: Callable[[int], None]) -> None:
    """What is taken from the pool by several threads at once is given back."""
    threads(2)
    module = oracle.compiled(UNSCALED)
    args = arguments(40, 120, 130)

    def step(_: int) -> list[Tensor]:
        return list(torch.autograd.grad(module.attention(*args).square().sum(), args))

    wanted = step(0)
    before = memory.stats().in_use
    with ThreadPoolExecutor(3) as pool:
        for found in pool.map(step, range(6)):
            torch.testing.assert_close(found, wanted)
            del found
    assert memory.stats().in_use <= before
