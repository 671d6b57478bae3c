"""How the two parts of a split function fit together; what a backend needs to run them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Source:
    """Where an argument of the backward function comes from.

    ``index`` is the position of the primal's argument ("arg", "size", "need"), of its result
    ("result", "grad"), or of the saved value ("saved"). A "size" is what the dimension ``dim``
    binds, which is ``scale`` times it, plus ``offset``.
    """

    kind: Literal["arg", "result", "saved", "grad", "size", "need"]
    index: int
    dim: int = 0
    scale: int = 1
    offset: int = 0


@dataclass(frozen=True, slots=True)
class SplitPair:
    """A function's forward and backward parts.

    ``forward`` takes the primal's arguments (``Out`` ones as their initial values) and returns the
    primal's results, the final values of its ``Out`` arguments, and the saved values.
    ``backward`` takes one argument for each of ``sources`` and returns the adjoints of the
    arguments at the positions ``differentiable``, in order. ``entries`` has for each saved value
    the position of the ``Out`` argument whose value on entry it is, or -1.
    """

    primal: str
    forward: str
    backward: str
    sources: tuple[Source, ...]
    differentiable: tuple[int, ...]
    entries: tuple[int, ...]
