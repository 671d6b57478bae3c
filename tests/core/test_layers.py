"""Which part of the project may import which: layers, circles of modules, crowded folders.

And what no part may do: tell statements apart by where they lie in memory.
"""

from __future__ import annotations

import ast
import functools
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT

# Each may import itself and what stands before it. A module belongs to the longest name that it
# begins with; the two packages themselves are what users import.
LAYERS = (
    "loma.errors", "loma.deep", "loma.config", "loma.cache.roots",
    "loma.cache.pruning", "loma.cache",
    "loma.runtime_errors", "loma.core", "loma.arithmetic", "loma.passes", "loma.frontend",
    "loma.ad", "loma.packed_calls", "loma.reports",
    "loma.backends.kernels", "loma.backends.schedule", "loma.backends.lowering",
    "loma.backends.cfamily", "loma.backends.openmp", "loma.backends.cuda", "loma.backends.torch",
    "loma.backends",
    "loma.pipeline", "loma", "loma.tools", "loma.nn", "loma.optim", "loma.__main__",
    "capsnet_loma",
    "capsnet_loma.__main__",
)  # fmt: skip
PUBLIC = {"loma": "loma.__main__", "capsnet_loma": "capsnet_loma.__main__"}

# Modules that know each other, by one of them, and why.
CIRCLES = {
    "loma.core.ops": "the printer writes operators as their table says, and shapes print sizes",
    "loma.frontend.expressions.expression": "the grammar of expressions is recursive",
    "loma.compiler": "loaded functions compile what they need later",
}

MOST = 25  # files in a folder
CROWDED: dict[str, str] = {}

# Modules that use id(), and why. Copies of a statement are others to it, and what comes after a
# statement that is gone may be the same: AD and fusion go by numbers (loma.core.walk.numbered).
IDENTITIES = {
    "loma.errors": "a property has this name",
}


def _name(file: Path) -> str:
    parts = list(file.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _files() -> Iterator[Path]:
    for top in ("loma", "capsnet_loma"):
        for folder, folders, names in os.walk(ROOT / top, followlinks=True):
            folders[:] = sorted(set(folders) - {"__pycache__"})
            yield from (Path(folder) / name for name in sorted(names) if name.endswith(".py"))


@functools.cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text("utf-8"))


def _imports(file: Path, modules: set[str]) -> set[str]:
    """The project's modules that a file imports, in functions and for types, too."""
    found: set[str] = set()
    for node in ast.walk(_tree(file)):
        match node:
            case ast.ImportFrom(module=str(module), names=names):
                for alias in names:
                    inner = f"{module}.{alias.name}"
                    found.add(inner if inner in modules else module)
            case ast.Import(names=names):
                found |= {alias.name for alias in names}
    return (found & modules) - {_name(file)}


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    files = {_name(file): file for file in _files()}
    return {name: _imports(file, set(files)) for name, file in files.items()}


def _layer(module: str) -> int:
    module = PUBLIC.get(module, module)
    inside = [name for name in LAYERS if module == name or module.startswith(f"{name}.")]
    return LAYERS.index(max(inside, key=len))


def _circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Sets of modules of which each imports each other one, by a way of imports."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            new = graph[waiting.pop()] - seen
            seen |= new
            waiting += new
        return seen

    ways = {name: reached(name) for name in graph}
    found: list[set[str]] = []
    for name in graph:
        circle = {other for other in ways[name] if name in ways[other]}
        if len(circle) > 1 and circle not in found:
            found.append(circle)
    return found


def test_no_layer_imports_a_later_one(graph: dict[str, set[str]]) -> None:
    wrong = [
        f"{name} imports {other}"
        for name, others in graph.items()
        for other in sorted(others)
        if _layer(other) > _layer(name)
    ]
    assert not wrong


def _mentions_id(file: Path) -> bool:
    text = file.read_text("utf-8")
    if not re.search(r"\bid\b", text):  # few have the name at all
        return False
    nodes = ast.walk(_tree(file))
    return any(isinstance(node, ast.Name) and node.id == "id" for node in nodes)


def test_nothing_is_known_by_its_place_in_memory() -> None:
    assert {_name(file) for file in _files() if _mentions_id(file)} <= IDENTITIES.keys()


def test_circles_of_modules_have_a_reason_and_stay_in_a_folder(graph: dict[str, set[str]]) -> None:
    for circle in _circles(graph):
        assert circle & CIRCLES.keys(), f"a new circle of modules: {', '.join(sorted(circle))}"
        assert len({name.rpartition(".")[0] for name in circle}) == 1, sorted(circle)


def test_folders_are_small_enough_to_be_read() -> None:
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [n for n in folders if not n.startswith(".") and n != "__pycache__"]
        folders[:] = [n for n in folders if n not in ("build", "golden") or folder != str(ROOT)]
        place = str(Path(folder).relative_to(ROOT))
        if len(names) > MOST:
            assert place in CROWDED, f"{place} has {len(names)} files"
