"""Everything that is made on first use is made before the first step, so that steps repeat bit for
bit: loma compiles kernels for the sizes it sees, in the background, and measures which form of a
convolution is the fastest. Either may change the rounding."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from capsnet_loma.evaluation.model import Model
from loma import specialise


def all_kernels_at_once() -> None:
    """To be called before the layers are loaded: the first call of each size asks for its kernel,
    and none is asked for later, when a call happens to take longer."""
    specialise.THRESHOLDS = specialise.Thresholds(calls=1, call_ms=0.0, total_ms=0.0)


def warm_up(
    model: Model,
    batch: int,
    tested: Sequence[int],
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> None:
    """Runs the network forward and backward on ``batch`` images, and forward on those many that are
    ``tested`` at a time, until all kernels are there. Parameters and generators stay as they are.
    """
    c = model.config
    sizes = [batch, *dict.fromkeys(tested)]
    for number, size in enumerate(sizes):
        progress("calling", number, len(sizes))
        images = torch.zeros(size, c.image_channels, c.image_size, c.image_size)
        targets = torch.zeros(size, c.classes)
        with torch.set_grad_enabled(number == 0):
            capsules, reconstruction = model.network(images, targets)
            loss = model.loss(images, targets, capsules, reconstruction)
            model.lengths(capsules.detach())
        if number == 0:
            loss.backward()  # type: ignore[no-untyped-call]
            model.network.zero_grad(set_to_none=True)
    progress("compiling kernels for these sizes", len(sizes), len(sizes))
    specialise.wait()
