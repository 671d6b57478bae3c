"""What mkdocs does besides, so that pages are the same files in the repository and on the site.

* Pages at the top of the repository are pages of the site (``PAGES``). What a page links to that is
  no page, a folder or file of sources, gets one with its programs, under ``source/``.
* Links and pictures lead to these.
* The word behind a block's language, the name of a file, is the block's title.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parent.parent
DOCS = "docs"
# Pages outside of docs/, and what they are called on the site.
PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "how-to-contribute.md",
}
SHOWN = {".loma": "loma", ".py": "python", ".json": "json"}

# A block of code, or the target of a link or picture up to its anchor.
_TARGET = re.compile(
    r"^```(?P<kind>\w+)(?: (?P<title>\S+))?\n(?P<code>.*?)^```$"
    r"|(?P<before>\]\(|\bsrc(?:set)?=\")(?P<path>[^)\"#:\s]+)",
    re.DOTALL | re.MULTILINE,
)


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that are made here."""
    for page, uri in PAGES.items():
        files.append(File.generated(config, uri, content=(ROOT / page).read_text(encoding="utf-8")))
    linked = {
        target
        for file in files.documentation_pages()
        for match in _TARGET.finditer(file.content_string)
        if match["path"] and (target := _linked(_in_repository(file.src_uri), match["path"]))
    }
    for target in sorted(linked):
        if (uri := _on_site(target)).startswith("source/"):
            made = File.generated(
                config, uri, content=_sources(target), inclusion=InclusionLevel.NOT_IN_NAV
            )
            files.append(made)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The page with the links and titles of the site."""
    uri = page.file.src_uri
    own = _in_repository(uri)

    def replaced(match: re.Match[str]) -> str:
        if match["kind"]:
            title = f' title="{match["title"]}"' if match["title"] else ""
            return f"```{match['kind']}{title}\n{match['code']}```"
        target = _linked(own, match["path"])
        if target is None:  # mkdocs says that it leads nowhere
            return match[0]
        return match["before"] + os.path.relpath(_on_site(target), PurePosixPath(uri).parent)

    return _TARGET.sub(replaced, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Without what docstrings have of Sphinx: ``:class:`Module```, and ``::`` before a program."""
    return re.sub(r":(?:class|func|meth|mod):(?=<code>)", "", html).replace("::</p>", ":</p>")


def _in_repository(uri: str) -> str:
    """Where a page of the site lies in the repository."""
    return next((page for page in PAGES if PAGES[page] == uri), f"{DOCS}/{uri}")


def _linked(page: str, path: str) -> str | None:
    """What a page's link leads to, in the repository; None if there is nothing."""
    found = os.path.normpath(os.path.join(os.path.dirname(page), path))
    return found if not found.startswith("..") and (ROOT / found).exists() else None


def _on_site(path: str) -> str:
    if path.startswith(f"{DOCS}/"):
        return path.removeprefix(f"{DOCS}/")
    return PAGES.get(path) or f"source/{path}.md"


def _sources(path: str) -> str:
    """A page with a file of sources, or with those that lie in a folder."""
    found = ROOT / path
    files = [found] if found.is_file() else sorted(f for f in found.iterdir() if f.suffix in SHOWN)
    parts = [f"# {path}\n"]
    for file in files:
        text = file.read_text(encoding="utf-8")
        parts.append(f"## {file.name}\n\n~~~~{SHOWN.get(file.suffix, 'text')}\n{text}~~~~\n")
    return "\n".join(parts)
