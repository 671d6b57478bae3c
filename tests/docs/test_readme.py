"""What the README has, in the order in which a reader needs it; figures that are in two places."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import torch

from conftest import ROOT
from pages import BLOCK

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_order() -> None:
    """What it is, how to install it, a program that runs, the idea as a picture, when to use it,
    measurements, the two commands, scalars, CapsNet."""
    first = README.split("\n\n")[1]
    assert "for CPU and GPU, on Linux" in " ".join(first.split(":")[0].split())
    order = (
        "\npip install ", "```python\nimport loma", "docs/images/idea.png", "\n## When to use it",
        "\n<!-- benchmarks -->", "\n## Two commands", "\n## The scalar layer", "\n## CapsNet",
    )  # fmt: skip
    places = [README.find(text) for text in order]
    assert -1 not in places
    assert places == sorted(places)


def test_the_first_program_is_short() -> None:
    install, program, _ = (match[0] for match in list(re.finditer(r"```.*?```", README, re.S))[:3])
    assert install.count("\n") == 2
    lines = [line for line in program.splitlines()[1:-1] if line.strip()]
    assert len(lines) <= 10
    assert BLOCK.search(README[README.index(program) :]) is not None  # so it is run: test_docs.py


def test_the_first_programs_train() -> None:
    """Pasted as they stand, one after the other."""
    blocks = [match[3] for match in BLOCK.finditer(README) if match[1] == "python"]
    names: dict[str, Any] = {}
    torch.manual_seed(0)
    exec(blocks[0], names)
    assert torch.isfinite(names["layer"].c.grad).all()
    assert names["layer"].c.grad.abs().sum() > 0
    names["losses"] = []
    step = "    loss.backward()\n"
    exec(blocks[1].replace(step, f"    losses.append(loss.item())\n{step}"), names)
    assert len(names["losses"]) == 300
    assert names["losses"][-1] < 0.1 * names["losses"][0]


def test_one_table_of_measurements_with_every_peer() -> None:
    heads = [head for head, _, _ in _rows("README.md")]
    (head,) = set(heads)
    for peer in ("eager PyTorch", "eager PyTorch, memory kept", "torch.compile", "loma"):
        assert peer in head
    measured = [cells for _, _, cells in _rows("README.md") if cells[1]]
    assert len(measured) >= 5
    assert all(all(cells) for cells in measured)


def test_tables_do_not_disagree() -> None:
    """The same work, measured by the same benchmark, has the same figures in all tables."""
    pages = ("README.md", "docs/performance.md")
    found: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for page in pages:
        for head, section, (work, *figures) in _rows(page):
            if "On a GPU" not in section:
                for name, figure in zip(head[1:], figures, strict=True):
                    if re.search(r"\d m?s$", figure):
                        found[work, name][page].append(figure)
    shared = {key: by for key, by in found.items() if by.keys() == set(pages)}
    assert len(shared) > 15
    for key, by in shared.items():
        assert len({figure for figures in by.values() for figure in figures}) == 1, (key, by)


def _rows(page: str) -> list[tuple[tuple[str, ...], str, list[str]]]:
    """The rows of a page's tables, each with the table's head and its place among the headings."""
    rows: list[tuple[tuple[str, ...], str, list[str]]] = []
    head: tuple[str, ...] = ()
    section = ""
    for line in (ROOT / page).read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            section = line.lstrip("# ")
        if not line.startswith("|"):
            head = ()
        elif not head:
            head = tuple(cell.strip() for cell in line.strip("|").split("|"))
        elif "---" not in line:
            rows.append((head, section, [cell.strip() for cell in line.strip("|").split("|")]))
    return rows
