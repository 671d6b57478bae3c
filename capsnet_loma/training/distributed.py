"""The processes that share a training: one by default, several under ``torchrun``.

Each computes its share of every batch. Gradients are averaged by DistributedDataParallel, sums are
added up here, and only the main process, rank 0, writes and prints.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import nn
from torch import distributed as dist

from capsnet_loma.training import TrainingError

TIMEOUT = timedelta(minutes=30)  # others wait while one compiles


@dataclass(frozen=True, slots=True)
class Job:
    """This process among ``world`` ones."""

    rank: int = 0
    world: int = 1

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def sum(self, values: Sequence[float]) -> list[float]:
        """Each number added up over the processes. Raises TrainingError when one has ended."""
        if self.world == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        with self.reporting():
            dist.all_reduce(total)
        return [float(value) for value in total.tolist()]

    def wait(self) -> None:
        """Until all processes are here."""
        self.sum([0.0])

    def wrapped(self, network: nn.Module) -> nn.Module:
        """The network for forward and backward: it averages gradients over the processes.

        All processes then have the main one's parameters.
        """
        if self.world == 1:
            return network
        from torch.nn.parallel import DistributedDataParallel

        with self.reporting():
            return DistributedDataParallel(network, gradient_as_bucket_view=True)

    @contextlib.contextmanager
    def reporting(self) -> Iterator[None]:
        """What communication raises when a process has ended becomes a TrainingError."""
        try:
            yield
        except RuntimeError as error:
            if self.world == 1 or not _is_lost(error):
                raise
            raise TrainingError(
                f"process {self.rank} of {self.world} lost another one, which has ended: "
                f"{str(error).partition(chr(10))[0]}. The last checkpoint is complete: start the "
                "same command again with --resume."
            ) from error


def _is_lost(error: RuntimeError) -> bool:
    text = str(error).lower()
    words = ("connection", "timed out", "timeout", "peer", "nccl", "socket")
    return isinstance(error, dist.DistError) or any(word in text for word in words)


@contextlib.contextmanager
def job() -> Iterator[Job]:
    """The job that ``torchrun`` has started this process for, or one of its own."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        yield Job()
        return
    found = Job(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    if found.world == 1:
        yield found
        return
    try:
        dist.init_process_group("gloo", timeout=TIMEOUT)
    except (RuntimeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise TrainingError(
            f"process {found.rank} of {found.world} cannot join the others: {reason}. Start all "
            "of them with torchrun."
        ) from error
    try:
        yield found
    finally:
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()
