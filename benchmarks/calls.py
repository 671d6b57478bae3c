"""Calls of functions in this process, and how long they take side by side."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from forms import Settings
from torch import Tensor

from loma import specialise
from loma.tools.measure import Timings, interleaved_medians

Call = Callable[[], object]


def prepare(threads: int) -> None:
    """Sets this process up to measure: all kernels for the sizes at hand are made before the first
    sample, none while others are taken."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    specialise.use(specialise.Thresholds(calls=1, total_ms=0.0))


def inference(function: Callable[..., Any], args: Sequence[Any]) -> Call:
    def run() -> object:
        with torch.no_grad():
            return function(*args)

    return run


def both(function: Callable[..., Any], args: Sequence[Any]) -> Call:
    """Forward, and the gradients of all arguments that want one."""
    leaves = [arg for arg in args if isinstance(arg, Tensor) and arg.requires_grad]
    with torch.no_grad():
        weight = torch.randn_like(function(*args))
    return lambda: torch.autograd.grad(function(*args), leaves, weight)


def warm(own: Collection[Call]) -> None:
    """Lets loma make the kernels of its calls."""
    for _ in range(3):
        for call in own:
            call()
        specialise.wait()


def side_by_side(calls: Mapping[str, Call], own: Collection[str], settings: Settings) -> Timings:
    """What the calls take in turn; ``own`` names loma's."""
    warm([calls[name] for name in own])
    seconds = 0.0 if settings.quick else 0.01
    return interleaved_medians(calls, rounds=settings.rounds, min_seconds=seconds)
