"""Frames for trees that are as deep as programs may be."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Deep:
    """As many frames as programs need that are as deep as the frontend lets them be."""

    FRAMES = 10_000

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._before = 0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._before = sys.getrecursionlimit()
                sys.setrecursionlimit(max(self._before, self.FRAMES))
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if self._inside == 0 and sys.getrecursionlimit() == self.FRAMES:
                    sys.setrecursionlimit(self._before)


deep = _Deep()
