"""A training that one process or several make: ``torchrun ... shared_training.py FOLDER ENGINE...``

Every process writes ``FOLDER/ENGINE-RANK-WORLD.pt``: what :func:`trained` gives.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from capsnet_loma.data import Dataset, ImageSet
from capsnet_loma.training.distributed import Job, job
from capsnet_loma.training.loop import Progress, Trainer
from capsnet_loma.training.run import Run
from capsnet_loma.training.settings import Engine, Settings
from capsnet_loma.training.signals import Stop

TRAIN, TEST, BATCH, EPOCHS = 18, 7, 6, 2  # 7 images cannot be shared equally
STEPS = EPOCHS * (TRAIN // BATCH)


def trained(engine: Engine, own: Job, folder: Path) -> dict[str, Any]:
    """Gradients of each step, the rows of all epochs, and the weights after them.

    SGD, since Adam's steps amplify the rounding of gradients that are almost zero.
    """
    settings = Settings(
        engine=engine, network="tiny", epochs=EPOCHS, batch=BATCH, optimiser="sgd",
        learning_rate=0.1,
    )  # fmt: skip
    data = dataset()
    trainer = Trainer(settings, settings.config(data), data, own)
    if not own.is_main:
        with torch.no_grad():  # the main process's parameters count
            trainer.model.network.fc1.bias.fill_(1.0)
    trainer.prepare(lambda what, done, total: None)
    gradients: list[dict[str, Tensor]] = []

    def keep(optimiser: object, args: object, kwargs: object) -> None:
        named = trainer.model.network.named_parameters()
        gradients.append({name: p.grad.clone() for name, p in named if p.grad is not None})

    trainer.optimiser.register_step_pre_hook(keep)
    folder.mkdir(exist_ok=True)
    rows = list(trainer.epochs(Run(folder), None, Stop(), 1000, _silent))
    return {
        "gradients": gradients,
        "rows": [
            [row.train_loss, row.train_accuracy, row.test_loss, row.test_accuracy] for row in rows
        ],
        "weights": dict(trainer.model.network.state_dict()),
    }


@contextmanager
def _silent(epoch: int) -> Iterator[Progress]:
    yield lambda what, done, total: None


def dataset() -> Dataset:
    """Noise."""
    generator = torch.Generator().manual_seed(3)

    def images(count: int) -> ImageSet:
        pixels = torch.randint(0, 256, (count, 20, 20), dtype=torch.uint8, generator=generator)
        return ImageSet(pixels, torch.arange(count) % 3)

    return Dataset("noise", images(TRAIN), images(TEST), 3)


def main() -> None:
    warnings.simplefilter("error")
    folder, engines = Path(sys.argv[1]), sys.argv[2:]
    with job() as own:
        for name in engines:
            engine: Engine = "loma" if name == "loma" else "pytorch"
            result = trained(engine, own, folder / engine)
            torch.save(result, folder / f"{engine}-{own.rank}-{own.world}.pt")


if __name__ == "__main__":
    main()
