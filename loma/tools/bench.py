"""What a tensor function's time goes into: ``loma bench --explain``.

The program is compiled once more, with a timer around every statement (or fused loop); the times of
calls are then set against what each statement has to move and to compute, and against what a large
copy and a matrix product reach on the same machine with the same threads.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from loma.functions import LomaModule
from loma.tools.measure import (
    interleaved_medians, page_faults, peak_memory, reset_peak_memory, seconds_per_call,
)  # fmt: skip

MIN_SECONDS = 1.0  # how long a function is measured, if that is more than MIN_CALLS calls
MIN_CALLS = 5
WARM_UP = 2
COPY_BYTES = 2**28  # far more than caches hold
PRODUCT_SIZE = 2048


@dataclass(frozen=True, slots=True)
class Limits:
    """What the machine reaches: bytes per second of a copy, read and written bytes counted, and
    operations per second of a matrix product."""

    bytes_per_second: float
    flops_per_second: float


@dataclass(frozen=True, slots=True)
class Unit:
    """A statement, or a loop that statements were fused to, in one call of the measured function.

    ``count``: how often it ran; ``seconds``, without what else it called; ``bytes`` and ``flops``:
    what it moves and computes at least (:mod:`loma.backends.kernels.cost`), None where that is not
    known.
    """

    function: str
    line: int
    text: str
    count: float
    seconds: float
    page_faults: float
    bytes: float | None
    flops: float | None

    def fraction(self, limits: Limits) -> tuple[str, float] | None:
        """What bounds it on a perfect machine, "memory" or "arithmetic", and which part of that
        limit it reaches; None where its work is not known or nothing."""
        if not self.bytes and not self.flops:
            return None
        moving = (self.bytes or 0.0) / limits.bytes_per_second
        computing = (self.flops or 0.0) / limits.flops_per_second
        bound = "memory" if moving >= computing else "arithmetic"
        return bound, max(moving, computing) / max(self.seconds, 1e-12)


@dataclass(frozen=True, slots=True)
class Bench:
    """Calls of a function: the median time of one, its page faults, and the peak memory of the
    process meanwhile (None where the kernel does not tell)."""

    function: str
    backward: bool
    threads: int
    dtype: str
    calls: int
    seconds: float
    minor_faults: float
    peak_memory: int | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """``units`` by time, the longest first; ``rest``: seconds of a call outside all of them, which
    go into checks of arguments, the dispatcher and autograd."""

    bench: Bench
    seconds: float
    rest: float
    limits: Limits
    units: tuple[Unit, ...]


def prepared(
    arguments: Mapping[str, object], dtype: torch.dtype, backward: bool, device: str = "cpu"
) -> list[Any]:
    """The arguments on that device, with floating tensors of that dtype, as leaves that want
    gradients."""
    out: list[Any] = []
    for value in arguments.values():
        if isinstance(value, torch.Tensor):
            value = value.to(device)
            if value.is_floating_point():
                value = value.to(dtype).requires_grad_(backward)
        out.append(value)
    return out


def calling(
    function: Callable[..., Any], arguments: Sequence[Any], backward: bool
) -> Callable[[], object]:
    """One call of the function without gradients, or forward and backward.

    Raises ValueError where there is nothing to differentiate.
    """
    if not backward:

        def forward() -> object:
            with torch.no_grad():
                return function(*arguments)

        return forward

    leaves = [a for a in arguments if isinstance(a, torch.Tensor) and a.requires_grad]

    def results() -> list[torch.Tensor]:
        given = function(*arguments)
        given = given if isinstance(given, tuple) else (given,)
        return [r for r in given if isinstance(r, torch.Tensor) and r.requires_grad]

    cotangents = [torch.randn_like(result) for result in results()]
    if not cotangents:
        raise ValueError("no result has a gradient, so there is no backward part")

    def both() -> None:
        for leaf in leaves:
            leaf.grad = None
        torch.autograd.backward(results(), cotangents)

    return both


def bench(name: str, call: Callable[[], object], backward: bool, dtype: str) -> Bench:
    """Measures warm calls."""
    counted = reset_peak_memory()
    seconds, calls, faults = _repeated(call)
    return Bench(
        name, backward, torch.get_num_threads(), dtype, calls, seconds, faults,
        peak_memory() if counted else None,
    )  # fmt: skip


def explain(
    module: LomaModule, plain: Bench, call: Callable[[], object], dtype: torch.dtype
) -> Explanation:
    """``call`` is of a function of ``module``, which was compiled with ``timed=True``; ``plain`` is
    what the function takes without timers."""
    native: Any = module.__native__
    for _ in range(WARM_UP):
        call()
    native.reset_probes()
    seconds = seconds_per_call(call, plain.calls)
    units = [_unit(row, plain.calls) for row in native.probes() if row[3]]
    units.sort(key=lambda unit: -unit.seconds)
    rest = max(0.0, seconds - sum(unit.seconds for unit in units))
    return Explanation(plain, seconds, rest, limits(dtype), tuple(units))


def _unit(row: tuple[str, int, str, int, int, int, int, int], calls: int) -> Unit:
    function, line, text, count, nanoseconds, faults, moved, flops = row
    return Unit(
        function,
        line,
        text,
        count / calls,
        nanoseconds / calls / 1e9,
        faults / calls,
        moved / calls if moved >= 0 else None,
        flops / calls if flops >= 0 else None,
    )


def limits(dtype: torch.dtype) -> Limits:
    """What a copy and a matrix product reach in this process, at their best of some runs. Narrow
    numbers are computed with in float32."""
    source = torch.ones(COPY_BYTES // dtype.itemsize, dtype=dtype)
    target = torch.empty_like(source)
    a = torch.ones(PRODUCT_SIZE, PRODUCT_SIZE, dtype=torch.promote_types(dtype, torch.float32))
    product = torch.empty_like(a)
    times = interleaved_medians(
        {"copy": lambda: target.copy_(source), "product": lambda: torch.mm(a, a, out=product)},
        rounds=5,
        warmup=1,
    )
    return Limits(
        2.0 * COPY_BYTES / min(times.samples["copy"]),
        2.0 * PRODUCT_SIZE**3 / min(times.samples["product"]),
    )


def _repeated(call: Callable[[], object]) -> tuple[float, int, float]:
    """(median seconds, number of calls, minor page faults of one) after a warm-up."""
    for _ in range(WARM_UP):
        call()
    calls = max(MIN_CALLS, int(MIN_SECONDS / max(seconds_per_call(call, 1), 1e-7)))
    batch = max(1, calls // 101)  # so that the clock is read at most some hundred times
    faults = page_faults()
    taken = [seconds_per_call(call, batch) for _ in range(calls // batch)]
    faults = page_faults() - faults
    return statistics.median(taken), len(taken) * batch, faults.minor / (len(taken) * batch)
