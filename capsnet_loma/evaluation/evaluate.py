"""Loss, accuracy and confusion matrix of a network on a set of images."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from capsnet_loma.data import ImageSet
from capsnet_loma.data.batches import Batch, in_order
from capsnet_loma.evaluation.model import Model


@dataclass(frozen=True, slots=True)
class Evaluation:
    """``loss``: mean over the images, of the decoder on the true class's capsule, as in training.

    ``predictions`` int64 [N]: the class of the longest capsule, for each image in order.
    ``confusion`` int64 [classes, classes]: how many images of a class (row) were taken for which
    (column).
    """

    loss: float
    predictions: Tensor
    confusion: Tensor

    @property
    def images(self) -> int:
        return int(self.confusion.sum())

    @property
    def right(self) -> int:
        return int(self.confusion.trace())

    @property
    def accuracy(self) -> float:
        """The share of images that were recognised, in 0..1."""
        return self.right / self.images

    @property
    def recall(self) -> list[float | None]:
        """For each class: of its images, the share recognised; None when it has none."""
        return _shares(self.confusion.diagonal(), self.confusion.sum(dim=1))

    @property
    def precision(self) -> list[float | None]:
        """For each class: of the images taken for it, the share that were; None when none was."""
        return _shares(self.confusion.diagonal(), self.confusion.sum(dim=0))

    def to_json(self) -> dict[str, Any]:
        return {
            "images": self.images,
            "accuracy": self.accuracy,
            "loss": self.loss if math.isfinite(self.loss) else None,
            "recall": self.recall,
            "precision": self.precision,
            "confusion": self.confusion.tolist(),
        }


def evaluate(
    model: Model,
    data: ImageSet,
    batch: int = 100,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> Evaluation:
    """Runs the network on all images; ``progress(what, images done, images)`` hears of each batch.

    Raises ValueError for a batch of no images.
    """
    classes = model.config.classes
    total, predictions = 0.0, []
    progress("", 0, len(data))
    done = 0
    batches = in_order(data, classes, batch, device=model.device)
    for part, loss, predicted in outcomes(model, batches):
        predictions.append(predicted)
        total += loss * len(part)
        done += len(part)
        progress("", done, len(data))
    answers = torch.cat(predictions).cpu()
    pairs = data.labels * classes + answers
    confusion = torch.bincount(pairs, minlength=classes**2).reshape(classes, classes)
    return Evaluation(total / len(data), answers, confusion)


def outcomes(model: Model, batches: Iterable[Batch]) -> Iterator[tuple[Batch, float, Tensor]]:
    """Each batch with its mean loss and the class int64 [B] that every image is taken for."""
    for part in batches:
        with torch.no_grad():
            capsules, reconstruction = model.network(part.images, part.targets)
            loss = model.loss(part.images, part.targets, capsules, reconstruction)
            predicted = model.lengths(capsules).argmax(dim=1)
        yield part, float(loss), predicted


def _shares(right: Tensor, counts: Tensor) -> list[float | None]:
    pairs = zip(right.tolist(), counts.tolist(), strict=True)
    return [r / count if count else None for r, count in pairs]
