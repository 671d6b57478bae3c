"""What a training run leaves behind, written without training."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from capsnet_loma import CapsNetConfig
from capsnet_loma.data import load
from capsnet_loma.training.checkpoint import Checkpoint, write
from capsnet_loma.training.settings import Engine, Settings

METRICS = """\
epoch,step,seconds,learning_rate,train_loss,train_accuracy,test_loss,test_accuracy,images_per_second
1,25,3.5,0.001,0.5,0.4,0.2,0.8,357.1
2,50,7.0,0.0009,0.2,0.9,0.1,0.95,357.1
"""


def write_checkpoint(
    path: Path,
    engine: Engine,
    config: CapsNetConfig,
    model: dict[str, Tensor],
    data: Path | None = None,
) -> None:
    """A checkpoint after two epochs on the images of a folder, None for the built-in ones."""
    settings = Settings(engine=engine, network="tiny", data=None if data is None else str(data))
    content = Checkpoint(
        engine=engine,
        config=config,
        settings=asdict(settings),
        data=load(data).digest,
        model=model,
        optimiser={},
        scheduler={},
        epoch=2,
        step=0,
        sums={},
        seconds=7.0,
        best={"epoch": 2, "accuracy": 0.95, "loss": 0.1},
        generator=torch.get_rng_state(),
    )
    write(path, content)
