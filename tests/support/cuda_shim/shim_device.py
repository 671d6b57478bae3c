"""Launches of hand-written kernels on the shim, with arguments as the runtime gives them."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import shim

Array = np.ndarray[Any, Any]
REALS: Mapping[str, type] = {"float": np.float32, "double": np.float64}
_ENTRY = 16  # bytes of a partial result


class LaunchError(Exception):
    """What the driver says of a launch."""


class Grid(ctypes.Structure):
    """loma::Grid."""

    _fields_ = (
        ("count", ctypes.c_int64), ("slices", ctypes.c_int64), ("parts", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p), ("bytes", ctypes.c_int64), ("far", ctypes.c_int64),
        ("report", ctypes.c_void_p), ("beside", ctypes.c_int64),
    )  # fmt: skip


class Report(ctypes.Structure):
    """loma::Report."""

    _fields_ = (
        ("state", ctypes.c_int32), ("kind", ctypes.c_int32), ("numbers", ctypes.c_int64 * 8),
        ("texts", (ctypes.c_char * 256) * 4),
    )  # fmt: skip

    def told(self) -> list[str]:
        return [text.value.decode() for text in self.texts]


class Number(ctypes.Structure):
    """loma::Number<double>, and of floats in the same bytes."""

    _fields_ = (("pointer", ctypes.c_void_p), ("value", ctypes.c_uint64))


def number(value: Array | float, real: str) -> Number:
    """An element in memory, or a value."""
    if isinstance(value, np.ndarray):
        return Number(value.ctypes.data, 0)
    bits: Array = np.zeros(2, REALS[real])
    bits[0] = value
    return Number(None, int(bits.view(np.uint64)[0]))


@dataclass(frozen=True)
class Form:
    """What a kernel is compiled for, and how many blocks it gets."""

    threads: int = 256
    team: int = 1
    across: bool = False
    slices: int = 1
    shared: bool = True
    blocks: int = 3
    real: str = "float"
    known: tuple[int, ...] = ()
    beside: int = 1
    tile: tuple[int, int] = (1, 1)

    def options(self, stage: int) -> list[str]:
        known = [f"-DLOMA_KNOWN_{k}={value}" for k, value in enumerate(self.known)]
        return [
            f"-DLOMA_REAL={self.real}", f"-DLOMA_THREADS={self.threads}",
            f"-DLOMA_TEAM={self.team}", f"-DLOMA_ACROSS={int(self.across)}",
            f"-DLOMA_STAGE={stage}", f"-DLOMA_SHARED={int(self.shared)}",
            f"-DLOMA_TILE_ROWS={self.tile[0]}", f"-DLOMA_TILE_COLUMNS={self.tile[1]}",
            *(["-DLOMA_KNOWN", *known] if self.known else []),
        ]  # fmt: skip


@dataclass
class Kernel:
    """A text's kernel. ``report``: what the last launch told."""

    text: str
    name: str = "kernel"
    report: Report = field(default_factory=Report)

    def launch(
        self, form: Form, arguments: Sequence[object], count: int, private_bytes: int = 0
    ) -> None:
        """All stages. Arrays are passed as pointers, ints as int64_t, others as they are."""
        self.report = Report()
        grid = Grid(count=count, slices=form.slices, bytes=private_bytes, beside=form.beside)
        grid.report = ctypes.addressof(self.report)
        parts = np.full((form.slices * max(count, 1) * _ENTRY,), 255, np.uint8)
        grid.parts = parts.ctypes.data
        teams = form.threads // form.team
        workspace = np.full((form.blocks * teams * private_bytes + 1,), 255, np.uint8)
        grid.workspace = workspace.ctypes.data
        shared = private_bytes * teams if form.shared else 0
        given = [_argument(argument) for argument in arguments]
        if form.slices == 1:
            return self._launch(form, 0, given, grid, (form.blocks, 1), shared)
        self._launch(form, 1, given, grid, (form.blocks, form.slices), 0)
        return self._launch(form, 2, given, grid, (form.blocks, 1), 0)

    def _launch(
        self,
        form: Form,
        stage: int,
        arguments: Sequence[Any],
        grid: Grid,
        blocks: tuple[int, int],
        shared: int,
    ) -> None:
        function = _function(self.name, self.text, tuple(form.options(stage)))
        if shared > 40 << 10:
            _check(_driver().cuFuncSetAttribute(function, 8, shared))
        everything = [*arguments, grid]
        starts = (ctypes.c_void_p * len(everything))(*map(ctypes.addressof, everything))
        size = (form.threads, 1, 1)
        _check(_driver().cuLaunchKernel(function, *blocks, 1, *size, shared, None, starts, None))


def seed(value: int) -> None:
    """Another order of threads and blocks; 0: the natural one."""
    _driver().loma_shim_seed(ctypes.c_uint64(value))


@contextmanager
def architecture(major: int) -> Iterator[None]:
    """Calls meanwhile find a GPU of that major version."""
    found = ctypes.c_int.in_dll(_driver(), "major")
    former, found.value = found.value, major
    yield
    found.value = former


def _argument(value: object) -> Any:
    if isinstance(value, np.ndarray):
        return ctypes.c_void_p(value.ctypes.data)
    return ctypes.c_int64(value) if isinstance(value, int) else value


@functools.cache
def _driver() -> ctypes.CDLL:
    library = ctypes.CDLL(str(shim.driver()))
    library.cuInit(0)
    return library


@functools.cache
def _function(name: str, text: str, options: tuple[str, ...]) -> ctypes.c_void_p:
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    image = shim.image(name, text, options)
    _check(_driver().cuModuleLoadData(ctypes.byref(module), image))
    _check(_driver().cuModuleGetFunction(ctypes.byref(function), module, name.encode()))
    return function


def _check(code: int) -> None:
    if code != 0:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(code, ctypes.byref(text))
        raise LaunchError((text.value or b"").decode())
