"""How several processes end when one of them fails: all of them soon, and with one message.

A process that fails closes its connections when it ends. The others notice that in the sum or
gradient that they compute next, and find out here whether it has said why or was killed. What they
know of each other is in a store, which is not lost with a process.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType
from typing import NoReturn

import psutil
from torch.distributed.distributed_c10d import Store

from capsnet_loma.training import TrainingError

PATIENCE = timedelta(seconds=10)  # torchrun kills who is still there 30 seconds after a failure
_POLL, _BEHIND = 0.05, 1.0  # seconds


class LostError(Exception):
    """Communication failed, since another process has ended."""


@dataclass(slots=True)
class Ending:
    """What a process needs to end together with ``world - 1`` others."""

    store: Store
    rank: int
    world: int
    _begun: bool = False

    def begin(self) -> None:
        """From now on this process ends by itself; a launcher need not tell it to."""
        self._begun = True

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """An exception of the body goes on in the process that is the first to have one; others
        raise SystemExit when that one has printed its message.

        A LostError becomes a TrainingError that says which process is gone, unless that one had an
        exception itself.
        """
        self.store.set(_process(self.rank), f"{os.getpid()} {socket.gethostname()}")
        with self._deaf_at_the_end():
            try:
                yield
            except LostError as error:
                gone = self._gone()
                self._speak_or_leave()
                raise TrainingError(_message(gone, self.world, error)) from error
            except (Exception, KeyboardInterrupt):
                self._speak_or_leave()
                raise

    @contextlib.contextmanager
    def _deaf_at_the_end(self) -> Iterator[None]:
        """torchrun sends SIGTERM as soon as one process has ended: too early for the message of
        another one."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def terminate(number: int, frame: FrameType | None) -> None:
            if not self._begun:
                with contextlib.suppress(RuntimeError):  # it is not this one that is missing
                    self.store.set(_noticed(self.rank), "")
                signal.signal(number, signal.SIG_DFL)
                signal.raise_signal(number)

        former = signal.signal(signal.SIGTERM, terminate)
        yield
        signal.signal(signal.SIGTERM, former)

    def _speak_or_leave(self) -> None:
        """Returns in one process only."""
        self.begin()
        with contextlib.suppress(RuntimeError):  # without a store all of them speak
            if self.store.add("capsnet_loma/failures", 1) > 1:
                self._leave()
            atexit.register(self._say_that_it_is_said)

    def _say_that_it_is_said(self) -> None:
        with contextlib.suppress(RuntimeError):
            self.store.set("capsnet_loma/said", "")

    def _leave(self) -> NoReturn:
        """Not before the message is out, since torchrun ends all when it sees the first end; and a
        little later, so that its summary names the process with the message."""
        with contextlib.suppress(RuntimeError):
            self.store.wait(["capsnet_loma/said"], PATIENCE)
        self._begun = False
        time.sleep(_BEHIND)
        raise SystemExit(1)

    def _gone(self) -> list[int]:
        """The processes that have ended without a word.

        Others may still be computing: they are waited for, as long as they exist or, if they are of
        another machine, for a while.
        """
        with contextlib.suppress(RuntimeError):
            self.store.set(_noticed(self.rank), "")
            end = time.monotonic() + PATIENCE.total_seconds()
            while True:
                silent = [rank for rank in range(self.world) if not self._has(_noticed(rank))]
                if self._has("capsnet_loma/failures"):
                    return silent  # another process speaks
                dead = [rank for rank in silent if self._is_dead(rank)]
                if dead == silent or time.monotonic() > end:
                    return dead or silent
                time.sleep(_POLL)
        return []

    def _has(self, key: str) -> bool:
        return bool(self.store.check([key]))

    def _is_dead(self, rank: int) -> bool:
        """Whether that process was of this machine and has ended."""
        pid, _, host = self.store.get(_process(rank)).decode().partition(" ")
        if host != socket.gethostname():
            return False
        try:
            return bool(psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return True


def _process(rank: int) -> str:
    return f"capsnet_loma/process/{rank}"


def _noticed(rank: int) -> str:
    return f"capsnet_loma/noticed/{rank}"


def _message(gone: list[int], world: int, error: LostError) -> str:
    if gone:
        who = f"{'rank' if len(gone) == 1 else 'ranks'} {', '.join(map(str, gone))}"
        verb = "has" if len(gone) == 1 else "have"
        what = f"{who} of {world} processes {verb} ended without a message (killed? out of memory?)"
    else:
        what = f"the connection to another one of {world} processes failed: {error}"
    return (
        f"{what}, and the others cannot go on alone. Start the same command again with --resume: "
        "it goes on from the last checkpoint."
    )
