"""Kernels compiled ahead of calls, for a named architecture and without a GPU: whether NVRTC takes
them, and what they need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from loma import config
from loma.backends.cfamily.source import GeneratedSource
from loma.backends.cuda import cubin, nvrtc
from loma.backends.cuda.forms import Form, Kernel, forms, kernels, options
from loma.errors import CompilationFailed

REALS = ("float", "double")

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Task:
    """A kernel of a function in one form."""

    path: str
    function: str
    kernel: Kernel
    form: Form
    real: str
    architecture: str


@dataclass(frozen=True, slots=True)
class Built:
    """Its image. ``needs`` is None where that is text for the driver to compile, in PTX."""

    task: Task
    image: bytes
    needs: cubin.Needs | None


def tasks(
    path: str, function: str, source: GeneratedSource, architectures: Sequence[str]
) -> Iterator[Task]:
    """All forms of the kernels in a function's host code."""
    for kernel in kernels(source):
        yield from of_kernel(path, function, kernel, architectures)


def of_kernel(
    path: str, function: str, kernel: Kernel, architectures: Sequence[str]
) -> Iterator[Task]:
    """All forms of one kernel."""
    for architecture in architectures:
        for form in forms(kernel, architecture):
            for real in REALS[: 1 if form.narrow or kernel.how in ("items", "lanes") else None]:
                yield Task(path, function, kernel, form, real, architecture)


def build(
    given: Iterable[Task], progress: Progress = lambda what, done, total: None
) -> list[Built]:
    """Several at once. CompilationFailed names the function and the line whose kernel NVRTC
    refuses; ``progress(name, done, total)`` hears of each."""
    waiting = list(given)
    done = 0

    def one(task: Task) -> Built:
        nonlocal done
        made = _built(task)
        done += 1  # about right is enough
        progress(task.kernel.name, done, len(waiting))
        return made

    with ThreadPoolExecutor(max_workers=config.jobs()) as pool:
        running = [pool.submit(one, task) for task in waiting]
        _, rest = wait(running, return_when=FIRST_EXCEPTION)
        for future in rest:
            future.cancel()
    return [future.result() for future in running if not future.cancelled()]


def _built(task: Task) -> Built:
    kernel = task.kernel
    told = options(kernel, task.form, task.real)
    try:
        image = nvrtc.image(kernel.name, kernel.text, told, task.architecture)
    except CompilationFailed as error:
        line = f", line {kernel.line}" if kernel.line else ""
        place = f"{task.path}: function '{task.function}'{line}"
        raise CompilationFailed(f"{place}: for {task.architecture}, {error}") from error
    number = int(task.architecture.removeprefix("sm_"))
    entry = f"{kernel.name}__lists" if task.form.lists else kernel.name
    return Built(task, image, cubin.needs(image, entry, number))


def write(built: Iterable[Built], folder: Path) -> None:
    """The text of each kernel, and its images beside it, in a folder for each program."""
    for one in built:
        task = one.task
        own = folder / Path(task.path).stem
        own.mkdir(parents=True, exist_ok=True)
        (own / f"{task.kernel.name}.cu").write_text(task.kernel.text + "\n", encoding="utf-8")
        kind = "ptx" if one.needs is None else "cubin"
        name = f"{task.kernel.name}.{task.architecture}_{task.real}_{task.form.name}.{kind}"
        (own / name).write_bytes(one.image)
