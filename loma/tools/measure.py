"""Measuring: time ratios, time per iteration, page faults, peak memory, cache misses.

Nothing here imports torch or numpy, so that a measuring process stays as small as what it measures.

* :func:`interleaved_medians` compares candidates on a machine whose speed drifts.
* :func:`linear_fit` turns totals at several iteration counts into a cost per iteration with a
  confidence interval: what start-up costs is in the intercept and drops out.
* :func:`page_faults`, :func:`peak_memory`, :func:`reset_peak_memory` ask the kernel.
* :func:`machine` says what a measurement ran on.
* :class:`CacheCounters` reads the processor's cache counters, where the machine lets it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import os
import platform
import resource
import statistics
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

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


# ------------------------------------------------------------------- cost per iteration


@dataclass(frozen=True, slots=True)
class Fit:
    """``y = intercept + slope * x`` and the confidence interval [low, high] of the slope."""

    slope: float
    low: float
    high: float
    intercept: float
    confidence: float


def linear_fit(x: Sequence[float], y: Sequence[float], confidence: float = 0.90) -> Fit:
    """The least-squares line through totals ``y`` measured at iteration counts ``x``.

    The slope is the cost of one iteration: Moreno and Fischmeister, "Accurate Measurement of Small
    Execution Times: Getting Around Measurement Errors", IEEE Embedded Systems Letters 9(1), 2017.
    The interval is the usual one for a regression slope, Student's t with n - 2 degrees of freedom.

    Raises ValueError for fewer than three points or fewer than two different counts.
    """
    n = len(x)
    if n != len(y):
        raise ValueError(f"x has {n} values and y has {len(y)}")
    if n < 3:
        raise ValueError(f"a slope with a confidence interval needs 3 points, got {n}")
    mean_x, mean_y = statistics.fmean(x), statistics.fmean(y)
    sxx = math.fsum((a - mean_x) ** 2 for a in x)
    if sxx == 0.0:
        raise ValueError("a slope needs at least two different iteration counts")
    slope = math.fsum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sxx
    intercept = mean_y - slope * mean_x
    residual = math.fsum((b - intercept - slope * a) ** 2 for a, b in zip(x, y, strict=True))
    error = math.sqrt(residual / (n - 2) / sxx)
    half = student_t_quantile(0.5 + confidence / 2.0, n - 2) * error
    return Fit(slope, slope - half, slope + half, intercept, confidence)


def student_t_quantile(probability: float, degrees: int) -> float:
    """The t with P(T <= t) = probability, by bisection of the exact distribution function."""
    if not 0.0 < probability < 1.0:
        raise ValueError(f"probability must lie between 0 and 1, got {probability}")
    if degrees < 1:
        raise ValueError(f"degrees of freedom must be at least 1, got {degrees}")
    if probability < 0.5:
        return -student_t_quantile(1.0 - probability, degrees)
    low, high = 0.0, 1.0
    while _student_t_cdf(high, degrees) < probability:
        low, high = high, 2.0 * high
    for _ in range(200):
        middle = 0.5 * (low + high)
        if _student_t_cdf(middle, degrees) < probability:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


def _student_t_cdf(t: float, degrees: int) -> float:
    """P(T <= t) for t >= 0: the finite series 26.7.3 and 26.7.4 of Abramowitz and Stegun."""
    theta = math.atan(t / math.sqrt(degrees))
    sine, cosine = math.sin(theta), math.cos(theta)
    odd = degrees % 2 == 1
    term = cosine if odd else 1.0
    total = 0.0
    for k in range(degrees // 2):
        total += term
        step = (2 * k + 2) / (2 * k + 3) if odd else (2 * k + 1) / (2 * k + 2)
        term *= step * cosine**2
    inside = 2.0 / math.pi * (theta + sine * total) if odd else sine * total
    return 0.5 + 0.5 * inside


# ---------------------------------------------------------------------- memory and page faults


@dataclass(frozen=True, slots=True)
class PageFaults:
    """Counts since a process began: minor ones map a page, major ones wait for a disk."""

    minor: int
    major: int

    def __sub__(self, earlier: PageFaults) -> PageFaults:
        return PageFaults(self.minor - earlier.minor, self.major - earlier.major)

    @property
    def total(self) -> int:
        return self.minor + self.major


def page_faults(children: bool = False) -> PageFaults:
    """The page faults of this process, all threads; or of its children that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN if children else resource.RUSAGE_SELF)
    return PageFaults(usage.ru_minflt, usage.ru_majflt)


def peak_memory() -> int:
    """The largest resident set of this process so far, in bytes.

    On Linux that of ``/proc``, which begins afresh with the program; the ``ru_maxrss`` of
    ``getrusage`` is handed down by the process that started it.
    """
    with contextlib.suppress(OSError, StopIteration):
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def reset_peak_memory() -> bool:
    """Lets :func:`peak_memory` begin again from now on; False where the kernel cannot."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
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


@dataclass(frozen=True, slots=True)
class CacheCounts:
    """Last-level cache references and misses, in user code."""

    references: float
    misses: float


class CacheCounters:
    """Counts cache references and misses between ``start`` and ``stop``; a context manager::

        with CacheCounters() as counters:
            work()
        counters.counts     # CacheCounts, or None

    All threads that the process has at ``start`` count, and the threads and processes that they
    start later (a process is added up when it ends). Counters that the kernel had to share are
    scaled by the time they ran. ``counts`` is None, and ``reason`` says why, where the machine has
    no such counters (most virtual ones) or forbids them (``perf_event_paranoid``).
    """

    def __init__(self) -> None:
        self.counts: CacheCounts | None = None
        self.reason = ""
        self._files: list[tuple[int, int]] = []

    def start(self) -> None:
        self.counts, self.reason = None, ""
        try:
            for thread in os.listdir("/proc/self/task"):
                for event in (_CACHE_REFERENCES, _CACHE_MISSES):
                    with contextlib.suppress(ProcessLookupError):  # a thread that just ended
                        self._files.append((event, _open_counter(event, int(thread))))
            for _, file in self._files:
                _control(file, _IOCTL_ENABLE)
        except OSError as error:
            self.reason = f"cache counters are not available on this machine: {error.strerror}"
            self._close()

    def stop(self) -> CacheCounts | None:
        """Ends counting; the counts, or None where there are none."""
        if not self._files:
            return None
        totals = {_CACHE_REFERENCES: 0.0, _CACHE_MISSES: 0.0}
        ran = False
        for _, file in self._files:
            _control(file, _IOCTL_DISABLE)
        for event, file in self._files:
            value, enabled, running = struct.unpack("QQQ", os.read(file, 24))
            if running:
                ran = True
                totals[event] += value * (enabled / running)
        self._close()
        if not ran:
            self.reason = "cache counters are not available on this machine: they never ran"
            return None
        self.counts = CacheCounts(totals[_CACHE_REFERENCES], totals[_CACHE_MISSES])
        return self.counts

    def _close(self) -> None:
        for _, file in self._files:
            os.close(file)
        self._files = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


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


def _control(file: int, request: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ioctl(ctypes.c_int(file), ctypes.c_ulong(request), ctypes.c_int(0)) < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
