"""Figures that are laid out in pixels: sheets of images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from loma.tools.pictures import DPI

Pixels = NDArray[numpy.float32]


def sheet(
    tiles: Sequence[Sequence[Pixels | None]], gap: int, size: int, wide_after: Sequence[int] = ()
) -> NDArray[numpy.float32]:
    """Images [size, size] of 0..1 in rows and columns, with a gap around each, as one picture; or
    images [size, size, 4] of red, green, blue and opacity.

    After the columns in ``wide_after`` the gap is three times as wide. Gaps, and places without an
    image, are NaN, or transparent.
    """
    of_one = next(tile.shape[2:] for row in tiles for tile in row if tile is not None)
    columns = max(len(row) for row in tiles)
    left = [column_left(column, gap, size, wide_after) for column in range(columns + 1)]
    height = len(tiles) * (size + gap) + gap
    empty = 0.0 if of_one else numpy.nan
    picture = numpy.full((height, left[-1], *of_one), empty, dtype=numpy.float32)
    for r, row in enumerate(tiles):
        for c, tile in enumerate(row):
            if tile is not None:
                top = gap + r * (size + gap)
                picture[top : top + size, left[c] : left[c] + size] = tile
    return picture


def column_left(column: int, gap: int, size: int, wide_after: Sequence[int] = ()) -> int:
    """The first pixel column of a sheet's column."""
    return gap + column * (size + gap) + 2 * gap * sum(c < column for c in wide_after)


class Page:
    """A figure that is laid out in pixels from its upper left corner."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)

    def picture(self, left: int, top: int, pixels: Pixels, scale: int) -> Axes:
        """Axes with a picture of values in 0..1, each a square of ``scale`` pixels.

        White on black, as MNIST is shown, if they have no colours; NaN is the page. Data
        coordinates count the values.
        """
        height, width = pixels.shape[:2]
        axes = self.figure.add_axes(
            (
                left / self.width,
                1 - (top + scale * height) / self.height,
                scale * width / self.width,
                scale * height / self.height,
            )
        )
        axes.imshow(
            pixels,
            cmap="gray",
            vmin=0.0,
            vmax=1.0,
            interpolation="nearest",
            extent=(0, width, height, 0),
            aspect="auto",
        )
        axes.set_axis_off()
        return axes
