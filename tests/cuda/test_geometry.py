"""How many threads a launch has: rules that depend on sizes alone."""

from __future__ import annotations

import itertools

import geometry
import pytest

FULL = 1 << 17
SHARED = 227 << 10


def check(found: dict[str, int]) -> None:
    """What kernels are compiled for (backends/cuda/device/parts.h)."""
    threads, team = found["threads"], found["team"]
    assert threads & (threads - 1) == 0
    assert team & (team - 1) == 0
    assert team <= threads <= 1024
    assert team <= 32 or team == threads
    assert not found["across"] or (1 < team <= 32 and threads // team >= 32)
    assert 1 <= found["blocks"] < 1 << 31
    assert 1 <= found["slices"] < 1 << 16


SIZES = (1, 2, 3, 7, 31, 32, 33, 100, 1000, 4096, 65537, 1 << 20, 1 << 24)


def test_every_statement_has_a_geometry_that_kernels_take() -> None:
    for count, inner in itertools.product(SIZES, SIZES):
        for across, splits in itertools.product((False, True), repeat=2):
            found = geometry.statement(count, inner, across, splits)
            check(found)
            assert found["slices"] == 1 or splits
            assert found["slices"] == 1 or inner // found["slices"] >= 1024
            assert found["slices"] == 1 or count * found["team"] < FULL // 2
            teams = found["threads"] // found["team"]
            assert found["blocks"] * teams >= min(count, 1 << 14)


def test_every_running_reduction_has_a_geometry_that_kernels_take() -> None:
    shapes: tuple[dict[str, int], ...] = (
        {},
        {"team": -3},
        {"team": 2, "threads": -2},
        {"slices": 3},
        {"blocks": 5},
    )
    choices = (False, True)
    for rows, length, splits, across in itertools.product(SIZES, SIZES, choices, choices):
        for shape in shapes:
            found = geometry.running(rows, length, splits, across, shape)
            check(found)
            assert found["slices"] == 1 or splits
            assert found["slices"] == 1 or found["team"] > (1 if across else 32)
            assert found["across"] == (across and found["team"] > 1)
            if across:
                continue
            assert found["slices"] == 1 or rows < 64
            assert found["slices"] * 1024 <= length or found["slices"] == 1


def test_every_fused_kernel_has_a_geometry_that_kernels_take() -> None:
    for count, inner in itertools.product(SIZES, SIZES):
        for size in (0, 64, 1024, 16 << 10, 48 << 10, 200 << 10, 1 << 20):
            found = geometry.fused(count, inner, size, SHARED)
            check(found)
            teams = found["threads"] // found["team"]
            if found["shared"]:
                assert found["shared_bytes"] == teams * size <= SHARED
                assert found["workspace_bytes"] == 0
            else:
                assert found["shared_bytes"] == 0
                assert found["workspace_bytes"] == found["blocks"] * teams * size
                assert found["blocks"] <= 1024


@pytest.mark.parametrize(
    ("count", "inner", "across", "expected"),
    [
        (1 << 20, 1, False, (256, 1, 1024, 1)),  # one thread for four elements, side by side
        (1 << 18, 1, False, (256, 1, 1024, 1)),  # one for each where there are few
        (4096, 4096, False, (256, 32, 512, 1)),  # rows enough for a warp each
        (128, 32, False, (64, 32, 64, 1)),  # few rows: on many processors
        (64, 4096, False, (512, 512, 64, 4)),  # few rows: a block each, and slices
        (1, 1 << 24, False, (512, 512, 1, 256)),
        (1 << 20, 8, False, (256, 1, 4096, 1)),  # short rows, a thread for each
        (1 << 12, 8, False, (64, 4, 256, 1)),  # few of them
        (1 << 20, 64, True, (256, 1, 4096, 1)),  # columns enough
        (768, 65536, True, (1024, 32, 24, 6)),  # side by side, and slices
    ],
)
def test_statements(count: int, inner: int, across: bool, expected: tuple[int, ...]) -> None:
    found = geometry.statement(count, inner, across, True)
    assert tuple(found[name] for name in ("threads", "team", "blocks", "slices")) == expected


@pytest.mark.parametrize(
    ("count", "inner", "around", "expected"),
    [
        (72, 2048, 1, 2),  # slices of at least 1024 steps
        (72, 2048, 2048, 4),  # a few values of the loop around it for each
        (72, 512, 512, 15),
        (72, 512, 10, 5),
        (72, 2048, 3, 3),  # as many for each value
        (72, 4, 100, 1),  # too few steps
        (1 << 18, 512, 512, 1),  # results enough
    ],
)
def test_slices_of_two_loops(count: int, inner: int, around: int, expected: int) -> None:
    found = geometry.statement(count, inner, False, True, around=around)
    assert found["slices"] == expected


@pytest.mark.parametrize("twice", range(-4, 5))
def test_a_tuner_leaves_slices_that_share_a_loop_evenly(twice: int) -> None:
    for around in (3, 7, 1000):
        found = geometry.statement(9, 64, False, True, around=around, shape={"slices": twice})
        assert found["slices"] <= around or found["slices"] % around == 0


@pytest.mark.parametrize(
    ("count", "inner", "across", "several", "expected"),
    [
        (1 << 24, 32, False, 4096, 16),  # whose neighbours read other lines: many that share one
        (1 << 22, 32, False, 4096, 8),
        (1 << 20, 8, False, 100, 4),
        (1 << 20, 8, False, 0, 1),  # no axis of which a thread might take several
        (1 << 20, 8, False, 10, 5),  # not in fours
        (1 << 20, 8, False, 9, 3),
        (1 << 20, 8, False, 7, 1),
        (1 << 17, 8, False, 100, 1),  # few
        (1 << 20, 64, True, 100, 4),
        (1 << 20, 64, False, 100, 4),  # of short sums, too
        (1 << 20, 256, False, 100, 1),  # of long ones threads share the steps
    ],
)
def test_sums_of_which_a_thread_has_several(
    count: int, inner: int, across: bool, several: int, expected: int
) -> None:
    found = geometry.statement(count, inner, across, False, several)
    assert (found["rows"], found["columns"]) == (expected, 1)
    teams = found["threads"] // found["team"] * expected
    assert found["blocks"] == min((count + teams - 1) // teams, 1 << 14)


@pytest.mark.parametrize(
    ("count", "axes", "expected"),
    [
        (1 << 20, (100, 16), (5, 4)),
        (1 << 22, (100, 10), (4, 5)),
        (1 << 22, (5, 5), (5, 5)),  # all of both
        (1 << 22, (8, 12), (4, 4)),
        (1 << 20, (7, 16), (1, 4)),
        (1 << 19, (100, 16), (5, 2)),  # too few threads would be left of larger ones
        (1 << 17, (100, 16), (1, 2)),
    ],
)
def test_tiles_of_sums(count: int, axes: tuple[int, int], expected: tuple[int, int]) -> None:
    several, second = axes
    found = geometry.statement(count, 8, False, False, several, second=second)
    assert (found["rows"], found["columns"]) == expected
    each = found["threads"] * expected[0] * expected[1]
    assert found["blocks"] == min((count + each - 1) // each, 1 << 14)
    assert found["registers"] == 128
    short = geometry.statement(count, 3, False, False, several, second=second)
    assert short["registers"] == 0  # reads little at a time


def test_pairs_of_sums_that_share_nothing() -> None:
    def tile(count: int, second: int) -> tuple[int, int, int]:
        found = geometry.statement(count, 5, True, False, 3, second=second, pairs=True)
        return found["rows"], found["columns"], found["registers"]

    assert tile(3 << 20, 224) == (3, 2, 64)
    assert tile(3 << 20, 225) == (3, 1, 0)  # no pairs
    assert tile(3 << 17, 224) == (3, 1, 0)  # few


def test_threads_have_more_numbers_where_they_wait_more_often() -> None:
    usual = geometry.fused(4096, 4096, 64, SHARED)
    more = geometry.fused(4096, 4096, 64, SHARED, least=16)
    assert (usual["team"], more["team"]) == (512, 256)


@pytest.mark.parametrize(
    ("count", "inner", "size", "expected"),
    [
        (4096, 8192, 64, 32),  # two blocks of 1024 threads find room on a processor
        (4096, 4096, 64, 0),  # smaller blocks
        (100, 8192, 64, 0),  # not two for each processor
        (4096, 8192, 120 << 10, 0),  # their memory would not fit
    ],
)
def test_registers_of_the_largest_blocks(count: int, inner: int, size: int, expected: int) -> None:
    assert geometry.fused(count, inner, size, SHARED)["registers"] == expected


@pytest.mark.parametrize(
    ("count", "inner", "size", "expected"),
    [
        (1 << 20, 1, 0, (256, 1, True)),
        (1 << 16, 64, 256, (256, 32, True)),  # small teams, several a block
        (100, 20, 256, (64, 16, True)),  # few of them: on many processors
        (4096, 1024, 4096, (128, 128, True)),  # a block each
        (128, 4096, 16 << 10, (1024, 1024, True)),
        (1 << 16, 64, 8192, (64, 64, True)),  # memory for few teams a block
        (128, 4096, 1 << 20, (1024, 1024, False)),  # too much for shared memory
    ],
)
def test_fused(count: int, inner: int, size: int, expected: tuple[int, ...]) -> None:
    found = geometry.fused(count, inner, size, SHARED)
    assert tuple(found[name] for name in ("threads", "team", "shared")) == expected
