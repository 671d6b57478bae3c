"""Built-in functions that NumPy has not: the error function, gamma's logarithm with derivatives.

They take single values and arrays alike. What has a formula of its own here is written in the same
steps in ``backends/c/templates/helpers.c.j2`` and ``backends/torch/runtime/special.h``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Value = Any


def _elementwise(function: Callable[..., float], count: int = 1) -> Callable[..., Value]:
    """A function of so many floats on numbers and grids."""
    ufunc = np.frompyfunc(function, count, 1)

    def on_values(*args: Value) -> Value:
        return np.asarray(ufunc(*args), dtype=np.float64)[()]

    return on_values


def _lgamma(x: float) -> float:
    try:
        return math.lgamma(x)
    except (ValueError, OverflowError):  # a pole, or too large
        return math.inf


# B_2k / (2k), of the asymptotic series of digamma
_DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
# B_2k / (2k)!, of the Euler-Maclaurin sum
_ZETA = (
    1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000,
    1 / 74724249600, -3617 / 10670622842880000, 43867 / 5109094217170944000,
    -174611 / 802857662698291200000,
)  # fmt: skip


def _digamma(x: float) -> float:
    """By reflection to positive x, by the recurrence to x >= 10, then the asymptotic series."""
    if x == 0:
        return math.copysign(math.inf, -x)
    result = 0.0
    if x < 0:
        part = math.fmod(x, 1.0) if math.isfinite(x) else math.nan
        if part == 0 or part != part:
            return math.nan
        result = -math.pi / math.tan(math.pi * part)
        x = 1.0 - x
    while x < 10.0:
        result -= 1.0 / x
        x += 1.0
    z = 1.0 / (x * x)
    tail = 0.0
    for coefficient in reversed(_DIGAMMA):
        tail = (tail + coefficient) * z
    return result + math.log(x) - 0.5 / x - tail


def _zeta(s: float, q: float) -> float:
    """The Hurwitz zeta function, the sum of (q + k) ** -s over k, for q > 0 and a whole s > 1."""
    total = 0.0
    while q < 12.0 + s:
        total += _power(q, -s)
        q += 1.0
    factor = s * _power(q, -s) / q
    total += _power(q, 1.0 - s) / (s - 1.0) + 0.5 * _power(q, -s)
    for coefficient in _ZETA:
        total += coefficient * factor
        factor *= (s + 1.0) * (s + 2.0) / (q * q)
        s += 2.0
    return total


def _power(x: float, y: float) -> float:
    try:
        return float(x**y)
    except (ZeroDivisionError, OverflowError):
        return math.inf


def _polygamma(n: float, x: float) -> float:
    """(-1) ** (n + 1) n! zeta(n + 1, x); below 0 the terms on both sides of the pole next to x."""
    if n == 0:
        return _digamma(x)
    if not 0 < n <= 170 or x == -math.inf:
        return math.nan
    s = n + 1.0
    odd = math.fmod(s, 2.0) != 0
    if x > 0 or x != x:
        total = _zeta(s, x) if x == x else x
    else:
        part = math.fmod(x, 1.0)
        if part == 0:
            total = math.inf
        else:
            mirrored = _zeta(s, -part) - _zeta(s, 1.0 - x)
            total = _zeta(s, 1.0 + part) + (-mirrored if odd else mirrored)
    return (-1.0 if odd else 1.0) * math.gamma(s) * total


erf, erfc, lgamma = _elementwise(math.erf), _elementwise(math.erfc), _elementwise(_lgamma)
digamma, polygamma = _elementwise(_digamma), _elementwise(_polygamma, 2)
