"""Originals beside what the decoder makes of their capsules, as in figure 3 of the paper."""

from __future__ import annotations

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from capsnet_loma.data import ImageSet
from capsnet_loma.evaluation.model import Model, capsules_of
from capsnet_loma.evaluation.sheets import Page, Pixels, column_left, sheet
from loma.tools.pictures import LIGHT, Theme, headed

GAP = 3


def choose(data: ImageSet, predictions: Tensor, classes: int, columns: int = 6) -> list[list[int]]:
    """For each class, positions of its first images. Where some are not recognised, the first of
    those come last, in a third of the columns, or more where too few are recognised."""
    chosen = []
    for label in range(classes):
        mine = data.labels == label
        wrong = torch.nonzero(mine & (predictions != label)).flatten().tolist()
        right = torch.nonzero(mine & (predictions == label)).flatten().tolist()
        last = wrong[: max(columns // 3, columns - len(right))]
        chosen.append(right[: columns - len(last)] + last)
    return chosen


def reconstructions(model: Model, images: Tensor, predictions: Tensor) -> Tensor:
    """uint8 [N, H, W], classes [N] -> [N, H, W] in 0..1, decoded from the class's capsule; on the
    CPU, as all of these are."""
    capsules = capsules_of(model, images)
    mask = torch.nn.functional.one_hot(predictions, model.config.classes).to(capsules)
    with torch.no_grad():
        return model.decode(capsules, mask)[:, 0].cpu()


def reconstruction_figure(
    model: Model,
    data: ImageSet,
    predictions: Tensor,
    title: str,
    columns: int = 6,
    theme: Theme = LIGHT,
) -> Figure:
    """A row for each class: pairs of an image and its reconstruction.

    The reconstruction is that of the longest capsule. Pairs that are not recognised have a red
    frame and the class that they were taken for.
    """
    size, classes = model.config.image_size, model.config.classes
    chosen = choose(data, predictions, classes, columns)
    flat = [index for row in chosen for index in row]
    decoded = reconstructions(model, data.images[flat], predictions[flat])
    of = dict(zip(flat, decoded.numpy(), strict=True))
    tiles: list[list[Pixels | None]] = [
        [tile for i in row for tile in ((data.images[i].float() / 255).numpy(), of[i])]
        for row in chosen
    ]
    for line in tiles:  # where a class has few images, the page is as wide
        line += [None] * (2 * columns - len(line))
    pairs = tuple(range(1, 2 * columns, 2))
    pixels = sheet(tiles, GAP, size, wide_after=pairs)
    scale = 2 if size <= 40 else 1
    left, top, below = 44, 78, 10
    height, width = (scale * extent for extent in pixels.shape)
    page = Page(left + width + below, top + height + below)
    axes = page.picture(left, top, pixels, scale)
    for r, row in enumerate(chosen):
        y = GAP + r * (size + GAP)
        axes.text(-6, y + size / 2, str(r), ha="right", va="center", fontsize=13, color=theme.muted)
        for c, i in enumerate(row):
            x = column_left(2 * c, GAP, size, pairs)
            _mark(axes, x, y, size, None if predictions[i] == r else int(predictions[i]), theme)
    note = (
        "left a test image, right what is decoded from its capsule; "
        "red: taken for another class, which is named"
    )
    headed(page.figure, title, note, theme)
    return page.figure


def _mark(axes: Axes, x: int, y: int, size: int, mistaken_for: int | None, theme: Theme) -> None:
    """A frame around a pair, and the class that it was taken for."""
    wrong = mistaken_for is not None
    width = 2 * size + GAP
    frame = Rectangle(
        (x - 1, y - 1),
        width + 2,
        size + 2,
        fill=False,
        edgecolor=theme.wrong if wrong else theme.right,
        linewidth=2.2 if wrong else 1.0,
    )
    axes.add_patch(frame)
    if wrong:
        axes.text(
            x + width - 1,
            y + 1,
            str(mistaken_for),
            ha="right",
            va="top",
            fontsize=10,
            fontweight="bold",
            color="#ff8a70",
        )
