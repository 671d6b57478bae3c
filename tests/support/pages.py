"""The pages of documentation, and the programs on them."""

from __future__ import annotations

import re

from conftest import ROOT

BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PAGES = (
    "README.md", "docs/layers.md", "docs/tutorial.md", "docs/tensors.md", "docs/recipes.md",
    "docs/language.md", "docs/compat.md", "docs/python.md", "docs/gpu.md", "docs/performance.md",
    "docs/capsnet.md", "docs/gradients.md",
)  # fmt: skip


def programs(name: str) -> list[str]:
    """The texts of a page's loma blocks."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return [block[3] for block in BLOCK.finditer(text) if block[1] == "loma"]
