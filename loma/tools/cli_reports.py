"""What the commands of ``loma`` print: results and errors, as text or as one JSON object."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

import click
from rich.console import Console

from loma.core.ir import Module
from loma.errors import ToolchainError, UserError, UserWarning
from loma.errors.spans import line_in_file


class Refused(Exception):
    """A command cannot do what it was asked; the message says why."""


# What a call of a compiled function may raise: wrong arguments, a failure of the program (such as a
# loop that passes its max_iter), no memory.
_OF_CALLS = (
    AttributeError,
    IndexError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
    ZeroDivisionError,
)


@contextlib.contextmanager
def calling() -> Iterator[None]:
    """What fails in calls of compiled functions is Refused."""
    try:
        yield
    except ToolchainError:
        raise
    except _OF_CALLS as error:
        text = str(error) or type(error).__name__
        # torch's have its own stack below
        raise Refused(text.splitlines()[0] if isinstance(error, RuntimeError) else text) from error


class Commands(click.Group):
    """Shows the errors of programs and of the toolchain once, without a traceback."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            # Commands show those of programs themselves; nobody's line has called the compiler.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                return super().invoke(ctx)
        except UserError as error:
            _fail(ctx, error, error.render(color=in_colour(stderr=True)))
        except (ToolchainError, Refused) as error:
            _fail(ctx, error, f"error: {error}")

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().main(*args, **kwargs)
        except OSError as error:  # such as a full disk
            _drop_unwritten()
            click.echo(f"error: {error}", err=True)
            sys.exit(1)


def _drop_unwritten() -> None:
    """Where standard output takes nothing more, Python must not try again when it ends."""
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _fail(ctx: click.Context, error: Exception, text: str) -> NoReturn:
    if as_json():
        click.echo(json.dumps({"ok": False, "error": _error_record(error)}))
    else:
        click.echo(text, err=True)
    ctx.exit(1)


def _error_record(error: Exception) -> dict[str, object]:
    if not isinstance(error, UserError):
        return {"kind": type(error).__name__, "message": str(error)}
    return report_record(error)


def report_record(report: UserError | UserWarning) -> dict[str, object]:
    return {
        "kind": type(report).__name__,
        "message": report.message,
        "path": report.path,
        "line": line_in_file(report.span.line),
        "column": report.span.col + 1,
        "hint": report.hint,
        "text": report.to_string(),
    }


def _note_json(context: click.Context, _: click.Parameter, as_json: bool) -> None:
    context.meta["loma.json"] = as_json


json_option = click.option(
    "--json",
    is_flag=True,
    expose_value=False,
    callback=_note_json,
    help="Print one JSON object.",
)


def as_json() -> bool:
    """Whether the command was given ``--json``."""
    # What follows the subcommand's name has been parsed by then only inside that command.
    return bool(click.get_current_context().meta.get("loma.json"))


def emit(record: dict[str, Any], lines: Iterable[object]) -> None:
    """The result of a command: the record with ``--json``, else the lines."""
    for line in [json.dumps({"ok": True, **record})] if as_json() else lines:
        click.echo(line)


def show_warnings(*programs: Module) -> None:
    """On standard error; with ``--json`` they stand in the result."""
    for program in () if as_json() else programs:
        for warning in program.warnings:
            click.echo(warning.render(color=in_colour(stderr=True)), err=True)


def in_colour(stderr: bool = False) -> bool:
    console = Console(stderr=stderr)
    return console.is_terminal and console.color_system is not None and not console.no_color
