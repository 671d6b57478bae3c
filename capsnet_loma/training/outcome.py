"""What a step came to, which is read when a GPU has computed it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of step number ``step`` of an epoch, on ``images`` images."""

    step: int
    images: int
    _numbers: Tensor  # loss and right ones, on the CPU as soon as _there
    _there: torch.cuda.Event | None

    @classmethod
    def of(cls, step: int, images: int, loss: Tensor, right: Tensor) -> Outcome:
        """``loss`` is the mean, ``right`` counts the recognised images: tensors of one number.

        Waits for nothing: a GPU's numbers are copied behind what computes them.
        """
        numbers = torch.stack((loss.detach().double(), right.double()))
        if not numbers.is_cuda:
            return cls(step, images, numbers, None)
        copied = numbers.to("cpu", non_blocking=True)  # into pinned memory
        there = torch.cuda.Event()
        there.record()
        return cls(step, images, copied, there)

    def read(self) -> tuple[float, float]:
        """Loss and number of recognised images, once they are computed."""
        if self._there is not None:
            self._there.synchronize()
        loss, right = self._numbers.tolist()
        return loss, right
