"""From generated C++ to files that can be loaded: hash, compile once, keep.

Whatever is compiled lands in a folder named by the hash of everything it depends on: the source,
the runtime's files, the flags, and the versions of torch, compiler and processor (:mod:`loma.cache`
makes it appear at once and lets a second process wait for the first). The runtime is compiled once
into object files that every module links; its headers, torch's and pybind11's are precompiled.
"""

from __future__ import annotations

import functools
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from loma import cache, config
from loma.backends import compilers
from loma.backends.base import GeneratedSource
from loma.backends.compilers import MODULE_FILE

RUNTIME = Path(__file__).resolve().parent / "libtorch" / "runtime"
OBJECT_FILE = "module.o"
_CORE = ("arguments.cpp", "dispatch.cpp", "autograd.cpp")


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
    return _detect(compilers.find_compiler(config.compiler_candidates()), config.extra_flags())


@functools.cache
def _detect(compiler: str, extra_flags: tuple[str, ...]) -> Toolchain:
    import torch

    root = Path(torch.__file__).resolve().parent
    library = root / "lib"
    standard = "c++20" if "C++ Version: 2020" in torch.__config__.show() else "c++17"
    flags = (
        f"-std={standard}", "-O3", *compilers.native_flags(), "-fPIC", "-fopenmp",
        "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        "-isystem", str(root / "include"),
        "-isystem", str(root / "include" / "torch" / "csrc" / "api" / "include"),
        *extra_flags,
    )  # fmt: skip
    link_flags = (
        *_cxx_library(),
        f"-L{library}", f"-Wl,-rpath,{library}", "-Wl,--as-needed",
        "-ltorch_cpu", "-lc10", *compilers.openmp_flags(),
    )  # fmt: skip
    return Toolchain(
        compiler=compiler,
        flags=flags,
        python_flags=compilers.python_flags(),
        link_flags=link_flags,
        python_link_flags=("-ltorch_python",),
        identity=(
            torch.__version__,
            compilers.compiler_version(compiler),
            compilers.processor(),
            sys.implementation.cache_tag or "",
        ),
    )


def _cxx_library() -> tuple[str, ...]:
    """The C++ library of this process, torch's. Named first, because some compilers would link a
    copy of their own statically, and two of them in one process do not share their locales."""
    try:
        maps = Path("/proc/self/maps").read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return ()
    loaded = {line.split(maxsplit=5)[5] for line in maps if "/libstdc++.so" in line}
    return tuple(sorted(path for path in loaded if Path(path).is_file())[:1])


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
        objects = compilers.in_parallel(
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
        objects = compilers.in_parallel(*tasks, lambda: _runtime_object(toolchain, "core"))
        _link(toolchain, objects, toolchain.link_flags, folder / "program", ())
        for made in folder.glob("*.o"):
            made.unlink()

    program = cache.obtain(key, compile_into) / "program"
    output.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(program, output)
    return output


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


def _compile(toolchain: Toolchain, arguments: tuple[str, ...], made: Path) -> None:
    command = (toolchain.compiler, *toolchain.flags, *arguments, "-o", str(made))
    compilers.compile_files(command, "compiling generated C++")


def _link(
    toolchain: Toolchain,
    objects: Sequence[Path],
    flags: tuple[str, ...],
    made: Path,
    mode: tuple[str, ...],
) -> None:
    command = (toolchain.compiler, *mode, *map(str, objects), *flags, "-o", str(made))
    compilers.compile_files(command, "linking generated C++")


def load(folder: Path, name: str) -> ModuleType:
    """Loads the compiled module of that folder. Registers its operators, so once per process."""
    import torch  # noqa: F401  (the libraries that the module is linked to)

    return compilers.load_extension(folder / MODULE_FILE, name)
