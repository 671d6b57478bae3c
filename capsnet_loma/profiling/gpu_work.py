"""What one iteration asks of a GPU: kernels, how long they run, memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

COUNTED = 5  # iterations
WARM = 4  # after the first: loma's kernels know their sizes from the third launch on


@dataclass(frozen=True, slots=True)
class GpuWork:
    """Of an iteration. ``kernels`` and ``busy_seconds``, the time that they run, are None where
    torch's profiler is not allowed to see them. ``made_bytes`` is the size of all tensors that are
    made; ``parameter_bytes`` are read forward and backward."""

    gpu: str
    kernels: float | None
    copies: float | None
    busy_seconds: float | None
    made_bytes: int
    parameter_bytes: int

    @property
    def moved_bytes(self) -> int:
        """At least: every tensor that is made is written once and read once, every parameter is
        read twice. What several kernels read is moved more often."""
        return 2 * (self.made_bytes + self.parameter_bytes)


def counted(iteration: Callable[[], object], device: torch.device, parameters: int) -> GpuWork:
    """Runs ``iteration`` a few times, under torch's profiler; ``parameters``: their bytes."""
    from torch.profiler import ProfilerActivity, profile

    before = _made(device)
    iteration()
    made = _made(device) - before
    torch.cuda.synchronize(device)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
        for _ in range(COUNTED):
            iteration()
        torch.cuda.synchronize(device)
    events = [event for event in trace.events() if event.device_type.name == "CUDA"]
    kernels = [event for event in events if not event.name.startswith(("Memcpy", "Memset"))]
    found = bool(kernels)
    return GpuWork(
        torch.cuda.get_device_name(device),
        len(kernels) / COUNTED if found else None,
        (len(events) - len(kernels)) / COUNTED if found else None,
        sum(event.device_time for event in events) * 1e-6 / COUNTED if found else None,
        made,
        parameters,
    )


def _made(device: torch.device) -> int:
    """Bytes that torch's allocator has given out so far."""
    return int(torch.cuda.memory_stats(device).get("allocated_bytes.all.allocated", 0))
