"""What a function keeps for its backward part under autograd, and how its parts fit together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

# "all" that the backward part needs; "inputs": arguments and results alone, from which the rest is
# computed again; "auto": what is cheap is computed again. loma.ad.tensor.saving says what is cheap.
Save: TypeAlias = Literal["auto", "all", "inputs"]
SAVES: tuple[Save, ...] = get_args(Save)


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
