"""Tuning with the arguments of a call: candidates are compiled, compared with the usual kernel's
results, measured by :mod:`loma.tuning.search`, and the winner is put to use and kept."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from loma import cache, config
from loma.cache import roots
from loma.backends import toolchain
from loma.backends.cuda import images
from loma.backends.cfamily.source import GeneratedSource
from loma.backends.schedule.choices import Choices, Taken
from loma.errors import CompilationFailed, UserError
from loma.tuning import gpus, results, search
from loma.tuning.results import Result
from loma.tuning.search import Call, Found, Lowered, Progress
from loma.tuning.state import ON_CPU, kind_of

# By how much results of calls in a dtype may differ, as a part of the largest element of the usual
# result: what sums in another order differ by, and no more.
_TOLERANCE = {"float32": 1e-4, "float64": 1e-10, "bfloat16": 2e-2, "float16": 2e-3}


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a kernel is called with. ``written``: the tensors that a call writes where they lie;
    ``results``: how many it has."""

    tensors: tuple[torch.Tensor | None, ...]
    ints: tuple[int, ...]
    written: tuple[int, ...]
    results: int

    def copied(self) -> Arguments:
        """With tensors of their own for what is written."""
        tensors = list(self.tensors)
        for k in self.written:
            tensors[k] = torch.clone(_there(tensors[k]))
        return replace(self, tensors=tuple(tensors))

    def restore(self, other: Arguments) -> None:
        """Gives what is written the elements that it has there."""
        for k in self.written:
            _there(self.tensors[k]).copy_(_there(other.tensors[k]))


def _there(tensor: torch.Tensor | None) -> torch.Tensor:
    assert tensor is not None  # what is written
    return tensor


@dataclass(frozen=True, slots=True)
class Kernel:
    """What is tuned: a function of a program, for these sizes and that dtype. ``text``: a hash of
    what it computes. ``place``: where the runtime has the kernels for such calls, operator, slots,
    dtype, and the GPU's number. ``lower`` makes its C++, ``keep`` notes what
    the winner is made of, its folder in the cache, and the seconds it took; ``folder`` is the
    module's."""

    program: str
    function: str
    sizes: dict[str, int]
    dtype: str
    text: str
    place: tuple[str, tuple[int, ...], str, int]
    lower: Callable[[Choices], GeneratedSource]
    keep: Callable[[Taken, Path, float], None]
    folder: Path
    toolchain: toolchain.Toolchain

    @property
    def device(self) -> int:
        return self.place[-1]


_searching = threading.Lock()  # two at once would measure each other
_loading = threading.Lock()
_kernels: dict[Path, object] = {}  # loaded apart, by their folders: a library is loaded once


@dataclass(frozen=True, slots=True)
class _Text:
    """Code that leaves some choices to its caller, and what there is to choose."""

    source: GeneratedSource
    choices: Choices
    key: str


@dataclass(frozen=True, slots=True)
class _Way:
    """A candidate. ``tried``: the options of the choices that are left, in their order."""

    text: _Text
    tried: tuple[int, ...]


@dataclass(slots=True)
class _Maker:
    """See :class:`loma.tuning.search.Maker`. Candidates that differ in nothing but how kernels are
    launched have their code in common: it asks for that (``loma::gpu::tried``)."""

    kernel: Kernel
    native: ModuleType
    arguments: Arguments
    copies: Arguments  # which measured calls write
    sample: Callable[[Call, int], float]  # seconds of a call, by so many of them
    in_use: Collection[Path]  # the folders of kernels that have been loaded to be used
    texts: dict[str, _Text | None] = field(default_factory=dict)
    left: set[str] = field(default_factory=set)  # choices of any text that it leaves
    ways: dict[str, _Way] = field(default_factory=dict)
    folders: dict[str, Path] = field(default_factory=dict)  # of texts
    expected: tuple[torch.Tensor | None, ...] | None = None
    launched: set[tuple[str, ...]] = field(default_factory=set)  # what candidates have a GPU do

    def lower(self, taken: Taken) -> Lowered | None:
        text = self._text(taken)
        while text is not None and not self.left.issuperset(text.choices.left or ()):
            self.left.update(text.choices.left or ())
            text = self._text(taken)
        if text is None:
            return None
        found = text.choices.found
        wanted = ((name, taken.get(name)) for name in text.choices.left or ())
        tried = [option if option in found[name].options else 0 for name, option in wanted]
        way = self.ways[_key(taken)] = _Way(text, tuple(map(int, tried)))
        return Lowered(f"{text.key} {way.tried}", found)

    def _text(self, taken: Taken) -> _Text | None:
        """None where this function cannot go that way."""
        taken = {name: option for name, option in taken.items() if name not in self.left}
        key = _key(taken)
        if key not in self.texts:
            choices = Choices(taken, left=[])
            try:
                source = self.kernel.lower(choices)
                self.texts[key] = _Text(source, choices, cache.digest([source.text]))
            except UserError:
                self.texts[key] = None
        return self.texts[key]

    @property
    def is_apart(self) -> bool:
        return self.kernel.device != ON_CPU

    def compile(self, taken: Taken) -> None:
        way = self.ways[_key(taken)]
        with contextlib.suppress(CompilationFailed):
            folder = self.folders[way.text.key] = self._built(way.text.source)
            if self.is_apart:
                self._compile_for_gpu(folder, way.tried)

    def _built(self, source: GeneratedSource) -> Path:
        return toolchain.build_specialisation(source, self.kernel.folder, self.kernel.toolchain)

    def make(self, taken: Taken) -> Call | None:
        way = self.ways[_key(taken)]
        folder = self.folders.get(way.text.key)
        return None if folder is None else self._checked(folder, way.tried)

    def final(self, taken: Taken) -> tuple[object, Path]:
        """The kernel that goes that way whoever calls it, and its folder."""
        folder = self._built(self.kernel.lower(Choices(taken)))
        return self._loaded(folder), folder

    def _compile_for_gpu(self, folder: Path, tried: tuple[int, ...]) -> None:
        """A first call, which compiles what it launches. Others do the same on other threads."""
        kernel = self._loaded(folder)
        with contextlib.suppress(Exception):  # whoever checks the candidate meets it again
            self._run(kernel, self.arguments, tried)

    def _checked(self, folder: Path, tried: tuple[int, ...]) -> Call | None:
        kernel = self._loaded(folder)
        if kernel is None:
            return None
        try:
            given = self._run(kernel, self.arguments, tried)
            if self.is_apart and not self._is_new_on_gpu(kernel, tried):
                return None
        except Exception:  # the call that all this is about will tell
            return None
        if self.expected is None:
            self.expected = given
        pairs = zip(given, self.expected, strict=True)
        if not all(same(own, usual, self._dtype) for own, usual in pairs):
            return None
        return partial(self._run, kernel, self.copies, tried, in_place=bool(self.copies.written))

    def _is_new_on_gpu(self, kernel: object, tried: tuple[int, ...]) -> bool:
        """Whether no other candidate launches the same; what fails there is raised here."""
        arguments = self.arguments
        launches = self.native.trace_kernel(
            kernel, self._dtype, arguments.tensors, arguments.ints, arguments.results, tried
        )
        self.native.check_devices()
        if launches in self.launched:
            return False
        self.launched.add(launches)
        self._run(
            kernel, arguments, tried
        )  # the third with its numbers: kernels for others are made now
        images.wait()
        return True

    @property
    def _dtype(self) -> str:
        return self.kernel.dtype

    def _run(
        self,
        kernel: object,
        arguments: Arguments,
        tried: tuple[int, ...] = (),
        in_place: bool = False,
    ) -> tuple[torch.Tensor | None, ...]:
        given = arguments.tensors, arguments.ints, in_place, arguments.results, tried
        results: tuple[torch.Tensor | None, ...]
        results = self.native.run_kernel(kernel, self._dtype, *given)
        return results

    def sampled(self, call: Call, repeats: int) -> float:
        """Seconds of a call, where what calls write starts from the same."""
        self.copies.restore(self.arguments)
        return self.sample(call, repeats)

    def _loaded(self, folder: Path) -> object:
        kernel = loaded(self.native, folder)
        if kernel is None and folder in self.in_use:
            kernel = _kernels[folder] = self.native.find_kernel(*self.kernel.place)
        return kernel


def loaded(native: ModuleType, folder: Path) -> object:
    """The kernel in that folder of the cache, which takes no part in calls so far; None where it
    has been loaded to be used."""
    with _loading:
        if folder not in _kernels:
            kernel = native.load_kernel(str(folder / toolchain.KERNELS_FILE))
            if kernel is None:
                return None
            _kernels[folder] = kernel
        return _kernels[folder]


def _key(taken: Taken) -> str:
    return repr(sorted(taken.items()))


def same(given: torch.Tensor | None, wanted: torch.Tensor | None, dtype: str) -> bool:
    """Whether two results of calls in a dtype differ by rounding at most. NaN and infinities stand
    where they stood."""
    if given is None or wanted is None:
        return given is wanted
    if given.shape != wanted.shape or given.dtype != wanted.dtype:
        return False
    if not wanted.is_floating_point():
        return torch.equal(given, wanted)
    for kind in (torch.isnan, torch.isposinf, torch.isneginf):
        if not torch.equal(kind(given), kind(wanted)):
            return False
    finite = torch.isfinite(wanted)
    difference = (given[finite] - wanted[finite]).abs()
    if difference.numel() == 0:
        return True
    return bool(difference.max() <= _TOLERANCE[dtype] * wanted[finite].abs().max())


def tune(
    kernel: Kernel,
    native: ModuleType,
    arguments: Arguments,
    seconds: float,
    progress: Progress,
    in_use: Collection[Path],
) -> Result | None:
    """Searches for so many seconds, puts the winner to use and keeps it; None where the function
    has no kernel for known sizes. ``in_use``: the folders of kernels that are loaded."""
    from filelock import FileLock

    with _searching, FileLock(roots.writable() / "locks" / "tuning.lock", mode=0o600):
        begin = time.perf_counter()
        timer = gpus.Timer(kernel.device) if _is_cuda(arguments) else search.fastest
        maker = _Maker(kernel, native, arguments, arguments.copied(), timer, in_use)
        starts = nearest(kernel.text, kernel.sizes, kernel.dtype, kind_of(kernel.device))
        found = search.Search(
            maker, seconds, starts, config.jobs(), progress, sample=maker.sampled
        ).run()
        if found is None:
            return None
        own, folder = maker.final(found.taken)
        result = _result(kernel, found, time.perf_counter() - begin)
        kernel.keep(found.taken, folder, result.spent)
        native.use_kernel(*kernel.place, own)
        results.store(result)
        return result


def _result(kernel: Kernel, found: Found, spent: float) -> Result:
    return Result(
        program=kernel.program, function=kernel.function, sizes=kernel.sizes, dtype=kernel.dtype,
        choices=dict(found.taken), usual=found.usual, tuned=found.tuned, spent=spent,
        **_machine(kernel), loma=cache.package_fingerprint(), text=kernel.text,
        history=[[trial.seconds, trial.ratio, trial.best] for trial in found.trials],
    )  # fmt: skip


def _machine(kernel: Kernel) -> dict[str, Any]:
    if kernel.device == ON_CPU:
        return {
            "threads": torch.get_num_threads(), "processor": results.processor(),
            "compiler": results.compiler(), "device": "cpu",
        }  # fmt: skip
    processor, compiler = gpus.name(kernel.device), gpus.compiler()
    return {"threads": 0, "processor": processor, "compiler": compiler, "device": "cuda"}


def _is_cuda(arguments: Arguments) -> bool:
    return any(tensor is not None and tensor.is_cuda for tensor in arguments.tensors)


def nearest(text: str, sizes: dict[str, int], dtype: str, device: str = "cpu") -> list[Taken]:
    """What is best for these sizes as far as is known, and for the nearest others."""
    stored = (r for r in results.stored() if r.device == device and r.text == text)
    known = [r for r in stored if r.choices and not r.foreign()]
    known.sort(key=lambda r: (r.dtype != dtype, r.distance(sizes)))
    return [result.choices for result in known[:2]]
