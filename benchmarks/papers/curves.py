"""Pictures of the tables: what a row measures over a size, a line for each form."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gpu_work.rows import AUTOTUNE, COMPILE, GRAPH
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from loma.tools.pictures import DPI, Theme, headed, plain, save_themes

Record = Mapping[str, Any]  # a row of a file of results
# The groups that a line is drawn of: the fastest of its forms. Others have a line for each form.
GROUPS = {COMPILE: "torch.compile", AUTOTUNE: "max-autotune"}


@dataclass(frozen=True, slots=True)
class Panel:
    """``lines``: by name, the ``sizes`` and the values there, in the unit of ``axis``."""

    title: str
    axis: str
    sizes: str
    lines: Mapping[str, Mapping[int, float]]


def size_of(row: Record) -> int:
    """The number in a row's key: "batch 8 forward"."""
    found = re.search(r"\d+", row["key"])
    assert found is not None
    return int(found[0])


def lines_of(rows: Sequence[Record], what: str, unit: float) -> dict[str, dict[int, float]]:
    """Each form of loma's and each eager one, as a call or a CUDA graph, whichever is faster, and
    the fastest form of every other group; ``what`` is "milliseconds" or "memory", of which a form
    is one that was measured."""
    lines: dict[str, dict[int, float]] = {}
    for row in rows:
        for form, value in row[what].items():
            plainly = form.removesuffix(GRAPH)
            name = GROUPS.get(plainly.partition(" ")[0], plainly)
            line = lines.setdefault(name, {})
            size = size_of(row)
            line[size] = min(value / unit, line.get(size, float("inf")))
    return {name: lines[name] for name in sorted(lines, key=lambda name: name != "loma")}


def write(panels: Sequence[Panel], title: str, note: str, path: Path) -> list[Path]:
    """Draws the panels beside each other, for light and for dark pages; the files."""
    return save_themes(partial(_drawn, panels, title, note), path)


def _ticks(sizes: Sequence[int]) -> list[int]:
    """The largest size, and of the others those that have room for their number."""
    least = math.log2(max(sizes) / min(sizes)) / 5
    kept = [max(sizes)]
    for size in sorted(sizes, reverse=True):
        if math.log2(kept[-1] / size) > least:
            kept.append(size)
    return kept


def _drawn(panels: Sequence[Panel], title: str, note: str, theme: Theme) -> Figure:
    figure = Figure(figsize=(9.6, 4.1), dpi=DPI)
    places = figure.subplots(1, len(panels))
    figure.subplots_adjust(left=0.07, right=0.99, bottom=0.28, top=0.75, wspace=0.28)
    names = list(dict.fromkeys(name for panel in panels for name in panel.lines))
    colours = dict(zip(names, (*theme.runs, *theme.peers), strict=False))
    for axes, panel in zip(places if len(panels) > 1 else [places], panels, strict=True):
        for name, line in panel.lines.items():
            xs = sorted(line)
            axes.plot(xs, [line[x] for x in xs], "o-", color=colours[name], markersize=4,
                      linewidth=2.4 if name == "loma" else 1.4, label=name)  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
            axis.set_minor_formatter(NullFormatter())
        axes.set_xticks(_ticks([x for line in panel.lines.values() for x in line]))
        axes.set_xlabel(panel.sizes, fontsize=9)
        axes.set_title(f"{panel.title}, {panel.axis}", fontsize=9, loc="left")
        axes.grid(linewidth=0.6)
        axes.set_axisbelow(True)
        axes.tick_params(labelsize=8)
        plain(axes)
    shown: dict[str, Any] = {}
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        shown |= dict(zip(labels, handles, strict=True))
    figure.legend(list(shown.values()), list(shown), loc="lower center", ncols=min(4, len(shown)),
                  frameon=False, fontsize=9)  # fmt: skip
    headed(figure, title, note, theme)
    return figure
