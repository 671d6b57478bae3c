"""The templates of modules, and the runtime's files, which they are compiled with and linked to."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from loma.backends.cfamily.source import environment

if TYPE_CHECKING:
    from jinja2 import Template

_BACKENDS = Path(__file__).resolve().parent.parent
# The files name each other without folders: in the cache they lie side by side.
RUNTIME_FOLDERS = tuple(
    _BACKENDS / folder
    for folder in (
        "torch/runtime", "torch/runtime/host", "torch/runtime/light", "torch/runtime/memory",
        "torch/runtime/transforms", "openmp/runtime", "openmp/runtime/convolution", "cuda/runtime",
    )
)  # fmt: skip


def template(name: str) -> Template:
    return environment(_BACKENDS / "torch" / "templates").get_template(name)


def runtime_files(pattern: str) -> list[Path]:
    """The files of that pattern, folder by folder."""
    return [path for folder in RUNTIME_FOLDERS for path in sorted(folder.glob(pattern))]


def runtime_file(name: str) -> Path:
    """The file of that name."""
    return next(folder / name for folder in RUNTIME_FOLDERS if (folder / name).exists())


def quoted(folders: Iterable[Path]) -> list[str]:
    """Flags for headers in quotes that are looked for in these folders."""
    return [flag for folder in folders for flag in ("-iquote", str(folder))]
