"""What the options of several commands have in common."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from loma.tools.cli_numbers import Whole

Option = Callable[[Callable[..., None]], Callable[..., None]]

RUN = Path("capsnet-loma-training")
BATCH = Whole(1, 1_000_000)
FOLDER = click.Path(file_okay=False, path_type=Path)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON only.")


def together(*options: Option) -> Option:
    """A decorator that gives a command these options, in this order."""

    def add(command: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(options):
            command = option(command)
        return command

    return add
