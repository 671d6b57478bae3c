"""Measuring: time ratios, page faults, peak memory, cache misses.

Nothing here imports torch or numpy, so that a measuring process stays as small as what it measures.

* :func:`interleaved_medians` compares candidates on a machine whose speed drifts.
* :func:`page_faults`, :func:`peak_memory`, :func:`reset_peak_memory` ask the kernel, about this
  process or another one of the same user.
* :func:`machine` says what a measurement ran on.
* :func:`cache_counts` reads the processor's cache counters, where the machine lets it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import math
import os
import platform
import statistics
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

# ------------------------------------------------------------------------------- time ratios


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds per call of each candidate, one sample a round; ``samples[name][round]``."""

    samples: Mapping[str, tuple[float, ...]]

    def median(self, name: str) -> float:
        """Median seconds per call."""
        return statistics.median(self.samples[name])

    def ratio(self, name: str, baseline: str) -> float:
        """How many times the baseline's time ``name`` takes: the median of the rounds' ratios.

        A round runs all candidates within a short while, so a ratio inside a round does not see
        the machine's drift from round to round.
        """
        pairs = zip(self.samples[name], self.samples[baseline], strict=True)
        return statistics.median(mine / other for mine, other in pairs)


def interleaved_medians(
    candidates: Mapping[str, Callable[[], object]],
    *,
    rounds: int = 15,
    warmup: int = 3,
    min_seconds: float = 0.0,
) -> Timings:
    """Times the candidates in turn, ``rounds`` times over.

    Each is first called ``warmup`` times. A sample repeats the call until ``min_seconds`` have
    passed (the count is fixed after the warm-up), which is needed for calls of microseconds. The
    garbage collector is off meanwhile. Every other round runs in the opposite order, so that no
    candidate always finds the caches that one other candidate left.
    """
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, got {rounds}")
    repeats = {name: _repeats(call, warmup, min_seconds) for name, call in candidates.items()}
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    order = list(candidates)
    with _no_garbage_collection():
        for turn in range(rounds):
            for name in order if turn % 2 == 0 else reversed(order):
                samples[name].append(seconds_per_call(candidates[name], repeats[name]))
    return Timings({name: tuple(values) for name, values in samples.items()})


def _repeats(call: Callable[[], object], warmup: int, min_seconds: float) -> int:
    for _ in range(warmup):
        call()
    repeats = 1
    while min_seconds > 0.0:
        taken = seconds_per_call(call, repeats)
        if taken * repeats >= min_seconds:
            break
        repeats = max(2 * repeats, math.ceil(min_seconds / max(taken, 1e-9)))
    return repeats


def seconds_per_call(call: Callable[[], object], repeats: int) -> float:
    """The mean of ``repeats`` calls."""
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


# ---------------------------------------------------------------------- memory and page faults


@dataclass(frozen=True, slots=True)
class PageFaults:
    """Counts since a process began: minor ones map a page, major ones wait for a disk."""

    minor: int
    major: int

    def __sub__(self, earlier: PageFaults) -> PageFaults:
        return PageFaults(self.minor - earlier.minor, self.major - earlier.major)


def page_faults(process: int | str = "self") -> PageFaults:
    """The page faults of all threads of a process, by default this one."""
    status = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace")
    fields = status.rpartition(")")[2].split()  # from the state on, field 3 of proc(5)
    return PageFaults(minor=int(fields[7]), major=int(fields[9]))


def peak_memory(process: int | str = "self") -> int:
    """The largest resident set of a process so far, in bytes; where the kernel does not tell, the
    one that it has.

    Not the ``ru_maxrss`` of ``getrusage``, which is handed down by the process that started it.
    """
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii", errors="replace")
    line = next(line for line in status.splitlines() if line.startswith(("VmHWM:", "VmRSS:")))
    return int(line.split()[1]) * 1024


def reset_peak_memory(process: int | str = "self") -> bool:
    """Lets :func:`peak_memory` begin again from now on; False where the kernel cannot."""
    try:
        Path(f"/proc/{process}/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


# ------------------------------------------------------------------------------- the machine


@dataclass(frozen=True, slots=True)
class Machine:
    """What a measurement ran on. ``cpus`` are those that this process may use, ``memory`` bytes."""

    processor: str
    cores: int
    cpus: int
    memory: int
    system: str


def machine() -> Machine:
    import psutil

    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Machine(
        processor=_processor(),
        cores=psutil.cpu_count(logical=False) or cpus,
        cpus=cpus,
        memory=int(psutil.virtual_memory().total),
        system=platform.platform(),
    )


def _processor() -> str:
    """The processor's name; on Linux :func:`platform.processor` is often empty."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


# ------------------------------------------------------------------------------ cache counters

_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
_HARDWARE = 0
_CACHE_REFERENCES, _CACHE_MISSES = 2, 3
_DISABLED, _INHERIT, _EXCLUDE_KERNEL, _EXCLUDE_HYPERVISOR = 1 << 0, 1 << 1, 1 << 5, 1 << 6
_FORMAT_TIME_ENABLED, _FORMAT_TIME_RUNNING = 1, 2
_IOCTL_ENABLE, _IOCTL_DISABLE = 0x2400, 0x2401
_CLOSE_ON_EXEC = 8
_ATTRIBUTE_SIZE = 112


@dataclass(slots=True)
class CacheCounts:
    """Last-level cache references and misses, in user code.

    They are None, and ``reason`` says why, where the machine has no such counters (most virtual
    ones) or forbids them (``perf_event_paranoid``).
    """

    references: float | None = None
    misses: float | None = None
    reason: str = ""


@contextlib.contextmanager
def cache_counts(process: int | str = "self") -> Iterator[CacheCounts]:
    """Counts what a process does during the body of ``with``; the numbers are there after it.

    All threads that the process has at the start count, and the threads and processes that they
    start later (a process is added up when it ends). Counters that the kernel had to share are
    scaled by the time they ran.
    """
    counts = CacheCounts()
    unavailable = "cache counters are not available on this machine"
    with contextlib.ExitStack() as stack:
        counters: list[tuple[int, int]] = []
        try:
            for thread in os.listdir(f"/proc/{process}/task"):
                for event in (_CACHE_REFERENCES, _CACHE_MISSES):
                    with contextlib.suppress(ProcessLookupError):  # a thread that just ended
                        counters.append((event, _open_counter(event, int(thread))))
                        stack.callback(os.close, counters[-1][1])
            for _, file in counters:
                fcntl.ioctl(file, _IOCTL_ENABLE)
        except OSError as error:
            counts.reason = f"{unavailable}: {error.strerror}"
            counters = []
        yield counts
        for _, file in counters:
            fcntl.ioctl(file, _IOCTL_DISABLE)
        totals = {_CACHE_REFERENCES: 0.0, _CACHE_MISSES: 0.0}
        ran = False
        for event, file in counters:
            value, enabled, running = struct.unpack("QQQ", os.read(file, 24))
            if running:
                ran = True
                totals[event] += value * (enabled / running)
        if ran:
            counts.references, counts.misses = totals[_CACHE_REFERENCES], totals[_CACHE_MISSES]
        elif counters:
            counts.reason = f"{unavailable}: they never ran"


def _open_counter(event: int, thread: int) -> int:
    """A counter of ``thread`` on whatever processor it runs; OSError where there is none."""
    number = _PERF_EVENT_OPEN.get(platform.machine())
    if number is None or sys.platform != "linux":
        raise OSError(0, f"no perf_event_open on {sys.platform} {platform.machine()}")
    # struct perf_event_attr of linux/perf_event.h: type, size, config, sample_period, sample_type,
    # read_format, flags, then fields that counting leaves at zero.
    attribute = struct.pack(
        "IIQQQQQ",
        _HARDWARE,
        _ATTRIBUTE_SIZE,
        event,
        0,
        0,
        _FORMAT_TIME_ENABLED | _FORMAT_TIME_RUNNING,
        _DISABLED | _INHERIT | _EXCLUDE_KERNEL | _EXCLUDE_HYPERVISOR,
    ).ljust(_ATTRIBUTE_SIZE, b"\0")
    libc = ctypes.CDLL(None, use_errno=True)
    file = libc.syscall(
        ctypes.c_long(number),
        ctypes.c_char_p(attribute),
        ctypes.c_int(thread),
        ctypes.c_int(-1),
        ctypes.c_int(-1),
        ctypes.c_ulong(_CLOSE_ON_EXEC),
    )
    if file < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return int(file)
