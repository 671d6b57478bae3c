"""The built-in data set: scikit-learn's 1,797 handwritten digits, made to look like MNIST's.

Alpaydin and Kaynak 1998, "Optical Recognition of Handwritten Digits", UCI Machine Learning
Repository: 8x8 pixels, each the number (0..16) of dark ones among 4x4 of a scan. As in MNIST a
digit fills a box of 20x20 pixels in the middle of 28x28, so a shift by two cuts nothing off.
"""

from __future__ import annotations

import hashlib

import numpy
import torch
from numpy.typing import NDArray

from capsnet_loma.data.images import CLASSES, DataError, Dataset, ImageSet

SIZE, BOX, SOURCE_SIZE, SOURCE_MAXIMUM = 28, 20, 8, 16
TEST_PER_CLASS = 50
SPLIT_SEED = 2017
# Of images and labels, one byte a value.
SHA256 = "87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"


def load_digits() -> Dataset:
    """1,297 images to train with and 500 to test with, 28x28; the same on every machine.

    Raises DataError when scikit-learn has other digits than those the split was made for.
    """
    from sklearn import datasets

    source = datasets.load_digits()
    images, labels = source.images.astype(numpy.uint8), source.target.astype(numpy.int64)
    found = hashlib.sha256(images.tobytes() + labels.astype(numpy.uint8).tobytes()).hexdigest()
    if found != SHA256:
        raise DataError(
            f"scikit-learn's digits are not those that the split is made for: their SHA-256 is "
            f"{found}, expected is {SHA256}. Install another version of scikit-learn, or give a "
            "folder with MNIST."
        )
    frames = torch.from_numpy(enlarged(images))
    targets = torch.from_numpy(labels)
    train, test = (torch.from_numpy(indices) for indices in split(labels))
    return Dataset(
        "digits",
        ImageSet(frames[train], targets[train]),
        ImageSet(frames[test], targets[test]),
        CLASSES,
    )


def split(labels: NDArray[numpy.int64]) -> tuple[NDArray[numpy.int64], NDArray[numpy.int64]]:
    """Ascending indices of the images to train with, and of those to test with: 50 of each class.

    In each class, those with the smallest SHA-256 of "seed:index" are tested: no generator is
    involved that another version or machine might have differently.
    """
    order = sorted(range(len(labels)), key=_rank)
    tested = numpy.zeros(len(labels), dtype=bool)
    for label in range(CLASSES):
        tested[[index for index in order if labels[index] == label][:TEST_PER_CLASS]] = True
    return numpy.flatnonzero(~tested), numpy.flatnonzero(tested)


def _rank(index: int) -> bytes:
    return hashlib.sha256(f"{SPLIT_SEED}:{index}".encode()).digest()


def enlarged(images: NDArray[numpy.uint8]) -> NDArray[numpy.uint8]:
    """[N, 8, 8] of 0..16 -> [N, 28, 28] of 0..255, by cubic convolution with zeros around.

    Keys 1981, "Cubic Convolution Interpolation for Digital Image Processing", with a = -1/2. All
    weights are multiples of 1/2000, so integers give the same images everywhere.
    """
    places = (numpy.arange(SIZE) - (SIZE - BOX) / 2 + 0.5) * SOURCE_SIZE / BOX - 0.5
    distance = numpy.abs(places[:, None] - numpy.arange(SOURCE_SIZE))
    near = (1.5 * distance - 2.5) * distance**2 + 1.0
    far = ((-0.5 * distance + 2.5) * distance - 4.0) * distance + 2.0
    weights = numpy.where(distance < 1.0, near, numpy.where(distance < 2.0, far, 0.0))
    # A pixel or more outside the box only the kernel's negative part arrives: background.
    weights[distance.min(axis=1) >= 1.0] = 0.0
    whole = numpy.rint(2000 * weights).astype(numpy.int64)
    values = whole @ images.astype(numpy.int64) @ whole.T
    scale = 2000**2 * SOURCE_MAXIMUM
    rounded: NDArray[numpy.int64] = (255 * values + scale // 2) // scale
    return rounded.clip(0, 255).astype(numpy.uint8)
