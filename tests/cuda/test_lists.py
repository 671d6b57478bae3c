"""Calls over lists on a GPU's runtime: positions that one launch serves, on the shim."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import shim
import torch
from torch import Tensor

from loma import pipeline

pytestmark = pytest.mark.cpu  # the shim takes the place of a GPU

PROGRAM = """
def mix(x : Out[Tensor[N]], y : Out[Tensor[N]], z : In[Tensor[N]], a : In[float]):
    h : Tensor[N]
    h[i] = a * z[i] + x[i]
    y[j] = y[j] + h[j] * h[j]
    x[k] = h[k] / (1.0 + y[k] * y[k])

def add(x : Out[Tensor[N]], y : In[Tensor[N]]):
    x[n] = x[n] + y[n]

def centred(x : Out[Tensor[N]], y : In[Tensor[N]]):
    m = mean(y)
    x[n] = y[n] - m
"""
SHAPES = ((3,), (), (0,), (2, 3, 4), (1, 5), (7, 1), (300,), (5000,), (4, 4))


class Asked:
    """Compiles for the shim; keeps the options of what it was asked for."""

    def __init__(self) -> None:
        self.options: list[set[str]] = []

    def __call__(self, name: str, text: str, options: Sequence[str], architecture: str) -> bytes:
        self.options.append(set(options))
        return shim.image(name, text, options, architecture)

    def listed(self) -> bool:
        """Whether all since the last time serve lists."""
        asked, self.options = self.options, []
        return all("-DLOMA_LISTED" in options for options in asked)


@pytest.fixture(scope="module")
def asked() -> Asked:
    return Asked()


@pytest.fixture(scope="module")
def module(asked: Asked) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch, shim.compiled(PROGRAM, asked) as found:
        patch.setenv("LOMA_CHECK", "sync")
        yield found


def mixed(x: Tensor, y: Tensor, z: Tensor, a: float) -> tuple[Tensor, Tensor]:
    h = a * z + x
    y = y + h * h
    return h / (1.0 + y * y), y


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_positions_of_any_size(module: Any, asked: Asked, dtype: torch.dtype) -> None:
    """Forty times nine positions are more than one launch takes, and of several forms."""
    shapes = SHAPES * 40
    xs, ys, zs = ([torch.randn(s, dtype=dtype) for s in shapes] for _ in range(3))
    expected = [mixed(*each, 0.5) for each in zip(xs, ys, zs, strict=True)]
    module.mix.each(xs, ys, zs, 0.5)
    torch.testing.assert_close(list(zip(xs, ys, strict=True)), expected)
    assert asked.options
    assert asked.listed()


def test_a_number_for_each_position(module: Any) -> None:
    xs, ys, zs = ([torch.randn(s) for s in SHAPES] for _ in range(3))
    numbers = [torch.full((1,) * (k % 3), 0.1 * k) for k in range(len(SHAPES))]
    numbers[4] = numbers[4].double()  # in the dtype of the call in its turn
    each = zip(xs, ys, zs, numbers, strict=True)
    expected = [mixed(x, y, z, float(number)) for x, y, z, number in each]
    module.mix.each(xs, ys, zs, numbers)
    torch.testing.assert_close(list(zip(xs, ys, strict=True)), expected)


def test_positions_that_share_memory_run_in_turn(module: Any) -> None:
    x, ones = torch.zeros(4, 300), torch.ones(300)
    module.add.each([x[0]] * 5, [ones] * 5)  # the same element, five times
    assert x[0].eq(5).all()
    module.add.each([x[1], x[2], x[3]], [x[0], x[1], x[2]])  # each reads what the last one wrote
    assert x[1:].eq(5).all()
    whole = torch.zeros(2, 300)
    module.add.each([whole[1], whole], [ones, torch.ones(2, 300)])
    assert whole[0].eq(1).all()
    assert whole[1].eq(2).all()
    wide = torch.zeros(300, 2)
    module.add.each([wide[:, 0], wide[:, 1], wide], [ones, ones, torch.ones(300, 2)])
    assert wide.eq(2).all()


def test_which_kernels_serve_lists() -> None:
    """The mean of ``centred`` is a launch of its own."""
    names = ("mix", "add", "centred")
    stage = pipeline.optimised(pipeline.adjoint(pipeline.parsed(PROGRAM)), names)
    texts = [pipeline.device_part(stage, name, "n").files[0][1] for name in names]
    assert ["LOMA_LISTS(" in text for text in texts] == [True, True, False]


@pytest.mark.parametrize(
    ("numbers", "error", "message"),
    [
        ([], ValueError, "'a' has 0 tensors, but 'x' has 2"),
        ([torch.ones(2), torch.ones(())], ValueError, r"'a'\[0\] must have one element, got"),
        ([torch.ones(()), torch.ones((), dtype=torch.int32)], TypeError, r"'a'\[1\] must be an or"),
        ([0.5, 0.5], TypeError, r"'a'\[0\] must be a tensor, got float"),
        ([torch.ones(()).requires_grad_()] * 2, ValueError, r"'a'\[0\] requires a gradient"),
    ],
)
def test_wrong_numbers(module: Any, numbers: Any, error: type, message: str) -> None:
    lists = [[torch.ones(3), torch.ones(3)] for _ in range(3)]
    with pytest.raises(error, match=message):
        module.mix.each(*lists, numbers)
    assert all(x.eq(1).all() for one in lists for x in one)
