"""Statements as comments above the code that they become."""

from __future__ import annotations

from loma.core.ir import Stmt
from loma.core.printer import print_stmt
from loma.errors.spans import line_in_file

_LINES = 12


def statement_text(stmt: Stmt) -> str:
    """The statement, behind its line, for a comment."""
    line = f"line {line_in_file(stmt.span.line)}: " if stmt.span.line else ""
    lines = print_stmt(stmt).split("\n")
    if len(lines) > _LINES:
        lines = [*lines[:_LINES], "..."]
    return line + "\n".join(lines)
