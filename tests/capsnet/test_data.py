"""Data sets of the CapsNet: the built-in digits, and folders of IDX files, intact or damaged."""

from __future__ import annotations

import gzip
import hashlib
import struct
import tracemalloc
from pathlib import Path

import numpy
import pytest
import torch

from capsnet_loma.data import DataError, Dataset, load
from capsnet_loma.data.digits import enlarged, split
from capsnet_loma.data.idx import read_idx
from idx_files import NAMES, idx, write_folder

IMAGES, LABELS = NAMES["train", "images"], NAMES["train", "labels"]


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load()


# ------------------------------------------------------------------------------------ digits


def test_digits_are_split_by_class(digits: Dataset) -> None:
    assert (digits.name, digits.classes) == ("digits", 10)
    assert (len(digits.train), len(digits.test)) == (1297, 500)
    assert digits.test.labels.bincount().tolist() == [50] * 10
    for part in (digits.train, digits.test):
        assert part.images.dtype == torch.uint8
        assert part.images.shape == (len(part), 28, 28)
        assert part.labels.dtype == torch.int64


def test_split_is_the_same_everywhere() -> None:
    import sklearn.datasets

    train, test = split(sklearn.datasets.load_digits().target)
    assert sorted([*train, *test]) == list(range(1797))
    assert test[:10].tolist() == [6, 9, 10, 13, 17, 19, 26, 29, 32, 37]
    text = train.astype("<i4").tobytes() + b"/" + test.astype("<i4").tobytes()
    assert (
        hashlib.sha256(text).hexdigest()
        == "c22ec34a6b9678499b975cee1d98003b99d4c2bc673431ed387b3b0d0b316661"
    )


def test_enlarged_digits_are_the_same_everywhere(digits: Dataset) -> None:
    import sklearn.datasets

    source = sklearn.datasets.load_digits()
    images = enlarged(source.images.astype(numpy.uint8))
    assert (
        hashlib.sha256(images.tobytes()).hexdigest()
        == "4c4336f58bbed93f277510bbea2ad2b762be678e3777a192d0f320768db9d945"
    )
    train, test = split(source.target)
    assert torch.equal(digits.train.images, torch.from_numpy(images[train]))
    assert torch.equal(digits.test.images, torch.from_numpy(images[test]))
    assert digits.test.labels.tolist() == source.target[test].tolist()


def test_enlarged_digits_are_cubic_interpolations() -> None:
    """torch has the same kernel, for interpolation with antialiasing."""
    import sklearn.datasets

    source = sklearn.datasets.load_digits().images
    margin = numpy.pad(source, ((0, 0), (4, 4), (4, 4)))  # 16x16, whose middle 28 of 40 are meant
    large = torch.nn.functional.interpolate(
        torch.from_numpy(margin)[:, None], size=(40, 40), mode="bicubic", antialias=True
    )
    expected = (large[:, 0, 6:34, 6:34] * 255 / 16).clamp(0, 255)
    got = torch.from_numpy(enlarged(source.astype(numpy.uint8))).double()
    inside = slice(3, 25)
    assert (got - expected)[:, inside, inside].abs().max() <= 0.5 + 1e-4
    assert expected[:, inside, inside].amax(dim=(1, 2)).min() > 200


def test_shifts_by_two_pixels_cut_nothing_off(digits: Dataset) -> None:
    frame = torch.ones(28, 28, dtype=torch.bool)
    frame[2:-2, 2:-2] = False
    for part in (digits.train, digits.test):
        assert part.images[:, frame].max() == 0


def test_other_digits_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import sklearn.datasets

    changed = sklearn.datasets.load_digits()
    changed.target[5] = 4
    monkeypatch.setattr(sklearn.datasets, "load_digits", lambda: changed)
    with pytest.raises(DataError, match="scikit-learn's digits are not those"):
        load()


# ------------------------------------------------------------------------------------ folders


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("size", [28, 32])
def test_folder(tmp_path: Path, zipped: bool, size: int) -> None:
    content = write_folder(tmp_path / "fashion", zipped=zipped, size=size)
    data = load(tmp_path / "fashion")
    assert (data.name, data.classes, data.train.image_size) == ("fashion", 10, size)
    for name, part in (("train", data.train), ("test", data.test)):
        assert numpy.array_equal(part.images.numpy(), content[name, "images"])
        assert part.labels.tolist() == content[name, "labels"].tolist()


def test_other_spellings(tmp_path: Path) -> None:
    """With a dot before idx; zipped without .gz in the name, and unpacked with it."""
    write_folder(tmp_path)
    expected = load(tmp_path)
    for name in NAMES.values():
        (tmp_path / name).rename(tmp_path / name.replace("-idx", ".idx"))
    images = tmp_path / IMAGES.replace("-idx", ".idx")
    images.write_bytes(gzip.compress(images.read_bytes(), mtime=0))
    labels = tmp_path / LABELS.replace("-idx", ".idx")
    labels.rename(f"{labels}.gz")
    data = load(tmp_path)
    assert torch.equal(data.train.images, expected.train.images)
    assert torch.equal(data.train.labels, expected.train.labels)


def test_missing_files_are_named(tmp_path: Path) -> None:
    write_folder(tmp_path)
    (tmp_path / IMAGES).unlink()
    (tmp_path / NAMES["test", "labels"]).unlink()
    with pytest.raises(DataError) as caught:
        load(tmp_path)
    message = str(caught.value)
    first = message.splitlines()[0]
    assert f"{tmp_path} has no {IMAGES} and no {NAMES['test', 'labels']}." in first
    for text in (*NAMES.values(), "t10k-labels.idx1-ubyte", ".gz", "Fashion-MNIST", "yann.lecun"):
        assert text in message


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere does not exist\. Expected is a folder with four"):
        load(tmp_path / "nowhere")
    file = tmp_path / "file"
    file.write_bytes(b"")
    with pytest.raises(DataError, match="file is not a folder"):
        load(file)


def _images(*shape: int) -> bytes:
    return idx(numpy.zeros(shape, numpy.uint8))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (IMAGES, b"", "no content at all"),
        (IMAGES, b"\0\0", "starts with the bytes 00 00, but"),
        (IMAGES, _images(12, 28, 28)[:9], "inside its header, after 9 of 16 bytes"),
        (
            IMAGES,
            idx(numpy.zeros(12, numpy.uint8)),
            "starts with the bytes 00 00 08 01, but a file",
        ),
        (LABELS, _images(12, 28, 28), "a file of labels starts with 00 00 08 01"),
        (IMAGES, b"<!DOCTYPE html>", "3c 21 44 4f"),
        (IMAGES, _images(12, 28, 28)[:-1], "ends after 9,407 values, but its header says 12x28x28"),
        (IMAGES, _images(12, 28, 28) + b"\0", "more data follows the 9,408 values"),
        (IMAGES, _images(0, 28, 28), "says 0x28x28 values, which is none"),
        (IMAGES, _images(12, 28, 27), "images of 28x27 pixels. The network takes square images"),
        (IMAGES, _images(12, 20, 20), "has images of 28x28 pixels, but"),
        (LABELS, idx(numpy.zeros(11, numpy.uint8)), "has 11 labels, but"),
        (LABELS, idx(numpy.arange(12, dtype=numpy.uint8)), "has the label 10 at position 10"),
        (IMAGES, gzip.compress(_images(12, 28, 28), mtime=0)[:-9], "its gzip data ends early"),
        (IMAGES, gzip.compress(_images(12, 28, 28), mtime=0)[:5], "its gzip data ends early"),
        (
            IMAGES,
            gzip.compress(_images(12, 28, 28), mtime=0) + b"xyz",
            "its gzip data is not intact",
        ),
        (IMAGES, gzip.compress(_images(12, 28, 28) + b"\0", mtime=0), "more data follows"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_damaged_files(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    write_folder(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        load(tmp_path)
    assert message in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)


def test_every_flipped_bit_of_a_zipped_file_is_noticed_or_harmless(tmp_path: Path) -> None:
    """Harmless are bits that say how the file was made, and those that fill up its last byte."""
    values = numpy.random.default_rng(1).integers(0, 256, (2, 4, 4), numpy.uint8)
    intact = gzip.compress(idx(values), mtime=0)
    file = tmp_path / IMAGES
    messages = []
    for position in range(8 * len(intact)):
        changed = bytearray(intact)
        changed[position // 8] ^= 1 << position % 8
        file.write_bytes(changed)
        try:
            got = read_idx(file, 3)
        except DataError as error:
            messages.append(str(error))
        else:
            assert numpy.array_equal(got, values)
    assert all(str(file) in message for message in messages)
    assert len(messages) >= 8 * (len(intact) - 10) - 7
    assert any("CRC" in message for message in messages)


@pytest.mark.parametrize("zipped", [False, True])
def test_a_header_cannot_ask_for_memory(tmp_path: Path, zipped: bool) -> None:
    file = tmp_path / IMAGES
    claim = struct.pack(">HBB3I", 0, 8, 3, 2**32 - 1, 2**16, 2**16) + bytes(1000)
    file.write_bytes(gzip.compress(claim, mtime=0) if zipped else claim)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="ends after 1,000 values"):
            read_idx(file, 3)
        assert tracemalloc.get_traced_memory()[1] < 2**23
    finally:
        tracemalloc.stop()


def test_more_data_than_the_header_says_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / f"{IMAGES}.gz"
    file.write_bytes(gzip.compress(_images(1, 2, 2) + bytes(2**26)))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="more data follows the 4 values"):
            read_idx(file, 3)
        assert tracemalloc.get_traced_memory()[1] < 2**23
    finally:
        tracemalloc.stop()


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / IMAGES).mkdir()
    with pytest.raises(DataError, match=f"{IMAGES} cannot be read: Is a directory"):
        read_idx(tmp_path / IMAGES, 3)
