"""Finding a compiler, running it, loading what it made. What is generated and how it is linked, the
backends know; nothing here needs torch."""

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
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from loma import cache, config
from loma.errors import CacheError, CompilationFailed, CompilerNotFound, SettingError

MODULE_FILE = "module.so"  # an extension of Python
LIBRARY_FILE = "library.so"  # plain C
_OUTPUT_LINES = 40

_T = TypeVar("_T")

# ------------------------------------------------------------------------------------ detection


def find_compiler(language: config.Language) -> tuple[str, ...]:
    """The compiler, with the arguments that the environment gives it (``ccache g++``).

    CompilerNotFound, which says what to do, if there is none.
    """
    asked = language.asked_for()
    for candidate in (asked[1],) if asked else language.known:
        if found := shutil.which(candidate):
            return (found,)
    if asked:
        first, *arguments = config.words(*asked)
        if found := shutil.which(first):
            return (found, *arguments)
    looked = f"{asked[1]}, as {asked[0]} says" if asked else ", ".join(language.known)
    raise CompilerNotFound(
        f"no {language.name} compiler: looked for {looked}. Install one (on Debian or Ubuntu: "
        f"apt-get install {language.package}), or name one in {language.variables[0]}."
    )


def compiler_version(compiler: tuple[str, ...], language: config.Language) -> str:
    """What it says; CompilerNotFound where it is no compiler."""
    try:
        version = run((*compiler, "--version"), "asking for its version").stdout
    except CompilationFailed:
        version = ""
    if not version.strip():
        asked = language.asked_for()
        where = f"{asked[0]}: " if asked else ""
        raise CompilerNotFound(
            f"{where}{' '.join(compiler)} is no {language.name} compiler: it does not tell its "
            "version"
        )
    return version


def native_flags() -> tuple[str, ...]:
    """For the processor at hand, with the widest vectors it has: compilers prefer shorter ones on
    some that have 64 bytes, but these loops run up to a third faster with the whole."""
    match platform.machine().lower():
        case "x86_64" | "amd64":
            return ("-march=native", "-mprefer-vector-width=512")
        case "aarch64" | "arm64":
            return ("-march=native",)
        case _:
            return ()


def processor() -> str:
    """What -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", errors="replace").split("\n\n")[0]
    except OSError:
        return platform.processor() or platform.machine()
    wanted = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU part")
    return "\n".join(line for line in lines.splitlines() if line.startswith(wanted))


def python_flags() -> tuple[str, ...]:
    """Where the headers of Python and pybind11 are."""
    pybind11 = importlib.util.find_spec("pybind11")
    if pybind11 is None or pybind11.origin is None:
        raise CompilerNotFound("the package pybind11, whose C++ headers are needed, is missing")
    include = str(Path(pybind11.origin).parent / "include")
    return ("-isystem", include, "-isystem", sysconfig.get_path("include"))


def openmp_flag(version: str) -> str:
    """How a C++ compiler of that version reads OpenMP. What clang makes of a parallel loop needs
    LLVM's library, and torch brings GCC's; so it is told of loops over lanes alone."""
    return "-fopenmp-simd" if "clang" in version else "-fopenmp"


def openmp_flags() -> tuple[str, ...]:
    """What a linker needs for OpenMP.

    torch's wheels bring a library of their own; a second one in the process would have its own
    threads.
    """
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        return ("-fopenmp",)
    folder = Path(torch.origin).parent / "lib"
    found = sorted(folder.glob("libgomp*.so*"))
    return (str(found[0]), f"-Wl,-rpath,{folder}") if found else ("-fopenmp",)


def identity() -> str:
    """A hash of the compiler, its flags, the processor, Python and torch: what is compiled depends
    on nothing else but its source. CompilerNotFound when there is no compiler."""
    settings = (
        *config.CXX.extra_flags(), "", str(config.C.asked_for()), *config.C.extra_flags(),
        str(config.sanitizer()),
    )  # fmt: skip
    return _identity(find_compiler(config.CXX), settings)


@functools.cache
def _identity(compiler: tuple[str, ...], settings: tuple[str, ...]) -> str:
    torch = importlib.util.find_spec("torch")
    version = Path(torch.origin).with_name("version.py") if torch and torch.origin else None
    installed = version.read_bytes() if version and version.is_file() else ""
    return cache.digest(
        [*compiler, "", *settings, "", *versions(compiler), str(version), installed]
    )


def versions(compiler: tuple[str, ...]) -> tuple[str, ...]:
    """What compiled C++ depends on besides its source and flags: compiler, processor, Python."""
    python = sys.implementation.cache_tag or ""
    return compiler_version(compiler, config.CXX), processor(), python


# -------------------------------------------------------------------------------- running tools


@functools.cache
def _compiler_slots(jobs: int) -> threading.BoundedSemaphore:
    return threading.BoundedSemaphore(jobs)


def in_parallel(*tasks: Callable[[], _T]) -> list[_T]:
    """The tasks' results, in order. How many compilers run at once, the slots decide."""
    with ThreadPoolExecutor(max_workers=len(tasks)) as pool:
        futures = [pool.submit(task) for task in tasks]
        return [future.result() for future in futures]


def compile_files(
    compiler: tuple[str, ...],
    arguments: Sequence[str],
    made: Path,
    what: str,
    language: config.Language = config.CXX,
) -> None:
    """Runs a compiler or linker, once there are few enough at work. CompilationFailed when it does
    not make its file; its first line is about a variable of the environment where that is to blame.
    SettingError where the variable has flags, which are seldom worth more than a line."""
    command = (*compiler, *arguments, "-o", str(made))
    try:
        with _compiler_slots(config.jobs()):
            run(command, what)
        if not _is_made(made):
            raise CompilationFailed(f"{what} failed: {command[0]} made no {made.name}")
    except CompilationFailed as error:
        _blame(language, arguments, error)
        raise


def _blame(language: config.Language, arguments: Sequence[str], error: CompilationFailed) -> None:
    """Raises what says more about a run of the compiler that failed, if a variable is the cause."""
    asked, flags = language.asked_for(), language.extra_flags()
    compiler, kind = find_compiler(language), language.name.lower()
    said = _refusal((*compiler, "-shared", "-fPIC", "-x", kind, os.devnull))
    if said is not None:  # an empty program is refused, too
        if asked:
            head = f"{asked[0]}: {asked[1]} compiles no {language.name}: {said}"
            raise CompilationFailed(f"{head}\n{error}") from error
        return
    without = [(language.flags, flags, _without((*compiler, *arguments), flags))]
    if asked:
        without.append((asked[0], compiler[1:], (compiler[0], *arguments)))
    for variable, words, command in without:
        if words and command and _refusal((*command, "-fsyntax-only")) is None:
            raise SettingError(
                f"{variable}: the {language.name} compiler takes the code without "
                f"'{' '.join(words)}', and says with it: {_said(error)}"
            ) from error


def _is_made(path: Path) -> bool:
    """Whether the file is there, and a shared library (ELF's type 3) where it is called so."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return path.suffix != ".so" or file.read(18)[16:17] == b"\x03"


def _without(arguments: tuple[str, ...], part: tuple[str, ...]) -> tuple[str, ...] | None:
    """The arguments but for those that follow each other in ``part``; None if they do not."""
    for at in range(len(arguments) if part else 0):
        if arguments[at : at + len(part)] == part:
            return arguments[:at] + arguments[at + len(part) :]
    return None


def _refusal(command: tuple[str, ...]) -> str | None:
    """Why a compiler fails; None where it does not."""
    with tempfile.TemporaryDirectory(prefix="loma-") as folder:
        made = Path(folder, "made.so")
        try:
            run((*command, "-o", str(made)), "compiling it once more")
        except CompilationFailed as error:
            return _said(error)
        return None if _is_made(made) or "-fsyntax-only" in command else "it makes no library"


def _said(error: CompilationFailed) -> str:
    """The first message of the compiler, or how it ended."""
    first, *lines = str(error).splitlines()
    return lines[0].strip() if lines and lines[0].startswith(" ") else first


def run(command: tuple[str, ...], what: str) -> subprocess.CompletedProcess[str]:
    start = time.perf_counter()
    # Messages in English, whatever the locale, so that the excerpt below finds the errors.
    environment = {**os.environ, "LC_ALL": "C"}
    if config.sanitizer() is not None:
        environment.pop("LD_PRELOAD", None)  # the sanitizer is this process's, not the compiler's
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", env=environment
        )
    except OSError as error:
        raise CompilerNotFound(f"{what}: cannot run {command[0]}: {error.strerror}") from error
    if config.verbose():
        seconds = time.perf_counter() - start
        print(f"loma: {seconds:.2f} s: {' '.join(command)}", file=sys.stderr)
    if done.returncode != 0:
        if "No space left on device" in done.stderr:
            raise CacheError(
                f"{what} failed: there is no room in {Path(command[-1]).parent.parent} or in "
                f"{tempfile.gettempdir()}. LOMA_CACHE_DIR names another folder for what is "
                "compiled, TMPDIR one for the compiler's own files."
            )
        raise CompilationFailed(_failure(command, done, what))
    return done


def notice(text: str) -> None:
    """A line on standard error for a person who waits: at a terminal, or in a notebook."""
    stream = sys.stderr
    if stream is not None and (stream.isatty() or type(stream).__module__.startswith("ipykernel")):
        print(f"loma: {text}", file=stream, flush=True)


def _failure(command: tuple[str, ...], done: subprocess.CompletedProcess[str], what: str) -> str:
    lines = (done.stderr or done.stdout).splitlines()
    first = next((i for i, line in enumerate(lines) if "error" in line or "ld: " in line), 0)
    excerpt = "\n".join(f"  {line}" for line in lines[first : first + _OUTPUT_LINES])
    how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
    return (
        f"{what} failed: {command[0]} ended with {how}. Its first messages:\n{excerpt}\n"
        f"The command was:\n  {' '.join(command)}"
    )


# -------------------------------------------------------------------------------------- loading


def load_extension(path: Path, name: str) -> ModuleType:
    """Loads a compiled extension module of that name."""
    loader = importlib.machinery.ExtensionFileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    module.__name__ = name  # with pybind11 2, as older torch has it, that of its PYBIND11_MODULE
    return module
