"""The teaching compiler's way to compile: C functions, called through ctypes.

>>> from loma.compat import compile
>>> structs, lib = compile("def square(x : In[float]) -> float:\\n    return x * x\\n")
>>> lib.square(3.0)
9.0

A function has exactly the C types of its loma types: ``int`` and ``float`` by value, an array as a
pointer, an ``Out`` number or struct as a pointer, a struct as a C struct with the same members. An
``Array[T]`` of any length carries no length here, so its subscripts are not checked.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from loma import cache, foreign
from loma.backends.compilers import LIBRARY_FILE
from loma.core.differentials import with_differentials
from loma.core.ir import FLOAT, Module, StructType
from loma.errors import UserError, suggest
from loma.foreign import Structs
from loma.reports import public

# What the teaching compiler has other compilers for is C with OpenMP here.
TARGETS = ("c", "ispc")
_STATE = " state"  # no program has a function of this name


class Library(ctypes.CDLL):
    """The functions of a program, by their loma names, with argument and result types set.

    A call raises what :mod:`loma.runtime_errors` lists: RuntimeError for a loop that passes its
    ``max_iter``, IndexError, ZeroDivisionError. Several results are a tuple. A function hides what
    else has its name here.
    """

    def __init__(self, path: Path, functions: list[Mapping[str, Any]], structs: Structs) -> None:
        super().__init__(str(path))
        library = ctypes.CDLL(str(path))
        make = partial(foreign.function, library, structs=structs)
        makers = {record["name"]: partial(make, record) for record in functions}
        self.__dict__[_STATE] = makers, {name: make() for name, make in makers.items()}

    def __getattribute__(self, name: str) -> Any:
        _, made = _functions(self)
        return made[name] if name in made else super().__getattribute__(name)

    def __getattr__(self, name: str) -> Any:
        makers, _ = _functions(self)
        hint = suggest(name, makers) or f"it has {', '.join(makers) or 'none'}"
        raise AttributeError(f"the program has no function '{name}': {hint}")

    def __getitem__(self, name: Any) -> Any:
        makers, _ = _functions(self)
        return makers[name]()

    def __repr__(self) -> str:
        makers, _ = _functions(self)
        return f"<compiled program: {', '.join(makers) or 'no functions'}>"

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_functions(self)[0]} - {_STATE})


def _functions(library: Library) -> tuple[dict[str, Callable[[], Any]], dict[str, Any]]:
    """What makes each function, and the functions that attributes give: the same objects each time.
    They are none of the library's attributes, for these may be functions of the program."""
    state: dict[str, Any] = object.__getattribute__(library, "__dict__")
    found: tuple[dict[str, Callable[[], Any]], dict[str, Any]] = state.get(_STATE, ({}, {}))
    return found


@public
def compile(
    code: str,
    target: str = "c",
    output_filename: str | os.PathLike[str] | None = None,
    print_error: bool = True,
) -> tuple[Structs, Library]:
    """Compiles a program's text to C and loads it: ctypes structures by name, and the functions.

    ``output_filename`` also keeps the shared library there, and the C file beside it; ".so" is
    added where it is missing, and folders are made. The target "ispc" gives the same as "c". A
    mistake in the program raises a :class:`loma.errors.UserError`, printed before if
    ``print_error``. ValueError for another target; :class:`loma.errors.ToolchainError` without a
    working C compiler.
    """
    if not isinstance(code, str):
        raise TypeError(f"the program must be its text, a str, got {type(code).__name__}")
    if target not in TARGETS:
        raise ValueError(
            f"no target '{target}': there is {', '.join(map(repr, TARGETS))}; all run on the CPU"
        )
    try:
        folder, record = _obtain(code)
    except UserError as error:
        if print_error:
            print(error.to_string())
        raise
    if output_filename is not None:
        _keep(folder, record, Path(output_filename))
    structs = foreign.structures(record["structs"])
    # Loaded from the cache, where no other program ever has this path: a process that loads a path
    # for the second time gets what it loaded first.
    return structs, Library(folder / LIBRARY_FILE, record["functions"], structs)


def _obtain(code: str) -> tuple[Path, dict[str, Any]]:
    """The folder of the compiled library, and what is in it; see :func:`_build`."""
    from loma.backends.c import build

    key = cache.digest([cache.package_fingerprint(), build.detect().digest, "compat", code])
    return cache.recall(key, _FIELDS, lambda: _build(code))


_FIELDS = ("source", "functions", "structs")


def _build(code: str) -> tuple[Path, dict[str, Any]]:
    from loma import pipeline
    from loma.backends.c import Options, build

    module = pipeline.adjoint(pipeline.parsed(code))
    source = pipeline.generated_c(_with_differentials(module), Options(entries=True))
    return build.build(source), {"source": source.files[0][0], **source.metadata}


def _with_differentials(module: Module) -> Module:
    """The module with ``_dfloat`` and the differential of each struct, for its host to use."""
    structs = {struct.name: struct for struct in module.structs}
    own = [StructType(name) for name in structs if f"_d{name}" not in structs and name[:2] != "_d"]
    found = with_differentials([FLOAT, *own], structs)
    return replace(module, structs=tuple(found.values()))


def _keep(folder: Path, record: Mapping[str, Any], output: Path) -> None:
    """Copies the library and its C file; a reader never sees half of one."""
    if output.suffix != ".so":
        output = output.with_name(f"{output.name}.so")
    output.parent.mkdir(parents=True, exist_ok=True)
    for name, target in (LIBRARY_FILE, output), (record["source"], output.with_suffix(".c")):
        handle, draft = tempfile.mkstemp(prefix=".loma-", dir=output.parent)
        os.close(handle)
        try:
            shutil.copyfile(folder / name, draft)
            Path(draft).chmod(0o755 if target is output else 0o644)
            os.replace(draft, target)
        except BaseException:
            Path(draft).unlink(missing_ok=True)
            raise
