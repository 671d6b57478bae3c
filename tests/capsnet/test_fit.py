"""The regression of capsnet_loma.profiling.fit against known values."""

from __future__ import annotations

import pytest

from capsnet_loma.profiling.fit import linear_fit


def test_linear_fit_of_a_line_is_exact() -> None:
    fit = linear_fit([1, 2, 4, 8], [3.5, 5.5, 9.5, 17.5])
    assert fit.slope == pytest.approx(2.0)
    assert fit.intercept == pytest.approx(1.5)
    assert fit.low == pytest.approx(2.0)
    assert fit.high == pytest.approx(2.0)


def test_linear_fit_has_the_textbook_interval() -> None:
    # Worked by hand: residuals 0.06, -0.13, 0.08, -0.01; their squares add up to 0.027; Sxx is 5.
    fit = linear_fit([1, 2, 3, 4], [2.1, 3.9, 6.1, 8.0])
    assert fit.slope == pytest.approx(1.99)
    half = 2.919986 * (0.027 / 2.0 / 5.0) ** 0.5
    assert fit.high - fit.slope == pytest.approx(half, rel=1e-4)
    assert fit.slope - fit.low == pytest.approx(half, rel=1e-4)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ([1, 2], [1.0, 2.0], "needs 3 points, got 2"),
        ([1, 1, 1], [1.0, 2.0, 3.0], "all x values are identical"),
        ([1, 2, 3], [1.0, 2.0], "incompatible for broadcasting"),
    ],
)
def test_linear_fit_refuses(x: list[float], y: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        linear_fit(x, y)
