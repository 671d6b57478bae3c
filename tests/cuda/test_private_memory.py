"""A kernel of many statements, with private memory that is near and far, and short rows that a few
lanes share: on the shim, against float64."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import shim
import torch
from sampled import diagonals
from torch import Tensor

import capsnet_loma
from loma import pipeline

pytestmark = pytest.mark.cpu  # the shim takes the place of a GPU

SOURCE = (Path(capsnet_loma.__file__).parent / "digit_capsules.loma").read_text("utf-8")
# Batch, digit capsules, input capsules, components; rounds. The last one has too much for shared
# memory, where the tensors of each round are far.
SIZES = (
    (3, 10, 33, 16, 3), (2, 3, 129, 8, 2), (1, 5, 40, 12, 9), (2, 2, 5, 3, 1), (1, 10, 1152, 16, 3),
)  # fmt: skip


@pytest.fixture(scope="module")
def module() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch, shim.compiled(SOURCE) as found:
        patch.setenv("LOMA_CHECK", "sync")
        yield found


def routing(predicted: Tensor, rounds: int, over_inputs: int) -> Tensor:
    logits = predicted.new_zeros(predicted.shape[:3])
    for k in range(rounds):
        weights = logits.softmax(2 if over_inputs else 1)
        total = (weights[..., None] * predicted).sum(2)
        square = (total * total).sum(2, keepdim=True)
        out = total * (square.sqrt() / (1 + square))
        if k + 1 < rounds:
            logits = logits + (predicted * out[:, :, None]).sum(3)
    return out


@pytest.mark.parametrize(
    ("dtype", "sizes", "over_inputs"),
    diagonals(20, [torch.float32, torch.float64], SIZES, [0, 1]),
    ids=str,
)
def test_routing(module: Any, dtype: torch.dtype, sizes: tuple[int, ...], over_inputs: int) -> None:
    *shape, rounds = sizes
    predicted = (0.3 * torch.randn(shape, dtype=dtype)).requires_grad_()
    exact = predicted.detach().double().requires_grad_()
    result = routing(exact, rounds, over_inputs)
    expected, weights = result.detach(), torch.randn_like(result)
    (gradient,) = torch.autograd.grad(result, exact, weights)
    tolerance = 3e-6 if dtype == torch.float32 else 1e-13
    for _ in range(2):
        found = module.routing(predicted, rounds, over_inputs)
        (own,) = torch.autograd.grad(found, predicted, weights.to(dtype))
        assert float((found.detach().double() - expected).norm() / expected.norm()) <= tolerance
        assert float((own.double() - gradient).norm() / gradient.norm()) <= tolerance


@pytest.mark.full
def test_the_text_has_them_all() -> None:
    stage = pipeline.program(SOURCE, every=True)
    text = pipeline.device_part(stage, "routing__backward", "n").files[0][1]
    wanted = (
        "keep_near(",
        "private_at(",
        "rows<real>(",
        "sums<real>(",
        "loma::put(",
    )
    assert [part for part in wanted if part not in text] == []
