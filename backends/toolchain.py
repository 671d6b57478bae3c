"""From generated C++ to files that can be loaded: hash, compile once, keep.

Whatever is compiled lands in a folder named by the hash of everything it depends on: the source,
the runtime's files, the flags, and the versions of torch, compiler and processor (:mod:`loma.cache`
makes it appear at once and lets a second process wait for the first). The runtime is compiled once
into object files that every module links; its headers, torch's and pybind11's are precompiled.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from loma import cache, config
from loma.backends import compilers, pool
from loma.backends.cfamily.source import GeneratedSource
from loma.backends.compilers import MODULE_FILE
from loma.backends.schedule.target import CPU
from loma.backends.torch.files import RUNTIME_FOLDERS, quoted, runtime_file, runtime_files
from loma.backends.torch.libraries import called
from loma.backends.torch.parts import Parts, Real
from loma.errors import ToolchainError

OBJECT_FILE = "kernels.o"
_PART = "-DLOMA_PART"  # kernels without the tables of a module
KERNELS_FILE = "kernels.so"
# Memory that is kept between calls is one for all modules of a process, so it is a library of its
# own, which the loader finds by this name in whichever module brought it first.
MEMORY_LIBRARY = "libloma_memory.so"
# The runtime's objects: each is one translation unit of these files, so that torch's headers, which
# take longest, are read once. What computes is optimised; compiling the rest so would only take
# time. Programs without Python have "core" instead of "python".
_CORE = (
    "arguments caller dispatch made autograd tangents batching autocast memory specialise each once"
    " kernels light_tensors checks call_device gpu_geometry gpu_driver gpu_kernels gpu_launch"
    " gpu_reports gpu_scan gpu_groups"
)
_PARTS = {
    "core": _CORE,
    "product": "product light_product",
    "convolution": "convolution convolution_statements convolution_gemm convolution_fft"
    " convolution_direct light_convolution cache_roots tuning",
    "launch": "launch",
    "pool": "heap pool",
    "python": f"{_CORE} python tuning_python specialise_python gpu_python",
}
# What LOMA_SANITIZE adds. UBSan leaves out what AddressSanitizer finds itself (null, object-size,
# pointer-overflow) and what needs types that libraries hide (vptr). What is found is told, and the
# program goes on. Files compile in a third of the time with -O1, with calls instead of inline
# checks, and without more of debugging information than lines.
_SANITIZERS = {
    "address": (
        "-fsanitize=address,undefined,float-cast-overflow",
        "-fno-sanitize=vptr,null,object-size,pointer-overflow", "-fsanitize-recover=all",
        "--param", "asan-instrumentation-with-call-threshold=0",
        "-DLOMA_SANITIZE_ADDRESS",
    ),
    "thread": ("-fsanitize=thread", "-DLOMA_SANITIZE_THREAD"),
}  # fmt: skip
# What headers have of the machine (:mod:`loma.backends.schedule.target`), as macros: LOMA_TILE.
_IN_HEADERS = (
    "vector_bytes", "tile", "accumulators", "grain", "block_bytes", "block_most",
)  # fmt: skip
_KNOWN_TORCH = (2, 13)  # whose headers have been compiled as C++17
_SANITIZED = ("-O1", "-g1", "-fno-omit-frame-pointer")


@dataclass(frozen=True, slots=True)
class Toolchain:
    """The compiler and what it has to be told. ``digest`` also has what no flag shows.

    ``sanitized``: with LOMA_SANITIZE; ``runtime`` is the toolchain for the runtime where that is
    another one: without the sanitizer, or without a level of optimisation that LOMA_CXXFLAGS asks
    for, as the runtime's files have levels of their own.
    """

    compiler: tuple[str, ...]
    flags: tuple[str, ...]
    python_flags: tuple[str, ...]
    link_flags: tuple[str, ...]
    torch_flags: tuple[str, ...]  # how torch's libraries are linked
    digest: str
    sanitized: bool = False
    runtime: Toolchain | None = None

    def compile(self, arguments: Iterable[str], made: Path) -> Path:
        """Runs the compiler; returns the file that it has made."""
        flags = (*self.flags, *arguments)
        compilers.compile_files(self.compiler, flags, made, "compiling generated C++")
        return made

    def link(self, objects: Iterable[Path], flags: Iterable[str], made: Path) -> None:
        arguments = (*map(str, objects), *flags)
        compilers.compile_files(self.compiler, arguments, made, "linking generated C++")


# ------------------------------------------------------------------------------------ detection


def detect() -> Toolchain:
    """The toolchain that the environment asks for. CompilerNotFound when there is no compiler."""
    compiler = compilers.find_compiler(config.CXX)
    return _detect(compiler, config.CXX.extra_flags(), config.sanitizer())


@functools.cache
def _detect(
    compiler: tuple[str, ...], extra_flags: tuple[str, ...], sanitizer: config.Sanitizer | None
) -> Toolchain:
    import torch

    root = Path(torch.__file__).resolve().parent
    library = root / "lib"
    sanitizing = (*_SANITIZED, *_SANITIZERS[sanitizer.kind]) if sanitizer else ()
    versions = compilers.versions(compiler)
    levels = [flag for flag in extra_flags if re.fullmatch(r"-O\w*", flag)]
    # who wants less of the compiler gets no optimisation of what runs around loops: host_begin.h
    quick = ("-DLOMA_QUICK",) if levels and levels[-1] in ("-O", "-O0", "-O1", "-Og") else ()
    flags = (
        f"-std={_standard(torch.__version__)}", "-O3", *compilers.native_flags(),
        "-fPIC", compilers.openmp_flag(versions[0]), "-fvisibility=hidden",
        "-fno-math-errno", "-fno-trapping-math",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        "-U__F16C__",  # torch's headers need all of the processor's intrinsics for it
        "-isystem", str(root / "include"),
        "-isystem", str(root / "include" / "torch" / "csrc" / "api" / "include"),
        *(f"-DLOMA_{name.upper()}={getattr(CPU, name)}" for name in _IN_HEADERS),
        *_of_gcc(versions[0]), *sanitizing, *quick, *extra_flags,
    )  # fmt: skip
    link_flags = (
        *(flag for flag in sanitizing if flag.startswith("-fsanitize")),
        *_cxx_library(), f"-Wl,-rpath,{library}", *compilers.openmp_flags(),
    )  # fmt: skip
    torch_flags = (f"-L{library}", "-Wl,--as-needed", "-ltorch_cpu", "-lc10", "-ldl")
    python_flags = compilers.python_flags()
    identity = (torch.__version__, *versions)
    told = (*compiler, "", *flags, "", *python_flags, "", *link_flags, *torch_flags, "", *identity)
    unleveled = tuple(flag for flag in extra_flags if flag not in levels)
    kept = None if sanitizer and not sanitizer.runtime else sanitizer
    same = (unleveled, kept) == (extra_flags, sanitizer)
    return Toolchain(
        compiler, flags, python_flags, link_flags, torch_flags, cache.digest(told),
        sanitizer is not None, None if same else _detect(compiler, unleveled, kept),
    )  # fmt: skip


def _standard(torch: str) -> str:
    """That of files which may include torch. What they include of versions that are known takes
    C++17 where torch itself is C++20, and the C++ library has a third more to read in that."""
    return "c++17" if tuple(map(int, torch.split(".")[:2])) <= _KNOWN_TORCH else "c++20"


def _of_gcc(version: str) -> tuple[str, ...]:
    """What GCC alone is told. It looks for garbage in what torch's headers leave, and finds little:
    a tenth of its time, which a tenth more memory (1.4 GiB) saves. Where one condition decides
    several values of an element it makes a path for each outcome, which vectors cannot take: such
    loops are up to 20 times as slow."""
    if "Free Software Foundation" not in version:
        return ()
    return ("--param=ggc-min-heapsize=1572864", "-fno-thread-jumps")


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


def module_key(source: GeneratedSource, toolchain: Toolchain, flags: Iterable[str] = ()) -> str:
    """The folder of a module's compiled files in the cache."""
    text = [part for file in source.files for part in file]
    told = (*source.flags, *flags)
    return cache.digest([toolchain.digest, _runtime_digest(), source.name, *text, *told])


def prepare() -> None:
    """Compiles of the runtime what takes longest, once on a machine."""
    toolchain = detect()
    _announce(toolchain)
    _runtime_object(toolchain, "python")


@functools.cache
def _announce(toolchain: Toolchain) -> None:
    """Tells a person once why it takes so long."""
    if cache.find(_runtime_key(toolchain, "python")) is None:
        compilers.notice("compiling its runtime, once on this machine: about half a minute")


def build(source: GeneratedSource, parts: Parts, real: Real) -> Path:
    """The folder with the compiled module and its C++ files; compiled unless it is there already.

    It has the kernels of the first parts, in that type; :func:`build_part` makes further ones.
    CompilerNotFound without a compiler, CompilationFailed when it refuses the code.
    """
    toolchain = detect()
    # with sanitizers everything is compiled at once: each file takes long, and tests call it all
    numbers = None if toolchain.sanitized else parts.first
    flags = _part_flags(numbers, real)

    def compile_into(folder: Path) -> None:
        _announce(toolchain)
        text = _written(source, folder)
        compilations = _compilations(toolchain, text, folder, parts, numbers, real, source.flags)
        # Of the runtime, where it is not compiled yet, what takes longest begins first.
        objects = compilers.in_parallel(
            *_runtime_objects(toolchain, "python", *called(source.files[0][1])[::-1], "launch"),
            lambda: Path(shutil.copy(_memory_library(toolchain), folder)),
            *compilations,
        )
        first = len(objects) - len(compilations)
        made = objects[first:]
        # The binding was compiled without knowing the module: these are its two loose ends.
        name = source.name
        ends = (f"loma_this_module={name}__module", f"PyInit_{name}=PyInit_loma_module")
        ends_and_libraries = (
            "-shared",
            *(f"-Wl,--defsym={end}" for end in ends),
            f"-Wl,-soname,{name}.so",  # by which its specialisations find it
            "-Wl,-rpath,$ORIGIN",
            *toolchain.link_flags,
            *_names_of_torch(toolchain, "torch_cpu", "c10", "torch_python"),
        )
        toolchain.link(
            (*made, *objects[: -len(compilations)]), ends_and_libraries, folder / MODULE_FILE
        )
        for path in made:
            path.unlink()

    return cache.obtain(module_key(source, toolchain, flags), compile_into)


def _part_flags(numbers: Sequence[int] | None, real: Real) -> tuple[str, ...]:
    """What makes a module's file one with the kernels of those functions only; see the template."""
    if numbers is None:
        return ()
    return (f"-DLOMA_ONLY={real}", "-DLOMA_SOME", *(f"-DLOMA_FUNCTION_{k}" for k in numbers))


def _compilations(
    toolchain: Toolchain,
    source: Path,
    folder: Path,
    parts: Parts,
    numbers: Sequence[int] | None,
    real: Real,
    flags: Sequence[str],
    later: bool = False,
) -> list[Callable[[], Path]]:
    """What compiles the functions of those numbers in the file, or all, each to an object. The
    first has the module's tables, too, unless functions come ``later``."""
    own: list[tuple[str, ...]] = [()]
    if numbers is not None:
        shares = parts.shares(numbers, config.jobs())
        own = [
            (*((_PART,) if later or k > 0 else ()), *_part_flags(share, real))
            for k, share in enumerate(shares)
        ]
    return [
        functools.partial(
            _compile_file, toolchain, source, folder / f"part{k}.o", parts.prelude, (*flags, *each)
        )
        for k, each in enumerate(own)
    ]


def find_part(module: Path, parts: Parts, numbers: Sequence[int], real: Real) -> Path | None:
    """What :func:`build_part` has made, if it is in the cache."""
    return cache.find(_part_key(module, _kernel_flags(parts, numbers, real)))


def build_part(module: Path, parts: Parts, numbers: Sequence[int], real: Real) -> Path:
    """The folder with kernels that a module lacks, as a library: those of these functions in that
    type. ``module`` is the module's folder; CacheError where that is damaged."""
    toolchain = detect()
    flags = _kernel_flags(parts, numbers, real)

    def compile_into(folder: Path) -> None:
        cache.check(module)
        source = next(module.glob("*.cpp"))
        made = compilers.in_parallel(
            *_compilations(toolchain, source, folder, parts, numbers, real, parts.flags, later=True)
        )
        _link_to_module(toolchain, made, module, folder)
        for path in made:
            path.unlink()

    return cache.obtain(_part_key(module, flags), compile_into)


def _kernel_flags(parts: Parts, numbers: Sequence[int], real: Real) -> tuple[str, ...]:
    return (*parts.flags, _PART, *_part_flags(numbers, real))


def _part_key(module: Path, flags: tuple[str, ...]) -> str:
    return cache.digest([module.name, *flags])


def _link_to_module(toolchain: Toolchain, made: Sequence[Path], module: Path, folder: Path) -> None:
    """A library whose kernels join those of a module, and use its runtime. What else they need the
    loader finds in the libraries that the module needs; a linker that is shown those, too, takes
    four times as long. But without C's own it would not know which version of a function is meant.
    """
    c = toolchain.link_flags if toolchain.sanitized else ("-nodefaultlibs", "-lm", "-lgcc", "-lc")
    flags = ("-shared", *c, f"-Wl,-rpath-link,{module}")
    toolchain.link((*made, module / MODULE_FILE), flags, folder / KERNELS_FILE)


def build_specialisation(source: GeneratedSource, module: Path, toolchain: Toolchain) -> Path:
    """The folder with a kernel for known sizes, as a library and as an object to be linked.

    ``module`` is the folder of the module that it belongs to; loading the library needs that
    module in the process, whose runtime it uses. CacheError where that folder is damaged.
    """

    def compile_into(folder: Path) -> None:
        cache.check(module)
        prelude = source.metadata["prelude"]
        text = _written(source, folder)
        made = _compile_file(toolchain, text, folder / OBJECT_FILE, prelude, source.flags)
        lacking = set(called(source.files[0][1]))
        if lacking:
            lacking -= set(called(next(module.glob("*.cpp")).read_text("utf-8")))
        objects = [made, *(_runtime_object(toolchain, part) for part in sorted(lacking))]
        _link_to_module(toolchain, objects, module, folder)

    return cache.obtain(module_key(source, toolchain), compile_into)


def load_kernels(folder: Path) -> ctypes.CDLL:
    """Loads kernels, which register themselves; they must never be unloaded."""
    return ctypes.CDLL(str(folder / KERNELS_FILE))


def build_executable(sources: Sequence[Path], output: Path, real: Real | None = None) -> Path:
    """Compiles C++ files, generated ones among them, to a program that needs no Python.

    ``real``: the one floating type that the program calls generated functions with, so that there
    are kernels for no other.
    A kernel for known sizes (:func:`build_specialisation`) that is among them takes part in calls
    with those sizes.
    Headers are looked for in the folders of all the sources. Returns ``output``. CacheError where
    a folder of the cache that is among them is damaged.
    """
    toolchain = detect()
    for source in sources:
        if cache.is_object(source.parent):
            cache.check(source.parent)
    texts = [path.read_bytes() for path in sources]
    folders = sorted({path.resolve().parent for path in sources})
    headers = [path.read_bytes() for folder in folders for path in sorted(folder.glob("*.h"))]
    key = cache.digest([toolchain.digest, _runtime_digest(), f"program {real}", *texts, *headers])

    def compile_into(folder: Path) -> None:
        def object_of(number: int, source: Path) -> Path:
            known = source.parent / OBJECT_FILE
            if cache.is_object(source.parent) and known.is_file():  # compiled with the module
                return known
            made = folder / f"{number}.o"
            only = () if real is None else (f"-DLOMA_ONLY={real}",)
            return _compile_file(toolchain, source, made, "prelude.h", (*only, *quoted(folders)))

        tasks = [functools.partial(object_of, *item) for item in enumerate(sources)]
        runtime = _runtime_objects(toolchain, "core", "product", "convolution", "launch", "pool")
        objects = compilers.in_parallel(*tasks, *runtime)
        flags = (*toolchain.link_flags, *toolchain.torch_flags)
        toolchain.link(objects, flags, folder / "program")
        for made in folder.glob("*.o"):
            made.unlink()

    program = cache.obtain(key, compile_into) / "program"
    output.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(program, output)
    return output


@functools.cache
def _runtime_digest() -> str:
    files = [*runtime_files("*.h"), *runtime_files("*.cpp")]
    return cache.digest([part for path in files for part in (path.name, path.read_bytes())])


def _headers(toolchain: Toolchain, prelude: str) -> Path:
    """A folder with the runtime's headers, of which the prelude is precompiled. With sanitizers few
    files are compiled, so that nothing is gained by the latter."""

    def compile_into(folder: Path) -> None:
        for path in runtime_files("*.h"):
            shutil.copy(path, folder)
        if not toolchain.sanitized:
            header = ("-x", "c++-header", str(folder / prelude))
            toolchain.compile(header, folder / f"{prelude}.gch")

    key = cache.digest([toolchain.digest, _runtime_digest(), f"headers {prelude}"])
    return cache.obtain(key, compile_into)


def _names_of_torch(toolchain: Toolchain, *libraries: str) -> tuple[str, ...]:
    """What links a library to torch's by name, for the loader: a linker that is shown these takes
    most of its time to read their symbols, and checks none of them."""
    toolchain = toolchain.runtime or toolchain

    def compile_into(folder: Path) -> None:
        for name in ("torch_cpu", "c10", "torch_python"):
            empty = ("-shared", "-nostdlib", "-x", "c++", os.devnull, f"-Wl,-soname,lib{name}.so")
            toolchain.link((), empty, folder / f"lib{name}.so")

    folder = cache.obtain(cache.digest([toolchain.digest, "names of torch"]), compile_into)
    return (f"-L{folder}", "-Wl,--no-as-needed", *(f"-l{name}" for name in libraries))


def _runtime_objects(toolchain: Toolchain, *parts: str) -> list[Callable[[], Path]]:
    return [functools.partial(_runtime_object, toolchain, part) for part in parts]


def _runtime_object(toolchain: Toolchain, part: str) -> Path:
    """The runtime, compiled: "core" without Python, "python" the same with the binding, "pool"
    without torch, "product" and "convolution" for modules that call them; "launch", which runs
    generated loops, with the sanitizers they have. With their macro torch's headers do not include
    all of its operators, a quarter of the time."""
    toolchain = _for_runtime(toolchain, part)

    def compile_into(folder: Path) -> None:
        unit = folder / f"{part}.cpp"
        files = (runtime_file(f"{name}.cpp") for name in _PARTS[part].split())
        unit.write_text("".join(f'#include "{path}"\n' for path in files), "utf-8")
        flags = toolchain.python_flags if part == "python" else ()
        level = "-O3" if part == "convolution" and not toolchain.sanitized else "-O1"
        told = ("-DAT_PER_OPERATOR_HEADERS", *quoted(RUNTIME_FOLDERS), level, "-c", str(unit))
        toolchain.compile((*flags, *told), folder / f"{part}.o")

    return cache.obtain(_runtime_key(toolchain, part), compile_into) / f"{part}.o"


def _for_runtime(toolchain: Toolchain, part: str) -> Toolchain:
    other = toolchain.runtime
    if other and (part != "launch" or other.sanitized == toolchain.sanitized):
        return other
    return toolchain


def _runtime_key(toolchain: Toolchain, part: str) -> str:
    digest = _for_runtime(toolchain, part).digest
    return cache.digest([digest, _runtime_digest(), f"runtime {part}"])


def memory_library() -> Path:
    """The library of the pool, compiled unless it is there already."""
    _check_process()
    return _memory_library(detect())


def _memory_library(toolchain: Toolchain) -> Path:
    toolchain = toolchain.runtime or toolchain

    def compile_into(folder: Path) -> None:
        flags = toolchain.link_flags if toolchain.sanitized else _cxx_library()
        flags = ("-shared", f"-Wl,-soname,{MEMORY_LIBRARY}", *flags)
        toolchain.link([_runtime_object(toolchain, "pool")], flags, folder / MEMORY_LIBRARY)

    key = cache.digest([toolchain.digest, _runtime_digest(), "memory library"])
    return cache.obtain(key, compile_into) / MEMORY_LIBRARY


def _written(source: GeneratedSource, folder: Path) -> Path:
    """Writes the files into the folder; the one that is compiled."""
    for name, text in source.files:
        (folder / name).write_text(text, encoding="utf-8")
    return folder / source.files[0][0]


def _compile_file(
    toolchain: Toolchain, source: Path, made: Path, prelude: str, flags: Iterable[str]
) -> Path:
    """``prelude``: the header that the file begins with."""
    # Programs' headers come first: one may be named as one of the runtime's, which find each other
    # by lying side by side. Nor may they hide the system's own, in angle brackets.
    headers = quoted([_headers(toolchain, prelude)])
    return toolchain.compile((*flags, *headers, "-c", str(source)), made)


# -------------------------------------------------------------------------------------- loading


def load(folder: Path, name: str) -> ModuleType:
    """Loads the compiled module of that folder. Registers its operators, so once per process."""
    import torch  # noqa: F401  (the libraries that the module is linked to)

    _check_process()
    pool.load(folder / MEMORY_LIBRARY)
    return compilers.load_extension(folder / MODULE_FILE, name)


def _check_process() -> None:
    """ToolchainError where code with sanitizers would end this process, which started without."""
    sanitizer = config.sanitizer()
    if sanitizer and not hasattr(ctypes.CDLL(None), f"__{sanitizer.kind[0]}san_init"):
        raise ToolchainError(
            f"LOMA_SANITIZE={os.environ['LOMA_SANITIZE']} needs a process that started with "
            f"lib{sanitizer.kind[0]}san.so in LD_PRELOAD; tests/support/sanitized.py starts one"
        )
