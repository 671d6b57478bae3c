"""The forms of kernels: macros that a kernel is compiled with, and which of them launches choose.

Sizes pick the form (``runtime/gpu_geometry.cpp``). What is compiled without sizes, for a named
architecture and without a GPU, is a form of each kind that may be picked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

Start = Literal["statement", "fused", "serial"]

_KERNEL = re.compile(
    r'^static loma::gpu::Kernel (\w+)\("\1", R"loma\(\n(.*?)\n\)loma"\);$',
    re.DOTALL | re.MULTILINE,
)
_LAUNCH = re.compile(
    r"loma::gpu::Launch launch_\((\w+), sizeof\(real\)\);.*?"
    r"launch_\.(statement|fused|serial)\((.*?)\);$",
    re.DOTALL | re.MULTILINE,
)
_SHARING = re.compile(r", (true|false), (\d+)$")  # across, and the sums that blocks may share
_LINE = re.compile(r"^// line (\d+)", re.MULTILINE)
_THREADS, _WARP, _LARGEST = 256, 32, 512
_KNOWN = 64  # a number of kernels for known numbers


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel as host code has it. ``line``: of the program, 0 where none is known.
    ``across`` and ``splits`` are those of the launch."""

    name: str
    text: str
    line: int
    start: Start
    across: bool = False
    splits: bool = False

    @property
    def shares(self) -> bool:
        """Whether threads share the steps of an iteration."""
        return "part_.template all_reduce<" in self.text

    @property
    def numbers(self) -> int:
        return self.text.count("LOMA_NUMBER_GIVEN(")


@dataclass(frozen=True, slots=True)
class Form:
    """What the headers of kernels are told, but for the type of numbers. ``known``: all numbers of
    the kernel are constants."""

    threads: int
    team: int = 1
    across: bool = False
    stage: int = 0
    shared: bool = True
    known: bool = False

    @property
    def name(self) -> str:
        """As part of a file's name."""
        parts = [f"{self.threads}", f"team{self.team}"]
        parts += ["across"] * self.across
        parts += [f"stage{self.stage}"] * (self.stage > 0)
        parts += ["workspace"] * (not self.shared)
        parts += ["known"] * self.known
        return "_".join(parts)


def kernels(source: str) -> list[Kernel]:
    """The kernels of a function's host code, in order."""
    launches = {name: (start, given) for name, start, given in _LAUNCH.findall(source)}
    found = []
    for name, text in _KERNEL.findall(source):
        start, given = launches[name]
        told = _SHARING.search(given) if start == "statement" else None
        across = told is not None and told[1] == "true"
        splits = told is not None and told[2] != "0"
        lines = _LINE.findall(text)
        line = int(lines[0]) if lines else 0
        found.append(Kernel(name, text, line, start, across, splits))
    return found


def forms(kernel: Kernel) -> list[Form]:
    """One of each kind that launches of the kernel may choose."""
    found = list(dict.fromkeys(_forms(kernel)))
    if kernel.numbers:
        found.append(replace(found[min(1, len(found) - 1)], known=True))
    return found


def _forms(kernel: Kernel) -> Iterator[Form]:
    if kernel.start == "serial":
        yield Form(1)
        return
    yield Form(_THREADS)
    if kernel.start == "fused":
        teams = [Form(_THREADS, _WARP), Form(_THREADS, _THREADS)]
        yield from teams
        if "memory_ + " in kernel.text:
            yield from (replace(form, shared=False) for form in [Form(_THREADS), *teams])
        return
    if not kernel.shares:
        return
    teams = [Form(_THREADS, 8), Form(_THREADS, _WARP), Form(_LARGEST, _LARGEST)]
    if kernel.across:
        teams = [Form(_THREADS, 8, across=True), Form(1024, _WARP, across=True)]
    yield from teams
    if kernel.splits:
        yield from (replace(form, stage=1) for form in [Form(_THREADS), teams[-1]])
        yield Form(_THREADS, stage=2)


def options(kernel: Kernel, form: Form, real: str) -> list[str]:
    """What the runtime asks for (``runtime/gpu_kernels.cpp``)."""
    told = {
        "REAL": real, "THREADS": form.threads, "TEAM": form.team, "ACROSS": int(form.across),
        "STAGE": form.stage, "SHARED": int(form.shared),
    }  # fmt: skip
    found = [f"-DLOMA_{name}={value}" for name, value in told.items()]
    if form.known:
        found += ["-DLOMA_KNOWN", *(f"-DLOMA_KNOWN_{k}={_KNOWN}" for k in range(kernel.numbers))]
    return found
