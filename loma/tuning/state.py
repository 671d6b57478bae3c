"""How a loaded module is tuned: what was asked for, and the results that hold for its functions."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, TypeAlias

from loma.tuning import results

if TYPE_CHECKING:
    from loma.backends.schedule.choices import Taken
    from loma.tuning.results import Result

Tune: TypeAlias = Literal["auto", "off"] | float  # see loma.compile

_told: set[str] = set()


def checked(tune: object) -> Tune:
    """What a program asks for; ValueError where it is nothing of the kind."""
    if tune == "auto" or tune == "off":
        return "auto" if tune == "auto" else "off"
    if isinstance(tune, int | float) and not isinstance(tune, bool) and 0 < tune < float("inf"):
        return float(tune)
    raise ValueError(f'tune must be "auto", "off" or a number of seconds, got {tune!r}')


class Tuning:
    """``texts``: hashes of what the module's functions compute. ``again``: nothing is known, so
    that it is looked for once more."""

    def __init__(
        self, tune: Tune, program: str, texts: Mapping[str, str], again: bool = False
    ) -> None:
        self.tune = tune
        self._results: dict[tuple[str, tuple[int, ...], str, int], Result] = {}
        if tune == "off" or again:
            return
        found, foreign = results.of_functions(program, texts)
        for result in found:
            self.add(result)
        for result in foreign:
            _tell(result)

    @property
    def seconds(self) -> float | None:
        """How long a first call with other sizes looks for what is fastest; None: not at all."""
        return self.tune if isinstance(self.tune, float) else None

    def add(self, result: Result) -> None:
        slots = tuple(result.sizes.values())
        self._results[result.function, slots, result.dtype, result.threads] = result

    def known(self) -> list[Result]:
        return list(self._results.values())

    def find(self, function: str, slots: tuple[int, ...], is_double: bool) -> Result | None:
        """The result for a call with as many threads as there are now."""
        if not self._results:
            return None
        import torch

        dtype = "float64" if is_double else "float32"
        return self._results.get((function, slots, dtype, torch.get_num_threads()))

    def choices(self, function: str, slots: tuple[int, ...], is_double: bool) -> Taken:
        """The ways that lowering goes for such a call, where they are not the usual ones."""
        result = self.find(function, slots, is_double)
        return {} if result is None else result.choices


def _tell(result: Result) -> None:
    """Says once what is not used."""
    text = (
        f"loma: what tuning has found for '{result.program}.{result.function}' came from another "
        f"{result.foreign()} and is not used: tune it again, with loma tune"
    )
    if text not in _told:
        _told.add(text)
        warnings.warn(text, RuntimeWarning, stacklevel=2)
