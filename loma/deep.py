"""How Python is set while trees are made: frames for those that are as deep as programs may be, and
no search for cycles, of which trees have none: it takes a tenth of the time."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Deep:
    """As many frames as programs need that are as deep as the frontend lets them be; the collector
    of cycles waits. Both are the process's, so that the last thread to leave puts them back."""

    FRAMES = 10_000

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._before = 0
        self._collects = False

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._before = sys.getrecursionlimit()
                sys.setrecursionlimit(max(self._before, self.FRAMES))
                self._collects = gc.isenabled()
                gc.disable()
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if self._inside == 0:
                    if sys.getrecursionlimit() == self.FRAMES:
                        sys.setrecursionlimit(self._before)
                    if self._collects:
                        _as_old()
                        gc.enable()


_MANY = 30_000  # objects, which the collector goes through in some milliseconds


def _as_old() -> None:
    """What was made counts as old: to look through all of it for garbage of its first moments, as
    the collector otherwise does at once, takes as long as one of the larger passes. It takes longer
    to count what a program has frozen, which stays so, than to look through little."""
    if gc.get_count()[0] > _MANY and gc.get_freeze_count() == 0:
        gc.freeze()
        gc.unfreeze()


deep = _Deep()
