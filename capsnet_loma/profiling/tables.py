"""The reports of ``compare`` and ``profile`` as rows of text."""

from __future__ import annotations

from capsnet_loma.commands.console import Output
from capsnet_loma.profiling.compare import Report
from capsnet_loma.profiling.profile import Profile
from capsnet_loma.profiling.fit import Fit

NOT_AVAILABLE = "not available on this machine"


def show_comparison(output: Output, report: Report) -> None:
    """One row for each function, dtype and way of calling: its worst tensor."""
    summary = report.summary()
    rows = [
        (
            item.function,
            item.how,
            item.dtype,
            f"{item.max_absolute:.1e}",
            f"{item.max_relative:.1e}",
            f"{item.tolerance:.0e}",
            "ok" if item.ok else "BEYOND",
        )
        for item in summary
    ]
    columns = (
        "function", "gradients by", "dtype", "max abs error", "max rel error", "tolerance", ""
    )  # fmt: skip
    bad = {number for number, item in enumerate(summary) if not item.ok}
    output.table("loma against autograd of the PyTorch reference", columns, rows, bad)
    count = len(report.comparisons)
    if report.ok:
        output.line(f"All {count} tensors agree within the tolerance.", "green")
        return
    failures = report.failures()
    output.line(f"{len(failures)} of {count} tensors are beyond the tolerance:", "bold red")
    for item in failures[:20]:
        output.line(
            f"  {item.function} ({item.point}, {item.dtype}, {item.how}): {item.what} is off by "
            f"{item.max_absolute:.1e}, relative {item.max_relative:.1e}"
        )
    if len(failures) > 20:
        output.line(f"  and {len(failures) - 20} more; --json lists them all")


def show_profile(output: Output, profile: Profile) -> None:
    """Time, page faults, memory and cache counts of each version, with ratios to PyTorch."""
    if profile.baseline.gpu is not None:
        _show_gpu_profile(output, profile)
        return
    base = profile.baseline
    counted = all(m.cache_misses is not None for m in profile.measurements)
    columns = ["version", "ms/iteration (90% CI)", "of PyTorch"]
    columns += ["page faults/it.", "of PyTorch", "peak memory", "of PyTorch"]
    columns += ["cache references/it.", "cache misses/it."] if counted else []
    rows = []
    for m in profile.measurements:
        cached = (m.cache_references, m.cache_misses)
        row = [
            m.version.label,
            _milliseconds(m.seconds),
            f"{m.seconds.slope / base.seconds.slope:.2f}x",
            f"{m.faults:,.0f}",
            f"{m.faults / max(1.0, base.faults):.1%}",
            f"{m.peak_memory / 2**20:,.0f} MiB",
            f"{m.peak_memory / base.peak_memory:.2f}x",
            *(f"{fit.slope:,.0f}" for fit in cached if counted and fit is not None),
        ]
        rows.append(row)
    title = (
        f"CapsNet, forward and backward of one batch of {profile.batch}, "
        f"{profile.threads} thread{'s' if profile.threads > 1 else ''}"
    )
    output.table(title, columns, rows, set())
    output.line("All versions have the same loss and the same gradients.", "green")
    if not counted:
        output.line(f"Cache references and misses: {NOT_AVAILABLE}.")


def _show_gpu_profile(output: Output, profile: Profile) -> None:
    """Time, kernels and memory of each version, with ratios to PyTorch."""
    base = profile.baseline
    columns = [
        "version", "ms/iteration (90% CI)", "of PyTorch", "kernels/it.", "they run, ms",
        "peak memory", "of PyTorch", "tensors made/it.", "GB/s",
    ]  # fmt: skip
    rows = []
    for m in profile.measurements:
        assert m.gpu is not None
        busy = m.gpu.busy_seconds
        rows.append([
            m.version.label,
            _milliseconds(m.seconds),
            f"{m.seconds.slope / base.seconds.slope:.2f}x",
            "-" if m.gpu.kernels is None else f"{m.gpu.kernels:,.0f}",
            "-" if busy is None else f"{1e3 * busy:,.2f}",
            f"{m.peak_memory / 2**20:,.0f} MiB",
            f"{m.peak_memory / base.peak_memory:.2f}x",
            f"{m.gpu.made_bytes / 2**20:,.0f} MiB",
            f"{m.bandwidth / 1e9:,.0f}",
        ])  # fmt: skip
    title = f"CapsNet, forward and backward of one batch of {profile.batch}, {profile.where}"
    output.table(title, columns, rows, set())
    output.line("All versions have the same loss and the same gradients.", "green")
    output.line("GB/s: tensors that are made, written and read once, and parameters, read twice.")
    if base.gpu is not None and base.gpu.kernels is None:
        output.line(f"Kernels: torch's profiler sees none, {NOT_AVAILABLE}.")


def _milliseconds(fit: Fit) -> str:
    digits = 0 if fit.slope > 0.1 else 2
    low, high, middle = (f"{1e3 * value:,.{digits}f}" for value in (fit.low, fit.high, fit.slope))
    return f"{middle} ({low} - {high})"
