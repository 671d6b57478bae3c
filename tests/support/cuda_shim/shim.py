"""CUDA kernels on the CPU: images that g++ makes of their texts, and the driver that runs them.

:func:`image` takes a text as NVRTC does; ``LOMA_CUDA_DRIVER`` is to name the library of
:func:`driver`. Nothing here is fast or complete: it is what loma's kernels use, made to find races.
"""

from __future__ import annotations

import functools
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import oracle
import pytest

import loma
from loma import cache
from loma.backends.cuda import images, texts

_HERE = Path(__file__).resolve().parent
_OWN = ("shim.h", "shim_matrix_units.h", "threads.h")
_KERNEL = re.compile(r"\bLOMA_KERNEL\s+(\w+)")
_LISTS = re.compile(r"\bLOMA_LISTS\((\w+)\)")
_IMAGE_FLAGS = (
    "g++", "-std=c++17", "-O1", "-fPIC", "-shared", "-nostdinc", "-fvisibility=hidden", "-Wall",
    "-Wextra", "-Wno-unknown-pragmas", "-Wno-unused-parameter", "-Wno-unused-but-set-variable",
    "-Werror", "-fno-math-errno",
    "-ffp-contract=off", "-fno-exceptions", "-fno-rtti", "-fno-asynchronous-unwind-tables",
)  # fmt: skip
_DRIVER_FLAGS = (
    "g++",
    "-std=c++17",
    "-O2",
    "-fPIC",
    "-shared",
    "-U_FORTIFY_SOURCE",
    "-Wall",
    "-Wextra",
)


class CompileError(Exception):
    """g++ does not take a kernel's text; has what it says."""


@functools.cache
def driver() -> Path:
    """The library that stands for libcuda.so.1."""
    files = {name: (_HERE / name).read_text() for name in ("fake_driver.cpp", "threads.h")}

    def build(folder: Path) -> None:
        command = [*_DRIVER_FLAGS, str(_HERE / "fake_driver.cpp"), "-o", str(folder / "libcuda.so")]
        run_compiler(command)

    key = cache.digest(["cuda shim driver", *_DRIVER_FLAGS, *files.values()])
    return cache.obtain(key, build) / "libcuda.so"


def image(name: str, text: str, options: Sequence[str], architecture: str = "sm_90") -> bytes:
    """The text of kernels as a shared library. Of ``options`` only macros are used."""
    del architecture
    macros = [option for option in options if option.startswith(("-D", "-U"))]
    kernels = _KERNEL.findall(text)
    if "-DLOMA_LISTED" in macros:
        kernels = [f"{kernel}__lists" for kernel in _LISTS.findall(text)]
    launchers = "".join(
        f'extern "C" __attribute__((visibility("default"))) void {kernel}__shim(void** arguments)'
        f" {{ loma_shim::run({kernel}, arguments); }}\n"
        for kernel in kernels
    )
    include = "" if texts.INCLUDE in text else texts.INCLUDE
    source = f'#include "shim.h"\n{include}#line 1 "{name}"\n{text}\n{launchers}'

    def build(folder: Path) -> None:
        with tempfile.TemporaryDirectory() as place:
            path = Path(place, "kernel.cpp")
            path.write_text(source)
            run_compiler(
                [
                    *_IMAGE_FLAGS,
                    *macros,
                    f"-I{_headers()}",
                    str(path),
                    "-o",
                    str(folder / "image.so"),
                    "-lm",
                ]
            )

    key = cache.digest(
        ["cuda shim image", *_IMAGE_FLAGS, *macros, *_all_headers().values(), source]
    )
    return (cache.obtain(key, build) / "image.so").read_bytes()


@contextmanager
def compiled(program: str, make: images.Make = image) -> Iterator[loma.LomaModule]:
    """The program, whose calls are the shim's meanwhile; ``make`` compiles kernels."""
    former = images.use(make)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOMA_CUDA_DRIVER", str(driver()))
        patch.delenv("LOMA_CHECK", raising=False)
        module = loma.compile(program)
        assert module.__native__ is not None
        module.__native__.serve_cpu_by_gpu(True)
        yield module
        module.__native__.serve_cpu_by_gpu(False)
    images.use(former)


@contextmanager
def on_gpu(program: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    """The program on a GPU, or on the shim in its place."""
    if request.config.getoption("--device") != "cpu":
        yield oracle.compiled(program)
        return
    with compiled(program) as found:
        yield found


@functools.cache
def _all_headers() -> dict[str, str]:
    """Those that NVRTC is given, and the shim's own."""
    own = {name: (_HERE / name).read_text() for name in _OWN}
    return {**texts.headers(), **own}


@functools.cache
def _headers() -> Path:
    """A folder with all of them and no others."""
    files = _all_headers()

    def build(folder: Path) -> None:
        for name, text in files.items():
            (folder / name).write_text(text)

    return cache.obtain(cache.digest(["cuda shim headers", *files, *files.values()]), build)


def run_compiler(command: Sequence[str]) -> None:
    """CompileError where it does not make its file."""
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        raise CompileError(f"{' '.join(command)}\n{made.stderr}")
