"""Stretches of a program's text as reports show them: the place, the line, carets under it.

Spans are :mod:`ast` positions, so their columns count UTF-8 bytes, while a report counts characters
and the columns that they take in a terminal.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import TypeAlias

from loma.ir import Span

Paint: TypeAlias = Callable[[str, str], str]

_STYLES = {
    "bold": "\x1b[1m",
    "error": "\x1b[1;31m",
    "caret": "\x1b[1;31m",
    "note": "\x1b[1;36m",
    "hint": "\x1b[1;32m",
    "dim": "\x1b[2m",
}


def ansi(style: str, text: str) -> str:
    return f"{_STYLES[style]}{text}\x1b[0m"


def plain(style: str, text: str) -> str:
    return text


def place(path: str, span: Span) -> str:
    """``path:line:column`` with the column counted from 1, as compilers and editors do."""
    return f"{path}:{span.line}:{span.col + 1}" if span.line else path


def _source_line(source: str, line: int) -> str:
    # Only the line ends that Python's parser counts: str.splitlines() knows more of them.
    lines = source.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return lines[line - 1] if 0 < line <= len(lines) else ""


def _columns(text: str, span: Span) -> tuple[int, int]:
    """Start and end of the span within its first line, in characters."""
    data = text.encode()
    end = span.end_col if span.end_line == span.line else len(data)
    start = len(data[: span.col].decode(errors="ignore"))
    stop = len(data[:end].decode(errors="ignore"))
    return start, max(start, stop)


def text_under(source: str, span: Span) -> str:
    text = _source_line(source, span.line)
    start, stop = _columns(text, span)
    return text[start:stop]


def excerpt(source: str, span: Span, paint: Paint, style: str) -> list[str]:
    """The span's first line with a number, and the carets under it; nothing without a source."""
    text = _source_line(source, span.line)
    if not text.strip():
        return []
    start, stop = _columns(text, span)
    # A comment or blanks at the end of a statement that goes on are not part of what is wrong.
    underlined = text[start:stop].rstrip()
    padding = "".join("\t" if c == "\t" else " " * _width(c) for c in text[:start])
    carets = "^" * max(1, sum(map(_width, underlined)))
    number = f"{span.line:>5} | "
    margin = f"{'':>5} | "
    return [
        paint("dim", number) + text,
        paint("dim", margin) + padding + paint(style, carets),
    ]


def _width(character: str) -> int:
    """Terminal columns that the character takes."""
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
