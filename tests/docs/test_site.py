"""The docs as a site: it builds without a warning, and everything that it links to is there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path

import pytest

from conftest import ROOT

pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("mkdocs", "material", "mkdocstrings")),
    reason="mkdocs is not installed: pip install -e '.[docs]'",
)


def built(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--config-file", config, "--site-dir", site]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # no announcement of the theme's
    return subprocess.run([*map(str, command)], cwd=ROOT, env=quiet, capture_output=True, text=True)


class Found(HTMLParser):
    """A page's anchors, and where its links and pictures lead."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.targets: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif name in ("href", "src", "srcset") and value and tag not in ("link", "script"):
                self.targets.add(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = built(ROOT / "mkdocs.yml", folder)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Found]:
    return {page: Found(page) for page in site.rglob("*.html") if page.name != "404.html"}


def test_every_page_is_there(pages: dict[Path, Found], site: Path) -> None:
    names = {page.relative_to(site).with_suffix("").as_posix() for page in pages}
    own = {page.stem for page in (ROOT / "docs").glob("*.md")}
    outside = {"index", "architecture", "changelog", "how-to-contribute"}
    sources = {name for name in names if name.startswith("source/")}
    assert names - sources == own | outside
    assert {"source/examples", "source/capsnet_loma", "source/loma/optim"} <= sources


def test_links_and_pictures_lead_somewhere(pages: dict[Path, Found]) -> None:
    """Those of raw HTML as well, which mkdocs does not look at."""
    for page, found in pages.items():
        for target in found.targets:
            if re.match(r"\w+:", target):
                assert target.startswith("https://"), f"{page.name}: {target}"
                continue
            path, _, anchor = target.partition("#")
            other = (page.parent / path).resolve() if path else page
            assert other.exists(), f"{page.name}: {target}"
            if anchor and other.suffix == ".html":
                assert anchor in pages[other].anchors, f"{page.name}: {target}"


def test_nothing_is_loaded_from_elsewhere(pages: dict[Path, Found]) -> None:
    for page in pages:
        tags = re.findall(r"<(?:script|link|img|source)\b[^>]*>", page.read_text(encoding="utf-8"))
        assert not [tag for tag in tags if re.search(r'(?:src|href|srcset)="https?:', tag)]


def test_programs_are_highlighted_and_named(site: Path) -> None:
    text = (site / "layers.html").read_text(encoding="utf-8")
    assert '<span class="filename">attend.loma</span>' in text
    assert '<span class="kt">BoolTensor</span>' in text  # a word of the language, not of Python
    assert "```" not in text


def test_markdown_is_what_the_site_takes_it_for(pages: dict[Path, Found]) -> None:
    """A list without an empty line before it, as repositories take it, would be a paragraph."""
    for page in pages:
        text = re.sub(r"<pre.*?</pre>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        left = re.findall(r"^(?:<p>)?(?:\* .*|\d+\. .*|\| .*|#+ .*|::: .*)", text, re.MULTILINE)
        assert not left, f"{page.name}: {left}"


def test_the_api_has_signatures_and_no_roles_of_sphinx(site: Path) -> None:
    text = (site / "api.html").read_text(encoding="utf-8")
    names = re.findall("^::: (.+)$", (ROOT / "docs/api.md").read_text(encoding="utf-8"), re.M)
    assert all(f'id="{name}"' in text for name in names)
    assert not re.search(r":(?:class|func|meth|mod):", text)
    assert "amsgrad" in text


def test_broken_links_and_anchors_are_errors(tmp_path: Path) -> None:
    """With the site's own settings."""
    docs = tmp_path / "docs"
    docs.mkdir()
    broken = ("missing.md", "#nowhere-here", "other.md#nowhere-there")
    links = "\n".join(f"[gone]({target})" for target in broken)
    (docs / "index.md").write_text(f"# Page\n\n{links}\n", encoding="utf-8")
    (docs / "other.md").write_text("# Other\n", encoding="utf-8")
    config = tmp_path / "mkdocs.yml"
    config.write_text(
        f"INHERIT: {ROOT / 'mkdocs.yml'}\ndocs_dir: {docs}\nhooks: []\nnav: [index.md, other.md]\n",
        encoding="utf-8",
    )
    done = built(config, tmp_path / "site")
    assert done.returncode != 0
    assert "3 warnings" in done.stdout + done.stderr
    assert all(re.split("#", target)[-1] in done.stderr for target in broken)
