"""Stretches of a program's text as reports show them: the place, the line, carets under it.

Spans are :mod:`ast` positions, so their columns count UTF-8 bytes, while a report counts characters
and the columns that they take in a terminal.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from typing import Self, TypeAlias

from loma.errors.spans import FILE, Span, line_in_file

Paint: TypeAlias = Callable[[str, str], str]

_WINDOW = 120  # characters: what is shown of a line that is longer
_CUT = "..."
_STYLES = {
    "bold": "\x1b[1m",
    "error": "\x1b[1;31m",
    "warning": "\x1b[1;33m",
    "caret": "\x1b[1;31m",
    "note": "\x1b[1;36m",
    "hint": "\x1b[1;32m",
    "dim": "\x1b[2m",
}


def ansi(style: str, text: str) -> str:
    return f"{_STYLES[style]}{text}\x1b[0m"


def plain(style: str, text: str) -> str:
    return text


class Text(str):
    """A program's text, with the paths and texts of the files that it imports."""

    imports: list[tuple[str, str]]

    def __new__(cls, text: str) -> Self:
        made = super().__new__(cls, text)
        made.imports = []
        return made


def place(path: str, span: Span, source: str = "") -> str:
    """``path:line:column`` with the column counted from 1, as compilers and editors do."""
    if span.line > FILE and isinstance(source, Text):
        path = source.imports[span.line // FILE - 1][0]
    path = one_line(path)
    return f"{path}:{line_in_file(span.line)}:{span.col + 1}" if span.line else path


def one_line(text: str) -> str:
    """The text with escapes for what ends a line, moves the cursor, or is no character at all: a
    file's name may have all of these."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def printable(text: str) -> str:
    """The text with another character for NUL and for halves of characters: no file has these."""
    return re.sub("[\0\ud800-\udfff]", "\ufffd", text)


def _source_line(source: str, line: int) -> str:
    if line > FILE:
        texts = source.imports if isinstance(source, Text) else []
        own = [text for number, (_, text) in enumerate(texts, 1) if number == line // FILE]
        return _source_line(own[0], line_in_file(line)) if own else ""
    lines = _lines(source)
    return printable(lines[line - 1]) if 0 < line <= len(lines) else ""


@lru_cache(maxsize=4)  # the notes of a function's statements are of one text
def _lines(source: str) -> list[str]:
    """Only the line ends that Python's parser counts: str.splitlines() knows more of them."""
    return source.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")


def text_at(source: str, span: Span) -> str:
    """The program's text in a span; "" if that is nowhere, or goes over several lines."""
    return text_under(source, span) if span.line and span.line == span.end_line else ""


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
    """The span's first line with a number, and the carets under it; nothing without a source.

    Of a very long line only what is around the carets is shown.
    """
    text = _source_line(source, span.line)
    if not text.strip():
        return []
    start, stop = _columns(text, span)
    text, start, stop = _window(text, start, stop)
    # A comment or blanks at the end of a statement that goes on are not part of what is wrong.
    underlined = text[start:stop].rstrip()
    padding = "".join("\t" if c == "\t" else " " * _width(c) for c in text[:start])
    carets = "^" * max(1, sum(map(_width, underlined)))
    number = f"{line_in_file(span.line):>5} | "
    margin = f"{'':>5} | "
    return [
        paint("dim", number) + text,
        paint("dim", margin) + padding + paint(style, carets),
    ]


def _window(text: str, start: int, stop: int) -> tuple[str, int, int]:
    """The part of a line around the span, and the span in it."""
    if len(text) <= _WINDOW:
        return text, start, stop
    first = max(0, min(start - _WINDOW // 3, len(text) - _WINDOW))
    last = first + _WINDOW
    before = _CUT if first else ""
    after = _CUT if last < len(text) else ""
    moved = len(before) - first
    return before + text[first:last] + after, start + moved, min(stop, last) + moved


def _width(character: str) -> int:
    """Terminal columns that the character takes."""
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
