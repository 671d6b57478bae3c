"""From a C file to a shared library, without torch."""

from __future__ import annotations

import functools
import tempfile
from dataclasses import dataclass
from pathlib import Path

from loma import cache, config
from loma.backends import compilers
from loma.backends.cfamily.source import GeneratedSource
from loma.backends.compilers import LIBRARY_FILE
from loma.errors import CompilationFailed

# Ints wrap around. Sums and products are not fused, so that numbers do not depend on the processor.
# A function that is called like one of the C library (times, read) means the program's own.
FLAGS = (
    "-std=c99", "-fPIC", "-fwrapv", "-ffp-contract=off", "-fno-math-errno",
    "-fno-trapping-math", "-fno-semantic-interposition", "-Wl,-Bsymbolic",
)  # fmt: skip
# A program with what generated files have of OpenMP.
_PARALLEL = """#include <omp.h>
int f(float *x, int n) {
#pragma omp parallel for
  for (int i = 0; i < n; i++) x[i] += 1.0f;
  return omp_get_max_threads();
}
"""
_LONG_FUNCTION = 3000  # lines: one that is longer takes gcc longer than anybody waits


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C compiler and what it has to be told. ``digest`` also has what no flag shows."""

    command: tuple[str, ...]
    flags: tuple[str, ...]
    digest: str


def detect() -> Compiler:
    """The C compiler that the environment asks for. CompilerNotFound when there is none."""
    return _detect(compilers.find_compiler(config.C), config.C.extra_flags())


@functools.cache
def _detect(command: tuple[str, ...], extra_flags: tuple[str, ...]) -> Compiler:
    flags = (*FLAGS, *compilers.native_flags(), *extra_flags)
    identity = (compilers.compiler_version(command, config.C), compilers.processor())
    return Compiler(command, flags, cache.digest([*command, "", *flags, "", *identity]))


@functools.cache
def openmp(command: tuple[str, ...]) -> tuple[str, ...]:
    """Flags for OpenMP, if a program that uses it compiles and links; else its loops are serial."""
    with tempfile.TemporaryDirectory(prefix="loma-") as folder:
        source, made = Path(folder, "openmp.c"), Path(folder, "openmp.so")
        source.write_text(_PARALLEL)
        # The library that torch brings comes first, and then gcc needs no other; clang's own is
        # another one, which may be missing.
        found = ("-fopenmp", "-Wl,--as-needed", *compilers.openmp_flags())
        flags = (*found, "-fPIC", "-shared", "-Wl,-z,defs", str(source), "-o", str(made))
        try:
            compilers.run((*command, *flags), "asking the C compiler for OpenMP")
        except CompilationFailed:
            return ()
    return found


def build(source: GeneratedSource) -> Path:
    """The folder with the C file and its shared library; compiled unless it is there already.

    CompilerNotFound without a compiler, CompilationFailed when it refuses the code.
    """
    compiler = detect()
    linked = openmp(compiler.command) if "-fopenmp" in source.flags else ()
    level = _optimisation(source.text)

    def compile_into(folder: Path) -> None:
        for name, text in source.files:
            (folder / name).write_text(text, encoding="utf-8")
        file, made = folder / source.files[0][0], folder / LIBRARY_FILE
        flags = (level, *compiler.flags, "-shared", str(file), *linked, "-lm")
        compilers.compile_files(compiler.command, flags, made, "compiling generated C", config.C)

    parts = [part for file in source.files for part in file]
    return cache.obtain(cache.digest([compiler.digest, level, *linked, *parts]), compile_into)


def _optimisation(text: str) -> str:
    """How hard to optimise; the derivative of a long function is a very long one."""
    ends = [k for k, line in enumerate(text.split("\n")) if line == "}"]
    longest = max((b - a for a, b in zip([0, *ends], ends, strict=False)), default=0)
    return "-O1" if longest > _LONG_FUNCTION else "-O3"
