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

ON_CPU = -1  # in the place of a GPU's number

_told: set[str] = set()


def kind_of(device: int) -> Literal["cpu", "cuda"]:
    """The kind of a device, by its number."""
    return "cpu" if device == ON_CPU else "cuda"


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
        self._results: dict[tuple[str, tuple[int, ...], str, str | int], Result] = {}
        self._program, self._texts = program, texts
        self._knows_gpus = True
        if tune == "off" or again:
            return
        self._knows_gpus = False  # nothing of CUDA begins before a call needs it
        self._look("cpu")

    @property
    def seconds(self) -> float | None:
        """How long a first call with other sizes looks for what is fastest; None: not at all."""
        return self.tune if isinstance(self.tune, float) else None

    def _look(self, device: str) -> None:
        found, foreign = results.of_functions(self._program, self._texts, device)
        for result in found:
            self.add(result)
        for result in foreign:
            _tell(result)

    def add(self, result: Result) -> None:
        slots = tuple(result.sizes.values())
        where = result.threads if result.device == "cpu" else result.processor
        self._results[result.function, slots, result.dtype, where] = result

    def known(self) -> list[Result]:
        return list(self._results.values())

    def find(
        self, function: str, slots: tuple[int, ...], dtype: str, device: int = ON_CPU
    ) -> Result | None:
        """The result for a call with as many threads as there are now, or on that GPU."""
        if device != ON_CPU and not self._knows_gpus:
            self._knows_gpus = True
            self._look("cuda")
        if not self._results:
            return None
        where: str | int
        if device == ON_CPU:
            import torch

            where = torch.get_num_threads()
        else:
            from loma.tuning import gpus

            where = gpus.name(device)
        return self._results.get((function, slots, dtype, where))

    def choices(
        self, function: str, slots: tuple[int, ...], dtype: str, device: int = ON_CPU
    ) -> Taken:
        """The ways that lowering goes for such a call, where they are not the usual ones."""
        result = self.find(function, slots, dtype, device)
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
