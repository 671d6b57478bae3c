"""A part of the points of a test that is slow, where other tests run the same programs: the rest of
them runs with --full."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def every_second(points: Iterable[Any], first: int = 0) -> list[Any]:
    """The points, of which those between are marked as full. Tests of the same points begin at 0
    and at 1, so that each point is in one of them."""
    return [
        point if k % 2 == first else pytest.param(point, marks=pytest.mark.full)
        for k, point in enumerate(points)
    ]
