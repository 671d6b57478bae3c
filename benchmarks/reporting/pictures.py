"""The pictures of the README: how long each version takes, what the compiler makes of a program.

They are drawn from benchmarks/results.json and from the compiler's own texts by

    python benchmarks/run_all.py --render
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from forms import COMPILE, EAGER, KEEPING, LOMA
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from reporting.report import PEERS, Record, ahead, figures, ms

from loma import pipeline
from loma.embedded.lexer import LomaLexer
from loma.tools.pictures import DPI, Theme, headed, plain, save_themes

PERFORMANCE = Path("docs/images/performance.png")
IDEA = Path("docs/images/idea.png")
_CAPSNET = Path(__file__).resolve().parents[2] / "capsnet_loma"
_NETWORK = "CapsNet, batch 100: training step with Adam"  # the row that the idea ends with


def write(results: Record, root: Path) -> list[Path]:
    """Writes the pictures into a checkout; their paths in it."""
    save_themes(partial(performance, results), root / PERFORMANCE)
    rows = {row["title"]: row for row in figures(results)}
    made = [PERFORMANCE]
    if _NETWORK in rows:
        save_themes(partial(idea, rows[_NETWORK]), root / IDEA)
        made.append(IDEA)
    return made


# -------------------------------------------------------------------------------------- performance


def performance(results: Record, theme: Theme) -> Figure:
    """The time of each version, on a logarithmic axis; a line joins those of one work."""
    rows = figures(results)
    figure = Figure(figsize=(9.0, 0.68 * len(rows) + 1.75), dpi=DPI)
    height = figure.get_figheight()
    axes = figure.add_axes((0.28, 0.62 / height, 0.71, 1 - 1.62 / height))
    colours = dict(zip(PEERS, theme.peers, strict=True)) | {LOMA: theme.loma}
    marks = {EAGER: "o", KEEPING: "D", COMPILE: "s", LOMA: "o"}
    for y, row in enumerate(rows):
        times = {group: 1e3 * row["groups"][group]["seconds"] for group in _groups(row)}
        axes.plot(
            [min(times.values()), max(times.values())], [y, y], color=theme.grid, lw=5, zorder=1
        )
        for group, time in times.items():
            size = 11 if group == LOMA else 8
            axes.plot(
                time, y, marks[group], color=colours[group], markersize=size, zorder=3,
                label=group if y == 0 else None,
            )  # fmt: skip
        _annotated(axes, y, times, theme)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    low, high = axes.get_xlim()
    axes.set_xlim(low / 1.45, high * 1.6)
    axes.set_xlabel("milliseconds, on a logarithmic axis: less is better")
    axes.set_ylim(len(rows) - 0.5, -0.6)
    axes.set_yticks(range(len(rows)), [_wrapped(row["title"]) for row in rows], fontsize=10)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", linewidth=0.8)
    axes.set_axisbelow(True)
    plain(axes)
    axes.spines["left"].set_visible(False)
    figure.legend(
        *axes.get_legend_handles_labels(), loc="upper right", ncols=4, frameon=False, fontsize=10,
        bbox_to_anchor=(0.985, 1 - 0.58 / height), borderaxespad=0.0, handletextpad=0.2,
    )  # fmt: skip
    ratios = [ratio for row in rows if (ratio := ahead(row)) is not None]
    e = results["environment"]
    note = (
        f"{e['processor']}, {results['settings']['threads']} threads, float32, "
        f"torch {e['versions']['torch']}, {e['date']}"
    )
    span = f"{min(ratios):.1f} to {max(ratios):.1f}"
    headed(
        figure, f"In these cases loma is {span} times as fast as PyTorch at its best", note, theme
    )
    return figure


def _groups(row: Record) -> list[str]:
    return [group for group in (*PEERS, LOMA) if group in row["groups"]]


def _annotated(axes: Axes, y: int, times: dict[str, float], theme: Theme) -> None:
    """The times of loma and of the slowest at the ends, of the fastest peer above its mark."""
    peers = {group: time for group, time in times.items() if group != LOMA}
    best = min(peers, key=lambda group: peers[group])
    for time, where, shift, colour in (
        (times[LOMA], "right", (-9, 0), theme.loma),
        (max(peers.values()), "left", (9, 0), theme.muted),
        (peers[best], "center", (0, 9), theme.muted),
    ):
        axes.annotate(
            ms(time / 1e3), (time, y), xytext=shift, textcoords="offset points", ha=where,
            va="bottom" if where == "center" else "center", fontsize=10, color=colour,
        )  # fmt: skip


def _wrapped(title: str) -> str:
    work, _, what = title.rpartition(": ")
    return "\n".join([*textwrap.wrap(work, 28), what])


# --------------------------------------------------------------------------------------------- idea


def idea(network: Record, theme: Theme) -> Figure:
    """A program, its adjoint, the loops that it becomes, and the network that it is part of."""
    source = (_CAPSNET / "lengths.loma").read_text("utf-8")
    written = source[source.index("def ") :].partition("\n\n")[0]
    texts = {
        "1  Write a layer's forward mathematics": written,
        "2  Read the adjoint that is derived from it": pipeline.adjoint_text(source, "lengths"),
        "3  See the loop that runs: fused, parallel, its temporaries in the cache":
            pipeline.stage_text(source, "kernels", "lengths__backward"),
    }  # fmt: skip
    panels = {title: _lines(text) for title, text in texts.items()}
    bars = 1.25
    height = bars + sum(_HEAD + _panel_height(lines) for lines in panels.values()) + _HEAD + 0.62
    figure = Figure(figsize=(_WIDE, height), dpi=DPI)
    figure.text(
        0.012, 1 - 0.1 / height, "Write the forward mathematics once; loma does the rest",
        va="top", fontsize=15, fontweight="bold",
    )  # fmt: skip
    top = height - 0.5
    for title, lines in panels.items():
        _panel(figure, top, title, lines, theme)
        if lines is panels["1  Write a layer's forward mathematics"]:
            middle = top - _HEAD - _panel_height(lines) / 2
            figure.text(0.965, middle / height, _EQUATION, ha="right", va="center", fontsize=19)
        top -= _HEAD + _panel_height(lines)
    _times(figure, top, bars, network, theme)
    return figure


_WIDE, _HEAD = 9.0, 0.36  # inches: of the picture, above a panel
_COLUMNS = 99  # characters of a line
_SIZE = 72 * (_WIDE - 0.4) / _COLUMNS / 0.602  # points, of a font that is 0.602 as wide as high
_DOWN = 1.42 * _SIZE / 72  # inches from line to line
# The length of a capsule, Sabour, Frosst and Hinton 2017, section 2.
_EQUATION = r"$|v| = \sqrt{\sum_o v_o^2}$"


def _panel_height(lines: Sequence[str]) -> float:
    return 0.2 + len(lines) * _DOWN


def _lines(text: str) -> list[str]:
    """A text without docstrings and remarks."""
    lines = [line.partition("  #")[0] for line in text.rstrip().split("\n") if '"""' not in line]
    assert max(map(len, lines)) <= _COLUMNS, "a line of the picture is cut off"
    return lines


def _panel(figure: Figure, top: float, title: str, lines: Sequence[str], theme: Theme) -> None:
    """A heading and a box with a text in the lexer's colours, from ``top`` inches downwards."""
    whole, height = figure.get_figheight(), _panel_height(lines)
    figure.text(0.012, (top - 0.1) / whole, title, va="top", fontsize=12, fontweight="bold")
    axes = figure.add_axes((0.012, (top - _HEAD - height) / whole, 0.976, height / whole))
    axes.set_facecolor(theme.box)
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color(theme.grid)
    width = 0.976 * _WIDE
    for row, column, text, colour in _coloured("\n".join(lines), theme):
        axes.text(
            (0.1 + column * 0.602 * _SIZE / 72) / width, 1 - (0.1 + row * _DOWN) / height, text,
            va="top", family="monospace", fontsize=_SIZE, color=colour, transform=axes.transAxes,
        )  # fmt: skip


def _coloured(text: str, theme: Theme) -> Iterator[tuple[int, int, str, str]]:
    """Words of a text: row, column, text and colour."""
    from pygments.token import Keyword, Name, Number

    row = column = 0
    for _, token, value in LomaLexer().get_tokens_unprocessed(text):
        colour: Any = theme.ink
        if token in Keyword.Type or token in Number:
            colour = theme.peers[2]
        elif token in Keyword or value in ("parallel", "private"):
            colour = theme.loma
        elif token in Name.Builtin or token in Name.Function:
            colour = theme.right
        for k, part in enumerate(value.split("\n")):
            if k:
                row, column = row + 1, 0
            if part.strip():
                yield row, column, part, colour
            column += len(part)


def _times(figure: Figure, top: float, height: float, row: Record, theme: Theme) -> None:
    """A heading and bars of a row's versions, from ``top`` inches downwards."""
    whole = figure.get_figheight()
    figure.text(
        0.012, (top - 0.1) / whole, f"4  Train: {_NETWORK}", va="top", fontsize=12,
        fontweight="bold",
    )  # fmt: skip
    axes = figure.add_axes((0.25, (top - _HEAD - height) / whole, 0.62, height / whole))
    groups = _groups(row)
    times = [1e3 * row["groups"][group]["seconds"] for group in groups]
    colours = [*theme.peers[: len(groups) - 1], theme.loma]
    axes.barh(groups, times, 0.66, color=colours)
    for y, time in enumerate(times):
        axes.annotate(
            ms(time / 1e3), (time, y), xytext=(5, 0), textcoords="offset points", va="center",
            fontsize=11, fontweight="bold" if groups[y] == LOMA else "normal",
        )  # fmt: skip
    axes.invert_yaxis()
    axes.set_xticks([])
    axes.tick_params(axis="y", length=0, labelsize=11)
    for spine in axes.spines.values():
        spine.set_visible(False)
