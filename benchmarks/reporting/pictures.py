"""The pictures of the README: how long each version takes, what the compiler makes of a program.

They are drawn from benchmarks/results.json and from the compiler's own texts by

    python benchmarks/run_all.py --render
"""

from __future__ import annotations

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
from loma.tools.pictures import DPI, Theme, headed, plain, save_both

PERFORMANCE = Path("docs/images/performance.png")
IDEA = Path("docs/images/idea.png")
_CAPSNET = Path(__file__).resolve().parents[2] / "capsnet_loma"
_NETWORK = "CapsNet, batch 100: training step with Adam"  # the row that the idea ends with


def write(results: Record, root: Path) -> list[Path]:
    """Writes the pictures into a checkout; their paths in it."""
    save_both(partial(performance, results), root / PERFORMANCE)
    rows = {row["title"]: row for row in figures(results)}
    made = [PERFORMANCE]
    if _NETWORK in rows:
        save_both(partial(idea, rows[_NETWORK]), root / IDEA)
        made.append(IDEA)
    return made


# -------------------------------------------------------------------------------------- performance


def performance(results: Record, theme: Theme) -> Figure:
    """The time of each version, on a logarithmic axis; a line joins those of one work."""
    rows = figures(results)
    figure = Figure(figsize=(10.0, 0.62 * len(rows) + 1.75), dpi=DPI)
    height = figure.get_figheight()
    axes = figure.add_axes((0.355, 0.62 / height, 0.615, 1 - 1.62 / height))
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
    axes.set_xlim(low / 1.35, high * 1.45)
    axes.set_xlabel("milliseconds, on a logarithmic axis: less is better")
    axes.set_ylim(len(rows) - 0.5, -0.6)
    axes.set_yticks(range(len(rows)), [_wrapped(row["title"]) for row in rows], fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", linewidth=0.8)
    axes.set_axisbelow(True)
    plain(axes)
    axes.spines["left"].set_visible(False)
    figure.legend(
        *axes.get_legend_handles_labels(), loc="upper right", ncols=4, frameon=False, fontsize=9,
        bbox_to_anchor=(0.985, 1 - 0.58 / height), borderaxespad=0.0, handletextpad=0.2,
    )  # fmt: skip
    ratios = [ratio for row in rows if (ratio := ahead(row)) is not None]
    e = results["environment"]
    note = (
        f"{e['processor']}, {results['settings']['threads']} threads, float32, "
        f"torch {e['versions']['torch']}, {e['date']}"
    )
    span = f"{min(ratios):.1f} to {max(ratios):.1f}"
    headed(figure, f"loma is {span} times as fast as PyTorch at its best", note, theme)
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
            va="bottom" if where == "center" else "center", fontsize=8.5, color=colour,
        )  # fmt: skip


def _wrapped(title: str) -> str:
    work, _, what = title.rpartition(": ")
    return f"{work}\n{what}"


# --------------------------------------------------------------------------------------------- idea


def idea(network: Record, theme: Theme) -> Figure:
    """A program, its adjoint, the loops that it becomes, and the network that it is part of."""
    source = (_CAPSNET / "squash.loma").read_text("utf-8")
    written = source[source.index("def ") :].partition("\n\n")[0]
    adjoint = pipeline.adjoint_text(source, "squash")
    loops = pipeline.stage_text(source, "kernels", "squash__backward")
    figure = Figure(figsize=(12.0, 6.3), dpi=DPI)
    figure.text(
        0.018, 0.975, "Write the forward mathematics once", va="top", fontsize=15, fontweight="bold"
    )
    left, right, width = 0.018, 0.512, 0.47
    _panel(figure, (left, 0.675, width, 0.2), "1  write", _lines(written), theme)
    figure.text(left + width - 0.015, 0.735, _EQUATION, ha="right", fontsize=17)
    _panel(figure, (right, 0.445, width, 0.43), "2  read its derivative", _lines(adjoint), theme)
    _panel(
        figure, (left, 0.03, width, 0.565), "3  see one fused, parallel loop", _lines(loops), theme
    )
    _times(figure, (right, 0.03, width, 0.325), network, theme)
    return figure


_WIDTH = 76  # characters of a line
# Sabour, Frosst and Hinton 2017, equation (1).
_EQUATION = r"$v = \frac{|s|^2}{1 + |s|^2} \, \frac{s}{|s|}$"


def _lines(text: str) -> list[str]:
    """A text without docstrings and remarks, its long lines broken."""
    found: list[str] = []
    for line in text.rstrip().split("\n"):
        if '"""' not in line:
            found += _broken(line.partition("  #")[0])
    return found


def _broken(line: str) -> list[str]:
    """A line in parts of _WIDTH characters at most, between brackets rather than within."""
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    found = []
    while len(line) > _WIDTH:
        depth, places = 0, list[tuple[int, int]]()
        for at, letter in enumerate(line[:_WIDTH]):
            depth += (letter in "([") - (letter in ")]")
            if letter == " " and at > _WIDTH // 2:
                places.append((depth, -at))
        at = -min(places)[1]
        found.append(line[:at])
        line = indent + line[at + 1 :]
    return [*found, line]


def _panel(
    figure: Figure, place: tuple[float, float, float, float], title: str, lines: Sequence[str],
    theme: Theme,
) -> None:  # fmt: skip
    """A box with a heading and a text in the lexer's colours."""
    axes = figure.add_axes(place)
    axes.set_facecolor(theme.box)
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color(theme.grid)
    figure.text(place[0], place[1] + place[3] + 0.008, title, fontsize=11, fontweight="bold")
    width, height = place[2] * figure.get_figwidth(), place[3] * figure.get_figheight()
    size = min(
        9.2, 72 * (height - 0.2) / (len(lines) * 1.42), 72 * (width - 0.3) / (_WIDTH * 0.602)
    )
    across, down = 0.602 * size / 72 / width, 1.42 * size / 72 / height
    for row, column, text, colour in _coloured("\n".join(lines), theme):
        axes.text(
            0.15 / width + column * across, 1 - 0.12 / height - row * down, text, va="top",
            family="monospace", fontsize=size, color=colour, transform=axes.transAxes,
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


def _times(
    figure: Figure, place: tuple[float, float, float, float], row: Record, theme: Theme
) -> None:
    """Bars of a row's versions."""
    figure.text(
        place[0], place[1] + place[3] + 0.008, f"4  in a network: {_NETWORK}", fontsize=11,
        fontweight="bold",
    )  # fmt: skip
    axes = figure.add_axes((place[0] + 0.155, place[1], place[2] - 0.215, place[3]))
    groups = _groups(row)
    times = [1e3 * row["groups"][group]["seconds"] for group in groups]
    colours = [*theme.peers[: len(groups) - 1], theme.loma]
    axes.barh(groups, times, 0.62, color=colours)
    for y, time in enumerate(times):
        axes.annotate(
            ms(time / 1e3), (time, y), xytext=(5, 0), textcoords="offset points", va="center",
            fontsize=9.5,
        )  # fmt: skip
    axes.invert_yaxis()
    axes.set_xticks([])
    axes.tick_params(axis="y", length=0, labelsize=9.5)
    for spine in axes.spines.values():
        spine.set_visible(False)
