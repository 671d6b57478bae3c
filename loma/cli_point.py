"""Options of the commands that call a function of a file at some point: ``check``, ``bench``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

from loma.ir import Function

FILE = click.Path(exists=True, dir_okay=False, readable=True)

_Number = TypeVar("_Number", int, float)
_Command = TypeVar("_Command", bound=Callable[..., None])


def point_options(command: _Command) -> _Command:
    """A function of a file, and the point that it is called at."""
    for option in (
        click.option(
            "--positive", is_flag=True, help="Draw values from [0.5, 1.5] (for log, sqrt, ...)."
        ),
        click.option("--seed", default=0, show_default=True, help="Seed of the random values."),
        click.option(
            "--arg", "scalars", multiple=True, metavar="n=3", help="An int or float argument."
        ),
        click.option(
            "--size", "sizes", multiple=True, metavar="N=4", help="The value of a size variable."
        ),
        click.option("--shapes", default="", help='Shapes of tensors: "x=2,3 w=4,3".'),
        click.argument("function"),
        click.argument("file", type=FILE),
    ):
        command = option(command)
    return command


def point_arguments(
    function: Function,
    *,
    shapes: str,
    sizes: tuple[str, ...],
    scalars: tuple[str, ...],
    seed: int,
    positive: bool,
    complete: bool = False,
) -> dict[str, object]:
    """What the options of :func:`point_options` say, by argument; ``complete``: no size may be made
    up. A usage error where it does not fit."""
    given = (
        dict(_shape(item) for item in shapes.split()),
        dict(_number(item, int, "--size") for item in sizes),
        dict(_number(item, float, "--arg") for item in scalars),
    )

    from loma.samples import Given, SampleError, sample_arguments

    try:
        return sample_arguments(
            function, Given(*given), seed=seed, positive=positive, complete=complete
        )
    except SampleError as error:
        raise click.UsageError(str(error)) from error


def _shape(item: str) -> tuple[str, tuple[int, ...]]:
    name, equals, text = item.partition("=")
    parts = [part for part in text.strip("()[]").split(",") if part]
    if not name or not equals or not all(part.isdecimal() for part in parts):
        raise click.BadParameter(
            f"'{item}' is not of the form name=2,3 (no blanks inside)", param_hint="--shapes"
        )
    return name, tuple(map(int, parts))


def _number(item: str, kind: Callable[[str], _Number], option: str) -> tuple[str, _Number]:
    name, _, text = item.partition("=")
    try:
        return name, kind(text)
    except ValueError:
        what = "an integer" if kind is int else "a number"
        raise click.BadParameter(f"'{item}' is not name={what}", param_hint=option) from None
