"""A trained network from a checkpoint, on either engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from capsnet_loma.config import CapsNetConfig
from capsnet_loma.data import Dataset
from capsnet_loma.evaluation import EvaluationError
from capsnet_loma.parameters import CapsNetParameters
from capsnet_loma.training.run import Run
from capsnet_loma.training.settings import Engine

if TYPE_CHECKING:
    from capsnet_loma.training.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class Model:
    """A network and the functions that belong to it; all of them are of the one engine."""

    engine: Engine
    network: CapsNetParameters

    @property
    def config(self) -> CapsNetConfig:
        return self.network.config

    @property
    def device(self) -> torch.device:
        """Where the network computes."""
        return self.network.digit_weight.device

    def lengths(self, capsules: Tensor) -> Tensor:
        """[B, I, O] -> [B, I]: how sure the network is of each class."""
        return cast(Tensor, self._functions.lengths(capsules))

    def loss(
        self, images: Tensor, targets: Tensor, capsules: Tensor, reconstruction: Tensor
    ) -> Tensor:
        """The loss that is trained with: a 0-dim tensor, mean over the batch."""
        if self.engine == "loma":
            from capsnet_loma.network import capsule_loss
        else:
            from capsnet_loma.reference import capsule_loss
        return capsule_loss(images, targets, capsules, reconstruction)

    def decode(self, capsules: Tensor, mask: Tensor) -> Tensor:
        """Capsules [B, I, O], mask [B, I] of those to decode -> images [B, C, H, W] in 0..1."""
        c = self.config
        image = self._functions.decoder(capsules, mask, *self.network.decoder_weights)
        return cast(Tensor, image.reshape(-1, c.image_channels, c.image_size, c.image_size))

    @property
    def _functions(self) -> Any:
        """What has lengths and decoder as functions."""
        if self.engine == "loma":
            from capsnet_loma.layers import layers

            return layers()
        from capsnet_loma import reference

        return reference


def open_model(
    path: Path, engine: Engine | None = None, device: torch.device | str = "cpu"
) -> tuple[Model, Checkpoint]:
    """The network of a checkpoint, or of the best one of a run's folder, on a device.

    It runs on ``engine``, by default on that which it was trained on: either loads the other's
    weights. Raises EvaluationError when there is no such file, CheckpointError when it is damaged.
    """
    from capsnet_loma.training import checkpoint, engines

    file = checkpoint_file(path)
    found = checkpoint.read(file)
    used = engine or found.engine
    network = engines.network(used, found.config)
    try:
        network.load_state_dict(found.model)
    except RuntimeError as error:
        raise EvaluationError(
            f"{file} has weights that do not fit the sizes it names: {error}"
        ) from error
    return Model(used, network.eval().to(device)), found


def checkpoint_file(path: Path) -> Path:
    """The checkpoint that is meant by a file, or by a run's folder. Raises EvaluationError."""
    file = Run(path).best if path.is_dir() else path
    if file.is_file():
        return file
    reason = f"{path} has no {file.name}" if path.is_dir() else f"{path} does not exist"
    raise EvaluationError(
        f"{reason}. Expected is a checkpoint, or the folder of a run in which "
        "`capsnet-loma train` has finished an epoch."
    )


def check_sizes(model: Model, data: Dataset, checkpoint: Path, where: str) -> None:
    """Raises EvaluationError when the network takes other images than ``where`` has."""
    c = model.config
    wanted = (c.image_channels, c.image_size, c.classes)
    found = (1, data.test.image_size, data.classes)
    if wanted != found:
        raise EvaluationError(
            f"{checkpoint} is a network for {_sizes(*wanted)}, but {where} has {_sizes(*found)}. "
            "Give the data that it was trained on, with --data."
        )


def _sizes(channels: int, size: int, classes: int) -> str:
    colours = "" if channels == 1 else f" with {channels} channels"
    return f"images of {size}x{size} pixels{colours} in {classes} classes"


def capsules_of(model: Model, images: Tensor) -> Tensor:
    """uint8 [N, H, W] -> the digit capsules [N, I, O], on the model's device."""
    with torch.no_grad():
        capsules, _ = model.network(images.to(model.device).unsqueeze(1).float() / 255)
    return cast(Tensor, capsules)
