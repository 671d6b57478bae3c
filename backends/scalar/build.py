"""From generated C to a library, and from the runtime to the extension that calls such libraries.

Neither needs torch: a module of scalar functions costs one run of the C compiler, and the extension
is compiled once.
"""

from __future__ import annotations

import functools
import threading
from pathlib import Path
from types import ModuleType

from loma import cache, config
from loma.backends import compilers
from loma.backends.cfamily.source import GeneratedSource
from loma.backends.compilers import MODULE_FILE

RUNTIME = Path(__file__).resolve().parent / "runtime"
_EXTENSION = "loma_scalar"  # the name that its PYBIND11_MODULE gives it
_FLAGS = ("-std=c++17", "-O1", "-fPIC", "-fvisibility=hidden")


def build(source: GeneratedSource) -> Path:
    """The folder with the compiled library and its C file; compiled unless it is there already.

    CompilerNotFound without a compiler, CompilationFailed when it refuses the code.
    """
    from loma.backends.c.build import build as build_library

    # The extension is needed as soon as the library is there.
    folder, _ = compilers.in_parallel(lambda: build_library(source), _extension_folder)
    return folder


def extension() -> ModuleType:
    """The extension module, loaded; compiled when that was never done."""
    folder = _extension_folder()
    with _lock:
        return _loaded(folder)


_lock = threading.Lock()


@functools.cache
def _loaded(folder: Path) -> ModuleType:
    return compilers.load_extension(folder / MODULE_FILE, _EXTENSION)


def _extension_folder() -> Path:
    sources = sorted(RUNTIME.glob("*.cpp"))

    def compile_into(folder: Path) -> None:
        unit = folder / "runtime.cpp"  # one translation unit: pybind11 is read once
        unit.write_text("".join(f'#include "{path}"\n' for path in sources), "utf-8")
        compilers.compile_files(
            compilers.find_compiler(config.CXX),
            (*_FLAGS, *compilers.python_flags(), *config.CXX.extra_flags(), "-shared", str(unit)),
            folder / MODULE_FILE,
            "compiling the calls of scalar functions",
        )

    key = cache.digest([compilers.identity(), *_FLAGS, _runtime_digest()])
    return cache.obtain(key, compile_into)


@functools.cache
def _runtime_digest() -> str:
    files = sorted(RUNTIME.glob("*.[ch]*"))
    return cache.digest([part for path in files for part in (path.name, path.read_bytes())])
