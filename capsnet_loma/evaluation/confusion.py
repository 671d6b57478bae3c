"""The confusion matrix as a picture."""

from __future__ import annotations

import numpy
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from capsnet_loma.evaluation.evaluate import Evaluation
from loma.tools.pictures import DPI, LIGHT, Theme


def confusion_figure(evaluation: Evaluation, title: str, theme: Theme = LIGHT) -> Figure:
    """Counts in a grid: a row is a true class, a column what it was taken for.

    Green are right answers, by their share of the class; red are wrong ones, by how many they are
    beside the most frequent mistake.
    """
    counts = evaluation.confusion.numpy()
    classes = len(counts)
    diagonal = numpy.eye(classes, dtype=bool)
    shares = counts / numpy.maximum(counts.sum(axis=1, keepdims=True), 1)
    mistakes = numpy.where(diagonal, 0, counts)
    strength = numpy.where(diagonal, shares, mistakes / max(1, mistakes.max()))
    colours = numpy.where(
        diagonal[..., None],
        _from_page(theme.right, theme)(0.9 * strength),
        _from_page(theme.wrong, theme)(0.8 * strength),
    )
    figure = Figure(figsize=(6.6, 6.6), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    axes.imshow(colours)
    for row in range(classes):
        for column in range(classes):
            if counts[row, column] or row == column:
                strong = strength[row, column] > 0.5
                axes.text(
                    column, row, f"{counts[row, column]:,}", ha="center", va="center",
                    fontsize=10, color=theme.page if strong else theme.ink,
                )  # fmt: skip
    axes.set_xticks(range(classes))
    axes.set_yticks(range(classes))
    axes.set_xticks(numpy.arange(classes + 1) - 0.5, minor=True)
    axes.set_yticks(numpy.arange(classes + 1) - 0.5, minor=True)
    axes.grid(which="minor", color=theme.grid, linewidth=1)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("taken for")
    axes.set_ylabel("class")
    axes.set_title(
        f"{title}\n{evaluation.right:,} of {evaluation.images:,} right, {evaluation.accuracy:.2%}",
        fontsize=11,
        color=theme.muted,
    )
    return figure


def _from_page(colour: str, theme: Theme) -> LinearSegmentedColormap:
    return LinearSegmentedColormap.from_list(colour, [theme.page, colour])
