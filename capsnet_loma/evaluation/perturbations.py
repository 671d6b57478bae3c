"""What the dimensions of a digit capsule stand for, as in figure 4 of the paper.

One value of a capsule at a time is changed, and the capsule decoded. How far depends on what the
value is worth: some take part in every stroke, others hardly differ from image to image.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from torch import Tensor

from capsnet_loma.data import ImageSet
from capsnet_loma.evaluation import EvaluationError
from capsnet_loma.evaluation.model import Model, capsules_of
from capsnet_loma.evaluation.sheets import Page, Pixels, sheet
from loma.tools.pictures import DARK, LIGHT, Theme, headed

STEPS = tuple(step / 3 for step in range(-3, 4))  # parts of a value's reach
LEAST = 0.25  # what the paper changes each value by
SPREADS = 8.0  # standard deviations
COMPARED = 100  # images of a class that these are taken over
GAINED, LOST = DARK.loma, DARK.peers[2]  # of strokes, which are white on black
GAP = 1
# Pixels: beside each panel for its names, above all of them, between two, and above each.
LEFT, TOP, BESIDE, ABOVE = 76, 90, 10, 40


def reaches(capsules: Tensor) -> Tensor:
    """Capsules of many images of one class [N, O] -> how far each value is changed [O]: eight times
    its standard deviation, and no less than in the paper."""
    return (SPREADS * capsules.std(dim=0, correction=0)).clamp(min=LEAST)


def perturbed(model: Model, capsules: Tensor, label: int, reach: Tensor) -> Tensor:
    """The capsules of one image [I, O], reaches [O] -> [O, 7, H, W], on the CPU: row o has value o
    of capsule ``label`` changed by each of STEPS of its reach."""
    capsules, reach = capsules.cpu(), reach.cpu()
    dims, steps = capsules.shape[1], torch.tensor(STEPS, dtype=capsules.dtype)
    many = capsules.repeat(dims, len(STEPS), 1, 1)
    each = torch.arange(dims)
    many[each, :, label, each] += reach[:, None] * steps
    mask = torch.zeros(dims * len(STEPS), len(capsules), dtype=capsules.dtype)
    mask[:, label] = 1.0
    with torch.no_grad():
        images = model.decode(many.flatten(0, 1).to(model.device), mask.to(model.device))[:, 0]
    return images.cpu().reshape(dims, len(STEPS), *images.shape[1:])


def coloured(images: Tensor, plain: Tensor) -> Pixels:
    """Images [..., H, W] beside an unchanged one [H, W] -> [..., H, W, 4]: white is what both have,
    in colours, and twice as bright, what one of them lacks."""
    parts = (torch.minimum(images, plain), 2.0 * (images - plain), 2.0 * (plain - images))
    found = torch.ones(*images.shape, 4)
    found[..., :3] = sum(
        part.clamp(min=0.0)[..., None] * torch.tensor(to_rgb(colour))
        for part, colour in zip(parts, ("white", GAINED, LOST), strict=True)
    )
    return numpy.asarray(found.clamp(max=1.0).numpy(), dtype=numpy.float32)


def example(data: ImageSet, predictions: Tensor, label: int, where: str) -> int:
    """The position of the first recognised image of a class, or of its first.

    Raises EvaluationError when there is no image of it in the data, which is called ``where``.
    """
    mine = data.labels == label
    for chosen in (mine & (predictions == label), mine):
        if chosen.any():
            return int(chosen.int().argmax())
    raise EvaluationError(f"{where} has no image of class {label} to test with")


def perturbation_figure(
    model: Model,
    data: ImageSet,
    predictions: Tensor,
    labels: Sequence[int],
    title: str,
    where: str = "the data",
    theme: Theme = LIGHT,
) -> Figure:
    """A panel for each class: 16 rows of 7 images. One class alone is drawn twice as large, in two
    panels beside each other."""
    size, dims = model.config.image_size, model.config.digit_dim
    chosen = [example(data, predictions, label, where) for label in labels]
    parts, scale = (2, 2) if len(labels) == 1 else (1, 1)
    rows = -(-dims // parts)
    across = min(5, parts * len(labels))
    down = -(-parts * len(labels) // across)
    width = scale * (len(STEPS) * (size + GAP) + GAP)
    height = scale * (rows * (size + GAP) + GAP)
    page = Page(max(across * (LEFT + width + BESIDE), 700), TOP + down * (height + ABOVE))
    note = (
        "a row changes one value of the capsule by what stands beside it: 8 standard deviations\n"
        "of it over the class; orange: strokes gained; blue: strokes lost; both twice as bright"
    )
    headed(page.figure, title, note, theme)
    panel = 0
    for label, index in zip(labels, chosen, strict=True):
        of_class = torch.nonzero(data.labels == label).flatten()[:COMPARED]
        own = capsules_of(model, data.images[[index]])[0]
        reach = reaches(capsules_of(model, data.images[of_class])[:, label])
        images = perturbed(model, own, label, reach)
        tiles = coloured(images, images[0, len(STEPS) // 2])
        for first in range(0, dims, rows):
            row, column = divmod(panel, across)
            left = column * (LEFT + width + BESIDE) + LEFT
            top = TOP + row * (height + ABOVE) + ABOVE
            some = range(first, min(first + rows, dims))
            pixels = sheet([list(tiles[value]) for value in some], GAP, size)
            axes = page.picture(left, top, pixels, scale)
            values = [(value, float(reach[value])) for value in some]
            _name_rows(axes, size, scale, values, theme)
            if first == 0:
                middle = axes.get_xlim()[1] / 2
                axes.text(
                    middle, -8 / scale, str(label), ha="center", va="bottom", fontsize=13,
                    fontweight="bold",
                )  # fmt: skip
            panel += 1
    return page.figure


def _name_rows(
    axes: Axes,
    size: int,
    scale: int,
    values: Sequence[tuple[int, float]],
    theme: Theme,
) -> None:
    """The capsule's values and their reaches beside a panel."""
    pitch = size + GAP
    for row, (value, reach) in enumerate(values):
        y = GAP + pitch * row + size / 2
        axes.text(
            -5 / scale, y, f"{value + 1}  ±{reach:.2f}", ha="right", va="center", fontsize=8,
            color=theme.muted,
        )  # fmt: skip
