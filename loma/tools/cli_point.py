"""Options of the commands that call a function of a file at some point: ``check``, ``bench``."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from loma.core.ir import Function
from loma.tools.cli_numbers import SEED, SIZE, finite, shown

if TYPE_CHECKING:
    from loma.tools.samples import Given

FILE = click.Path(exists=True, dir_okay=False, readable=True)

_Command = TypeVar("_Command", bound=Callable[..., None])


def complete_functions(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[str]:
    """The functions of the file that the command line names, for the tab key."""
    try:
        tree = ast.parse(Path(context.params["file"]).read_text(encoding="utf-8"))
    except (KeyError, TypeError, OSError, ValueError, SyntaxError):
        return []
    names: list[str] = []
    for node in tree.body:
        match node:
            case (
                ast.FunctionDef(name=name)
                | ast.Assign(targets=[ast.Name(id=name)], value=ast.Call())
            ):
                names.append(name)
    return [name for name in names if name.startswith(incomplete)]


def point_options(required: bool = True) -> Callable[[_Command], _Command]:
    """A function of a file, and the point that it is called at."""
    return lambda command: _with_point(command, required)


def _with_point(command: _Command, required: bool) -> _Command:
    for option in (
        click.option(
            "--positive", is_flag=True, help="Draw values from [0.5, 1.5] (for log, sqrt, ...)."
        ),
        click.option("--seed", type=SEED, default=0, help="Seed of the random values."),
        click.option(
            "--arg",
            "--int",
            "scalars",
            multiple=True,
            metavar="n=3",
            help="An int or float argument.",
        ),
        click.option(
            "--size", "sizes", multiple=True, metavar="N=4", help="The value of a size variable."
        ),
        click.option(
            "--shapes", default="", show_default=False, help='Shapes of tensors: "x=2,3 w=4,3".'
        ),
        click.argument("function", required=required, shell_complete=complete_functions),
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
    from loma.tools.samples import SampleError, sample_arguments

    given = _given(shapes, sizes, scalars)
    try:
        return sample_arguments(function, given, seed=seed, positive=positive, complete=complete)
    except SampleError as error:
        raise click.UsageError(str(error)) from error


def points_of(
    functions: Sequence[Function],
    *,
    shapes: str,
    sizes: tuple[str, ...],
    scalars: tuple[str, ...],
    seed: int,
    positive: bool,
) -> dict[str, dict[str, object] | str]:
    """What the options say for each of several functions, by its name: the arguments, or why none
    can be made up. A usage error for what fits none of them."""
    from loma.tools.samples import SampleError, belonging, sample_arguments

    given = _given(shapes, sizes, scalars)
    try:
        parts = belonging(functions, given)
    except SampleError as error:
        raise click.UsageError(str(error)) from error
    found: dict[str, dict[str, object] | str] = {}
    for function, part in zip(functions, parts, strict=True):
        try:
            made = sample_arguments(function, part, seed=seed, positive=positive)
            found[function.name] = made
        except SampleError as error:
            found[function.name] = str(error).removeprefix(f"{function.name}: ")
    return found


def _given(shapes: str, sizes: tuple[str, ...], scalars: tuple[str, ...]) -> Given:
    from loma.tools.samples import Given

    return Given(
        dict(_shape(item) for item in shapes.split()),
        dict(map(named_size, sizes)),
        dict(map(_named_number, scalars)),
    )


def named_size(item: str) -> tuple[str, int]:
    """What ``--size N=4`` says; a usage error where it says nothing of the kind."""
    name, _, text = item.partition("=")
    size = _size(text)
    if not name or size is None:
        raise _bad(item, f"name=an integer in the range {SIZE.range}", "--size")
    return name, size


def _shape(item: str) -> tuple[str, tuple[int, ...]]:
    name, equals, text = item.partition("=")
    sizes = [_size(part) for part in text.strip("()[]").split(",") if part]
    shape = tuple(size for size in sizes if size is not None)
    if not name or not equals or len(shape) < len(sizes):
        form = f"of the form name=2,3 with integers in the range {SIZE.range} (no blanks inside)"
        raise _bad(item, form, "--shapes")
    return name, shape


def _size(text: str) -> int | None:
    found = finite(text) if text.isdecimal() else None
    return found if isinstance(found, int) and found <= SIZE.high else None


def _named_number(item: str) -> tuple[str, float]:
    name, _, text = item.partition("=")
    number = finite(text)
    if not name or number is None:
        raise _bad(item, "name=a number, which must be finite", "--arg")
    return name, number


def _bad(item: str, form: str, option: str) -> click.BadParameter:
    return click.BadParameter(f"'{shown(item)}' is not {form}", param_hint=option)
