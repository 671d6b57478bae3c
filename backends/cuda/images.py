"""Kernels of GPUs from their text: what the runtime calls when it launches one for the first time.

An image is what CUDA's driver loads, a cubin. NVRTC makes it (:mod:`loma.backends.cuda.nvrtc`);
tests put a compiler for the CPU in its place.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import TypeAlias

Make: TypeAlias = Callable[[str, str, Sequence[str], str], bytes]


def image(name: str, text: str, options: Sequence[str], architecture: str) -> bytes:
    """The kernel of that name, compiled: ``options`` are the macros of its form
    (``-DLOMA_TEAM=32``), ``architecture`` is the device's, ``sm_90``."""
    return (_make or _by_nvrtc)(name, text, options, architecture)


def use(make: Make | None) -> Make | None:
    """Whoever compiles from now on, None for NVRTC; returns who did until now."""
    global _make
    former, _make = _make, make
    return former


def later(
    name: str,
    text: str,
    options: Sequence[str],
    architecture: str,
    done: Callable[[bytes], None],
) -> None:
    """The same on another thread, one after the other; ``done`` gets what was made. Where that
    fails, a warning says so once, and the kernel for all numbers stays."""
    _worker.put((name, text, options, architecture, done))


def wait(timeout: float | None = None) -> bool:
    """Waits until no kernel is being made on that thread; False when it takes longer than so many
    seconds. Launches load what was made."""
    return _worker.wait(timeout)


_make: Make | None = None

_Task: TypeAlias = tuple[str, str, Sequence[str], str, Callable[[bytes], None]]


def _by_nvrtc(name: str, text: str, options: Sequence[str], architecture: str) -> bytes:
    from loma.backends.cuda import nvrtc

    return nvrtc.image(name, text, options, architecture)


class _Worker:
    """A thread that begins with the first task."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[_Task] = queue.SimpleQueue()
        self._lock = threading.Condition()
        self._open = 0  # tasks that are not done
        self._started = False
        self._reported = False

    def put(self, task: _Task) -> None:
        with self._lock:
            self._open += 1
            self._tasks.put(task)
            if not self._started:
                self._started = True
                threading.Thread(target=self._run, name="loma.cuda", daemon=True).start()

    def _run(self) -> None:
        while True:
            name, text, options, architecture, done = self._tasks.get()
            try:
                done(image(name, text, options, architecture))
            except Exception as error:
                self._report(name, error)
            with self._lock:
                self._open -= 1
                self._lock.notify_all()

    def wait(self, timeout: float | None) -> bool:
        with self._lock:
            return self._lock.wait_for(lambda: not self._open, timeout)

    def _report(self, name: str, error: Exception) -> None:
        if self._reported:
            return
        self._reported = True
        with contextlib.suppress(Warning):  # where warnings are errors, nobody is there to catch it
            warnings.warn(
                f"loma: the kernel '{name}' was not compiled for the numbers it is called with, "
                f"the general one stays (further failures are not reported): {error}",
                RuntimeWarning,
                stacklevel=2,
            )


_worker = _Worker()


def _after_fork_in_child() -> None:
    """A forked process has no thread; kernels that one was to make keep their general form."""
    global _worker
    _worker = _Worker()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
