"""A cost per iteration, from totals at several iteration counts: what start-up costs is in the
intercept and drops out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fit:
    """``y = intercept + slope * x`` and the 90 % confidence interval [low, high] of the slope."""

    slope: float
    low: float
    high: float
    intercept: float


def linear_fit(x: Sequence[float], y: Sequence[float]) -> Fit:
    """The least-squares line through totals ``y`` measured at iteration counts ``x``.

    The slope is the cost of one iteration: Moreno and Fischmeister, "Accurate Measurement of Small
    Execution Times: Getting Around Measurement Errors", IEEE Embedded Systems Letters 9(1), 2017.
    The interval is the usual one for a regression slope, Student's t with n - 2 degrees of freedom.

    Raises ValueError for fewer than three points or fewer than two different counts.
    """
    if len(x) < 3:
        raise ValueError(f"a slope with a confidence interval needs 3 points, got {len(x)}")
    if len(set(x)) < 2:
        raise ValueError("a slope needs different counts: all x values are identical")
    from scipy import stats

    line = stats.linregress(x, y)
    half = stats.t.ppf(0.95, len(x) - 2) * line.stderr
    slope, low, high = line.slope, line.slope - half, line.slope + half
    return Fit(float(slope), float(low), float(high), float(line.intercept))
