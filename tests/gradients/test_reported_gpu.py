"""The tensor programs that other systems were reported to get wrong, on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from oracle import as_tuple, close, gradients, random_weights
from reported import Reported, each, texts
from reported_tensors import REPORTED

import loma

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(scope="module")
def module() -> Any:
    return loma.compile("\n".join(texts("tensors").values()))


@each(REPORTED)
def test_values_and_gradients(module: Any, case: Reported) -> None:
    function = getattr(module, case.name)
    args = [arg.cuda() if isinstance(arg, torch.Tensor) and arg.dim() else arg for arg in case.args]
    values = as_tuple(function(*args))
    weights = random_weights(values, torch.Generator().manual_seed(8))
    expected, first = gradients(case.reference, case.args, weights)
    moved = [w.cuda() if isinstance(v, torch.Tensor) and v.is_cuda else w
             for v, w in zip(values, weights, strict=True)]  # fmt: skip
    _, found = gradients(function, args, moved)
    for value, right in zip([*values, *found], [*expected, *first], strict=True):
        close(value, right, 1e-11)
