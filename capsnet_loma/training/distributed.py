"""The processes that share a training: one by default, several under ``torchrun``.

Each computes its share of every batch, on a GPU of its own where the device is "cuda". Gradients
are averaged by DistributedDataParallel (over NCCL between GPUs), sums are added up here (over
gloo), and only the main process, rank 0, reads and writes the run's folder and prints.
:mod:`capsnet_loma.training.endings` says how they end when one of them fails.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from capsnet_loma.training import TrainingError
from capsnet_loma.training.endings import Ending, LostError

TIMEOUT = timedelta(minutes=30)  # others wait while one compiles

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Job:
    """This process among ``world`` ones, of which ``local_world`` are of this machine. Its network
    runs on ``device``."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    _ending: Ending | None = field(default=None, repr=False, compare=False)

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def sum(self, values: Sequence[float]) -> list[float]:
        """Each number added up over the processes. Raises LostError when one has ended."""
        if self.world == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        with self.reporting():
            dist.all_reduce(total)
        return [float(value) for value in total.tolist()]

    def wait(self) -> None:
        """Until all processes are here."""
        self.sum([0.0])

    def from_main(self, make: Callable[[], T]) -> T:
        """What the main process makes, which is sent to the others. They may be of other machines,
        which do not have its files."""
        if self.world == 1:
            return make()
        box: list[Any] = [make() if self.is_main else None]
        with self.reporting():
            dist.broadcast_object_list(box)
        made: T = box[0]
        return made

    @contextlib.contextmanager
    def one_of_each_machine_first(self) -> Iterator[None]:
        """For what is compiled: the others then find it in the cache."""
        if self.local_rank != 0:
            self.wait()
        yield
        if self.local_rank == 0:
            self.wait()

    def wrapped(self, network: nn.Module) -> nn.Module:
        """The network for forward and backward: it averages gradients over the processes.

        All processes then have the main one's parameters.
        """
        if self.world == 1:
            return network
        from torch.nn.parallel import DistributedDataParallel

        for parameter in network.parameters():
            if 1 in parameter.shape:
                parameter.register_hook(_with_usual_strides)
        with self.reporting():
            return DistributedDataParallel(
                network,
                device_ids=None if self.device.type == "cpu" else [self.device],
                gradient_as_bucket_view=True,
            )

    @contextlib.contextmanager
    def reporting(self) -> Iterator[None]:
        """What communication raises when a process has ended becomes a LostError."""
        try:
            yield
        except RuntimeError as error:
            if self._ending is None or not _is_lost(error):
                raise
            self._ending.begin()
            raise LostError(str(error).partition("\n")[0]) from error


def _with_usual_strides(gradient: Tensor) -> Tensor:
    """Some convolutions give dimensions of size 1 other strides, which DistributedDataParallel
    warns of, though they mean the same."""
    return gradient.flatten().view(gradient.shape)


def _is_lost(error: RuntimeError) -> bool:
    text = str(error).lower()
    words = ("gloo", "nccl", "connection", "broken pipe", "timed out", "timeout")
    return isinstance(error, dist.DistError) or any(word in text for word in words)


@contextlib.contextmanager
def job(kind: str = "cpu") -> Iterator[Job]:
    """The job that ``torchrun`` has started this process for, or one of its own. ``kind`` of
    device: "cpu", or "cuda" where each process of a machine has a GPU; "cuda:1" of one alone.

    An exception of the body ends all processes; one of them lets it out, as a TrainingError where
    another process was lost, and the others raise SystemExit.
    """
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        yield Job(device=_device(kind))
        return
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    local_world = int(os.environ.get("LOCAL_WORLD_SIZE", str(world)))
    device = _device(kind, local_rank)
    if world == 1:
        yield Job(device=device)
        return
    try:
        # The store outlives the processes: under torchrun, it is torchrun's.
        store, rank, world = next(iter(rendezvous("env://", timeout=TIMEOUT)))
        # So that what torchrun restarts does not find the addresses of those that have ended.
        store = PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
        backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=TIMEOUT)
    except (RuntimeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise TrainingError(
            f"process {rank} of {world} cannot join the others: {reason}. Start all of them with "
            "torchrun."
        ) from error
    ending = Ending(store, rank, world)
    try:
        with ending.shared():
            yield Job(rank, world, local_rank, local_world, device, ending)
    finally:
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()


def _device(kind: str, local_rank: int = 0) -> torch.device:
    """With its number, and torch's current one from now on."""
    device = torch.device(kind)
    if device.type == "cpu":
        return device
    if device.index is None:
        device = torch.device(device.type, local_rank)
    torch.cuda.set_device(device)
    return device
