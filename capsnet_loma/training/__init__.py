"""Training of a CapsNet: :mod:`loop` runs the epochs, :mod:`checkpoint` keeps them on disk.

:mod:`settings` says what is trained and how, :mod:`engines` makes it for loma or plain PyTorch,
:mod:`run` is a run's folder, :mod:`metrics` its numbers, :mod:`distributed` the processes that
share the work.
"""

from __future__ import annotations


class TrainingError(Exception):
    """Training that cannot begin or go on: what was found, what was expected, what to do."""
