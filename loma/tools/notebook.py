"""``%load_ext loma``: cells of notebooks that begin with ``%%loma`` are programs."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from loma import compiler
from loma.errors import UserWarning

CELL = "cell.loma"  # its name in reports; imports are looked for in the folder of the notebook


def load(shell: Any) -> None:
    """``shell`` is IPython's."""
    shell.register_magic_function(lambda line, cell: _cell(shell, line, cell), "cell", "loma")


def _cell(shell: Any, line: str, cell: str) -> None:
    """Compiles the cell; its functions and structs get variables, ``%%loma NAME`` the module."""
    from IPython.core.error import UsageError

    name = line.strip()
    if name and not name.isidentifier():
        raise UsageError(f"%%loma takes one name at most, for the program, got {name!r}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        module = compiler.compile(f"{cell}\n", path=CELL)
    for warning in caught:
        said = warning.message
        print(said.render(color=True) if isinstance(said, UserWarning) else said, file=sys.stderr)
    shell.push({key: getattr(module, key) for key in dir(module) if key != "show"})
    if name:
        shell.push({name: module})
