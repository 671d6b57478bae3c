"""Text in, loaded module out, with the cache on disk in between.

The index of the cache leads from a program's text to what was compiled from it, so that a program
that was compiled before is loaded without being parsed again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loma import cache, config
from loma.functions import LomaModule


@dataclass(frozen=True, slots=True)
class Program:
    """What is compiled: a text, and the functions whose derivatives were asked for one after the
    other, each a function of what the one before gave."""

    source: str
    path: str
    name: str
    derived: tuple[str, ...] = ()

    def key(self) -> str:
        """The entry of the cache's index."""
        from loma.backends import toolchain

        compiler = (cache.package_fingerprint(), toolchain.detect().digest)
        return cache.digest([*compiler, self.name, self.source, *self.derived])


_lock = threading.Lock()
_locks: dict[str, threading.Lock] = {}
_loaded: dict[str, LomaModule] = {}  # by key of the index
_objects: dict[str, LomaModule] = {}  # by name of the operators' namespace


def compile(program: str | Path) -> LomaModule:
    """Compiles a ``.loma`` file, or a program given as text, and loads it.

    A string that is one line and ends in ``.loma`` is a file's name. The same program gives the
    same module object. Raises :class:`loma.errors.UserError` for a wrong program,
    ``FileNotFoundError``, and :class:`loma.errors.ToolchainError` when C++ cannot be compiled.
    """
    return load(_read(program))


def compile_many(
    programs: Sequence[str | Path], done: Callable[[str | Path], None] | None = None
) -> list[LomaModule]:
    """Compiles several programs, as many at once as there are CPUs; ``done`` hears of each."""

    def one(program: str | Path) -> LomaModule:
        module = compile(program)
        if done is not None:
            done(program)
        return module

    # The longest first, so that none runs on alone at the end. One thread more than compilers may
    # run: one that generates code keeps none waiting.
    order = sorted(range(len(programs)), key=lambda k: -len(_read(programs[k]).source))
    with ThreadPoolExecutor(max_workers=config.jobs() + 1) as pool:
        modules = dict(zip(order, pool.map(lambda k: one(programs[k]), order), strict=True))
    return [modules[k] for k in range(len(programs))]


def load(program: Program) -> LomaModule:
    """The module of a program: loaded already, from the cache, or compiled now."""
    key = program.key()
    with _lock:
        lock = _locks.setdefault(key, threading.Lock())
    with lock:
        if key not in _loaded:
            _loaded[key] = _obtain(program, key)
        return _loaded[key]


def _read(program: str | Path) -> Program:
    if isinstance(program, str) and ("\n" in program or not program.strip().endswith(".loma")):
        return Program(program, "<text>", "module")
    path = Path(program)
    return Program(path.read_text(encoding="utf-8"), str(path), path.stem)


def _obtain(program: Program, key: str) -> LomaModule:
    from loma.backends import toolchain

    kept = cache.read_index(key)
    if kept is None or not toolchain.is_built(kept["object"]):
        kept = _build(program)
        cache.write_index(key, kept)
    with _lock:
        # Two texts can give the same operators, which can be registered only once.
        if kept["namespace"] not in _objects:
            folder = cache.folder(kept["object"])
            native = toolchain.load(folder, kept["namespace"])
            module = LomaModule(program.source, program.path, kept["metadata"], native, folder)
            native.set_derivative_hook(_derivative_hook(program, kept["metadata"]["operators"]))
            _objects[kept["namespace"]] = module
        return _objects[kept["namespace"]]


def _build(program: Program) -> dict[str, Any]:
    from loma import pipeline
    from loma.backends import toolchain

    stage = pipeline.program(program.source, program.path, program.name)
    for function in program.derived:
        stage = pipeline.derived(stage, function)
    source = pipeline.generated(stage)
    folder = toolchain.build(source)
    return {"object": folder.name, "namespace": source.name, "metadata": source.metadata}


def _derivative_hook(program: Program, functions: dict[str, str]) -> Callable[[str], str]:
    """What the runtime calls when it needs the derivative of a function that has none compiled.

    ``functions``: names by operator. The hook returns the namespace of the operators that have it.
    """

    def hook(operator: str) -> str:
        return load(replace(program, derived=(*program.derived, functions[operator]))).__name__

    return hook
