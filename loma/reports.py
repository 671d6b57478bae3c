"""How reports reach those who call loma: at their line, without the inside of the compiler."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import ParamSpec, TypeVar

from loma import config
from loma.errors import CompilerNotFound, UserError, UserWarning

_P = ParamSpec("_P")
_R = TypeVar("_R")

_HERE = str(Path(__file__).parent) + os.sep


# What is not a defect of the compiler: how it came to find it out concerns nobody.
_OF_USERS = (UserError, UserWarning, CompilerNotFound)


def public(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """A function that programs call. The traceback of a mistake of theirs ends here; that of any
    other exception, and with ``LOMA_TRACEBACK=1`` every one, goes on to where it was raised."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        __tracebackhide__ = True  # for pytest, which then ends at the line before
        try:
            return function(*args, **kwargs)
        except _OF_USERS as error:
            if config.full_tracebacks():
                raise
            raise error.with_traceback(None) from None

    return call


def show_warnings(found: Iterable[UserWarning]) -> None:
    """Issues warnings of a program. Python's filters take them for warnings of the line that called
    loma: a filter by module names the caller's, and each is shown once for that line."""
    frame = _caller(sys._getframe(1))
    for warning in found:
        warnings.warn_explicit(
            warning,
            type(warning),
            frame.f_code.co_filename,
            frame.f_lineno,
            frame.f_globals.get("__name__"),
            frame.f_globals.setdefault("__warningregistry__", {}),
        )


def _caller(frame: FrameType) -> FrameType:
    """The frame outside of loma from which it was called; the outermost, if there is none."""
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return frame


@contextlib.contextmanager
def progress(title: str) -> Iterator[Callable[[str, float, float], None]]:
    """Gives a function ``update(what, done, total)``: a bar on standard error, if that is a
    terminal."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield lambda what, done, total: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TextColumn("{task.fields[what]}", style="dim", markup=False),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=None, what="")
        yield lambda what, done, total: bar.update(task, completed=done, total=total, what=what)
