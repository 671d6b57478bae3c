"""What a training run leaves behind, written without training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from capsnet_loma import CapsNetConfig
from capsnet_loma.training.checkpoint import Checkpoint, write

METRICS = """\
epoch,step,seconds,learning_rate,train_loss,train_accuracy,test_loss,test_accuracy,images_per_second
1,25,3.5,0.001,0.5,0.4,0.2,0.8,357.1
2,50,7.0,0.0009,0.2,0.9,0.1,0.95,357.1
"""


def write_checkpoint(
    path: Path,
    engine: str,
    config: CapsNetConfig,
    model: dict[str, Tensor],
    settings: dict[str, Any],
) -> None:
    write(path, Checkpoint(engine, config, settings, model))
