"""Text in, loaded module out, with the cache on disk in between.

The index of the cache leads from a program's text to what was compiled from it, so that a program
that was compiled before is loaded without being parsed again. Tensor functions and scalar functions
are compiled apart: those of one layer cost nothing where only the other is used.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from loma import cache, config
from loma.core.saving import Save
from loma.errors import NotDifferentiable, UserWarning
from loma.functions import Functions, LomaModule
from loma.program import NotBatchable, Program, Record, default_real, read
from loma.reports import public, show_warnings
from loma.tuning.state import Tune, checked

if TYPE_CHECKING:
    import ctypes

    from loma.backends.torch.parts import Real


_lock = threading.Lock()
_locks: dict[str, threading.Lock] = {}
_loaded: dict[str, LomaModule] = {}  # by key of the index
_known: dict[str, LomaModule] = {}  # those, and what was unpickled, by content
_loaded_scalars: dict[str, Functions] = {}
_natives: dict[str, ModuleType] = {}  # by namespace of the operators


@public
def compile(
    program: str | Path,
    *,
    path: str | Path | None = None,
    save: Save = "auto",
    contract: bool = True,
    timed: bool = False,
    tune: Tune | None = None,
) -> LomaModule:
    """Compiles a ``.loma`` file, or a program given as text, and loads it.

    A string that is one line, and ends in ``.loma`` or can be no program, is a file's name.
    ``path`` says where a text would be as a file: beside it are the files that it imports. The same
    program gives the same module object. ``save`` is what a function keeps for its backward part
    under autograd: "all" that it needs, nothing but its "inputs" and results (the rest is computed
    again), or, by default, "auto": what is cheap is computed again. Without ``contract`` every
    product and every sum is rounded by itself, where the processor could round both as one: what an
    elementwise function gives then depends on nothing but the numbers. ``timed``: the tensor
    functions measure their statements, for :mod:`loma.tools.bench`. ``tune``: "auto" uses the
    kernels that were found to be fastest for the sizes of a call, if any were looked for; a number
    of seconds looks for them at the first call of each function with other sizes; "off" does
    neither, as without it (:mod:`loma.tuning`; the module keeps to what was asked last).

    Raises :class:`loma.errors.UserError` for a wrong program, ``FileNotFoundError``, and
    :class:`loma.errors.ToolchainError` when C++ cannot be compiled; warns with
    :class:`loma.errors.UserWarning` of what a program may not mean.
    """
    if tune is not None:
        tune = checked(tune)
    module = load(replace(read(program, save, path), contract=contract, timed=timed))
    if tune is not None:
        from loma import specialise

        specialise.tune(module, tune)
    show_warnings(warnings_of(module))
    return module


@public
def compile_many(
    programs: Sequence[str | Path], done: Callable[[str | Path], None] | None = None
) -> list[LomaModule]:
    """Compiles several programs, as many at once as there are CPUs; ``done`` hears of each."""
    given = [read(program) for program in programs]

    def one(k: int) -> LomaModule:
        module = load(given[k])
        if done is not None:
            done(programs[k])
        return module

    # The longest first, so that none runs on alone at the end. More threads than compilers may run,
    # for all wait for the runtime where this is not compiled yet, which begins before.
    order = sorted(range(len(given)), key=lambda k: -len(given[k].source))
    with ThreadPoolExecutor(max_workers=4 * config.jobs()) as pool:
        if any("Tensor" in program.source for program in given):
            from loma.backends import toolchain

            pool.submit(toolchain.prepare)
        modules = dict(zip(order, pool.map(one, order), strict=True))
    found = [modules[k] for k in range(len(given))]
    for module in found:
        show_warnings(warnings_of(module))
    return found


def warnings_of(module: LomaModule) -> list[UserWarning]:
    """What the compiler found that the program may not mean, also when it came from the cache."""
    records = module.__record__["warnings"]
    return [UserWarning.of(record, module.__source__, module.__file__) for record in records]


def load(program: Program) -> LomaModule:
    """The module of a program: loaded already, from the cache, or compiled now."""
    key = program.key()
    with _lock_of(program.content()):
        if key not in _loaded:
            module = _known.get(program.content())
            if module is None or "__record__" in module.__dict__:
                module = LomaModule(program, _load_unpickled)
            _fill(module, key)
        return _loaded[key]


def known(program: Program) -> LomaModule:
    """The module of a program, which may not be loaded yet, for who unpickles it."""
    with _lock:
        return _known.setdefault(program.content(), LomaModule(program, _load_unpickled))


def _load_unpickled(module: LomaModule) -> None:
    if "__record__" in module.__dict__:
        return
    key = module.__program__.key()
    with _lock_of(module.__program__.content()):
        if "__record__" in module.__dict__:  # by another thread, meanwhile
            return
        if key in _loaded:
            # What torch's default dtype makes first, or the environment says, was otherwise when it
            # was unpickled.
            module.__dict__.update(_loaded[key].__dict__)
        else:
            _fill(module, key)


def _fill(module: LomaModule, key: str) -> None:
    """Compiles the module's program, or finds it in the cache; under the lock of the program."""
    program = module.__program__
    folder, kept = cache.recall(key, _FIELDS, lambda: _build(program))
    native = None if kept["operators"] is None else _native(program, key, kept, folder)
    scalar_functions = public(partial(_scalar_functions, program, kept))
    module.__fill__(kept, native, folder, scalar_functions)
    if native is None:
        module.__dict__.update(scalar_functions(module))
    _loaded[key] = module
    with _lock:
        _known[program.content()] = module


def _lock_of(key: str) -> threading.Lock:
    with _lock:
        return _locks.setdefault(key, threading.Lock())


# Of what _build returns.
_FIELDS = (
    "name", "namespace", "operators", "parts", "functions", "structs", "tensor_structs", "texts",
)  # fmt: skip


def _build(program: Program) -> tuple[Path, Record]:
    """Compiles the tensor functions; where there are none, the scalar functions.

    The record is kept in the index: ``functions`` and ``structs`` are what Python sees; the tensor
    functions of ``operators``, None where the folder has scalar functions.
    """
    from loma import pipeline
    from loma.backends import scalar, toolchain
    from loma.backends.torch.parts import Parts

    stage = program.optimised()
    if stage.tensor_functions:
        source = pipeline.generated(stage, program.timed, program.contract, program.overload())
        operators, parts = source.metadata["operators"], source.metadata["parts"]
        folder = toolchain.build(source, Parts.of(parts), program.real)
        program.keep(stage)
        texts = pipeline.function_texts(stage, operators.values())
    else:
        source = pipeline.generated_scalars(stage)
        folder, operators, parts, texts = scalar.build(source), None, None, None
    return folder, {
        "name": stage.module.name,
        "namespace": source.name,
        "operators": operators,
        "parts": parts,
        "texts": texts,
        "functions": pipeline.function_records(stage),
        "structs": scalar.struct_records(stage.module),
        "tensor_structs": pipeline.tensor_struct_records(stage.module),
        "warnings": [warning.record() for warning in stage.module.warnings],
    }


def _scalar_functions(program: Program, kept: Record, module: LomaModule) -> Functions:
    """The module's scalar functions, compiled now if it has tensor functions, too."""
    from loma import pipeline, scalar_functions
    from loma.backends import scalar

    def build() -> tuple[Path, Record]:
        stage = pipeline.program(program.source, program.path, program.name)
        return scalar.build(pipeline.generated_scalars(stage)), {}

    key = program.key("scalar functions")
    with _lock_of(key):
        if key not in _loaded_scalars:
            own = kept["operators"] is None
            folder = module.__folder__ if own else cache.recall(key, (), build)[0]
            _loaded_scalars[key] = scalar_functions.load(module, kept, folder)
        return _loaded_scalars[key]


def _native(program: Program, key: str, kept: Record, folder: Path) -> ModuleType:
    from loma import gpu, specialise
    from loma.backends import toolchain

    namespace = kept["namespace"]
    with _lock:
        # Two texts can give the same operators, which can be registered only once.
        if namespace not in _natives:
            native = toolchain.load(folder, namespace)
            native.set_made_hook(public(partial(_made, program, kept)))
            native.set_kernel_hook(public(_kernel_hook(program, key)))
            gpu.attach(native)
            if not program.timed:  # whose statements count all calls
                specialise.attach(native, program, kept, folder)
            _tell_torch_compile()
            _natives[namespace] = native
        return _natives[namespace]


def _tell_torch_compile() -> None:
    """What torch.compile keeps on the disk for a graph calls the halves of functions' split pairs,
    which its key does not know, and which another version of loma may not have."""
    from torch.compiler import config as settings

    tag = f"loma {cache.package_fingerprint()}"
    if hasattr(settings, "cache_key_tag") and tag not in settings.cache_key_tag:  # not in torch 2.6
        settings.cache_key_tag += tag


def _kernel_hook(program: Program, key: str) -> Callable[[str, bool, bool], str]:
    """What the runtime calls when a function is called in a floating type, or on a kind of device,
    that it has no kernel for yet, which is compiled then; the module, too, should the cache have
    lost it."""
    lock = threading.Lock()
    libraries: dict[Path, ctypes.CDLL] = {}  # never unloaded: the runtime holds pointers into them
    made: dict[Real, set[int]] = {}  # functions, by their numbers

    def load_kernels(operator: str, is_double: bool, on_gpu: bool) -> str:
        from loma import gpu
        from loma.backends import toolchain
        from loma.backends.torch.parts import Parts

        real: Real = "double" if is_double else "float"
        with lock:
            folder, kept = cache.recall(key, _FIELDS, lambda: _build(program))
            if on_gpu:
                part = gpu.build(program, key, folder, kept, operator, real)
                libraries[part] = toolchain.load_kernels(part)
                return ""
            parts, so_far = Parts.of(kept["parts"]), made.setdefault(real, set())
            known = (parts.behind(real == program.real), parts.together[operator])
            for numbers in known:
                library = toolchain.find_part(folder, parts, numbers, real)
                if library is not None:
                    break
            else:
                numbers = parts.asked_for(operator, so_far)
                library = toolchain.build_part(folder, parts, numbers, real)
            so_far.update(numbers)
            if library not in libraries:
                libraries[library] = toolchain.load_kernels(library)
        return ""

    return load_kernels


def complete(modules: Iterable[LomaModule]) -> None:
    """Compiles what a first call would, so that whoever reads this cache needs no compiler."""
    from loma.backends import compilers, toolchain
    from loma.backends.torch.parts import REALS, Parts

    tasks = []
    for module in modules:
        if (record := module.__record__["parts"]) is not None:
            parts = Parts.of(record)
            for real in REALS:
                if numbers := parts.behind(real == default_real()):
                    task = partial(toolchain.build_part, module.__folder__, parts, numbers, real)
                    tasks.append(task)
    if tasks:
        compilers.in_parallel(*tasks)


def natives() -> list[ModuleType]:
    """The modules of tensor functions that this process has loaded."""
    with _lock:
        return list(_natives.values())


def _made(program: Program, kept: Record, kind: str, operator: str, positions: list[int]) -> int:
    """What the runtime calls when it needs something made of a function: the address of its record
    of that operator, 0 where there is none."""
    from loma import pipeline, specialise

    made = "derivative" if kind == "pair" else kind
    asked = pipeline.Made(made, kept["operators"][operator], tuple(positions))  # type: ignore[arg-type]
    try:
        module = load(replace(program, made=(*program.made, asked)))
    except NotBatchable:
        return 0
    except NotDifferentiable:
        if kind != "pair":  # which is asked for before anybody wants a derivative
            raise
        return 0
    specialise.tune_alike(module.__name__, kept["namespace"])
    if asked.kind == "tangents":
        show_warnings(warnings_of(module))
    assert module.__native__ is not None
    address: int = module.__native__.address(operator)
    return address
