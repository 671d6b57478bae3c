"""Curves of training: loss, accuracy and speed of every epoch, for one or several runs."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter

from capsnet_loma.evaluation import EvaluationError
from loma.tools.pictures import DPI, LIGHT, Theme, headed, plain

COLUMNS = (
    "epoch", "train_loss", "train_accuracy", "test_loss", "test_accuracy", "images_per_second",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Curves:
    """A run's name and the columns of its metrics.csv, one value an epoch; accuracies in 0..1."""

    name: str
    epoch: list[float]
    train_loss: list[float]
    train_accuracy: list[float]
    test_loss: list[float]
    test_accuracy: list[float]
    images_per_second: list[float]

    @property
    def speed(self) -> float:
        """Images a second: the median of the epochs."""
        return statistics.median(self.images_per_second)


def read_curves(path: Path, name: str) -> Curves:
    """The metrics of a run. Raises EvaluationError when there are none, or they are damaged."""
    if not path.exists():
        raise EvaluationError(
            f"{path} does not exist. Expected is the folder of a run, in which "
            "`capsnet-loma train` has finished an epoch."
        )
    values: dict[str, list[float]] = {column: [] for column in COLUMNS}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file, strict=True)
            missing = [column for column in COLUMNS if column not in (rows.fieldnames or ())]
            if missing:
                raise _damaged(path, f"its first line has no column {', '.join(missing)}")
            for number, row in enumerate(rows, start=1):
                for column in COLUMNS:
                    values[column].append(_number(path, number, column, row[column]))
    except (csv.Error, UnicodeDecodeError) as error:
        raise _damaged(path, str(error)) from error
    if not values["epoch"]:
        raise EvaluationError(
            f"{path} has no epoch yet: draw its curves when the run has finished one."
        )
    return Curves(name, **values)


def _number(path: Path, row: int, column: str, text: str | None) -> float:
    try:
        return float(text or "")
    except ValueError:
        raise _damaged(path, f"row {row} has {text!r} as {column}, which is no number") from None


def _damaged(path: Path, what: str) -> EvaluationError:
    return EvaluationError(
        f"{path} is damaged: {what}. Expected are the metrics that `capsnet-loma train` writes."
    )


def curves_figure(runs: Sequence[Curves], title: str, theme: Theme = LIGHT) -> Figure:
    """Loss and accuracy over the epochs, and images a second: a colour for each run, dashed lines
    for training."""
    figure = Figure(figsize=(9.0, 4.2), dpi=DPI)
    loss = figure.add_axes((0.06, 0.115, 0.29, 0.66))
    accuracy = figure.add_axes((0.405, 0.115, 0.29, 0.66))
    speed = figure.add_axes((0.74, 0.115, 0.245, 0.66))
    for number, run in enumerate(runs):
        colour = theme.runs[number % len(theme.runs)]
        mark = "o" if len(run.epoch) == 1 else ""
        for axes, train, test in (
            (loss, run.train_loss, run.test_loss),
            (
                accuracy,
                [100 * value for value in run.train_accuracy],
                [100 * value for value in run.test_accuracy],
            ),
        ):
            width = _width(runs, number)
            dashes: dict[str, Any] = {"linestyle": "--", "linewidth": 0.7 * width, "alpha": 0.75}
            axes.plot(run.epoch, train, color=colour, marker=mark, **dashes)
            axes.plot(run.epoch, test, "-", color=colour, linewidth=width, marker=mark)
    loss.set_title("loss", fontsize=11)
    loss.set_yscale("log")
    loss.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    loss.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    loss.yaxis.set_minor_formatter(NullFormatter())
    accuracy.set_title("accuracy, %", fontsize=11)
    accuracy.set_ylim(_lowest(runs), 100.4)
    for axes in (loss, accuracy):
        axes.set_xlabel("epoch", labelpad=1)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(linewidth=0.8)
        axes.set_axisbelow(True)
        plain(axes)
    _legend(accuracy, runs, theme)
    _speeds(speed, runs, theme)
    headed(figure, _message(runs, title), "speed: the median of the epochs' steps", theme)
    return figure


def _message(runs: Sequence[Curves], title: str) -> str:
    """The title, and how far the speeds of several runs are apart."""
    fastest, slowest = max(runs, key=lambda r: r.speed), min(runs, key=lambda r: r.speed)
    if fastest.speed <= slowest.speed:
        return title
    ratio = fastest.speed / slowest.speed
    return f"{title}: {fastest.name} is {ratio:.1f} times as fast as {slowest.name}"


def _speeds(axes: Axes, runs: Sequence[Curves], theme: Theme) -> None:
    """Bars, with the runs' names and images a second above them."""
    colours = [theme.runs[number % len(theme.runs)] for number in range(len(runs))]
    axes.barh(range(len(runs)), [run.speed for run in runs], 0.4, color=colours)
    for number, run in enumerate(runs):
        axes.annotate(
            f"{run.name}: {run.speed:,.0f}", (0.0, number - 0.24), xytext=(0, 3),
            textcoords="offset points", fontsize=10,
        )  # fmt: skip
    axes.set_title("images per second", fontsize=11)
    axes.set_ylim(max(len(runs), 2) - 0.5, -0.7)
    axes.set_axis_off()


def _width(runs: Sequence[Curves], number: int) -> float:
    """Runs that are drawn first are wider: of two that coincide, both are seen."""
    return 1.7 + min(1.9, 4.0 / len(runs)) * (len(runs) - 1 - number)


def _lowest(runs: Sequence[Curves]) -> float:
    """Where the axis of accuracy begins: first epochs may lie below, so that late ones are seen."""
    late = [
        100 * value
        for run in runs
        for values in (run.train_accuracy, run.test_accuracy)
        for value in values[len(values) // 4 :]
    ]
    for limit in (95.0, 90.0, 80.0, 50.0):
        if min(late) > limit + 0.2 * (100.0 - limit):
            return limit
    return 0.0


def _legend(axes: Axes, runs: Sequence[Curves], theme: Theme) -> None:
    entries = [
        Line2D(
            [], [], color=theme.runs[number % len(theme.runs)], linewidth=_width(runs, number),
            label=run.name,
        )
        for number, run in enumerate(runs)
        if len(runs) > 1
    ]  # fmt: skip
    entries += [
        Line2D([], [], color=theme.muted, linewidth=1.8, label="test"),
        Line2D([], [], color=theme.muted, linewidth=1.2, linestyle="--", label="training"),
    ]
    axes.legend(handles=entries, frameon=False, loc="lower right", fontsize=9.5)
