"""The folder of a run: its files, and that one training at a time has it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import filelock

from capsnet_loma.training import TrainingError
from capsnet_loma.training.checkpoint import TEMPORARY


class Run:
    """``last`` is the newest checkpoint, ``best`` the one with the best test accuracy."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.last, self.best = folder / "last.pt", folder / "best.pt"
        self.metrics, self.board = folder / "metrics.csv", folder / "tensorboard"

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Makes the folder, and keeps other trainings out. Raises TrainingError where one has it.

        What an earlier training was killed while writing is removed.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = filelock.FileLock(self.folder / ".lock")
            lock.acquire(timeout=0)
        except filelock.Timeout:
            raise TrainingError(
                f"another training writes to {self.folder}. Wait for it, or give another folder "
                "with --output."
            ) from None
        except OSError as error:
            raise TrainingError(
                f"{self.folder} cannot be written to: {error.strerror or error}. Give another "
                "folder with --output."
            ) from error
        try:
            for file in self.folder.glob(f"*{TEMPORARY}"):
                file.unlink()
            yield
        finally:
            lock.release()

    @property
    def newest(self) -> Path | None:
        """What to go on from: the last checkpoint, or the best one where somebody removed that."""
        return next((file for file in (self.last, self.best) if file.exists()), None)

    def check_free(self) -> None:
        """Raises TrainingError when there is a run."""
        for file in (self.last, self.best, self.metrics):
            if file.exists():
                raise TrainingError(
                    f"{self.folder} has a run already ({file.name}). Go on with it by --resume, "
                    "replace it by --overwrite, or give another folder with --output."
                )

    def clear(self) -> None:
        """For a new run."""
        for file in (self.best, self.last, self.metrics):
            file.unlink(missing_ok=True)
        shutil.rmtree(self.board, ignore_errors=True)
