"""NVRTC, the compiler of CUDA as a library, by ctypes: it needs no CUDA toolkit and no compiler.

It comes with PyTorch's builds for CUDA, or by itself (``pip install nvidia-cuda-nvrtc``). What it
makes is kept in the cache, by everything that it depends on.
"""

from __future__ import annotations

import ctypes
import functools
import glob
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from loma import cache, config
from loma.backends.cuda import texts
from loma.errors import CompilationFailed, ToolchainError

_IMAGE_FILE = "kernel.cubin"
_MAJORS = (13, 12)  # the versions of CUDA that are looked for by name
_LINES = 40  # of a log, in a message
# A text says which products and sums are rounded as one: all forms of a kernel have one result.
_GROUPS = "-DLOMA_GROUPS="  # matrix units of Hopper GPUs are used as no other GPU has them
_ALWAYS = ("-default-device", "--std=c++17", "--fmad=false")


def image(name: str, text: str, options: Sequence[str], architecture: str) -> bytes:
    """A kernel's cubin. ToolchainError without NVRTC, CompilationFailed when it refuses the
    text."""
    library = find()
    target = library.target(architecture)
    if any(option.startswith(_GROUPS) for option in options):
        target += "a"  # instructions that later GPUs lack
    told = (*_ALWAYS, f"--gpu-architecture={target}", *options)
    headers = texts.headers()
    if texts.INCLUDE not in text:
        text = texts.INCLUDE + text
    named = [part for item in headers.items() for part in item]
    key = cache.digest(["nvrtc", *map(str, library.version), name, text, *told, "", *named])

    def compile_into(folder: Path) -> None:
        (folder / _IMAGE_FILE).write_bytes(library.compile(name, text, told, headers))

    return (cache.obtain(key, compile_into) / _IMAGE_FILE).read_bytes()


@dataclass(frozen=True, slots=True)
class Library:
    """NVRTC, loaded. ``architectures`` are those that it knows: 90 for sm_90."""

    functions: ctypes.CDLL
    path: str
    version: tuple[int, int]
    architectures: tuple[int, ...]

    def target(self, architecture: str) -> str:
        """``sm_90``, or, for a GPU that is newer than the library, what the driver compiles for it:
        ``compute_90``."""
        number = int(architecture.removeprefix("sm_"))
        if number in self.architectures or not self.architectures:
            return architecture
        older = [known for known in self.architectures if known < number]
        if not older:
            raise ToolchainError(
                f"NVRTC {self.version[0]}.{self.version[1]} ({self.path}) compiles for no GPU as "
                f"old as {architecture}; it begins with sm_{min(self.architectures)}"
            )
        return f"compute_{max(older)}"

    def compile(
        self, name: str, text: str, options: Sequence[str], headers: Mapping[str, str]
    ) -> bytes:
        """What the driver loads: a cubin, or text in PTX for an architecture ``compute_``."""
        start = time.perf_counter()
        program = ctypes.c_void_p()
        self._check(
            self.functions.nvrtcCreateProgram(
                ctypes.byref(program), text.encode(), f"{name}.cu".encode(), len(headers),
                _strings(headers.values()), _strings(headers),
            ),
            name,
        )  # fmt: skip
        try:
            code = self.functions.nvrtcCompileProgram(program, len(options), _strings(options))
            if code != 0:
                raise CompilationFailed(self._failure(program, name, options, code))
            kind = "PTX" if any("=compute_" in option for option in options) else "CUBIN"
            return self._read(program, kind, name)
        finally:
            self.functions.nvrtcDestroyProgram(ctypes.byref(program))
            if config.verbose():
                seconds = time.perf_counter() - start
                print(f"loma: NVRTC {name} {' '.join(options)}: {seconds:.2f} s", file=sys.stderr)

    def _read(self, program: ctypes.c_void_p, what: str, name: str) -> bytes:
        size = ctypes.c_size_t()
        of_size = getattr(self.functions, f"nvrtcGet{what}Size")
        self._check(of_size(program, ctypes.byref(size)), name)
        made = ctypes.create_string_buffer(size.value)
        self._check(getattr(self.functions, f"nvrtcGet{what}")(program, made), name)
        return made.raw

    def _failure(
        self, program: ctypes.c_void_p, name: str, options: Sequence[str], code: int
    ) -> str:
        log = self._read(program, "ProgramLog", name).rstrip(b"\0").decode(errors="replace")
        excerpt = "\n".join(f"  {line}" for line in log.splitlines()[:_LINES])
        return (
            f"compiling the CUDA kernel '{name}' failed: {self._text(code)}. "
            f"NVRTC {self.version[0]}.{self.version[1]} ({self.path}) says:\n{excerpt}\n"
            f"Its options were:\n  {' '.join(options)}"
        )

    def _check(self, code: int, name: str) -> None:
        if code != 0:
            raise CompilationFailed(
                f"compiling the CUDA kernel '{name}' failed: {self._text(code)} ({self.path})"
            )

    def _text(self, code: int) -> str:
        said: bytes = self.functions.nvrtcGetErrorString(code)
        return said.decode(errors="replace")


def find() -> Library:
    """The library that comes with torch, or one that the loader finds. ToolchainError without."""
    return _loaded(tuple(_candidates()))


@functools.cache
def _loaded(paths: tuple[str, ...]) -> Library:
    refused = []
    for path in paths:
        try:
            functions = ctypes.CDLL(path)
        except OSError as error:
            refused.append(str(error))
            continue
        functions.nvrtcGetErrorString.restype = ctypes.c_char_p
        version = _version(functions)
        return Library(functions, path, version, _architectures(functions))
    why = next((f" ({reason})" for reason in refused if "cannot open" not in reason), "")
    raise ToolchainError(
        f"loma compiles kernels for GPUs with NVRTC, which was not found{why}. PyTorch's builds "
        "for CUDA bring it; for others, `pip install nvidia-cuda-nvrtc` (for CUDA 12 "
        "nvidia-cuda-nvrtc-cu12) installs it."
    )


def _candidates() -> Iterator[str]:
    """Paths and names, torch's own first: it fits the driver that torch runs with."""
    torch = sys.modules.get("torch")
    roots = [Path(entry) for entry in sys.path if entry]
    if torch is not None and torch.__file__:
        home = Path(torch.__file__).resolve().parent
        roots = [home.parent, *roots]
        yield from sorted(glob.glob(str(home / "lib" / "libnvrtc.so.*")))
    own = _cuda_of_torch()
    found = [
        path
        for root in dict.fromkeys(roots)
        for path in sorted(glob.glob(str(root / "nvidia" / "*" / "lib" / "libnvrtc.so.*")))
    ]
    yield from sorted(found, key=lambda path: path.rsplit(".", 1)[-1] != str(own))
    names = [f"libnvrtc.so.{major}" for major in sorted(_MAJORS, key=lambda major: major != own)]
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if home_of := os.environ.get(variable):
            yield from (str(Path(home_of, "lib64", name)) for name in names)
    yield from names
    yield from (str(Path("/usr/local/cuda/lib64", name)) for name in names)


def _cuda_of_torch() -> int | None:
    """The major version of CUDA that torch was built for."""
    version = getattr(getattr(sys.modules.get("torch"), "version", None), "cuda", None)
    return int(version.split(".")[0]) if version else None


def _version(functions: ctypes.CDLL) -> tuple[int, int]:
    major, minor = ctypes.c_int(), ctypes.c_int()
    functions.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


def _architectures(functions: ctypes.CDLL) -> tuple[int, ...]:
    count = ctypes.c_int()
    if functions.nvrtcGetNumSupportedArchs(ctypes.byref(count)) != 0:
        return ()
    found = (ctypes.c_int * count.value)()
    return () if functions.nvrtcGetSupportedArchs(found) != 0 else tuple(found)


def _strings(given: Iterable[str]) -> ctypes.Array[ctypes.c_char_p]:
    encoded = [text.encode() for text in given]
    return (ctypes.c_char_p * len(encoded))(*encoded)
