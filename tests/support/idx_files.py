"""Small folders in the format of MNIST, as tests and other programs write them."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy
from numpy.typing import NDArray

NAMES = {
    ("train", "images"): "train-images-idx3-ubyte",
    ("train", "labels"): "train-labels-idx1-ubyte",
    ("test", "images"): "t10k-images-idx3-ubyte",
    ("test", "labels"): "t10k-labels-idx1-ubyte",
}


def idx(values: NDArray[numpy.uint8]) -> bytes:
    header = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
    return header + values.tobytes()


def write_folder(
    folder: Path, *, train: int = 12, test: int = 6, size: int = 28, zipped: bool = False
) -> dict[tuple[str, str], NDArray[numpy.uint8]]:
    """Writes four files of random images, and gives what is in them."""
    generator = numpy.random.default_rng(0)
    content = {}
    for part, count in (("train", train), ("test", test)):
        content[part, "images"] = generator.integers(0, 256, (count, size, size), numpy.uint8)
        content[part, "labels"] = generator.integers(0, 10, count, numpy.uint8)
    folder.mkdir(parents=True, exist_ok=True)
    for key, values in content.items():
        data = idx(values)
        if zipped:
            (folder / f"{NAMES[key]}.gz").write_bytes(gzip.compress(data, mtime=0))
        else:
            (folder / NAMES[key]).write_bytes(data)
    return content
