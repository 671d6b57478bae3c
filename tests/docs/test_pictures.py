"""The pictures of the README and the docs: what the one of performance shows, and that each is
there for light and for dark pages, in the one style."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT

matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is not installed")

PICTURE = re.compile(
    r'<picture><source media="\(prefers-color-scheme: dark\)" srcset="(.+?)">'
    r'<img src="(.+?)" alt="(.+?)"></picture>'
)
PEERS = "eager PyTorch | eager PyTorch, memory kept | torch.compile | loma"
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
SHOWN = {
    (page.parent / light, page.parent / dark): alt
    for page in PAGES
    for dark, light, alt in PICTURE.findall(page.read_text(encoding="utf-8"))
}


def test_performance_has_a_logarithmic_axis_absolute_times_and_its_message_in_the_title(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of the README's table, which is made of the same results."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from reporting import pictures

    from loma.tools.pictures import DARK, LIGHT, drawn

    results = json.loads((ROOT / "benchmarks/results.json").read_text(encoding="utf-8"))
    table = {
        cells[0]: cells[1:]
        for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
        if len(cells := [cell.strip() for cell in line.strip("|").split("|")]) == 6
        and cells[1].endswith("ms")
    }
    ahead = [float(cells[-1].removesuffix("x")) for cells in table.values()]
    for theme in (LIGHT, DARK):
        figure = drawn(partial(pictures.performance, results), theme)
        (axes,) = figure.axes
        assert axes.get_xscale() == "log"
        assert "logarithmic" in axes.get_xlabel()
        title = figure.texts[0].get_text()
        assert f"loma is {min(ahead):.1f} to {max(ahead):.1f} times as fast" in title
        works = [" ".join(label.get_text().split()) for label in axes.get_yticklabels()]
        assert works == [title.replace(": ", " ") for title in table]
        written = [text.get_text() for text in axes.texts]
        for number, cells in enumerate(table.values()):
            assert written[3 * number] == cells[3]  # loma's time
            assert set(written[3 * number : 3 * number + 3]) <= set(cells)
        (legend,) = figure.legends
        assert " | ".join(text.get_text() for text in legend.get_texts()) == PEERS


def _pixels(path: Path) -> Any:
    return matplotlib.image.imread(path)[..., :3]


@pytest.mark.parametrize("files", SHOWN, ids=lambda files: files[0].stem)
def test_each_is_there_for_light_and_dark_pages(files: tuple[Path, Path]) -> None:
    from matplotlib.colors import to_rgb

    from loma.tools.pictures import DARK, LIGHT

    light, dark = files
    assert dark.name == f"{light.stem}-dark.png"
    assert _pixels(light).shape == _pixels(dark).shape
    assert _pixels(light).shape[1] >= 800  # it is legible where a page is as wide
    for file, theme in ((light, LIGHT), (dark, DARK)):
        for corner in _pixels(file)[[0, 0, -1, -1], [0, -1, 0, -1]]:
            assert corner == pytest.approx(to_rgb(theme.page), abs=0.01), file.name
    assert len(SHOWN[files]) > 20  # what is said to those who do not see it


def test_no_picture_is_left_out_or_unused() -> None:
    there = set((ROOT / "docs/images").rglob("*.png"))
    assert {file.resolve() for files in SHOWN for file in files} == there
    assert not [page.name for page in PAGES if "![" in page.read_text(encoding="utf-8")]


def test_one_module_has_the_style() -> None:
    """Nothing else sets colours of pages, and nothing draws with a style that is global."""
    for folder in ("loma", "capsnet_loma", "benchmarks", "examples"):
        for file in (ROOT / folder).rglob("*.py"):
            text = file.read_text(encoding="utf-8")
            if "from matplotlib.figure import Figure" in text and file.name != "pictures.py":
                assert "from loma.tools.pictures import" in text, file
            assert "pyplot" not in text, file
            if file != ROOT / "loma/tools/pictures.py":
                assert "figure.facecolor" not in text, file
