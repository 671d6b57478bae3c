"""What goes wrong in one of several processes: ``torchrun ... failing_job.py CASE``."""

from __future__ import annotations

import os
import signal
import sys
import time

from capsnet_loma.commands.guard import guarded
from capsnet_loma.training import TrainingError
from capsnet_loma.training.distributed import Job, job
from capsnet_loma.training.signals import listening

COMPUTES = 2.0  # seconds


def run(case: str) -> int:
    with job() as own, listening():
        own.wait()
        CASES[case](own)
        own.wait()
    return 0


def _error(own: Job) -> None:
    raise TrainingError("the same for all")


def _bug(own: Job) -> None:
    made = own.from_main(lambda: {"rank": own.rank, "world": own.world})
    assert made == {"rank": 0, "world": own.world}
    if own.rank == 1:
        raise ValueError("nobody expected this")


def _killed(own: Job) -> None:
    """One process dies, one computes on for a while, and another waits for both."""
    if own.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if own.rank == 2:
        time.sleep(COMPUTES)


CASES = {"error": _error, "bug": _bug, "killed": _killed}


if __name__ == "__main__":
    guarded(run)(case=sys.argv[1])
