"""The forms of kernels: macros that a kernel is compiled with, and which of them launches choose.

Sizes pick the form (``runtime/gpu_geometry.cpp``). What is compiled without sizes, for a named
architecture and without a GPU, is a form of each kind that may be picked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from loma.backends.cfamily.source import GeneratedSource

How = Literal["statement", "running", "fused", "lanes", "serial", "sweep", "pairs", "items"]

_THREADS, _WARP, _LARGEST = 256, 32, 512
_FEW = 16  # a number that says how many registers a kernel takes
_KNOWN = 64  # a number of kernels for known numbers
_NARROW = ("", "bfloat16", "float16")
_MEMORY = ("workspace", "", "far")  # by what ``shared`` says


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel of a function's host code, and how that launches it. ``line``: of the program, 0
    where none is known. ``numbers``: how many it is given. ``shares``: threads share the steps of
    an iteration, ``across`` or along memory; ``splits``: blocks may, too. ``private``: iterations
    have memory of their own. ``tiles``: a thread may have a tile of sums, of so many axes.
    ``lists``: a launch may serve positions of lists. ``narrow``: tensors are read in a dtype of 16
    bits. ``fixed``: how many of its numbers each form is compiled for."""

    name: str
    text: str
    line: int
    how: How
    numbers: int
    shares: bool = False
    across: bool = False
    splits: bool = False
    private: bool = False
    tiles: int = 0
    lists: bool = False
    narrow: bool = False
    fixed: int = 0


@dataclass(frozen=True, slots=True)
class Form:
    """What the headers of kernels are told, but for the type of numbers. ``known``: all numbers of
    the kernel are constants, and its pointers aligned. ``narrow``: the operands of matrix units are
    bfloat16, 1, or float16, 2, in rows of so many numbers at most; ``groups`` of four warps use the
    units together on Hopper GPUs. ``lanes`` have a value of an inner loop. ``rows`` and
    ``columns``: of the tile of sums that a thread has."""

    threads: int
    team: int = 1
    across: bool = False
    stage: int = 0
    shared: int = 1
    known: bool = False
    narrow: int = 0
    depth: int = 0
    width: int = 0
    lists: bool = False
    groups: int = 0
    registers: int = 0
    lanes: int = 0
    rows: int = 1
    columns: int = 1

    @property
    def name(self) -> str:
        """As part of a file's name."""
        parts = [f"{self.threads}", f"team{self.team}"]
        parts += ["across"] * self.across
        parts += [f"stage{self.stage}"] * (self.stage > 0)
        parts += [_MEMORY[self.shared]] * (self.shared != 1)
        parts += ["known"] * self.known
        parts += ["lists"] * self.lists
        parts += [f"{_NARROW[self.narrow]}_{self.depth}_{self.width}"] * (self.narrow > 0)
        parts += [f"groups{self.groups}"] * (self.groups > 0)
        parts += [f"lanes{self.lanes}"] * (self.lanes > 0)
        parts += [f"tile{self.rows}x{self.columns}"] * (self.rows * self.columns > 1)
        return "_".join(parts)


def kernels(source: GeneratedSource) -> list[Kernel]:
    """The kernels of a function's host code, in order."""
    return [Kernel(**record) for record in source.metadata["kernels"]]


def forms(kernel: Kernel, architecture: str = "") -> list[Form]:
    """One of each kind that launches of the kernel may choose on such a GPU."""
    found = list(dict.fromkeys(_forms(kernel, architecture)))
    if kernel.narrow:
        found = [replace(found[0], narrow=2), *(replace(form, narrow=1) for form in found)]
    if kernel.numbers:
        found.append(replace(found[min(1, len(found) - 1)], known=True))
    if kernel.lists:
        found.append(replace(found[0], lists=True))
    return found


def _forms(kernel: Kernel, architecture: str) -> Iterator[Form]:
    if kernel.how == "serial":
        yield Form(1)
        return
    if kernel.how in ("sweep", "pairs"):
        yield from (Form(128, narrow=narrow, depth=64, width=64) for narrow in (1, 2))
        yield Form(256 if kernel.how == "sweep" else 128, narrow=1, depth=128, width=128)
        if architecture == "sm_90":
            threads, registers = (256, 128) if kernel.how == "sweep" else (384, 168)
            small = Form(threads, narrow=1, depth=64, width=64, groups=2, registers=registers)
            yield from (small, replace(small, narrow=2))
            yield replace(small, depth=128, width=128, registers=0 if threads == 256 else registers)
        return
    if kernel.how == "lanes":
        form = Form(_LARGEST, _LARGEST, lanes=4)
        yield from (form, replace(form, shared=0), replace(form, shared=2))
        return
    yield Form(_THREADS)
    if kernel.how == "fused":
        teams = [Form(_THREADS, _WARP), Form(_THREADS, _THREADS)]
        yield from teams
        if kernel.private:
            yield from (replace(form, shared=0) for form in [Form(_THREADS), *teams])
            yield replace(teams[-1], shared=2)
        return
    if kernel.how == "running":
        teams = [Form(_THREADS, _WARP), Form(_LARGEST, _LARGEST)]
        if kernel.across:
            teams = [Form(1024, _WARP, across=True)]
        yield from teams
        if kernel.splits:
            yield from (replace(teams[-1], stage=stage) for stage in (1, 3))
        return
    if not kernel.shares:
        return
    if kernel.tiles:
        yield Form(_THREADS, rows=4, columns=4 if kernel.tiles > 1 else 1)
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
        "STAGE": form.stage, "SHARED": form.shared,
    }  # fmt: skip
    found = [f"-DLOMA_{name}={value}" for name, value in told.items()]
    if form.narrow:
        found += [
            f"-DLOMA_NARROW={form.narrow}", f"-DLOMA_DEPTH={form.depth}",
            f"-DLOMA_WIDTH={form.width}",
        ]  # fmt: skip
    if form.groups:
        found.append(f"-DLOMA_GROUPS={form.groups}")
    if form.registers:
        found.append(f"-DLOMA_REGISTERS={form.registers}")
    if form.rows * form.columns > 1:
        found += [f"-DLOMA_TILE_ROWS={form.rows}", f"-DLOMA_TILE_COLUMNS={form.columns}"]
    if form.lanes:
        found.append(f"-DLOMA_LANES={form.lanes}")
    found += [f"-DLOMA_FIXED_{k}={_FEW}" for k in range(kernel.fixed)]
    if form.lists:
        found += ["-DLOMA_ALIGNED", "-DLOMA_LISTED"]
    if form.known:
        found += ["-DLOMA_ALIGNED", "-DLOMA_KNOWN"]
        found += [f"-DLOMA_KNOWN_{k}={_KNOWN}" for k in range(kernel.numbers)]
    return found
