"""Batches of images: in random order and shifted for training, in order for evaluation.

A thread prepares them ahead of use, with NumPy: parallel regions of torch in a second thread would
start threads of their own, beside those that compute.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from capsnet_loma.data import ImageSet
from capsnet_loma.data.ahead import ahead

Indices = NDArray[numpy.int64]


@dataclass(frozen=True, slots=True)
class Batch:
    """``images`` float32 [B, 1, H, W] in 0..1; ``targets`` float32 one-hot [B, classes];
    ``labels`` int64 [B]."""

    images: Tensor
    targets: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


class Batches:
    """Random batches of one size; an image comes at most once an epoch.

    ``batch`` counts the images of all ranks together: the process of this ``rank`` gets its equal,
    contiguous share. Each image is shifted by up to ``shift`` pixels in each direction, in which
    zeros come in, as in section 5 of Sabour, Frosst and Hinton 2017. Order and shifts depend on
    seed, epoch and step only. What is left at the end of an epoch and fills no batch is left out.

    Raises ValueError for a batch that is larger than the data or that ranks cannot share equally.
    """

    def __init__(
        self,
        data: ImageSet,
        classes: int,
        batch: int,
        *,
        seed: int,
        shift: int = 2,
        rank: int = 0,
        world: int = 1,
        device: torch.device | str = "cpu",
    ) -> None:
        _check_rank(rank, world)
        if batch < 1 or batch > len(data):
            raise ValueError(
                f"a batch of {batch} images does not fit a data set of {len(data)}: give a size "
                f"from 1 to {len(data)}"
            )
        if batch % world:
            raise ValueError(
                f"a batch of {batch} images cannot be shared equally by {world} processes: give a "
                f"multiple of {world}, or start another number of processes"
            )
        if seed < 0:
            raise ValueError(f"the seed of the batches must not be negative, got {seed}")
        if not 0 <= shift < data.image_size:
            raise ValueError(
                f"shift {shift} is not possible with images of {data.image_size} pixels"
            )
        self.steps = len(data) // batch
        self._data, self._batch, self._seed, self._shift = data, batch, seed, shift
        share = batch // world
        self._mine = slice(rank * share, (rank + 1) * share)
        self._assemble = _Assembler(data, classes, shift, torch.device(device))

    def epoch(self, epoch: int, start: int = 0) -> Generator[Batch, None, None]:
        """The batches of an epoch, from step ``start`` on.

        A thread prepares them from the first ``next`` on; it ends with the iterator. What fails in
        it is raised by ``next``.
        """
        if epoch < 0 or not 0 <= start <= self.steps:
            raise ValueError(
                f"epoch {epoch}, step {start}: an epoch is at least 0, and a step from 0 to "
                f"{self.steps}"
            )
        return ahead(lambda: self._epoch(epoch, start))

    def _epoch(self, epoch: int, start: int) -> Iterator[Batch]:
        generator = numpy.random.Generator(numpy.random.PCG64([self._seed, epoch]))
        order = generator.permutation(len(self._data))
        # Offsets of the window that is cut out of a frame with a margin: [image, (row, column)].
        offsets = generator.integers(0, 2 * self._shift, (len(order), 2), endpoint=True)
        for step in range(start, self.steps):
            chosen = slice(step * self._batch, (step + 1) * self._batch)
            yield self._assemble(order[chosen][self._mine], offsets[chosen][self._mine])


def in_order(
    data: ImageSet,
    classes: int,
    batch: int,
    *,
    rank: int = 0,
    world: int = 1,
    device: torch.device | str = "cpu",
) -> Iterator[Batch]:
    """Every image once, in the order of the data and not shifted, ``batch`` at a time; the last
    batch may be smaller.

    Of several processes, each gets a contiguous part of the data, whose sizes differ by at most one
    image, in batches of its own. Raises ValueError for a batch of no images.
    """
    _check_rank(rank, world)
    if batch < 1:
        raise ValueError(f"a batch must have at least 1 image, got {batch}")
    first, last = (len(data) * r // world for r in (rank, rank + 1))
    assemble = _Assembler(data, classes, 0, torch.device(device))

    def parts() -> Iterator[Batch]:
        for start in range(first, last, batch):
            chosen = numpy.arange(start, min(start + batch, last))
            yield assemble(chosen, numpy.zeros((len(chosen), 2), dtype=numpy.int64))

    return ahead(parts)


def _check_rank(rank: int, world: int) -> None:
    if not 0 <= rank < world:
        raise ValueError(f"rank {rank} of {world}: ranks are from 0 to {world - 1}")


class _Assembler:
    """Puts chosen images, each cut out of a frame with a margin at its offset, into a batch."""

    def __init__(self, data: ImageSet, classes: int, margin: int, device: torch.device) -> None:
        self._images, self._labels = data.images.numpy(), data.labels.numpy()
        self._classes, self._margin, self._device = classes, margin, device

    def __call__(self, chosen: Indices, offsets: Indices) -> Batch:
        count, (height, width) = len(chosen), self._images.shape[1:]
        images = torch.empty(count, 1, height, width)
        targets = torch.zeros(count, self._classes)
        pixels = self._images[chosen]
        if self._margin:
            pixels = self._cut(pixels, offsets)
        # The only tensor of floats: bytes become fractions of 255 while they are copied into it.
        numpy.divide(pixels, 255, out=images.numpy()[:, 0], dtype=numpy.float32)
        labels = self._labels[chosen]
        targets.numpy()[numpy.arange(count), labels] = 1.0
        batch = Batch(images, targets, torch.from_numpy(labels))
        if self._device.type == "cpu":
            return batch
        return Batch(*(self._moved(t) for t in (batch.images, batch.targets, batch.labels)))

    def _cut(self, pixels: NDArray[numpy.uint8], offsets: Indices) -> NDArray[numpy.uint8]:
        count, height, width = pixels.shape
        m = self._margin
        framed = numpy.zeros((count, height + 2 * m, width + 2 * m), dtype=numpy.uint8)
        framed[:, m : m + height, m : m + width] = pixels
        # [image, row offset, column offset, height, width]: a view, of which one window is taken.
        windows = numpy.lib.stride_tricks.sliding_window_view(framed, (height, width), axis=(1, 2))
        cut: NDArray[numpy.uint8] = windows[numpy.arange(count), offsets[:, 0], offsets[:, 1]]
        return cut

    def _moved(self, tensor: Tensor) -> Tensor:
        """On the device; from pinned memory the copy runs beside what the device computes."""
        if self._device.type == "cuda":
            return tensor.pin_memory().to(self._device, non_blocking=True)
        return tensor.to(self._device)
