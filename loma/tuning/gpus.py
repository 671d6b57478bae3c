"""GPUs for the tuner: what tells one from another, and how long calls take there."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path

import torch

_DRIVER = Path("/proc/driver/nvidia/version")
_HERTZ = 2e9  # about what a GPU's clock has
_MOST_AHEAD = 0.02  # seconds that a GPU waits for the host at most
_MOST_CALLS = 100  # that are queued at a time: CUDA holds about a thousand launches


@functools.cache
def name(device: int) -> str:
    """A GPU's name, what it runs, and the version of its driver."""
    if not torch.cuda.is_available():
        return "stand-in"  # of the tests
    found = torch.cuda.get_device_properties(device)
    return f"{found.name} sm_{found.major}{found.minor}, driver {_driver()}"


def names() -> set[str]:
    """Those of all GPUs."""
    if not torch.cuda.is_available():
        return {name(0)}
    return {name(device) for device in range(torch.cuda.device_count())}


def compiler() -> str:
    """What kernels are compiled by."""
    from loma.backends.cuda import nvrtc
    from loma.errors import ToolchainError

    try:
        return "NVRTC {}.{}".format(*nvrtc.find().version)
    except ToolchainError:
        return "no NVRTC"


def _driver() -> str:
    try:
        words = _DRIVER.read_text("utf-8").split()
    except OSError:
        words = []
    numbers = [word for word in words if word.count(".") >= 1 and word.replace(".", "").isdigit()]
    return numbers[0] if numbers else f"for CUDA {torch.version.cuda}"


class Timer:
    """How long a call keeps a GPU busy, on the current stream, by its events.

    The GPU first waits until the host has queued all calls of a sample, as far as it can: short
    kernels run behind each other then, as in a program that keeps the GPU busy or in a graph.
    """

    def __init__(self, device: int) -> None:
        self._device = device
        self._host: dict[Callable[[], object], float] = {}

    def __call__(self, call: Callable[[], object], repeats: int) -> float:
        """Seconds of a call, over ``repeats`` of them or fewer."""
        with torch.cuda.device(self._device):
            return self._sample(call, min(repeats, _MOST_CALLS))

    def _sample(self, call: Callable[[], object], repeats: int) -> float:
        host = self._host.get(call)
        if host is None:
            host = self._host[call] = min(self._queued(call) for _ in range(3))
        stream = torch.cuda.current_stream()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        stream.synchronize()
        torch.cuda._sleep(round(min(1.5 * host * repeats, _MOST_AHEAD) * _HERTZ))
        begin.record(stream)
        for _ in range(repeats):
            call()
        end.record(stream)
        end.synchronize()
        return 1e-3 * float(begin.elapsed_time(end)) / repeats

    @staticmethod
    def _queued(call: Callable[[], object]) -> float:
        torch.cuda.current_stream().synchronize()
        start = time.perf_counter()
        call()
        return time.perf_counter() - start
