"""A process of the lowest priority that compiles kernels for known sizes, while a program runs.

A thread would take turns with the program's own Python. A session or a process group with a session
of its own would count as another user where the kernel shares the processor among sessions
(``sched_autogroup_enabled``), and a compiler in it would get as much as all threads of the program.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from loma import cache
from loma.errors import ToolchainError

if TYPE_CHECKING:
    from loma.backends.cfamily.source import GeneratedSource
    from loma.backends.schedule.choices import Choices, Taken
    from loma.backends.toolchain import Toolchain
    from loma.pipeline import Optimised
    from loma.program import Program

Note = dict[str, Any]  # what the cache has about a kernel


@dataclass(frozen=True, slots=True)
class Job:
    """A kernel to be made: of a function of a program, whose operators are in ``namespace``, for
    the values ``slots`` of its sizes and ints. ``key`` is the program's in the cache's index,
    ``folder`` the compiled module's, ``notes`` where the cache notes its kernels. ``choices``: the
    ways that lowering goes, where they are not the usual ones. ``device``: cpu or cuda.
    ``dtype``: that of the calls, as PyTorch calls it."""

    program: Program
    key: str
    namespace: str
    operator: str
    function: str
    slots: tuple[int, ...]
    dtype: str
    folder: Path
    notes: str
    toolchain: Toolchain
    choices: Taken = field(default_factory=dict)
    device: str = "cpu"


class Background:
    """The process, which begins with the first job."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self._connection: Connection[Any, Any] | None = None

    def make(self, job: Job) -> None:
        """Makes a kernel, for the cache. ToolchainError where it could not be made."""
        if self._connection is None:
            self._connection = self._started()
        try:
            self._connection.send(job)
            failure = self._connection.recv()
        except (EOFError, OSError) as error:
            self.stop()
            self.leave()
            raise ToolchainError("the process that compiles has ended") from error
        if failure:
            raise ToolchainError(failure)

    def stop(self) -> None:
        """Ends the process, with the compiler that it may have started."""
        process, self.process = self.process, None
        if process is not None:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def leave(self) -> None:
        """Lets the process end, once it has nothing to do; a forked process leaves its parent's."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _started(self) -> Connection[Any, Any]:
        if not sys.executable:
            raise ToolchainError("there is no Python interpreter (sys.executable) to compile with")
        own, other = Pipe()
        begin = f"import sys; sys.path[:] = {sys.path!r}; from loma.background import main; main()"
        with other:
            # A group of its own, which the terminal's signals do not reach.
            self.process = subprocess.Popen(
                [sys.executable, "-c", begin, str(other.fileno())],
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                process_group=0,
            )
        return own


# -------------------------------------------------------------------------------- in that process


def main() -> None:
    lower_priority()
    with Connection(int(sys.argv[1])) as connection:
        while True:
            try:
                job: Job = connection.recv()
            except EOFError:
                return
            failure = ""
            try:
                make(job)
            except Exception as error:
                failure = str(error) or type(error).__name__
            try:
                connection.send(failure)
            except OSError:  # nobody waits for it any more
                return


def lower_priority() -> None:
    """At most a twentieth of the processor for this process and those that it starts, and a quarter
    of one core, while all cores are busy otherwise.

    What compiles is on one core at a time, and Linux gives each level of niceness 1.25 times what
    the next one gets (sched(7)). With half a core it slowed steps of a training on 16 cores, whose
    parallel loops wait for all threads, ten times; with a quarter not visibly. The lowest class
    (SCHED_IDLE) got so little beside threads that spin between loops that no kernel was ever done.
    """
    share = min((os.cpu_count() or 1) / 20.0, 0.25)
    with contextlib.suppress(OSError):
        os.nice(math.ceil(math.log((1.0 - share) / share, 1.25)))


def make(job: Job) -> None:
    """Compiles the kernel and notes it in the cache."""
    from loma.backends import toolchain
    from loma.backends.schedule.choices import Choices

    start = time.perf_counter()
    stage = job.program.stage(job.key)
    source = source_of(job, stage, Choices(job.choices))
    folder = toolchain.build_specialisation(source, job.folder, job.toolchain)
    note(job, sizes_of(job, stage), folder, time.perf_counter() - start)


def sizes_of(job: Job, stage: Optimised) -> dict[str, int]:
    """The values of the function's sizes and ints, by name."""
    from loma import pipeline
    from loma.backends.torch import binding

    function = pipeline.find(stage.module, job.function)
    names = binding.slot_names(function, stage.zeroed.get(job.function, ()))
    return dict(zip(names, job.slots, strict=True))


def written_by(job: Job, stage: Optimised) -> tuple[int, ...]:
    """Which of the tensors that the kernel is called with it writes where they lie."""
    from loma import pipeline
    from loma.core.ir import IntType

    params = pipeline.find(stage.module, job.function).params
    tensors = [param for param in params if not isinstance(param.type, IntType)]
    return tuple(k for k, param in enumerate(tensors) if param.mode == "Out")


def source_of(job: Job, stage: Optimised, choices: Choices) -> GeneratedSource:
    """The kernel's C++."""
    from loma import pipeline

    # Narrow dtypes are computed in float.
    real: Literal["float", "double"] = "double" if job.dtype == "float64" else "float"
    if job.device == "cuda":
        return pipeline.device_part(
            stage, job.function, job.namespace, real, job.program.contract,
            sizes_of(job, stage), choices,
        )  # fmt: skip
    return pipeline.specialised(
        stage, job.function, sizes_of(job, stage), job.namespace, real,
        job.program.contract, choices,
    )  # fmt: skip


def note(job: Job, sizes: dict[str, int], folder: Path, seconds: float) -> None:
    """Notes a kernel for these sizes that is in that folder of the cache, and took so long."""
    made: Note = {
        "operator": job.operator,
        "function": job.function,
        "sizes": sizes,
        "dtype": job.dtype,
        "object": folder.name,
        "seconds": seconds,
        "choices": dict(job.choices),
        "device": job.device,
    }
    # A kernel in float serves calls in float32 and in narrow dtypes.
    cache.add_note(job.notes, cache.digest([folder.name, job.dtype]), made)
