"""The processes that ``capsnet-loma profile`` measures; worker.py says how they are talked to.

They say themselves how long iterations take; memory and counters are read from outside.
"""

from __future__ import annotations

import contextlib
import ctypes.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from capsnet_loma.config import CapsNetConfig
from capsnet_loma.profiling.gpu_work import GpuWork
from loma.tools.measure import cache_counts, page_faults, peak_memory, reset_peak_memory

ALLOCATORS = ("jemalloc", "tcmalloc_minimal", "tcmalloc")


class ProfileError(RuntimeError):
    """The profile cannot be made: a process failed, or the versions disagree."""


@dataclass(frozen=True, slots=True)
class Version:
    """One program to measure. ``preload`` is a shared library that replaces its allocator."""

    key: str
    label: str
    command: tuple[str, ...]
    preload: str | None = None
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class Sample:
    """What ``iterations`` iterations took; cache counts are None where the machine has none."""

    iterations: int
    seconds: float
    minor_faults: int
    major_faults: int
    cache_references: float | None
    cache_misses: float | None


@dataclass(frozen=True, slots=True)
class Checksums:
    """Loss, and of each gradient its sum and the sum of its absolute values."""

    loss: float
    gradients: dict[str, tuple[float, float]]


def allocators() -> dict[str, str]:
    """The installed allocators by name: "jemalloc", "tcmalloc"."""
    found: dict[str, str] = {}
    for name in ALLOCATORS:
        library = ctypes.util.find_library(name)
        if library is not None:
            found.setdefault(name.removesuffix("_minimal"), library)
    return found


def versions(
    inputs: Path, config: CapsNetConfig, threads: int, device: str = "cpu"
) -> list[Version]:
    """The versions that run in Python. Allocators are the CPU's."""
    sizes = json.dumps(asdict(config))

    def python(kind: str) -> tuple[str, ...]:
        worker = (sys.executable, "-m", "capsnet_loma.profiling.worker")
        return (*worker, kind, str(inputs), str(threads), sizes, device)

    found = [Version("torch", "PyTorch", python("torch"), device=device)]
    for name, library in allocators().items() if device == "cpu" else ():
        found.append(Version(f"torch-{name}", f"PyTorch + {name}", python("torch"), library))
    found.append(Version("loma", "loma from Python", python("loma"), device=device))
    return found


def keeping(version: Version, environment: Mapping[str, str]) -> Version:
    """The version in an environment in which its allocator keeps what is freed."""
    settings = (f"{name}={value}" for name, value in environment.items())
    return replace(
        version, key=f"{version.key}-kept", label=f"{version.label}, memory kept",
        command=("env", *settings, *version.command),
    )  # fmt: skip


def native_version(inputs: Path, config: CapsNetConfig, threads: int, program: Path) -> Version:
    """The C++ program's version."""
    numbers = (
        threads,
        config.primary_dim,
        config.primary_stride,
        config.routing_iterations,
        int(config.over_inputs),
    )
    command = (str(program), str(inputs), *(str(number) for number in numbers))
    return Version("native", "loma, native C++", command)


class Process:
    """A running version; a context manager that ends the process.

    Making one waits for the first iteration, whose result is ``checksums``.
    """

    def __init__(self, version: Version, threads: int) -> None:
        self.version = version
        self._errors = tempfile.TemporaryFile(  # noqa: SIM115 (closed with the process)
            "w+", encoding="utf-8", errors="replace"
        )
        self._process = subprocess.Popen(
            version.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=_environment(threads, version.preload),
            text=True,
        )
        try:
            first = self._read()
        except BaseException:
            self.__exit__()
            raise
        reset_peak_memory(self._process.pid)
        self.checksums = Checksums(
            float(first["loss"]), {k: (v[0], v[1]) for k, v in first["gradients"].items()}
        )

    def run(self, iterations: int) -> Sample:
        """Does that many iterations of forward and backward."""
        pid = self._running()
        faults = page_faults(pid)
        with cache_counts(pid) as counts:
            seconds = self._ask(f"run {iterations}")["seconds"]
        faults = page_faults(pid) - faults
        return Sample(
            iterations, seconds, faults.minor, faults.major, counts.references, counts.misses
        )

    def count(self) -> GpuWork | None:
        """What an iteration asks of the GPU; None on the CPU."""
        if self.version.device == "cpu":
            return None
        self._running()
        return GpuWork(**self._ask("count"))

    def end(self) -> int:
        """Ends the process; its peak memory in bytes, since the first iteration: of a GPU what its
        tensors had."""
        pid = self._running()
        on_cpu = self.version.device == "cpu"
        peak = peak_memory(pid) if on_cpu else int(self._ask("peak")["bytes"])
        self.__exit__()
        return peak

    def _running(self) -> int:
        """The process's number. Raises ProfileError where it has ended."""
        if self._process.poll() is not None:
            self._fail()
        return self._process.pid

    def _ask(self, order: str) -> Any:
        """Its answer to a line."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{order}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._fail()
        return self._read()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._fail()
        try:
            return json.loads(line)
        except json.JSONDecodeError as error:
            raise ProfileError(f"{self.version.label} printed {line!r} instead of JSON") from error

    def _fail(self) -> None:
        status = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().strip().splitlines()[-15:]
        reason = "\n".join(said) or "it printed no message"
        how = f"was ended by signal {-status}" if status < 0 else f"ended with exit code {status}"
        raise ProfileError(f"the process of {self.version.label} {how}:\n{reason}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


def _environment(threads: int, preload: str | None) -> dict[str, str]:
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    if preload is not None:
        paths = [preload, environment.get("LD_PRELOAD", "")]
        environment["LD_PRELOAD"] = " ".join(p for p in paths if p)
    return environment
