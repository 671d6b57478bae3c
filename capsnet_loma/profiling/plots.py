"""The picture of a profile: bars of time, page faults and memory, and cache misses if counted; on a
GPU of time, kernels, memory and what goes through it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from capsnet_loma.profiling.profile import Measurement, Profile
from loma.tools.pictures import DPI, LIGHT, plain, save

TORCH_COLOR, LOMA_COLOR, NATIVE_COLOR = LIGHT.peers[0], "#e07a2f", LIGHT.loma


def plot_profile(profile: Profile, path: Path) -> None:
    """Writes a PNG. Whiskers are the 90 % confidence intervals of the slopes."""
    ms = profile.measurements
    if profile.baseline.gpu is not None:
        _plot_gpu(profile, path)
        return
    counted = all(m.cache_misses is not None for m in ms)
    columns = 4 if counted else 3
    figure = Figure(figsize=(4.6 * columns, 4.6), dpi=DPI, layout="constrained")
    axes = figure.subplots(1, columns)
    _time_bars(axes[0], profile)
    _bars(
        axes[1],
        "page faults per iteration",
        ms,
        [m.faults for m in ms],
        [m.minor_faults.high - m.minor_faults.slope for m in ms],
    )
    _bars(axes[2], "peak memory, MiB", ms, [m.peak_memory / 2**20 for m in ms])
    if counted:
        misses = [m.cache_misses for m in ms if m.cache_misses is not None]
        _bars(
            axes[3],
            "cache misses per iteration, millions",
            ms,
            [fit.slope / 1e6 for fit in misses],
            [(fit.high - fit.slope) / 1e6 for fit in misses],
            "{:,.1f}",
        )
    _finish(figure, profile, path)


def _plot_gpu(profile: Profile, path: Path) -> None:
    """Time, kernels, memory and what goes through it."""
    ms = profile.measurements
    work = [m.gpu for m in ms if m.gpu is not None]
    kernels = [w.kernels for w in work if w.kernels is not None]
    seen = len(kernels) == len(ms)
    columns = 4 if seen else 3
    figure = Figure(figsize=(4.6 * columns, 4.6), dpi=DPI, layout="constrained")
    axes = list(figure.subplots(1, columns))
    _time_bars(axes.pop(0), profile)
    if seen:
        _bars(axes.pop(0), "kernels per iteration", ms, kernels)
    _bars(axes[0], "peak memory of tensors, MiB", ms, [m.peak_memory / 2**20 for m in ms])
    moved = [m.bandwidth / 1e9 for m in ms]
    _bars(axes[1], "GB/s, of tensors made and parameters", ms, moved)
    _finish(figure, profile, path)


def _finish(figure: Figure, profile: Profile, path: Path) -> None:
    figure.suptitle(f"CapsNet, forward and backward, batch {profile.batch}, {profile.where}")
    save(figure, path)


def _time_bars(axes: Axes, profile: Profile) -> None:
    ms = profile.measurements
    _bars(
        axes,
        "milliseconds per iteration",
        ms,
        [1e3 * m.seconds.slope for m in ms],
        [1e3 * (m.seconds.high - m.seconds.slope) for m in ms],
        "{:,.0f}" if profile.baseline.seconds.slope > 0.1 else "{:,.2f}",
    )


def _bars(
    axes: Axes,
    title: str,
    measurements: Sequence[Measurement],
    values: Sequence[float],
    errors: Sequence[float] | None = None,
    number: str = "{:,.0f}",
) -> None:
    labels = [m.version.label.replace(" ", "\n", 1) for m in measurements]
    whiskers = [max(0.0, error) for error in errors or [0.0] * len(values)]
    bars = axes.bar(
        labels,
        values,
        yerr=None if errors is None else whiskers,
        capsize=4,
        color=[_color(m.version.key) for m in measurements],
        error_kw={"elinewidth": 1, "ecolor": "#333333"},
    )
    axes.bar_label(bars, labels=[number.format(value) for value in values], padding=3)
    axes.set_title(title, fontsize=11)
    top = max(value + whisker for value, whisker in zip(values, whiskers, strict=True))
    axes.set_ylim(0, 1.15 * max(top, 1e-9))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}" if top > 10 else "{x:g}"))
    axes.tick_params(axis="x", labelsize=9)
    plain(axes)


def _color(key: str) -> str:
    return {"loma": LOMA_COLOR, "native": NATIVE_COLOR}.get(key, TORCH_COLOR)
