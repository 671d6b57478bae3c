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
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from loma import cache
from loma.errors import ToolchainError

if TYPE_CHECKING:
    from loma.backends.toolchain import Toolchain
    from loma.compiler import Program

Note = dict[str, Any]  # what the cache has about a kernel


@dataclass(frozen=True, slots=True)
class Job:
    """A kernel to be made: of a function of a program, whose operators are in ``namespace``, for
    the values ``slots`` of its sizes and ints. ``key`` is the program's in the cache's index,
    ``folder`` the compiled module's, ``notes`` where the cache notes its kernels."""

    program: Program
    key: str
    namespace: str
    operator: str
    function: str
    slots: tuple[int, ...]
    dtype: Literal["float", "double"]
    folder: Path
    notes: str
    toolchain: Toolchain


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
    from loma import pipeline
    from loma.backends import toolchain
    from loma.backends.torch import binding

    stage, name = job.program.stage(job.key), job.function
    function = pipeline.find(stage.module, name)
    names = binding.slot_names(function, stage.zeroed.get(name, ()))
    sizes = dict(zip(names, job.slots, strict=True))
    start = time.perf_counter()
    contract = job.program.contract
    source = pipeline.specialised(stage, name, sizes, job.namespace, job.dtype, contract)
    folder = toolchain.build_specialisation(source, job.folder, job.toolchain)
    note: Note = {
        "operator": job.operator,
        "function": name,
        "sizes": sizes,
        "dtype": job.dtype,
        "object": folder.name,
        "seconds": time.perf_counter() - start,
    }
    cache.add_note(job.notes, folder.name, note)
