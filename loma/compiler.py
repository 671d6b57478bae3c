"""Text in, loaded module out, with the cache on disk in between.

The index of the cache leads from a program's text to what was compiled from it, so that a program
that was compiled before is loaded without being parsed again. Tensor functions and scalar functions
are compiled apart: those of one layer cost nothing where only the other is used.
"""

from __future__ import annotations

import pickle
import re
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from loma import cache, config
from loma.core.saving import SAVES, Save
from loma.errors import NotDifferentiable, UserWarning, suggest
from loma.errors.excerpts import Text, printable
from loma.functions import Functions, LomaModule, Record
from loma.reports import public, show_warnings
from loma.tuning.state import Tune, checked

if TYPE_CHECKING:
    import ctypes

    from loma.backends.torch.parts import Real
    from loma.pipeline import Made, Optimised


_STAGE_FILE = "stage.pickle"


class NotBatchable(Exception):
    """A function has no form for several samples."""


def _default_real() -> Real:
    """torch's default dtype."""
    torch = sys.modules.get("torch")
    return "double" if torch and torch.get_default_dtype() == torch.float64 else "float"


@dataclass(frozen=True, slots=True)
class Program:
    """What is compiled: a text, and what was asked for one after the other, each of a function of
    what the one before gave. ``real`` is the floating type that is compiled first. The rest is as
    :func:`compile` takes it."""

    source: str
    path: str
    name: str
    made: tuple[Made, ...] = ()
    timed: bool = False
    save: Save = "auto"
    contract: bool = True
    real: Real = field(default_factory=_default_real)

    def record(self) -> Record:
        """For pickles, which other versions of loma read: plain values, by name."""
        return {
            "source": str(self.source), "imports": [list(pair) for pair in self.imports],
            "path": self.path, "name": self.name, "save": self.save, "contract": self.contract,
            "timed": self.timed,
        }  # fmt: skip

    @staticmethod
    def of(record: Record) -> Program:
        """From what :meth:`record` gave, or ValueError: a file may say anything."""
        try:
            fields = dict(record)
            imports = [(path, text) for path, text in fields.pop("imports")]
            program = Program(**fields)
            texts = [program.source, program.path, program.name, *(t for i in imports for t in i)]
            right = all(isinstance(text, str) for text in texts) and program.save in SAVES
        except (TypeError, ValueError, KeyError) as error:
            raise ValueError(
                f"this is no program of loma, or one of a newer loma: {error}"
            ) from None
        if not right or {type(program.contract), type(program.timed)} != {bool} or program.made:
            raise ValueError("this is no program of loma")
        source = Text(program.source)
        source.imports = imports
        return replace(program, source=source)

    def content(self) -> str:
        """A hash of the program and its settings, whoever compiles it."""
        files = [part for path, text in self.imports for part in (Path(path).name, text)]
        settings = (self.name, self.save, str(self.contract), str(self.timed))
        return cache.digest([*settings, self.source, *(asked.text for asked in self.made), *files])

    def key(self, part: str = "") -> str:
        """The entry of the cache's index."""
        from loma.backends import compilers

        compiler = (cache.package_fingerprint(), compilers.identity())
        passes = ",".join(sorted(config.optimisations()))
        return cache.digest([*compiler, passes, part, self.real, self.content()])

    def overload(self) -> str | None:
        """The overload of its functions' operators, ``loma::NAME.OVERLOAD``: one for each text with
        what it imports, and for settings that change what an operator computes or keeps. It is the
        same for all versions of loma, so that exported programs find their operators. None for what
        another version might not have: derivatives that were asked for."""
        from loma.backends.torch import overload_of

        if self.made:
            return None
        left_out = ",".join(sorted(config.OPTIMISATIONS.keys() - config.optimisations()))
        settings = [
            *([f"save {self.save}"] if self.save != "auto" else []),
            *(["timed"] if self.timed else []),
            *([] if self.contract else ["not contracted"]),
            *([f"without {left_out}"] if left_out else []),
        ]
        files = [part for path, text in self.imports for part in (Path(path).name, _plain(text))]
        return overload_of(cache.digest([_plain(self.source), *files, "", *settings]))

    @property
    def imports(self) -> list[tuple[str, str]]:
        """The paths and texts of the files that the program imports."""
        return self.source.imports if isinstance(self.source, Text) else []

    def stage(self, key: str = "") -> Optimised:
        """The program with what autograd runs; from the cache where that has it, which takes a
        hundredth of the time. ``key`` is that of the index, where it is known."""
        folder = cache.find(_stage_key(key or self.key()))
        if folder is not None:
            stage: Optimised = pickle.loads((folder / _STAGE_FILE).read_bytes())
            return stage
        return self.optimised()

    def optimised(self) -> Optimised:
        """The same, made anew, but for the program that it is made of."""
        from loma import pipeline

        if not self.made:
            return pipeline.program(self.source, self.path, self.name, self.save)
        base = replace(self, made=self.made[:-1]).stage()
        stage = pipeline.made(base, self.made[-1])
        if stage is None:
            raise NotBatchable
        return stage

    def keep(self, stage: Optimised) -> None:
        """For derivatives of derivatives and kernels for known sizes, which begin with it."""

        def write(folder: Path) -> None:
            (folder / _STAGE_FILE).write_bytes(pickle.dumps(stage))

        cache.obtain(_stage_key(self.key()), write)


def _plain(text: str) -> str:
    """A text without what editors and version control change, nor where it stands in a file."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n").strip()


def _stage_key(key: str) -> str:
    return cache.digest([key, _STAGE_FILE])


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
    module = load(replace(_read(program, save, path), contract=contract, timed=timed))
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
    read = [_read(program) for program in programs]

    def one(k: int) -> LomaModule:
        module = load(read[k])
        if done is not None:
            done(programs[k])
        return module

    # The longest first, so that none runs on alone at the end. More threads than compilers may run,
    # for all wait for the runtime where this is not compiled yet.
    order = sorted(range(len(read)), key=lambda k: -len(read[k].source))
    with ThreadPoolExecutor(max_workers=4 * config.jobs()) as pool:
        modules = dict(zip(order, pool.map(one, order), strict=True))
    found = [modules[k] for k in range(len(read))]
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


def _read(program: str | Path, save: Save = "auto", text_path: str | Path | None = None) -> Program:
    if save not in SAVES:
        raise ValueError(f"save must be one of {', '.join(SAVES)}, got {save!r}")
    if not isinstance(program, str | Path):
        raise TypeError(
            "a program is the name of a .loma file, a pathlib.Path or a text, got "
            f"{type(program).__name__}"
        )
    if isinstance(program, str) and not _names_file(program):
        if text_path is None:
            return Program(with_imports(program, "<text>"), "<text>", "module", save=save)
        text, path = program, Path(text_path)
    elif text_path is not None:
        raise TypeError("path is for a program that is given as text")
    else:
        path = Path(program)
        text = _text_of(path)
    # halves of characters, which stand for bytes that are no UTF-8, are for the file system alone
    return Program(with_imports(text, str(path)), str(path), printable(path.stem), save=save)


_SHOWN = 8  # names of files in a message
# What every program that is one line has somewhere: a definition, an import, a remark.
_OF_PROGRAMS = re.compile(r"[:=#\"']|\bimport\b")


def _names_file(program: str) -> bool:
    """Whether a string is the name of a file rather than a program."""
    line = program.strip()
    if "\n" in line or not line:
        return False
    return line.endswith(".loma") or _OF_PROGRAMS.search(line) is None


def _text_of(path: Path) -> str:
    """The program in a file; FileNotFoundError with the nearest name there is."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        there = [file.name for file in sorted(path.parent.glob("*.loma"))]
        hint = suggest(path.name, there)
        if hint is None:
            named = ", ".join(there[:_SHOWN]) + (", ..." if len(there) > _SHOWN else "")
            hint = f"in {path.parent.absolute()} is {named or 'no program'}"
        raise FileNotFoundError(error.errno, f"{error.strerror} ({hint})", str(path)) from None
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8 text: {error.reason} at byte {error.start}"
        ) from None


def with_imports(text: str, path: str) -> str:
    """The text, with those of the files that it imports."""
    if "import" not in text:
        return text
    from loma.frontend.imports import gather

    return gather(text, path)


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
                if numbers := parts.behind(real == _default_real()):
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
