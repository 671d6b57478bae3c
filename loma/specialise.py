"""Kernels for the sizes that a program uses: made in the background, while the general ones run.

A function's kernel serves all sizes. When calls with the same sizes and int arguments have taken a
while (:class:`Thresholds`), a kernel for just these is compiled by a thread of low priority; once
it is there, such calls run it. It goes to the cache, too: a later process loads it at the first
call. Its results may differ from the general kernel's in rounding. Checks of arguments, errors and
their messages are the same.

A function has at most ``LOMA_SPECIALISATIONS`` of them, by default 8, and each part that autograd
runs counts as one. ``LOMA_OPT=-specialise`` turns all this off. Both are read when a module is
loaded.

What tuning has found for some sizes (:mod:`loma.tuning`) is such a kernel, too, in the place of the
usual one. GPUs have no others: their kernels are made again for the numbers that they are launched
with (``cuda/runtime/gpu_kernels.cpp``).
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import os
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from loma import background, cache, config
from loma.background import Background, Job, Note
from loma.errors import SettingError, ToolchainError
from loma.reports import progress
from loma.tuning.state import ON_CPU, Tune, Tuning, checked, kind_of

if TYPE_CHECKING:
    import ctypes

    from loma.backends.schedule.choices import Taken
    from loma.functions import LomaModule
    from loma.program import Program, Record
    from loma.tuning.results import Result

_FIELDS = ("operator", "function", "sizes", "dtype", "object", "seconds", "choices", "device")


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When a kernel is worth making: after some calls of at least ``call_ms`` milliseconds each,
    which took ``total_ms`` together. Short calls gain too little, rare ones never earn the time."""

    calls: int = 3
    call_ms: float = 0.2
    total_ms: float = 20.0


_thresholds = Thresholds()


def use(thresholds: Thresholds) -> Thresholds:
    """From now on, for the modules that are loaded, too. Returns what was used before."""
    global _thresholds
    with _lock:
        before, _thresholds = _thresholds, thresholds
        for native, module in _attached:
            _tell(native, module)
    return before


@dataclass(frozen=True, slots=True)
class Made:
    """A kernel that this process has loaded.

    ``function`` is the function of the program, or the part of it that autograd runs; ``sizes`` are
    the values that its sizes and int arguments have; ``seconds`` is how long it took to make, in
    this process or in the one that did.
    """

    function: str
    sizes: dict[str, int]
    dtype: str
    seconds: float


def made() -> list[Made]:
    """The kernels that exist in this process, in the order in which they came."""
    return list(_made)


def wait(timeout: float | None = None) -> bool:
    """Waits until no kernel is being made, a GPU's neither; False when that takes longer than so
    many seconds."""
    from loma.backends.cuda import images

    end = None if timeout is None else time.monotonic() + timeout
    if not _worker.wait(timeout):
        return False
    return images.wait(None if end is None else max(0.0, end - time.monotonic()))


@contextlib.contextmanager
def declined() -> Iterator[None]:
    """Sizes that are called inside for the first time keep the general kernel, in this process.

    Whatever the cache has, in all threads, where the first calls reach the :class:`Thresholds`.
    """
    global _declined
    _declined += 1
    try:
        yield
    finally:
        _declined -= 1


_declined = 0  # how many `with` blocks are entered


def sources(module: LomaModule) -> list[Path]:
    """The C++ files of the kernels that the cache has for a module's functions.

    :func:`loma.backends.toolchain.build_executable` links them, beside the module's own file, to
    a program that then runs them for calls of their sizes.
    """
    found: list[Path] = []
    counts: dict[str, int] = {}
    with _lock:
        own = next((m for _, m in _attached if m.namespace == module.__name__), None)
    for note, folder in _known(module.__folder__):
        if note["choices"] != (own.wanted(note) if own is not None else {}):
            continue
        counts[note["operator"]] = counts.get(note["operator"], 0) + 1
        if counts[note["operator"]] <= config.specialisations():
            found += sorted(folder.glob("*.cpp"))
    return found


def attach(native: ModuleType, program: Program, record: Record, folder: Path) -> None:
    """Lets a module that has just been loaded ask for kernels.

    ``record`` is the module's, ``folder`` where it is in the cache.
    """
    limit = config.specialisations()
    if limit == 0 or "specialise" not in config.optimisations():
        return
    operators, texts = dict(record["operators"]), dict(record["texts"])
    module = _Module(program, program.key(), native, operators, texts, folder, limit)
    for note, _ in _known(module.folder):
        operator, slots = f"{native.namespace}::{note['operator']}", tuple(note["sizes"].values())
        native.add_known_kernel(operator, slots, note["dtype"])
    with _lock:
        _attached.append((native, module))
        _tell(native, module)


def tune(module: LomaModule, wanted: Tune, again: bool = False) -> None:
    """From now on, for calls with sizes that the module has no kernel for so far: see
    :func:`loma.compile`. ``again``: looks for what is fastest also where that is known. ValueError
    for what cannot be asked for, SettingError where there are no kernels for known sizes."""
    wanted = checked(wanted)
    if module.__native__ is None:
        return  # nothing but scalar functions
    if not _use(module.__native__, wanted, again) and wanted != "off":
        raise SettingError(
            f"tune={wanted!r} needs kernels for known sizes, which LOMA_OPT or "
            "LOMA_SPECIALISATIONS turn off"
        )


def tune_alike(namespace: str, other: str) -> None:
    """Tunes a module as another one, whose derivatives it has."""
    with _lock:
        natives = {module.namespace: native for native, module in _attached}
        modes = {module.namespace: module.tuning.tune for _, module in _attached}
    if namespace in natives and modes.get(other, "off") != "off":
        _use(natives[namespace], modes[other])


def tuned() -> list[Result]:
    """What is known of the modules that are tuned."""
    with _lock:
        return [result for _, module in _attached for result in module.tuning.known()]


def _use(native: ModuleType, wanted: Tune, again: bool = False) -> bool:
    """Tunes a module so; whether it takes part in all this."""
    with _lock:
        module = next((m for own, m in _attached if own is native), None)
        if module is None:
            return False
        module.tuning = Tuning(wanted, module.program.name, module.texts, again)
        names = {function: operator for operator, function in module.operators.items()}
        for result in module.tuning.known():
            operator = f"{module.namespace}::{names[result.function]}"
            native.add_known_kernel(operator, tuple(result.sizes.values()), result.dtype)
        _tell(native, module)
        return True


def _tell(native: ModuleType, module: _Module) -> None:
    """Lets the runtime use the thresholds, and what is asked of tuning."""
    call_ns, total_ns = (round(t * 1e6) for t in (_thresholds.call_ms, _thresholds.total_ms))
    tuning = module.tuning
    native.set_specialise_hook(
        module.ask, module.limit, _thresholds.calls, call_ns, total_ns,
        None if tuning.tune == "off" else module.search, tuning.seconds is not None,
    )  # fmt: skip


def _known(folder: Path, device: str = "cpu") -> Iterator[tuple[Note, Path]]:
    """The kernels that the cache has for the module of that folder and such a device, and where
    each is."""
    for note in cache.notes(_notes_key(folder), _FIELDS):
        kernel = cache.find(note["object"]) if note["device"] == device else None
        if kernel is not None:
            yield note, kernel


def _notes_key(folder: Path) -> str:
    """Where the cache notes the kernels of a module: they depend on loma's code and passes, too."""
    passes = ",".join(sorted(config.optimisations()))
    return cache.digest([folder.name, cache.package_fingerprint(), passes])


# -------------------------------------------------------------------------------------- requests


@dataclass(slots=True)
class _Module:
    """A loaded module, which has at most ``limit`` kernels a function; ``key`` is the index entry
    that it was loaded from, ``operators`` are its functions by operator, ``texts`` hashes of what
    these compute."""

    program: Program
    key: str
    native: ModuleType
    operators: dict[str, str]
    texts: dict[str, str]
    folder: Path
    limit: int
    tuning: Tuning = field(default_factory=lambda: Tuning("off", "", {}))

    @property
    def namespace(self) -> str:
        return str(self.native.namespace)

    def wanted(self, note: Note) -> Taken:
        """What the kernel of a note has to have been lowered with, to be used."""
        slots = tuple(note["sizes"].values())
        return self.tuning.choices(note["function"], slots, note["dtype"])

    def search(
        self, name: str, slots: tuple[int, ...], dtype: str, device: int,
        tensors: tuple[Any, ...], ints: tuple[int, ...], in_place: bool, results: int,
    ) -> None:  # fmt: skip
        """What the runtime calls before the first call with some slots, where it is tuned; on a GPU
        also where nothing is to be looked for, but may be known."""
        operator = name.removeprefix(f"{self.namespace}::")
        request = _Request(self, operator, slots, dtype, device)
        function, seconds = self.operators[operator], self.tuning.seconds
        if _declined:
            return
        try:
            result = self.tuning.find(function, slots, dtype, device)
            if result is not None:
                if device != ON_CPU and result.choices:
                    _use_known(request)
            elif seconds is not None:
                _search(request, function, seconds, tensors, ints, in_place, results)
        except KeyboardInterrupt:  # not for the runtime, which cannot pass it on
            _thread.interrupt_main()
        except Exception as error:
            _failed(request, error)

    def ask(self, name: str, slots: tuple[int, ...], dtype: str, now: bool) -> None:
        """What the runtime calls, once for some slots: see runtime/specialise.h."""
        if _declined:
            return
        operator = name.removeprefix(f"{self.namespace}::")
        request = _Request(self, operator, slots, dtype)
        with contextlib.suppress(OSError, ToolchainError):  # the worker meets it, too, and tells
            if now and _load_known(request):
                return
        _worker.put(request)


@dataclass(frozen=True, slots=True)
class _Request:
    module: _Module
    operator: str
    slots: tuple[int, ...]
    dtype: str  # as PyTorch calls it
    device: int = ON_CPU

    @property
    def function(self) -> str:
        return self.module.operators[self.operator]

    @property
    def place(self) -> tuple[str, tuple[int, ...], str, int]:
        """Where the runtime has its kernels."""
        name = f"{self.module.namespace}::{self.operator}"
        return name, self.slots, self.dtype, self.device

    def choices(self) -> Taken:
        return self.module.tuning.choices(self.function, self.slots, self.dtype, self.device)


def _use_known(request: _Request) -> None:
    """A GPU's kernel that tuning has found: from the cache, or made in the background."""
    if not _load_known(request):
        _worker.put(request)


def _load_known(request: _Request) -> bool:
    """Loads the kernel if the cache has it."""
    for note, folder in _known(request.module.folder, kind_of(request.device)):
        same = note["operator"] == request.operator and note["dtype"] == request.dtype
        same = same and tuple(note["sizes"].values()) == request.slots
        if same and note["choices"] == request.choices():
            _load(folder, note, request)
            return True
    return False


def _job(request: _Request) -> Job | None:
    """None where the environment asks for something else since the module was loaded."""
    from loma.backends import toolchain

    module, program = request.module, request.module.program
    if program.key() != module.key:
        return None
    return Job(
        program, module.key, module.namespace, request.operator,
        request.function, request.slots, request.dtype, module.folder, _notes_key(module.folder),
        toolchain.detect(), request.choices(), kind_of(request.device),
    )  # fmt: skip


def _search(
    request: _Request, function: str, seconds: float,
    tensors: tuple[Any, ...], ints: tuple[int, ...], in_place: bool, results: int,
) -> None:  # fmt: skip
    """Looks for the fastest kernel for a call, which is then in use."""
    from loma.tuning import calls

    job, module = _job(request), request.module
    if job is None:
        return
    stage = job.program.stage(job.key)
    sizes = background.sizes_of(job, stage)
    written = background.written_by(job, stage) if in_place else ()
    arguments = calls.Arguments(tensors, ints, written, results)
    kernel = calls.Kernel(
        job.program.name, function, sizes, job.dtype, module.texts[function], request.place,
        lambda choices: background.source_of(job, stage, choices),
        lambda taken, made, spent: background.note(replace(job, choices=taken), sizes, made, spent),
        job.folder, job.toolchain,
    )  # fmt: skip
    with progress(f"tuning {function} for {', '.join(map(str, request.slots))}") as update:
        result = calls.tune(
            kernel, module.native, arguments, seconds,
            lambda gone, best: update(f"{1e3 * best:.3f} ms", min(gone, seconds), seconds),
            set(_libraries),
        )  # fmt: skip
    if result is not None:
        module.tuning.add(result)
        _made.append(Made(function, result.sizes, result.dtype, result.spent))


_lock = threading.Lock()  # of the thresholds, and of who uses them
_attached: list[tuple[ModuleType, _Module]] = []
_made: list[Made] = []
_libraries: dict[Path, ctypes.CDLL] = {}  # never unloaded: the runtime holds pointers into them


def _load(folder: Path, note: Note, request: _Request) -> None:
    from loma.backends import toolchain

    if request.device == ON_CPU:
        _libraries[folder] = toolchain.load_kernels(folder)
    else:
        from loma.tuning import calls

        kernel = calls.loaded(request.module.native, folder)
        if kernel is None:
            return
        request.module.native.use_kernel(*request.place, kernel)
    _made.append(Made(note["function"], note["sizes"], note["dtype"], note["seconds"]))


# ---------------------------------------------------------------------------------------- worker


_IDLE_SECONDS = 10.0  # how long the thread and its process wait for more to do
_FORK_SECONDS = 30.0  # how long a fork waits for the thread to be where it may be lost


class _Worker:
    """A thread that has kernels made, one after the other, and loads them; it ends when there has
    been nothing to do for a while.

    ``busy`` is held while it is at work itself, so that a process which is forked does not miss it
    with locks held.
    """

    def __init__(self, waiting: Iterable[_Request] = ()) -> None:
        self._changed = threading.Condition()
        self._waiting = deque(waiting)
        self._current: _Request | None = None
        self._thread: threading.Thread | None = None
        self.background = Background()
        self.busy = threading.Lock()
        self._stopped = False

    def put(self, request: _Request) -> None:
        with self._changed:
            self._waiting.append(request)
            self._start()

    def wait(self, timeout: float | None) -> bool:
        with self._changed:
            self._start()
            return self._changed.wait_for(lambda: not self.left(), timeout)

    def left(self) -> list[_Request]:
        """What has not been made, for the worker of a forked process."""
        return [*([] if self._current is None else [self._current]), *self._waiting]

    def stop(self) -> None:
        """Ends the compiler that runs, when the process ends."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self.background.stop()

    def _start(self) -> None:
        if self._stopped:
            self._waiting.clear()
        elif self._thread is None and self._waiting:
            self._thread = threading.Thread(target=self._run, name="loma.specialise", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._current = None
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting or self._stopped, _IDLE_SECONDS)
                if self._stopped or not self._waiting:
                    self._waiting.clear()
                    self._thread = None
                    self.background.leave()
                    return
                self._current = self._waiting.popleft()
            try:
                self._serve(self._current)
            except Exception as error:
                self._report(self._current, error)

    def _serve(self, request: _Request) -> None:
        with self.busy:
            if _load_known(request):  # another process has made it
                return
            job = _job(request)
        if job is not None:
            self.background.make(job)
            with self.busy:
                _load_known(request)

    def _report(self, request: _Request, error: Exception) -> None:
        if not self._stopped:
            _failed(request, error)


_is_reported = False


def _failed(request: _Request, error: Exception) -> None:
    """Says once that a kernel could not be made."""
    global _is_reported
    if _is_reported:
        return
    _is_reported = True
    function = request.module.operators[request.operator]
    with contextlib.suppress(Warning):  # where warnings are errors, nobody is there to catch it
        warnings.warn(
            f"loma: no kernel of '{function}' for sizes {request.slots} was made, the general "
            f"one stays (further failures are not reported): {error}",
            RuntimeWarning,
            stacklevel=2,
        )


_worker = _Worker()


_is_paused = False  # whether the thread is, by a fork


def _before_fork() -> None:
    global _is_paused
    # Not for ever: the thread may wait for a lock that the one which forks holds.
    _is_paused = _worker.busy.acquire(timeout=_FORK_SECONDS)


def _after_fork() -> None:
    if _is_paused:
        _worker.busy.release()


def _after_fork_in_child() -> None:
    """A forked process has no thread; it starts its own when it asks for a kernel, or waits."""
    global _worker
    _worker.background.leave()
    _worker = _Worker(_worker.left())


atexit.register(lambda: _worker.stop())
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child
    )
