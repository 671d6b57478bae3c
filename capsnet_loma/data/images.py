"""Images with their classes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from torch import Tensor

CLASSES = 10


class DataError(Exception):
    """Images that cannot be used: the file, what was found, what was expected, what to do."""


@dataclass(frozen=True, slots=True)
class ImageSet:
    """``images`` uint8 [N, H, W], 0 is background; ``labels`` int64 [N]."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def image_size(self) -> int:
        """Height and width in pixels: the images are square."""
        return self.images.shape[-1]


@dataclass(frozen=True, slots=True)
class Dataset:
    """Images to train with and images to test with, of the same size; labels are 0..classes-1."""

    name: str
    train: ImageSet
    test: ImageSet
    classes: int

    @property
    def digest(self) -> str:
        """Tells data sets apart: the SHA-256 of all images and labels."""
        found = hashlib.sha256()
        for part in (self.train, self.test):
            for tensor in (part.images, part.labels):
                found.update(str(tuple(tensor.shape)).encode())
                found.update(tensor.contiguous().numpy().tobytes())
        return found.hexdigest()
