"""What serves GPUs without one: a driver that runs functions of C at once, and a module whose
functions are launched by it for tensors of the CPU."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path

import loma
from loma import cache
from loma.backends import compilers, toolchain
from loma.backends.cfamily.source import GeneratedSource

_SOURCE = Path(__file__).with_name("gpu_driver.cpp")

# What functions begin with that stand in for kernels.
HEADER = """
#include <stdint.h>
struct Number { const float* pointer; float value; };
struct Grid {
  int64_t count, slices; char* parts; char* workspace; int64_t bytes, far; struct Report* report;
};
struct Report { int32_t state, kind; int64_t numbers[8]; char texts[4][256]; };
#define KERNEL(name) extern "C" void name(void** given, const int64_t* sizes)
#define GIVEN(type, k) (*static_cast<type*>(given[k]))
"""


@functools.cache
def driver() -> ctypes.CDLL:
    """The driver; ``LOMA_CUDA_DRIVER`` is to be its path."""
    return ctypes.CDLL(str(_library(_SOURCE.read_text("utf-8"))))


def last(k: int = 0) -> tuple[int, ...]:
    """Blocks, slices, threads and bytes of shared memory of a launch, the last one first."""
    return tuple(((ctypes.c_int64 * 4) * 8).in_dll(driver(), "last")[k])


def count() -> int:
    return ctypes.c_int64.in_dll(driver(), "launches").value


class Images:
    """Compiles what stands in for kernels; keeps what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, list[str], str]] = []

    def __call__(self, name: str, text: str, options: Sequence[str], architecture: str) -> bytes:
        self.asked.append((name, list(options), architecture))
        macros = (f"#define {o[2:].replace('=', ' ', 1)}\n" for o in options if o.startswith("-D"))
        return str(_library("".join(macros) + HEADER + text)).encode() + b"\0"


def _library(text: str) -> Path:
    compiler = toolchain.detect()

    def build(folder: Path) -> None:
        (folder / "library.cpp").write_text(text, "utf-8")
        command = (*compiler.compiler, "-shared", "-fPIC", str(folder / "library.cpp"))
        compilers.run((*command, "-o", str(folder / "library.so")), "compiling a stand-in")

    return cache.obtain(cache.digest(["stand-in", text]), build) / "library.so"


def part(module: loma.LomaModule, operator: str, text: str, prelude: str) -> None:
    """Loads what launches an operator's kernels: C++ whose function ``run<real>`` does."""
    _libraries.append(toolchain.load_kernels(built(module, operator, text, prelude)))


def built(module: loma.LomaModule, operator: str, text: str, prelude: str) -> Path:
    """The folder with it."""
    text = f"""#include "{prelude}"
#include "gpu.h"
namespace {{
{text}
const bool registered__ = loma::register_device_kernels(
    "{module.__name__}::{operator}", loma::Kernels{{run<float>, run<double>}});
}}  // namespace
"""
    source = GeneratedSource(
        f"{operator}_{cache.digest([text])[:16]}",
        ((f"{operator}.cpp", text),),
        {"prelude": prelude},
    )
    return toolchain.build_specialisation(source, module.__folder__, toolchain.detect())


_libraries: list[ctypes.CDLL] = []  # never unloaded
