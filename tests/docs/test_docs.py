"""What the documentation shows is what happens: its programs compile, its sessions are replayed.

A page is a sequence of blocks, and its blocks are run in order in an empty folder:

=============  =================================================================================
``loma``       a program: it compiles, with its derivatives. A name after it is that of a file.
``python``     is run
``pycon``      a session at Python's prompt: statements, and what each prints
``console``    commands after ``$``, and what each prints
``sh``         commands, of which those of loma are run; what they print is not on the page
``text``       is a file, where a name follows
=============  =================================================================================

``pytest --update-golden`` writes what they print into the pages.
"""

from __future__ import annotations

import contextlib
import difflib
import gc
import doctest
import io
import linecache
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from conftest import ROOT
from pages import BLOCK, PAGES, programs
from loma import memory
from loma.ad import differentiate
from loma.config import OPTIMISATIONS
from loma.frontend import parse
from loma.tools.cli import main

# What these show is compared with --full; that their programs are ones, always.
LATER = {
    "docs/layers.md", "docs/tensors.md", "docs/recipes.md", "docs/python.md", "docs/gradients.md",
    "docs/capsnet.md",
}  # fmt: skip


class Page:
    """Replays a page's blocks. Names that its Python statements make last to the page's end."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {"__name__": "__main__"}

    def replayed(self, text: str) -> str:
        """The page with what its blocks print now."""
        return BLOCK.sub(self._block, text)

    def _block(self, block: re.Match[str]) -> str:
        kind, name, text = block.groups()
        match kind:
            case "loma":
                differentiate(parse(text, name or "<text>"))
                if name:
                    Path(name).write_text(text, encoding="utf-8")
            case "text" if name:
                Path(name).write_text(text, encoding="utf-8")
            case "python":
                self._statements(text)
            case "pycon":
                text = "".join(self._session(text))
            case "console":
                text = "".join(self._commands(text))
            case "sh":
                for line in text.splitlines():
                    if line.startswith("loma "):
                        done = self._command(line)
                        assert done.exit_code == 0, done.output
        return f"```{kind}{f' {name}' if name else ''}\n{text}```"

    def _statements(self, text: str) -> None:
        name = f"<block {len(linecache.cache)}>"  # a file's name for those who read their source
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        exec(compile(text, name, "exec"), self.names)

    def _session(self, text: str) -> Iterator[str]:
        gc.collect()  # what pages say of memory does not depend on when others' garbage is freed
        for part in doctest.DocTestParser().parse(text):
            if isinstance(part, str):
                yield part
                continue
            first, *more = part.source.splitlines()
            yield f">>> {first}\n" + "".join(f"... {line}\n" for line in more)
            yield self._printed(part.source)

    def _printed(self, statement: str) -> str:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            try:
                exec(compile(statement, "<page>", "single"), self.names)
            except Exception as error:
                print(f"Traceback (most recent call last):\n  ...\n{type(error).__name__}: {error}")
        return out.getvalue()

    def _commands(self, text: str) -> Iterator[str]:
        for line in text.splitlines():
            if line.startswith("$ "):
                yield f"{line}\n{self._command(line[2:]).output}"

    def _command(self, line: str) -> Result:
        program, *args = shlex.split(line)
        assert program == "loma", f"only the command loma is replayed: {line}"
        return CliRunner().invoke(main, args)


@pytest.mark.cpu
@pytest.mark.parametrize(
    "name", [pytest.param(page, marks=pytest.mark.full if page in LATER else ()) for page in PAGES]
)
def test_pages_show_what_happens(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    page = ROOT / name
    text = page.read_text(encoding="utf-8")
    if "specialise.made()" in text:  # else kernels for known sizes are not what it is about
        monkeypatch.setenv("LOMA_SPECIALISATIONS", "8")
    gc.collect()
    memory.release()  # the pool begins as in a process of its own
    gc.disable()  # as long as the page runs, but where it is asked for: between lines that count
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # of two, one waits for the other while both workers have tests to run
    try:
        replayed = Page().replayed(text)
    finally:
        torch.set_num_threads(threads)
        gc.enable()
    if request.config.getoption("--update-golden"):
        page.write_text(replayed, encoding="utf-8")
    elif replayed != text:
        lines = difflib.unified_diff(
            text.splitlines(), replayed.splitlines(), name, "happens now", lineterm=""
        )
        pytest.fail("\n".join([f"{name} is out of date:", *lines]), pytrace=False)


@pytest.mark.parametrize("name", [name for name in sorted(LATER) if programs(name)])
def test_programs_of_pages_have_derivatives(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page, text = Page(), (ROOT / name).read_text(encoding="utf-8")
    blocks = [block for block in BLOCK.finditer(text) if block[1] in ("loma", "text")]
    for block in blocks:
        page._block(block)


def test_every_optimisation_is_described() -> None:
    text = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\* ((?:`\w+`(?:, )?)+):", text, re.MULTILINE)
    names = [name for line in listed for name in re.findall(r"\w+", line)]
    assert sorted(names) == sorted(OPTIMISATIONS)


def test_links_lead_somewhere() -> None:
    for page in (ROOT / "README.md", ROOT / "ARCHITECTURE.md", *(ROOT / "docs").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
        for target in (*links, *re.findall(r'(?:src|srcset)="([^"]+)"', text)):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
