"""Source text as backends make it, and the one Jinja environment of their templates."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loma.backends.cfamily.identifiers import comment

if TYPE_CHECKING:
    from jinja2 import Environment


@dataclass(frozen=True, slots=True)
class GeneratedSource:
    """A program as source text in a backend's language.

    ``name`` is a C identifier that holds a hash of the content, so that two different programs
    never share one. ``files`` are (file name, text), the file to compile first. ``metadata`` is
    what the caller needs to know about the functions, as JSON values. ``flags``: what the compiler
    is told besides.
    """

    name: str
    files: tuple[tuple[str, str], ...]
    metadata: dict[str, Any]
    flags: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The file that is compiled."""
        return self.files[0][1]


@functools.cache
def environment(folder: Path) -> Environment:
    """The templates of a folder. A name that a template misspells is an error, never empty text.

    The filter ``comment`` is for what stands behind ``//``."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(folder),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    made.filters["comment"] = comment
    return made
