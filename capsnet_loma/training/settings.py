"""What is trained, and how: everything that decides the numbers of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from capsnet_loma.config import CapsNetConfig, Softmax

if TYPE_CHECKING:
    from capsnet_loma.data import Dataset

Engine = Literal["loma", "pytorch"]
Optimiser = Literal["adam", "adamw", "sgd"]

# The sizes that --network names, as changes of the paper's.
NETWORKS: dict[str, dict[str, Any]] = {
    "paper": {},
    "small": {"conv_channels": 64, "primary_types": 8},
    "tiny": {"conv_channels": 8, "primary_types": 2, "decoder_hidden": (32, 64)},
}


@dataclass(frozen=True, slots=True)
class Settings:
    """``batch`` counts the images of all processes; ``learning_rate`` is multiplied by ``decay``
    after each epoch; ``shift`` is in pixels; ``data`` is a folder, None for the built-in digits.
    The library's matrix products round otherwise with another number of ``threads``, of each
    process; None before it is known.
    """

    engine: Engine = "loma"
    network: str = "paper"
    data: str | None = None
    epochs: int = 40
    batch: int = 100
    optimiser: Optimiser = "adam"
    learning_rate: float = 1e-3
    decay: float = 0.95
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0
    shift: int = 2
    routing_iterations: int = 3
    routing_softmax: Softmax = "digits"
    seed: int = 0
    threads: int | None = None

    def config(self, data: Dataset) -> CapsNetConfig:
        """The network for images of that size. Raises ValueError when they are too small."""
        return CapsNetConfig(
            image_size=data.train.image_size,
            classes=data.classes,
            routing_iterations=self.routing_iterations,
            routing_softmax=self.routing_softmax,
            **NETWORKS[self.network],
        )


NAMES = tuple(field.name for field in fields(Settings))
# What a run may be continued with another value of. Images are compared when they are loaded.
CHANGEABLE = ("epochs", "data", "threads")


def resumed(kept: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[Settings, list[str]]:
    """The settings of a run with those that are ``given`` anew, and the names of those among them
    that cannot change."""
    fixed = [name for name in given if name not in CHANGEABLE and given[name] != kept[name]]
    own = Settings(**{name: kept[name] for name in NAMES})
    return replace(own, **{name: given[name] for name in CHANGEABLE if name in given}), fixed
