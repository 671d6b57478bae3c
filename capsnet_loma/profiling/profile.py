"""``capsnet-loma profile``: the same iterations in plain PyTorch, in loma from Python, and in C++.

An iteration is forward, loss and backward on one batch. Each version runs in a process of its own;
all of them start from the same weights, and their losses and gradients have to agree. The
measuring goes round the versions in turn, so that a machine that gets slower meanwhile is slower
for all. A number per iteration is the slope of a linear regression of totals over iteration counts,
with its 90 % confidence interval (Moreno and Fischmeister, "Accurate Measurement of Small Execution
Times", IEEE Embedded Systems Letters 9(1), 2017).
"""

from __future__ import annotations

import contextlib
import os
import platform
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from capsnet_loma.config import CapsNetConfig
from capsnet_loma.profiling.gpu_work import GpuWork
from capsnet_loma.profiling.processes import (
    Checksums, Process, ProfileError, Sample, Version, keeping, native_version, versions,
)  # fmt: skip
from capsnet_loma.reference import CapsNet
from capsnet_loma.profiling.fit import Fit, linear_fit
from loma.tools.measure import machine

Progress = Callable[[str, int, int], None]

SEED = 2017
COUNTS = (1, 2, 3, 4)  # iterations of a round's samples, times a common factor
FEW_COUNTS = (1, 2, 3)  # where an iteration takes long
MIN_ROUNDS, MAX_ROUNDS = 2, 4
WARM_UP = 2  # iterations after the first: allocators and caches settle
RESULT_TOLERANCE = 1e-4  # of float32 sums, relative to the sum of absolute values


@dataclass(frozen=True, slots=True)
class Measurement:
    """One version's numbers per iteration, each with its confidence interval.

    ``cache_references`` and ``cache_misses`` are None where the machine has no counters. On a GPU
    ``peak_memory`` is that of its tensors; ``gpu`` is None on the CPU.
    """

    version: Version
    checksums: Checksums
    samples: tuple[Sample, ...]
    peak_memory: int
    seconds: Fit
    minor_faults: Fit
    major_faults: Fit
    cache_references: Fit | None
    cache_misses: Fit | None
    gpu: GpuWork | None = None

    @property
    def faults(self) -> float:
        """Page faults per iteration, minor and major ones."""
        return max(0.0, self.minor_faults.slope) + max(0.0, self.major_faults.slope)

    @property
    def bandwidth(self) -> float:
        """Bytes a second that go through the GPU's memory, as :class:`GpuWork` counts them."""
        return 0.0 if self.gpu is None else self.gpu.moved_bytes / self.seconds.slope


@dataclass(frozen=True, slots=True)
class Profile:
    """The measurements; the first one is plain PyTorch, which the ratios refer to.

    Page faults and cache misses are of the CPU alone.
    """

    batch: int
    threads: int
    config: CapsNetConfig
    measurements: tuple[Measurement, ...]

    @property
    def baseline(self) -> Measurement:
        return self.measurements[0]

    @property
    def where(self) -> str:
        """What computed, for titles."""
        gpu = self.baseline.gpu
        if gpu is not None:
            return gpu.gpu
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        return f"{threads} ({machine().processor})"

    def to_json(self) -> dict[str, Any]:
        return {
            "batch": self.batch,
            "threads": self.threads,
            "config": asdict(self.config),
            "machine": {
                "processor": machine().processor,
                "cores": os.cpu_count(),
                "system": platform.platform(),
                "python": platform.python_version(),
                "torch": torch.__version__,
                **({} if (gpu := self.baseline.gpu) is None else {"gpu": gpu.gpu}),
            },
            "versions": [_to_json(m, self.baseline) for m in self.measurements],
        }


def _to_json(m: Measurement, baseline: Measurement) -> dict[str, Any]:
    unavailable = "not available on this machine"
    common = {
        "key": m.version.key,
        "label": m.version.label,
        "seconds_per_iteration": asdict(m.seconds),
        "time_ratio": m.seconds.slope / baseline.seconds.slope,
        "peak_memory_bytes": m.peak_memory,
        "memory_ratio": m.peak_memory / baseline.peak_memory,
        "result": asdict(m.checksums),
        "samples": [{"iterations": s.iterations, "seconds": s.seconds} for s in m.samples],
    }
    if m.gpu is not None:
        return common | {
            "kernels_per_iteration": unavailable if m.gpu.kernels is None else m.gpu.kernels,
            "copies_per_iteration": unavailable if m.gpu.copies is None else m.gpu.copies,
            "busy_seconds_per_iteration": (
                unavailable if m.gpu.busy_seconds is None else m.gpu.busy_seconds
            ),
            "made_bytes_per_iteration": m.gpu.made_bytes,
            "moved_bytes_per_iteration": m.gpu.moved_bytes,
            "bytes_per_second": m.bandwidth,
        }
    return common | {
        "minor_faults_per_iteration": asdict(m.minor_faults),
        "major_faults_per_iteration": asdict(m.major_faults),
        "faults_ratio": m.faults / max(1.0, baseline.faults),
        "cache_references_per_iteration": (
            asdict(m.cache_references) if m.cache_references else unavailable
        ),
        "cache_misses_per_iteration": asdict(m.cache_misses) if m.cache_misses else unavailable,
        "samples": [asdict(sample) for sample in m.samples],
    }


def profile(
    program: Callable[[], Path] | None,
    config: CapsNetConfig | None = None,
    *,
    batch: int = 100,
    threads: int | None = None,
    seconds: float = 30.0,
    device: str = "cpu",
    environment: Mapping[str, str] | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Profile:
    """Measures all versions, each for about ``seconds`` seconds (slow ones take longer).

    ``program`` builds the C++ program (:func:`capsnet_loma.native_program.build`); None leaves it
    out, as it must be on a GPU. It is called when loma has run from Python, and so made the kernels
    for these sizes, which the program links. With an ``environment``, in which its allocator keeps
    what is freed, PyTorch runs once more. Raises :class:`ProfileError` when a process fails or
    when results disagree.
    """
    config = config or CapsNetConfig()
    threads = threads or machine().cpus
    with tempfile.TemporaryDirectory(prefix="capsnet-loma-") as folder:
        inputs = Path(folder) / "inputs.tensors"
        torch.save(make_inputs(config, batch), inputs)
        found = versions(inputs, config, threads, device)
        if environment:
            found.insert(1, keeping(found[0], environment))
        count = len(found) + (program is not None)
        with contextlib.ExitStack() as stack:
            processes = []
            for done, version in enumerate(found):
                progress(f"starting {version.label}", done, count)
                processes.append(stack.enter_context(Process(version, threads)))
            if program is not None:
                progress("building the C++ program", len(found), count)
                native = native_version(inputs, config, threads, program())
                processes.append(stack.enter_context(Process(native, threads)))
            check_agreement([(p.version.label, p.checksums) for p in processes])
            samples = _measure(processes, seconds, progress)
            work = [process.count() for process in processes]
            peaks = [process.end() for process in processes]
    measurements = map(_measurement, processes, samples, peaks, work)
    return Profile(batch, threads, config, tuple(measurements))


def make_inputs(config: CapsNetConfig, batch: int) -> dict[str, Tensor]:
    """Weights, images and targets: the same for every version and every run."""
    torch.manual_seed(SEED)
    net = CapsNet(config)
    images = torch.rand(batch, config.image_channels, config.image_size, config.image_size)
    labels = torch.randint(config.classes, (batch,))
    targets = torch.nn.functional.one_hot(labels, config.classes).float()
    return {**net.state_dict(), "images": images, "targets": targets}


def check_agreement(results: Sequence[tuple[str, Checksums]]) -> None:
    """Raises ProfileError unless every version has the loss and gradients of the first."""
    first_label, first = results[0]
    for label, other in results[1:]:
        wrong = []
        if not abs(other.loss - first.loss) <= RESULT_TOLERANCE * abs(first.loss):
            wrong.append(f"loss {other.loss!r}, not {first.loss!r}")
        if set(other.gradients) != set(first.gradients):
            missing = sorted(set(first.gradients) ^ set(other.gradients))
            wrong.append(f"gradients of {', '.join(missing)} in one of the two only")
        for name in set(first.gradients) & set(other.gradients):
            scale = RESULT_TOLERANCE * first.gradients[name][1]
            pairs = zip(other.gradients[name], first.gradients[name], strict=True)
            if not all(abs(mine - wanted) <= scale for mine, wanted in pairs):
                wrong.append(
                    f"gradient of {name}: sum and absolute sum {other.gradients[name]}, "
                    f"not {first.gradients[name]}"
                )
        if wrong:
            raise ProfileError(
                f"{label} does not compute what {first_label} computes:\n  " + "\n  ".join(wrong)
            )


def _measure(
    processes: Sequence[Process], seconds: float, progress: Progress
) -> list[list[Sample]]:
    """The samples of each process, taken in turn."""
    progress("warming up", 0, 1)
    for _ in range(WARM_UP):
        slowest = max(process.run(1).seconds for process in processes)
    counts, rounds = plan(slowest, seconds)
    samples: list[list[Sample]] = [[] for _ in processes]
    total = rounds * len(counts) * len(processes)
    done = 0
    for turn in range(rounds):
        for count in counts if turn % 2 == 0 else reversed(counts):
            for process, taken in zip(processes, samples, strict=True):
                progress(f"{process.version.label}, {count} iterations", done, total)
                taken.append(process.run(count))
                done += 1
    return samples


def plan(iteration_seconds: float, seconds: float) -> tuple[tuple[int, ...], int]:
    """(iteration counts of a round, number of rounds) that take about ``seconds`` seconds."""
    slow = MIN_ROUNDS * sum(COUNTS) * iteration_seconds > seconds
    counts = FEW_COUNTS if slow else COUNTS
    round_seconds = max(iteration_seconds, 1e-9) * sum(counts)
    rounds = min(MAX_ROUNDS, max(MIN_ROUNDS, int(seconds / round_seconds)))
    factor = max(1, int(seconds / (rounds * round_seconds)))
    return tuple(factor * count for count in counts), rounds


def _measurement(
    process: Process, samples: Sequence[Sample], peak_memory: int, gpu: GpuWork | None
) -> Measurement:
    counts = [sample.iterations for sample in samples]

    def slope(name: str) -> Fit:
        return linear_fit(counts, [getattr(sample, name) for sample in samples])

    counted = all(sample.cache_misses is not None for sample in samples)
    return Measurement(
        process.version,
        process.checksums,
        tuple(samples),
        peak_memory,
        slope("seconds"),
        slope("minor_faults"),
        slope("major_faults"),
        slope("cache_references") if counted else None,
        slope("cache_misses") if counted else None,
        gpu,
    )
