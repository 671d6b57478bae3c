"""What the dimensions of a digit capsule stand for: figure 4 of the paper.

One value of a capsule at a time is changed by -0.25 to 0.25 in steps of 0.05, and decoded.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from capsnet_loma.data import ImageSet
from capsnet_loma.evaluation import EvaluationError
from capsnet_loma.evaluation.model import Model, capsules_of
from capsnet_loma.evaluation.sheets import Page, sheet
from loma.tools.pictures import LIGHT

STEPS = tuple(round(-0.25 + 0.05 * step, 2) for step in range(11))
GAP = 1
# Pixels: beside the panels, above all of them, between two, and above each.
LEFT, TOP, BESIDE, ABOVE = 40, 66, 28, 74


def perturbed(model: Model, capsules: Tensor, label: int) -> Tensor:
    """The capsules of one image [I, O] -> [O, 11, H, W], on the CPU: row o has value o of capsule
    ``label`` changed by each of STEPS."""
    capsules = capsules.cpu()
    dims, steps = capsules.shape[1], torch.tensor(STEPS, dtype=capsules.dtype)
    many = capsules.repeat(dims, len(STEPS), 1, 1)
    each = torch.arange(dims)
    many[each, :, label, each] += steps
    mask = torch.zeros(dims * len(STEPS), len(capsules), dtype=capsules.dtype)
    mask[:, label] = 1.0
    with torch.no_grad():
        images = model.decode(many.flatten(0, 1).to(model.device), mask.to(model.device))[:, 0]
    return images.cpu().reshape(dims, len(STEPS), *images.shape[1:])


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
) -> Figure:
    """A panel for each class: 16 rows of 11 images; of one class alone it is twice as large."""
    size, dims = model.config.image_size, model.config.digit_dim
    chosen = [example(data, predictions, label, where) for label in labels]
    capsules = capsules_of(model, data.images[chosen])
    across = min(5, len(labels))
    down = -(-len(labels) // across)
    # One panel alone is drawn larger. One and two are too narrow for a note of one line.
    scale, note_lines = 2 if across == 1 else 1, 2 if across < 3 else 1
    width = scale * (len(STEPS) * (size + GAP) + GAP)
    height = scale * (dims * (size + GAP) + GAP)
    above_all = TOP + 18 * (note_lines - 1)
    page = Page(LEFT + across * (width + BESIDE), above_all + down * (height + ABOVE))
    page.text(LEFT, 14, title, 12)
    note = (
        f"each row changes one of a capsule's {dims} values by {STEPS[0]:+.2f} to {STEPS[-1]:+.2f}"
        f"{' ' if note_lines == 1 else chr(10)}in steps of {STEPS[1] - STEPS[0]:.2f}; "
        "in the middle nothing is changed"
    )
    page.text(LEFT, 42, note, 9, LIGHT.muted)
    for number, (label, own) in enumerate(zip(labels, capsules, strict=True)):
        row, column = divmod(number, across)
        left = LEFT + column * (width + BESIDE)
        top = above_all + row * (height + ABOVE) + ABOVE - 12
        images = perturbed(model, own, label).numpy()
        axes = page.picture(left, top, sheet([list(line) for line in images], GAP, size), scale)
        _label(axes, label, size, dims, scale, with_rows=column == 0)
    return page.figure


def _label(axes: Axes, label: int, size: int, dims: int, scale: int, with_rows: bool) -> None:
    """Names the class and the changes above a panel, and the capsule's values beside it."""
    pitch = size + GAP
    middle = GAP + pitch * (len(STEPS) // 2) + size / 2
    axes.text(
        middle, -26 / scale, str(label), ha="center", va="bottom", fontsize=14, fontweight="bold"
    )
    for column in (0, len(STEPS) // 2, len(STEPS) - 1):
        text = f"{STEPS[column]:+.2f}" if STEPS[column] else "0"
        x = GAP + pitch * column + size / 2
        axes.text(x, -4 / scale, text, ha="center", va="bottom", fontsize=8, color=LIGHT.muted)
    for row in range(dims if with_rows else 0):
        y = GAP + pitch * row + size / 2
        axes.text(
            -5 / scale, y, str(row + 1), ha="right", va="center", fontsize=8, color=LIGHT.muted
        )
