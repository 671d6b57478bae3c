"""Everything that is made on first use is made before the first step, so that steps repeat bit for
bit: loma compiles kernels for the sizes it sees, in the background, and measures which form of a
convolution is the fastest. Either may change the rounding.

Kernels for their sizes are made for what takes the time, the network forward and backward. What is
quick or called once an epoch keeps the general ones: loss, validation and optimiser.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch

from capsnet_loma.data.batches import Batch
from capsnet_loma.evaluation.evaluate import outcomes
from capsnet_loma.evaluation.model import Model
from capsnet_loma.training import engines
from capsnet_loma.training.settings import Settings
from loma import specialise

Progress = Callable[[str, int, int], None]


def all_kernels_at_once() -> None:
    """The first call of each size asks for its kernel, and none is asked for later, when a call
    happens to take longer."""
    specialise.use(specialise.Thresholds(calls=1, call_ms=0.0, total_ms=0.0))


def warm_up(
    model: Model,
    settings: Settings,
    batch: int,
    tested: Sequence[int],
    progress: Progress = lambda what, done, total: None,
) -> None:
    """Trains a copy of the network on ``batch`` images, and runs it on those many that are
    ``tested`` at a time, until all kernels are there. The model and generators stay as they are.
    """
    spare = Model(model.engine, copy.deepcopy(model.network))
    optimiser = engines.optimiser(settings, spare.network.parameters())
    sizes = list(dict.fromkeys(tested))
    total = 3 + len(sizes)
    for number in range(2):  # momentum begins with the second step
        progress("training", number, total)
        _train(spare, batch)
        with specialise.declined():
            optimiser.step()
    for number, size in enumerate(sizes, 2):
        progress("validation", number, total)
        with specialise.declined():
            list(outcomes(spare, [_blank(spare, size)]))
    progress("compiling for this batch size", total - 1, total)
    specialise.wait()
    progress("", total, total)


def _train(model: Model, batch: int) -> None:
    blank = _blank(model, batch)
    capsules, reconstruction = model.network(blank.images, blank.targets)
    ends = [t.detach().requires_grad_() for t in (capsules, reconstruction)]
    with specialise.declined():
        model.loss(blank.images, blank.targets, *ends).backward()
        with torch.no_grad():
            model.lengths(capsules)
    model.network.zero_grad(set_to_none=True)
    torch.autograd.backward((capsules, reconstruction), [end.grad for end in ends])


def _blank(model: Model, size: int) -> Batch:
    """Black images, with the targets of no class."""
    c, device = model.config, model.device
    images = torch.zeros(size, c.image_channels, c.image_size, c.image_size, device=device)
    targets = torch.zeros(size, c.classes, device=device)
    return Batch(images, targets, torch.zeros(size, dtype=torch.int64, device=device))
