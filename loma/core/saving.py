"""What a function keeps for its backward part under autograd."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

# "all" that the backward part needs; "inputs": arguments and results alone, from which the rest is
# computed again; "auto": what is cheap is computed again. loma.ad.tensor.saving says what is cheap.
Save: TypeAlias = Literal["auto", "all", "inputs"]
SAVES: tuple[Save, ...] = get_args(Save)
