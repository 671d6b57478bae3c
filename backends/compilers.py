"""Finding a compiler, running it, loading what it made. What is generated and how it is linked, the
backends know; nothing here needs torch."""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib.machinery
import importlib.util
import os
import platform
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import TypeVar, Self

from loma import cache, config
from loma.errors import CompilationFailed, CompilerNotFound

MODULE_FILE = "module.so"  # an extension of Python
LIBRARY_FILE = "library.so"  # plain C
_OUTPUT_LINES = 40

_T = TypeVar("_T")

# ------------------------------------------------------------------------------------ detection


def find_compiler(
    candidates: tuple[str, ...],
    language: str = "C++",
    package: str = "g++",
    variable: str = "LOMA_CXX",
) -> str:
    """The first candidate that exists; CompilerNotFound, which says what to do, if none does."""
    for candidate in candidates:
        if found := shutil.which(candidate):
            return found
    raise CompilerNotFound(
        f"no {language} compiler: looked for {', '.join(candidates)}. Install one (on Debian or "
        f"Ubuntu: apt-get install {package}), or name one in {variable}."
    )


def compiler_version(compiler: str) -> str:
    return run((compiler, "--version"), "asking the C++ compiler for its version").stdout


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
        *config.extra_flags(), "", *config.c_compiler_candidates(), *config.extra_c_flags(),
        str(config.sanitizer()),
    )  # fmt: skip
    return _identity(find_compiler(config.compiler_candidates()), settings)


@functools.cache
def _identity(compiler: str, settings: tuple[str, ...]) -> str:
    torch = importlib.util.find_spec("torch")
    version = Path(torch.origin).with_name("version.py") if torch and torch.origin else None
    return cache.digest(
        [
            compiler,
            *settings,
            "",
            compiler_version(compiler),
            processor(),
            sys.implementation.cache_tag or "",
            str(version),
            version.read_bytes() if version and version.is_file() else "",
        ]
    )


# -------------------------------------------------------------------------------- running tools


@functools.cache
def _compiler_slots(jobs: int) -> threading.BoundedSemaphore:
    return threading.BoundedSemaphore(jobs)


def in_parallel(*tasks: Callable[[], _T]) -> list[_T]:
    """The tasks' results, in order. How many compilers run at once, the slots decide."""
    with ThreadPoolExecutor(max_workers=len(tasks)) as pool:
        futures = [pool.submit(task) for task in tasks]
        return [future.result() for future in futures]


class Background:
    """Inside ``with`` its thread's compilers run at the lowest priority, apart from the terminal's
    signals, and another thread may :meth:`stop` them. It may be entered again.

    ``busy`` is held meanwhile, but not while a compiler runs: a process that is forked then does
    not miss a thread that was at work in Python, with modules half imported and locks held.
    """

    def __init__(self) -> None:
        self.busy = threading.Lock()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._stopped = False

    def __enter__(self) -> Self:
        self.busy.acquire()
        _of_thread.background = self
        return self

    def __exit__(self, *_: object) -> None:
        _of_thread.background = None
        self.busy.release()

    def stop(self) -> None:
        """Ends the compiler that runs, with the programs that it has started."""
        with self._lock:
            self._stopped = True
            if self._process is not None and self._process.poll() is None:
                with contextlib.suppress(OSError):
                    os.killpg(self._process.pid, signal.SIGKILL)

    def run(
        self, command: tuple[str, ...], environment: dict[str, str]
    ) -> subprocess.CompletedProcess[str]:
        polite = shutil.which("nice")
        command = (polite, "-n", "19", *command) if polite else command
        with self._lock:
            if self._stopped:
                raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))
            process = self._process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
                start_new_session=True,
            )
        self.busy.release()
        try:
            with process:
                output, errors = process.communicate()
        finally:
            self.busy.acquire()
        return subprocess.CompletedProcess(command, process.returncode, output, errors)


_of_thread = threading.local()  # background: the thread's Background, while it is inside one


def compile_files(command: tuple[str, ...], what: str) -> None:
    """Runs a compiler or linker, once there are few enough at work; one in the background beside
    them."""
    if getattr(_of_thread, "background", None) is not None:
        run(command, what)
        return
    with _compiler_slots(config.jobs()):
        run(command, what)


def run(command: tuple[str, ...], what: str) -> subprocess.CompletedProcess[str]:
    start = time.perf_counter()
    # Messages in English, whatever the locale, so that the excerpt below finds the errors.
    environment = {**os.environ, "LC_ALL": "C"}
    if config.sanitizer() is not None:
        environment.pop("LD_PRELOAD", None)  # the sanitizer is this process's, not the compiler's
    try:
        background: Background | None = getattr(_of_thread, "background", None)
        if background is not None:
            done = background.run(command, environment)
        else:
            done = subprocess.run(
                command, capture_output=True, text=True, env=environment, check=False
            )
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
