"""A wish to stop: Ctrl-C, or what ends a process politely."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType


@dataclass(slots=True)
class Stop:
    """``number``: the signal that came, 0 before."""

    number: int = 0


@contextlib.contextmanager
def listening() -> Iterator[Stop]:
    """SIGINT and SIGTERM are noted instead of obeyed; a second one raises KeyboardInterrupt."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def note(number: int, frame: FrameType | None) -> None:
        if stop.number:
            raise KeyboardInterrupt
        stop.number = number

    former = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
