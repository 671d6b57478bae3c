"""Places in the text of a program."""

from __future__ import annotations

from dataclasses import dataclass

# Lines of the k-th imported file are k * FILE larger than they are in the file.
FILE = 1 << 24


def line_in_file(line: int) -> int:
    """A line as its file counts it."""
    return line % FILE


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of source text: lines count from 1, columns from 0, the end is exclusive. Which
    file it is in, where a program imports others, the lines say: see ``FILE``."""

    line: int = 0
    col: int = 0
    end_line: int = 0
    end_col: int = 0


NOWHERE = Span()
