"""The IDX format, in which MNIST and Fashion-MNIST come.

A file is big-endian: two zero bytes, a byte for the type (8: unsigned bytes), a byte for the number
of dimensions, the sizes as 32-bit integers, then the values, row-major. It may be gzipped, which is
recognised by its content, not by its name.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy
import torch
from numpy.typing import NDArray

from capsnet_loma.data.images import CLASSES, DataError, Dataset, ImageSet

GZIP_MAGIC = b"\x1f\x8b"
UNSIGNED_BYTES = 8
PIECE = 1 << 20
FILES = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")

SOURCES = (
    "They are those of MNIST (http://yann.lecun.com/exdb/mnist/) and of Fashion-MNIST "
    "(https://github.com/zalandoresearch/fashion-mnist). "
    "Without a folder the built-in digits are used."
)


def load_folder(folder: Path) -> Dataset:
    """The four files of a folder; the data set is named after it. Raises DataError."""
    if not folder.is_dir():
        state = "is not a folder" if folder.exists() else "does not exist"
        raise DataError(f"{folder} {state}. Expected is a folder with four files:\n{_expected()}")
    found = {name: file for name in FILES if (file := _find(folder, name)) is not None}
    missing = [f"{name}-ubyte" for name in FILES if name not in found]
    if missing:
        raise DataError(
            f"{folder} has no {' and no '.join(missing)}. Expected are four files:\n{_expected()}"
        )
    train = _image_set(found["train-images-idx3"], found["train-labels-idx1"])
    test = _image_set(found["t10k-images-idx3"], found["t10k-labels-idx1"])
    if train.image_size != test.image_size:
        raise DataError(
            f"{found['t10k-images-idx3']} has images of {_size(test)} pixels, but "
            f"{found['train-images-idx3']} has images of {_size(train)}. Both must have the "
            "same size: take all four files from one data set."
        )
    return Dataset(folder.resolve().name, train, test, CLASSES)


def _expected() -> str:
    lines = [
        f"  {name}-ubyte or {name.replace('-idx', '.idx')}-ubyte, or with .gz" for name in FILES
    ]
    return "\n".join([*lines, SOURCES])


def _find(folder: Path, name: str) -> Path | None:
    """The file in one of its spellings: both - and . are seen before idx."""
    for spelling in (name, name.replace("-idx", ".idx")):
        for suffix in ("", ".gz"):
            file = folder / f"{spelling}-ubyte{suffix}"
            if file.is_file():
                return file
    return None


def _image_set(images_file: Path, labels_file: Path) -> ImageSet:
    images, labels = read_idx(images_file, 3), read_idx(labels_file, 1)
    count, height, width = images.shape
    if height != width:
        raise DataError(
            f"{images_file} has images of {height}x{width} pixels. The network takes square "
            "images only."
        )
    if count != len(labels):
        raise DataError(
            f"{labels_file} has {len(labels):,} labels, but {images_file} has {count:,} images. "
            "Expected is one label for each image: take both files from one data set."
        )
    if labels.max() >= CLASSES:
        position = int((labels >= CLASSES).argmax())
        raise DataError(
            f"{labels_file} has the label {labels[position]} at position {position:,}. Expected "
            f"are labels from 0 to {CLASSES - 1}."
        )
    return ImageSet(torch.from_numpy(images), torch.from_numpy(labels.astype(numpy.int64)))


def _size(data: ImageSet) -> str:
    return f"{data.image_size}x{data.image_size}"


def read_idx(path: Path, dimensions: int) -> NDArray[numpy.uint8]:
    """The values of a file with this number of dimensions, plain or gzip.

    Raises DataError when it is of another kind or damaged. Memory grows with what the file really
    contains, so that no header can ask for more.
    """
    try:
        with path.open("rb") as file:
            start = file.read(len(GZIP_MAGIC))
            file.seek(0)
            if start != GZIP_MAGIC:
                return _read(path, file, dimensions)
            with gzip.GzipFile(fileobj=file) as unpacked:
                return _read(path, unpacked, dimensions)
    except EOFError as error:
        raise _damaged(path, "its gzip data ends early") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise _damaged(path, f"its gzip data is not intact: {error}") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error


def _read(path: Path, file: BinaryIO | gzip.GzipFile, dimensions: int) -> NDArray[numpy.uint8]:
    expected = struct.pack(">HBB", 0, UNSIGNED_BYTES, dimensions)
    length = len(expected) + 4 * dimensions
    header = _read_at_most(file, length)
    if header[: len(expected)] != expected:
        what = "images" if dimensions == 3 else "labels"
        raise _damaged(
            path,
            f"it starts with the bytes {header[:4].hex(' ') or 'of no content at all'}, but a "
            f"file of {what} starts with {expected.hex(' ')}",
        )
    if len(header) < length:
        raise _damaged(path, f"it ends inside its header, after {len(header)} of {length} bytes")
    shape: tuple[int, ...] = struct.unpack_from(f">{dimensions}I", header, len(expected))
    size = math.prod(shape)
    sizes = "x".join(map(str, shape))
    if size == 0:
        raise _damaged(path, f"its header says {sizes} values, which is none")
    values = _read_at_most(file, size)
    if len(values) < size:
        raise _damaged(
            path,
            f"it ends after {len(values):,} values, but its header says {sizes}, which is {size:,}",
        )
    # Reading on to the end also makes gzip compare its checksum.
    if file.read(1):
        raise _damaged(path, f"more data follows the {size:,} values that its header says")
    return numpy.frombuffer(values, numpy.uint8).reshape(shape)


def _read_at_most(file: BinaryIO | gzip.GzipFile, size: int) -> bytearray:
    """The next bytes, fewer where the file ends; takes memory for bytes that are there only."""
    data = bytearray()
    while len(data) < size and (piece := file.read(min(PIECE, size - len(data)))):
        data += piece
    return data


def _damaged(path: Path, what: str) -> DataError:
    return DataError(f"{path} is damaged, or no such file: {what}. Fetch it again.\n{SOURCES}")
