"""``loma bench`` from a file and a function's name to a record and a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from loma import compiler
from loma.functions import LomaModule
from loma.packed_calls import flat
from loma.tools import bench
from loma.tools.bench import Bench, Explanation, Unit

_SMALL = 0.001  # units that take less than this part of a call share one line


def measure(
    path: Path,
    function: str,
    arguments: Mapping[str, object],
    dtype: str,
    backward: bool,
    threads: int | None,
    explain: bool,
) -> tuple[dict[str, Any], str]:
    """What ``loma bench`` prints, as a JSON value and as text.

    Raises ValueError and TypeError for what the function refuses.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    kind = getattr(torch, dtype)
    values = bench.prepared(arguments, kind, backward)

    def call(module: LomaModule) -> Callable[[], object]:
        return bench.calling(flat(getattr(module, function)), values, backward)

    plain = bench.bench(function, call(compiler.compile(path)), backward, dtype)
    if not explain:
        return dataclasses.asdict(plain), summary(plain)
    timed = compiler.compile(path, timed=True)
    found = bench.explain(timed, plain, call(timed), kind)
    return record(found), table(found)


def record(found: Explanation) -> dict[str, Any]:
    units = []
    for unit in found.units:
        bound, fraction = unit.fraction(found.limits) or (None, None)
        units.append({**dataclasses.asdict(unit), "bound": bound, "fraction_of_bound": fraction})
    return {
        **dataclasses.asdict(found.bench),
        "limits": dataclasses.asdict(found.limits),
        "timed_seconds": found.seconds,
        "rest_seconds": found.rest,
        "units": units,
    }


def summary(found: Bench) -> str:
    what = "forward and backward" if found.backward else "without gradients"
    peak = (
        "" if found.peak_memory is None else f", peak memory {found.peak_memory / 2**20:,.0f} MiB"
    )
    return (
        f"{found.function}, {what}, {found.dtype}, {found.threads} "
        f"thread{'s' if found.threads > 1 else ''}: {_ms(found.seconds)} ms "
        f"(median of {found.calls} calls), {found.minor_faults:,.0f} page faults a call{peak}"
    )


def table(found: Explanation) -> str:
    """One line a unit, the longest first."""
    limits = found.limits
    several = len({unit.function for unit in found.units}) > 1
    lines = [
        summary(found.bench),
        f"a large copy moves {limits.bytes_per_second / 1e9:.1f} GB/s, a matrix product computes "
        f"{limits.flops_per_second / 1e9:.0f} GFLOP/s; per call, with timers:",
        "",
        f"{'ms':>9} {'share':>6} {'runs':>5} {'faults':>8} {'GB/s':>7} {'GFLOP/s':>8} "
        f"{'of its limit':>16}  statement",
    ]
    total = max(found.seconds, 1e-12)
    small = [unit for unit in found.units if unit.seconds < _SMALL * total]
    for unit in found.units:
        if unit not in small:
            lines.append(_line(unit, found, total, several))
    if small:
        seconds = sum(unit.seconds for unit in small)
        lines.append(f"{_ms(seconds):>9} {seconds / total:6.1%} {'':48}{len(small)} shorter ones")
    rest = "outside statements: checks, dispatch, autograd"
    lines.append(f"{_ms(found.rest):>9} {found.rest / total:6.1%} {'':48}{rest}")
    return "\n".join(line.rstrip() for line in lines)


def _line(unit: Unit, found: Explanation, total: float, several: bool) -> str:
    seconds = max(unit.seconds, 1e-12)
    limit = unit.fraction(found.limits)
    shown = f"{limit[1]:.0%} {limit[0]}" if limit else ""
    place = f"line {unit.line}: " if unit.line else ""
    where = f"{unit.function}: " if several else ""
    first, *more = unit.text.split("\n")
    if more and first.startswith("kernel "):
        first += f", {len(more)} lines: {more[0].strip()}"
    return (
        f"{_ms(unit.seconds):>9} {unit.seconds / total:6.1%} {unit.count:5.0f} "
        f"{unit.page_faults:8,.0f} {_rate(unit.bytes, seconds):>7} {_rate(unit.flops, seconds):>8} "
        f"{shown:>16}  {where}{place}{first}{' ...' if more else ''}"
    )


def _rate(amount: float | None, seconds: float) -> str:
    return "" if amount is None else f"{amount / seconds / 1e9:.1f}"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f}" if seconds >= 1e-4 else f"{1e3 * seconds:.4f}"
