"""Batches: what is in them, that nothing but seed, epoch and step decides it, and their thread."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from capsnet_loma.data import ImageSet
from capsnet_loma.data.ahead import ahead
from capsnet_loma.data.batches import Batch, Batches, in_order
from conftest import ROOT

SIZE = 12


@pytest.fixture
def data() -> ImageSet:
    """23 images; pixels are never 0, so that what a shift brings in is seen."""
    generator = torch.Generator().manual_seed(5)
    images = torch.randint(1, 256, (23, SIZE, SIZE), generator=generator, dtype=torch.uint8)
    return ImageSet(images, torch.arange(23) % 4)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    if _threads():  # collecting takes a second in a process that has run many tests
        gc.collect()
    assert _threads() == 0


def _threads() -> int:
    return sum(thread.name.startswith("batches") for thread in threading.enumerate())


def _same(one: list[Batch], other: list[Batch]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(a.images, b.images)
        and torch.equal(a.targets, b.targets)
        and torch.equal(a.labels, b.labels)
        for a, b in zip(one, other, strict=True)
    )


def _origin(data: ImageSet, image: torch.Tensor, shift: int) -> tuple[int, int, int]:
    """Which image this is, shifted down and to the right by how much: shifts pixel by pixel."""
    for number, source in enumerate(data.images.tolist()):
        for down in range(-shift, shift + 1):
            for right in range(-shift, shift + 1):
                expected = torch.zeros(SIZE, SIZE)
                for row in range(SIZE):
                    for column in range(SIZE):
                        if 0 <= row + down < SIZE and 0 <= column + right < SIZE:
                            expected[row + down, column + right] = source[row][column]
                if torch.equal(image, expected / 255):
                    return number, down, right
    raise AssertionError("no image, shifted, gives this one")


def test_an_epoch_has_each_image_once_shifted_with_zeros(data: ImageSet) -> None:
    few = ImageSet(data.images[:7], data.labels[:7])
    batches = Batches(few, 4, 3, seed=1)
    assert batches.steps == 2
    seen, shifts = [], set()
    for epoch in range(3):
        numbers = []
        for batch in batches.epoch(epoch):
            assert batch.images.shape == (3, 1, SIZE, SIZE)
            assert batch.images.dtype == batch.targets.dtype == torch.float32
            assert batch.images.is_contiguous()
            for image, target, label in zip(*_fields(batch), strict=True):
                number, down, right = _origin(few, image[0], 2)
                numbers.append(number)
                shifts.add((down, right))
                assert label == few.labels[number]
                assert target.tolist() == [float(label == k) for k in range(4)]
        assert len(set(numbers)) == len(numbers) == 6
        seen.append(tuple(numbers))
    assert len(set(seen)) == 3
    assert len(shifts) > 8


def _fields(batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return batch.images, batch.targets, batch.labels


def test_all_shifts_come_and_equally_often() -> None:
    count = 5000
    images = torch.zeros(count, 9, 9, dtype=torch.uint8)
    images[:, 4, 4] = 255
    data = ImageSet(images, torch.zeros(count, dtype=torch.int64))
    (batch,) = Batches(data, 1, count, seed=3).epoch(0)
    counts = batch.images[:, 0].sum(dim=0)
    assert counts[2:7, 2:7].sum() == count
    assert (counts[2:7, 2:7] - count / 25).abs().max() < 5 * (count / 25) ** 0.5


def test_without_shift_images_are_what_they_are(data: ImageSet) -> None:
    (batch,) = Batches(data, 4, 23, seed=1, shift=0).epoch(0)
    rows = {tuple(image.flatten().tolist()) for image in batch.images}
    assert rows == {tuple((image / 255).flatten().tolist()) for image in data.images}


def test_seed_epoch_and_step_decide(data: ImageSet) -> None:
    batches = Batches(data, 4, 4, seed=1)
    first = list(batches.epoch(0))
    assert len(first) == batches.steps == 5
    assert _same(first, list(Batches(data, 4, 4, seed=1).epoch(0)))
    assert not _same(first, list(batches.epoch(1)))
    assert not _same(first, list(Batches(data, 4, 4, seed=2).epoch(0)))
    for start in range(6):
        assert _same(first[start:], list(batches.epoch(0, start)))


def test_other_generators_have_no_part(data: ImageSet) -> None:
    first = list(Batches(data, 4, 4, seed=1).epoch(0))
    torch.manual_seed(77)
    state = torch.get_rng_state()
    assert _same(first, list(Batches(data, 4, 4, seed=1).epoch(0)))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_share_the_same_batches(data: ImageSet, world: int) -> None:
    whole = list(Batches(data, 4, 6, seed=1).epoch(2, 1))
    shares = [
        list(Batches(data, 4, 6, seed=1, rank=r, world=world).epoch(2, 1)) for r in range(world)
    ]
    joined = [
        Batch(*(torch.cat(parts) for parts in zip(*map(_fields, step), strict=True)))
        for step in zip(*shares, strict=True)
    ]
    assert _same(whole, joined)


@pytest.mark.parametrize("batch", [1, 5, 23, 100])
@pytest.mark.parametrize("world", [1, 2, 5])
def test_in_order_gives_each_image_once(data: ImageSet, batch: int, world: int) -> None:
    parts = [list(in_order(data, 4, batch, rank=r, world=world)) for r in range(world)]
    every = [item for part in parts for item in part]
    assert all(1 <= len(item) <= batch for item in every)
    assert torch.equal(torch.cat([b.images for b in every])[:, 0], data.images / 255)
    assert torch.equal(torch.cat([b.labels for b in every]), data.labels)
    assert torch.equal(torch.cat([b.targets for b in every]).argmax(1), data.labels)
    sizes = [sum(len(item) for item in part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


def test_batches_are_moved_to_a_device(data: ImageSet) -> None:
    """Meta tensors have no values, and exist on every machine."""
    (batch,) = Batches(data, 4, 20, seed=0, device="meta").epoch(0)
    assert {tensor.device.type for tensor in _fields(batch)} == {"meta"}
    assert batch.images.shape == (20, 1, SIZE, SIZE)


def test_batches_are_new_tensors(data: ImageSet) -> None:
    before = data.images.clone()
    batches = list(in_order(data, 4, 8))
    for batch in batches:
        batch.images.fill_(7.0)
        batch.labels.fill_(0)
    assert torch.equal(data.images, before)
    assert data.labels.tolist() == [n % 4 for n in range(23)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch": 24}, "a batch of 24 images does not fit a data set of 23"),
        ({"batch": 0}, "give a size from 1 to 23"),
        ({"batch": 9, "world": 2}, "cannot be shared equally by 2 processes"),
        ({"batch": 4, "world": 2, "rank": 2}, "rank 2 of 2"),
        ({"batch": 4, "seed": -1}, "must not be negative, got -1"),
        ({"batch": 4, "shift": SIZE}, "shift 12 is not possible"),
    ],
)
def test_wrong_arguments(data: ImageSet, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Batches(data, 4, **{"seed": 0, **arguments})


def test_wrong_places(data: ImageSet) -> None:
    batches = Batches(data, 4, 4, seed=0)
    for epoch, start in ((-1, 0), (0, -1), (0, 6)):
        with pytest.raises(ValueError, match="a step from 0 to 5"):
            batches.epoch(epoch, start)
    with pytest.raises(ValueError, match="at least 1 image, got 0"):
        in_order(data, 4, 0)


# ----------------------------------------------------------------------------------- the thread


def _counting(made: list[int]) -> Iterator[int]:
    for number in range(100):
        made.append(number)
        yield number


def _wait_for(what: object, condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.001)


def test_items_are_made_ahead_but_not_without_bound() -> None:
    made: list[int] = []
    items = ahead(lambda: _counting(made), depth=3)
    assert next(items) == 0
    _wait_for("three ahead", lambda: len(made) == 4)
    time.sleep(0.05)
    assert made == [0, 1, 2, 3]
    assert list(items) == list(range(1, 100))


@pytest.mark.parametrize("way", ["close", "drop", "end"])
def test_the_thread_ends_with_its_iterator(data: ImageSet, way: str) -> None:
    items = Batches(data, 4, 2, seed=0).epoch(0)
    next(items)
    if way == "close":
        items.close()
    elif way == "drop":
        del items
    else:
        assert len(list(items)) == 10
    assert _threads() == 0


def test_a_loop_that_fails_leaves_no_thread(data: ImageSet) -> None:
    """Not even while the exception, with its traceback, is still there."""

    def loop() -> None:
        for _ in Batches(data, 4, 2, seed=0).epoch(0):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        loop()
    assert _threads() == 0
    assert caught.traceback[-1].name == "loop"


def test_an_iterator_in_a_cycle_leaves_no_thread(data: ImageSet) -> None:
    class Holder:
        itself: Holder
        items: Iterator[Batch]

    holder = Holder()
    holder.itself, holder.items = holder, Batches(data, 4, 2, seed=0).epoch(0)
    next(holder.items)
    del holder
    gc.collect()
    assert _threads() == 0


def test_what_fails_in_the_thread_is_raised_after_the_items_before_it() -> None:
    def failing() -> Iterator[int]:
        yield 1
        yield 2
        raise OSError("the disk is gone")

    items = ahead(failing)
    assert [next(items), next(items)] == [1, 2]
    with pytest.raises(OSError, match="the disk is gone"):
        next(items)
    with pytest.raises(StopIteration):
        next(items)
    assert _threads() == 0


def test_damaged_labels_are_raised_by_next(data: ImageSet) -> None:
    with pytest.raises(IndexError):
        list(in_order(data, 3, 8))


@pytest.mark.full
def test_a_program_ends_while_batches_are_made() -> None:
    """The iterator is alive, in a global, when Python shuts down."""
    code = """
import threading, torch
from capsnet_loma.data import ImageSet
from capsnet_loma.data.ahead import ahead
from capsnet_loma.data.batches import Batches
data = ImageSet(torch.ones(50, 9, 9, dtype=torch.uint8), torch.zeros(50, dtype=torch.int64))
items = Batches(data, 1, 2, seed=0).epoch(0)
next(items)
holder = [items]
holder.append(holder)
busy = ahead(lambda: (torch.ones(30) for _ in range(10**6)), depth=10**4)
next(busy)
print(sum(t.name.startswith("batches") for t in threading.enumerate()))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n", "")
