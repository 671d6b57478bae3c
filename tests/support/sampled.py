"""Parts of the points of tests that are slow, where other tests run the same code, or other points
of the same test do: the rest of them runs with --full."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest


def one_in(n: int, points: Iterable[Any], first: int = 0) -> list[Any]:
    """The points, of which all but each n-th are marked as full. Tests of the same points begin at
    different ones, so that each point is in as many of them as there may be."""
    return [
        point if k % n == first else pytest.param(point, marks=pytest.mark.full)
        for k, point in enumerate(points)
    ]


def diagonals(n: int, *axes: Iterable[Any]) -> list[Any]:
    """All combinations of what the axes have, of which one in n is not marked as full: those whose
    positions add up to a multiple of n. Where axes are long enough each value is among these,
    beside different ones of the other axes."""
    combinations = itertools.product(*map(enumerate, axes))
    return [
        pytest.param(
            *(value for _, value in combination),
            marks=pytest.mark.full if sum(k for k, _ in combination) % n else (),
        )
        for combination in combinations
    ]


def name_of(value: Any) -> str:
    """What tests call a point: a case begins with its name."""
    return str(value[0] if isinstance(value, tuple) and isinstance(value[0], str) else value)
