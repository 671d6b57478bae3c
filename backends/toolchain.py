"""From generated C++ to files that can be loaded: hash, compile once, keep.

Whatever is compiled lands in a folder named by the hash of everything it depends on: the source,
the runtime's files, the flags, and the versions of torch, compiler and processor (:mod:`loma.cache`
makes it appear at once and lets a second process wait for the first). The runtime is compiled once
into object files that every module links; its headers, torch's and pybind11's are precompiled.
"""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from loma import cache, config
from loma.backends.base import GeneratedSource
from loma.errors import CompilationFailed, CompilerNotFound

RUNTIME = Path(__file__).resolve().parent / "libtorch" / "runtime"
MODULE_FILE = "module.so"
OBJECT_FILE = "module.o"
_CORE = ("arguments.cpp", "dispatch.cpp", "autograd.cpp")
_OUTPUT_LINES = 40

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Toolchain:
    """The compiler and what it has to be told. ``identity`` also has what no flag shows."""

    compiler: str
    flags: tuple[str, ...]
    python_flags: tuple[str, ...]
    link_flags: tuple[str, ...]
    python_link_flags: tuple[str, ...]
    identity: tuple[str, ...]

    @property
    def digest(self) -> str:
        compiling = (self.compiler, *self.flags, "", *self.python_flags)
        linking = (*self.link_flags, "", *self.python_link_flags)
        return cache.digest([*compiling, "", *linking, "", *self.identity])


# ------------------------------------------------------------------------------------ detection


def detect() -> Toolchain:
    """The toolchain that the environment asks for. CompilerNotFound when there is no compiler."""
    return _detect(_find_compiler(config.compiler_candidates()), config.extra_flags())


@functools.cache
def _detect(compiler: str, extra_flags: tuple[str, ...]) -> Toolchain:
    import torch

    root = Path(torch.__file__).resolve().parent
    library = root / "lib"
    standard = "c++20" if "C++ Version: 2020" in torch.__config__.show() else "c++17"
    flags = (
        f"-std={standard}", "-O3", *_native_flags(), "-fPIC", "-fopenmp", "-fvisibility=hidden",
        "-fno-math-errno", "-fno-trapping-math",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        "-isystem", str(root / "include"),
        "-isystem", str(root / "include" / "torch" / "csrc" / "api" / "include"),
        *extra_flags,
    )  # fmt: skip
    # torch's wheels bring their own OpenMP; a second one in the process would have its own threads.
    openmp = [str(path) for path in sorted(library.glob("libgomp*.so*"))[:1]]
    link_flags = (
        *_cxx_library(),
        f"-L{library}", f"-Wl,-rpath,{library}", "-Wl,--as-needed",
        "-ltorch_cpu", "-lc10", *(openmp or ["-fopenmp"]),
    )  # fmt: skip
    return Toolchain(
        compiler=compiler,
        flags=flags,
        python_flags=("-isystem", _pybind11_include(), "-isystem", sysconfig.get_path("include")),
        link_flags=link_flags,
        python_link_flags=("-ltorch_python",),
        identity=(
            torch.__version__,
            _compiler_version(compiler),
            _processor(),
            sys.implementation.cache_tag or "",
        ),
    )


def _find_compiler(candidates: tuple[str, ...]) -> str:
    for candidate in candidates:
        if found := shutil.which(candidate):
            return found
    raise CompilerNotFound(
        f"no C++ compiler: looked for {', '.join(candidates)}. Install one (on Debian or Ubuntu: "
        "apt-get install g++), or name one in LOMA_CXX."
    )


def _compiler_version(compiler: str) -> str:
    return _run((compiler, "--version"), "asking the C++ compiler for its version").stdout


def _native_flags() -> tuple[str, ...]:
    known = platform.machine().lower() in ("x86_64", "amd64", "aarch64", "arm64")
    return ("-march=native",) if known else ()


def _cxx_library() -> tuple[str, ...]:
    """The C++ library of this process, torch's. Named first, because some compilers would link a
    copy of their own statically, and two of them in one process do not share their locales."""
    try:
        maps = Path("/proc/self/maps").read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return ()
    loaded = {line.split(maxsplit=5)[5] for line in maps if "/libstdc++.so" in line}
    return tuple(sorted(path for path in loaded if Path(path).is_file())[:1])


def _processor() -> str:
    """What -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", errors="replace").split("\n\n")[0]
    except OSError:
        return platform.processor() or platform.machine()
    wanted = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU part")
    return "\n".join(line for line in lines.splitlines() if line.startswith(wanted))


def _pybind11_include() -> str:
    spec = importlib.util.find_spec("pybind11")
    if spec is None or spec.origin is None:
        raise CompilerNotFound("the package pybind11, whose C++ headers are needed, is missing")
    return str(Path(spec.origin).parent / "include")


# ------------------------------------------------------------------------------------- building


def module_key(source: GeneratedSource, toolchain: Toolchain) -> str:
    """The folder of a module's compiled files in the cache."""
    text = [part for file in source.files for part in file]
    return cache.digest([toolchain.digest, _runtime_digest(), source.name, *text])


def build(source: GeneratedSource) -> Path:
    """The folder with the compiled module and its C++ files; compiled unless it is there already.

    CompilerNotFound without a compiler, CompilationFailed when it refuses the code.
    """
    toolchain = detect()

    def compile_into(folder: Path) -> None:
        for name, text in source.files:
            (folder / name).write_text(text, encoding="utf-8")
        made = folder / OBJECT_FILE
        objects = _in_parallel(
            lambda: _compile_generated(toolchain, folder / source.files[0][0], made),
            lambda: _runtime_object(toolchain, "core"),
            lambda: _runtime_object(toolchain, "python"),
        )
        # The binding was compiled without knowing the module: these are its two loose ends.
        name = source.name
        ends = (f"loma_this_module={name}__module", f"PyInit_{name}=PyInit_loma_module")
        flags = (
            *(f"-Wl,--defsym={end}" for end in ends),
            *toolchain.link_flags,
            *toolchain.python_link_flags,
        )
        _link(toolchain, objects, flags, folder / MODULE_FILE, ("-shared",))

    return cache.obtain(module_key(source, toolchain), compile_into)


def is_built(key: str) -> bool:
    return (cache.folder(key) / MODULE_FILE).is_file()


def build_executable(sources: Sequence[Path], output: Path) -> Path:
    """Compiles C++ files, generated ones among them, to a program that needs no Python.

    Headers are looked for in the folders of all the sources. Returns ``output``.
    """
    toolchain = detect()
    texts = [path.read_bytes() for path in sources]
    folders = sorted({path.resolve().parent for path in sources})
    headers = [path.read_bytes() for folder in folders for path in sorted(folder.glob("*.h"))]
    key = cache.digest([toolchain.digest, _runtime_digest(), "program", *texts, *headers])

    def compile_into(folder: Path) -> None:
        def object_of(number: int, source: Path) -> Callable[[], Path]:
            known = source.parent / OBJECT_FILE
            if known.is_file():  # a module's own file: compiled with the module
                return lambda: known
            made = folder / f"{number}.o"
            return lambda: _compile_generated(toolchain, source, made, folders)

        tasks = [object_of(number, source) for number, source in enumerate(sources)]
        objects = _in_parallel(*tasks, lambda: _runtime_object(toolchain, "core"))
        _link(toolchain, objects, toolchain.link_flags, folder / "program", ())
        for made in folder.glob("*.o"):
            made.unlink()

    program = cache.obtain(key, compile_into) / "program"
    output.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(program, output)
    return output


def load(folder: Path, name: str) -> ModuleType:
    """Loads the compiled module of that folder. Registers its operators, so once per process."""
    import torch  # noqa: F401  (the libraries that the module is linked to)

    path = str(folder / MODULE_FILE)
    loader = importlib.machinery.ExtensionFileLoader(name, path)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@functools.cache
def _runtime_digest() -> str:
    files = sorted(path for path in RUNTIME.iterdir() if path.suffix in (".h", ".cpp"))
    return cache.digest([part for path in files for part in (path.name, path.read_bytes())])


def _headers(toolchain: Toolchain) -> Path:
    """A folder with the runtime's headers and the precompiled prelude."""

    def compile_into(folder: Path) -> None:
        for path in RUNTIME.glob("*.h"):
            shutil.copy(path, folder)
        _compile(
            toolchain,
            ("-x", "c++-header", str(folder / "prelude.h")),
            folder / "prelude.h.gch",
        )

    key = cache.digest([toolchain.digest, _runtime_digest(), "headers"])
    return cache.obtain(key, compile_into)


def _runtime_object(toolchain: Toolchain, part: str) -> Path:
    """The runtime, compiled: "core" without Python, "python" the binding."""

    def compile_into(folder: Path) -> None:
        unit = folder / f"{part}.cpp"  # one translation unit: torch's headers are read once
        names = _CORE if part == "core" else ("python.cpp",)
        unit.write_text("".join(f'#include "{RUNTIME / name}"\n' for name in names), "utf-8")
        flags = toolchain.python_flags if part == "python" else ()
        _compile(toolchain, (*flags, "-O1", "-c", str(unit)), folder / f"{part}.o")

    key = cache.digest([toolchain.digest, _runtime_digest(), f"runtime {part}"])
    return cache.obtain(key, compile_into) / f"{part}.o"


def _compile_generated(
    toolchain: Toolchain, source: Path, made: Path, search: Iterable[Path] = ()
) -> Path:
    folders = [flag for folder in (_headers(toolchain), *search) for flag in ("-I", str(folder))]
    _compile(toolchain, (*folders, "-c", str(source)), made)
    return made


# -------------------------------------------------------------------------------- running tools


@functools.cache
def _compiler_slots(jobs: int) -> threading.BoundedSemaphore:
    return threading.BoundedSemaphore(jobs)


def _in_parallel(*tasks: Callable[[], _T]) -> list[_T]:
    """The tasks' results, in order. How many compilers run at once, the slots decide."""
    with ThreadPoolExecutor(max_workers=len(tasks)) as pool:
        futures = [pool.submit(task) for task in tasks]
        return [future.result() for future in futures]


def _compile(toolchain: Toolchain, arguments: tuple[str, ...], made: Path) -> None:
    command = (toolchain.compiler, *toolchain.flags, *arguments, "-o", str(made))
    with _compiler_slots(config.jobs()):
        _run(command, "compiling generated C++")


def _link(
    toolchain: Toolchain,
    objects: Sequence[Path],
    flags: tuple[str, ...],
    made: Path,
    mode: tuple[str, ...],
) -> None:
    command = (toolchain.compiler, *mode, *map(str, objects), *flags, "-o", str(made))
    with _compiler_slots(config.jobs()):
        _run(command, "linking generated C++")


def _run(command: tuple[str, ...], what: str) -> subprocess.CompletedProcess[str]:
    start = time.perf_counter()
    # Messages in English, whatever the locale, so that the excerpt below finds the errors.
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    except OSError as error:
        raise CompilerNotFound(f"{what}: cannot run {command[0]}: {error.strerror}") from error
    if config.verbose():
        seconds = time.perf_counter() - start
        print(f"loma: {seconds:.2f} s: {' '.join(command)}", file=sys.stderr)
    if done.returncode != 0:
        raise CompilationFailed(_failure(command, done, what))
    return done


def _failure(command: tuple[str, ...], done: subprocess.CompletedProcess[str], what: str) -> str:
    lines = (done.stderr or done.stdout).splitlines()
    first = next((i for i, line in enumerate(lines) if "error" in line), 0)
    excerpt = "\n".join(f"  {line}" for line in lines[first : first + _OUTPUT_LINES])
    how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
    return (
        f"{what} failed: {command[0]} ended with {how}. Its first messages:\n{excerpt}\n"
        f"The command was:\n  {' '.join(command)}"
    )
