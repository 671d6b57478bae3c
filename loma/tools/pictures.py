"""How pictures look, on light and on dark pages, and how they are written.

Needs matplotlib, which the extras ``[plot]`` and ``[capsnet]`` bring.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

DPI = 120


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours: of the page, of text and lines upon it, of what is less important, of grids, of
    boxes; ``loma`` and ``peers`` of those that are compared, darkest last on a light page."""

    page: str
    ink: str
    muted: str
    grid: str
    box: str
    loma: str
    peers: tuple[str, str, str]
    right: str
    wrong: str

    @property
    def runs(self) -> tuple[str, ...]:
        """One for each of several curves, told apart also by their lightness."""
        return self.loma, self.peers[2], self.right, "#7a4f9a", "#c79a2b", self.muted


LIGHT = Theme(
    page="#ffffff", ink="#1b1f24", muted="#5b6570", grid="#e4e7ea", box="#f5f6f8",
    loma="#b5481b", peers=("#aab4be", "#7f93a8", "#2b6ca3"), right="#2f7d4f", wrong="#c8442c",
)  # fmt: skip
DARK = Theme(
    page="#0d1117", ink="#e6edf3", muted="#9aa5b1", grid="#2a3038", box="#161b22",
    loma="#f0883e", peers=("#5b6570", "#7f93a8", "#6cb0f0"), right="#56b37c", wrong="#f0705a",
)  # fmt: skip


def save(figure: Figure, path: Path) -> None:
    """Writes a PNG at the figure's own resolution; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=figure.dpi)


def save_themes(
    draw: Callable[[Theme], Figure], path: Path, themes: Sequence[Theme] = (LIGHT, DARK)
) -> list[Path]:
    """Writes ``path`` for light pages, and beside it ``NAME-dark.png`` for dark ones. The files."""
    files = []
    for theme in themes:
        files.append(path.with_stem(f"{path.stem}-dark") if theme is DARK else path)
        save(drawn(draw, theme), files[-1])
    return files


def drawn(draw: Callable[[Theme], Figure], theme: Theme) -> Figure:
    """The figure in a theme, whose axes and texts have its colours by themselves."""
    settings: Any = {
        "figure.facecolor": theme.page, "savefig.facecolor": theme.page,
        "axes.facecolor": theme.page, "axes.edgecolor": theme.muted, "axes.labelcolor": theme.ink,
        "text.color": theme.ink, "xtick.color": theme.muted, "ytick.color": theme.muted,
        "xtick.labelcolor": theme.ink, "ytick.labelcolor": theme.ink, "grid.color": theme.grid,
        "text.hinting": "none",
    }  # fmt: skip
    with matplotlib.rc_context(settings):
        return draw(theme)


def plain(axes: Axes) -> None:
    """Axes with lines on the left and below only."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def headed(figure: Figure, title: str, note: str, theme: Theme) -> None:
    """The message of a picture above it, and under that what it is measured on."""
    height = figure.get_figheight()
    figure.text(0.012, 1 - 0.10 / height, title, va="top", fontsize=13, fontweight="bold")
    figure.text(0.012, 1 - 0.42 / height, note, va="top", fontsize=9, color=theme.muted)
