"""What a trained CapsNet is worth, in numbers and in pictures.

:mod:`model` loads a checkpoint, :mod:`evaluate` counts what it recognises; :mod:`curves`,
:mod:`confusion`, :mod:`reconstructions` and :mod:`perturbations` make matplotlib figures.
"""

from __future__ import annotations


class EvaluationError(Exception):
    """What cannot be evaluated or drawn: the file, what was found, what was expected."""
