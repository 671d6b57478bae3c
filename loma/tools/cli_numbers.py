"""Types of options that are numbers. Each has a range, and what does not lie in it gets one message
with the option, what was found and what is allowed: also what is no number, NaN and infinities."""

from __future__ import annotations

import math
import re
from typing import Any

import click

from loma import config

_SHOWN = 40  # characters of what was found
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


class Whole(click.IntRange):
    """An integer from ``low`` to ``high``."""

    def __init__(self, low: int, high: int) -> None:
        super().__init__(low, high)
        self.low, self.high, self.range = low, high, f"{low}<=x<={high}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = int(value)
        except (TypeError, ValueError):
            self.fail(f"{shown(value)} is not an integer in the range {self.range}.", param, ctx)
        if not self.low <= number <= self.high:
            self.fail(f"{shown(value)} is not in the range {self.range}.", param, ctx)
        return number


class Real(click.FloatRange):
    """A number from ``low`` to ``high``; an end that is ``open`` does not belong to it."""

    def __init__(
        self, low: float, high: float, min_open: bool = False, max_open: bool = False
    ) -> None:
        super().__init__(low, high, min_open, max_open)
        self.low, self.high = low, high
        self.range = f"{low:g}{'<' if min_open else '<='}x{'<' if max_open else '<='}{high:g}"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            number = float(value)
        except (TypeError, ValueError):
            self.fail(f"{shown(value)} is not a number in the range {self.range}.", param, ctx)
        low = self.low < number if self.min_open else self.low <= number
        high = number < self.high if self.max_open else number <= self.high
        if not (low and high):  # as NaN is nowhere
            self.fail(f"{shown(value)} is not in the range {self.range}.", param, ctx)
        return number


class Age(click.ParamType[int]):
    """A time as "30d", in seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = re.fullmatch(r"(\d{1,9})\s*([smhdw]?)", str(value).strip())
        if found is None:
            self.fail(f"{shown(value)} is no time such as 10m, 12h, 30d or 4w.", param, ctx)
        return int(found[1]) * _SECONDS[found[2]]


class Bytes(click.ParamType[int]):
    """A size as "500M", in bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return config.parse_size(str(value))
        except ValueError:
            self.fail(f"{shown(value)} is no size such as 500M or 2G.", param, ctx)


def shown(value: object) -> str:
    """What was found, in a message."""
    text = str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"


def finite(text: str) -> float | None:
    """The number, a whole one as such; None for what is none, NaN and infinities."""
    try:
        number = float(text)
        return None if not math.isfinite(number) else int(text) if _is_whole(text) else number
    except (OverflowError, ValueError):
        return None


def _is_whole(text: str) -> bool:
    return text.strip().lstrip("+-").isdecimal()


# More than any machine has processors, fewer than what a process may start.
THREADS = Whole(1, 1024)
SEED = Whole(0, 2**63 - 1)
SIZE = Whole(0, 2**63 - 1)
AGE = Age()
BYTES = Bytes()
