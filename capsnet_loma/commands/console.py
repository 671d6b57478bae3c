"""What the command prints: tables and progress, in colour on a terminal, plain text in a pipe."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

Update = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Output:
    """``quiet``: nothing but JSON goes to standard output; progress goes to standard error."""

    quiet: bool = False
    shows_progress: bool = True
    out: Console = field(default_factory=lambda: Console(highlight=False, soft_wrap=True))
    err: Console = field(
        default_factory=lambda: Console(stderr=True, highlight=False, soft_wrap=True)
    )

    def line(self, text: str = "", style: str | None = None) -> None:
        if not self.quiet:
            self.out.print(text, style=style, markup=False)

    def files(self, files: Sequence[Path]) -> None:
        """Names the files that were written, if there are any."""
        if files:
            self.line("Written:")
        for file in files:
            self.line(f"  {file}")

    def warn(self, text: str) -> None:
        self.err.print(text, style="bold red", markup=False)

    def table(
        self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], bad: set[int]
    ) -> None:
        """The first column is left-aligned, the others right; rows in ``bad`` are red."""
        if self.quiet:
            return
        if not self.out.is_terminal:
            self._plain_table(title, columns, rows)
            return
        table = Table(title=title, title_justify="left", title_style="bold")
        for position, column in enumerate(columns):
            table.add_column(column, justify="left" if position == 0 else "right")
        for number, row in enumerate(rows):
            table.add_row(*row, style="red" if number in bad else None)
        self.out.print(table, soft_wrap=False)

    def _plain_table(
        self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]
    ) -> None:
        lines = [list(columns), *(list(row) for row in rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
        self.line(title)
        for line in lines:
            cells = [
                cell.ljust(width) if i == 0 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ]
            self.line("  " + "  ".join(cells).rstrip())

    @contextlib.contextmanager
    def progress(self, title: str, announce: bool = True) -> Iterator[Update]:
        """Gives a function ``update(what, done, total)``; a bar on a terminal, else one line, or
        none without ``announce``."""
        if not (self.shows_progress and self.err.is_terminal):
            if self.shows_progress and announce:
                self.err.print(f"{title} ...", markup=False)
            yield lambda what, done, total: None
            return
        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[what]}", style="dim", markup=False),
            console=self.err,
            transient=True,
        )
        with bar:
            task = bar.add_task(title, total=None, what="")
            yield lambda what, done, total: bar.update(task, completed=done, total=total, what=what)
