"""The ``loma`` command: build a program, look into its stages, check its gradients, see the cache.

Exit codes: 0 all is well; 1 the program is wrong, does not compile or fails its check; 2 the
command line is wrong. Results go to standard output, errors to standard error; with ``--json`` both
are one JSON object on standard output. torch is imported only by the commands that run something.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
from rich.console import Console
from rich.syntax import Syntax

from loma.errors import ToolchainError, UserError
from loma.ir import Function, Module, is_tensor_function

STAGES = ("parsed", "adjoint", "optimised", "cpp", "c")

_Number = TypeVar("_Number", int, float)
_FILE = click.Path(exists=True, dir_okay=False, readable=True)
_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


# ------------------------------------------------------------------------------------ reporting


class _Commands(click.Group):
    """Shows the errors of programs and of the toolchain once, without a traceback."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except UserError as error:
            _fail(ctx, error, error.render(color=_in_colour(stderr=True)))
        except (ToolchainError, _Refused) as error:
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


class _Refused(Exception):
    """A command cannot do what it was asked; the message says why."""


def _fail(ctx: click.Context, error: Exception, text: str) -> NoReturn:
    # What follows the subcommand's name has been parsed by then only inside that command.
    if ctx.meta.get("loma.json"):
        click.echo(json.dumps({"ok": False, "error": _error_record(error)}))
    else:
        click.echo(text, err=True)
    ctx.exit(1)


def _error_record(error: Exception) -> dict[str, object]:
    if not isinstance(error, UserError):
        return {"kind": type(error).__name__.lstrip("_"), "message": str(error)}
    return {
        "kind": type(error).__name__,
        "message": error.message,
        "path": error.path,
        "line": error.span.line,
        "column": error.span.col + 1,
        "hint": error.hint,
        "text": error.to_string(),
    }


def _in_colour(stderr: bool = False) -> bool:
    console = Console(stderr=stderr)
    return console.is_terminal and console.color_system is not None and not console.no_color


def _emit(record: dict[str, object]) -> None:
    click.echo(json.dumps({"ok": True, **record}))


def _prepare(as_json: bool) -> None:
    click.get_current_context().meta["loma.json"] = as_json


def _version() -> str:
    try:
        return metadata.version("loma")
    except metadata.PackageNotFoundError:
        return "(not installed)"


# ------------------------------------------------------------------------------------- commands


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(_version(), prog_name="loma")
def main() -> None:
    """Compiles .loma programs: tensor functions with generated derivatives.

    \b
    loma build squash.loma
    loma show --stage adjoint squash.loma d_squash
    loma check squash.loma squash --shapes "s=2,3,4"
    """


@main.command()
@click.argument("files", type=_FILE, nargs=-1, required=True, metavar="FILE...")
@_json_option
def build(files: tuple[str, ...], as_json: bool) -> None:
    """Compile FILEs, several at once, and keep the result in the cache."""
    _prepare(as_json)
    from loma import compiler

    programs = [_parse(file) for file in files]
    start = time.perf_counter()
    compiler.compile_many([Path(file) for file in files])
    seconds = time.perf_counter() - start
    records: list[dict[str, Any]] = [
        {"path": program.path, "functions": _signatures(program)} for program in programs
    ]
    if as_json:
        _emit({"modules": records, "seconds": round(seconds, 3)})
        return
    for record in records:
        click.echo(record["path"])
        for signature in record["functions"].values():
            click.echo(f"  {signature}")
    click.echo(f"built in {seconds:.2f} s")


def _signatures(program: Module) -> dict[str, str]:
    """Name and signature of every function that Python can call."""
    from loma.names import module_names

    own = module_names(program)
    return {
        function.name: _signature(function)
        for function in _differentiated(program).functions
        if function.name in own
    }


@main.command()
@click.argument("file", type=_FILE)
@click.argument("function", required=False)
@click.option(
    "--stage",
    type=click.Choice(STAGES),
    default="parsed",
    show_default=True,
    help="What the compiler has after that stage: loma text, C++ for libtorch, or C.",
)
@_json_option
def show(file: str, function: str | None, stage: str, as_json: bool) -> None:
    """Print FILE, or one FUNCTION of it, as it stands after a stage."""
    from loma import pipeline

    _prepare(as_json)
    try:
        text = pipeline.stage_text(_read(file), stage, function, path=file)
    except ValueError as error:  # there is no such function
        raise click.UsageError(str(error)) from error
    if as_json:
        _emit({"path": file, "stage": stage, "function": function, "text": text})
    elif _in_colour():
        lexer = stage if stage in ("cpp", "c") else "python"
        Console().print(Syntax(text, lexer, theme="ansi_dark", background_color="default"))
    else:
        click.echo(text, nl=not text.endswith("\n"))


@main.command()
@click.argument("file", type=_FILE)
@click.argument("function")
@click.option("--shapes", default="", help='Shapes of tensors: "x=2,3 w=4,3".')
@click.option("--size", "sizes", multiple=True, metavar="N=4", help="The value of a size variable.")
@click.option("--arg", "scalars", multiple=True, metavar="n=3", help="An int or float argument.")
@click.option("--seed", default=0, show_default=True, help="Seed of the random values.")
@click.option("--positive", is_flag=True, help="Draw values from [0.5, 1.5] (for log, sqrt, ...).")
@click.option("--tolerance", default=1e-6, show_default=True, help="Largest relative error.")
@click.option("--max-elements", default=200, show_default=True, help="Elements per argument.")
@_json_option
def check(
    file: str,
    function: str,
    shapes: str,
    sizes: tuple[str, ...],
    scalars: tuple[str, ...],
    seed: int,
    positive: bool,
    tolerance: float,
    max_elements: int,
    as_json: bool,
) -> None:
    """Check the gradients of FUNCTION against float64 differences at a random point.

    FUNCTION has tensors among its arguments or results; for a function of the scalar layer, compare
    what rev_diff and fwd_diff give. Sizes that neither --shapes nor --size gives are small and all
    different.
    """
    _prepare(as_json)
    given = (
        dict(_shape(item) for item in shapes.split()),
        dict(_number(item, int, "--size") for item in sizes),
        dict(_number(item, float, "--arg") for item in scalars),
    )
    primal = _function(_parse(file), function)

    from loma import compiler
    from loma.check import check_gradients
    from loma.samples import Given, SampleError, sample_arguments

    try:
        arguments = sample_arguments(primal, Given(*given), seed=seed, positive=positive)
    except SampleError as error:
        raise click.UsageError(str(error)) from error
    module = compiler.compile(Path(file))
    try:
        report = check_gradients(
            getattr(module, function),
            arguments,
            tolerance=tolerance,
            max_elements=max_elements,
            seed=seed,
            raise_on_error=False,
        )
    except (TypeError, ValueError, AttributeError) as error:
        raise _Refused(str(error)) from error
    if as_json:
        record = dataclasses.asdict(report)
        click.echo(json.dumps({"ok": report.ok, "path": file, **record}))
    else:
        click.echo(str(report))
    click.get_current_context().exit(0 if report.ok else 1)


@main.group()
def cache() -> None:
    """Look at the compiled modules on disk, or delete them."""


@cache.command("info")
@_json_option
def cache_info(as_json: bool) -> None:
    """Where the cache is, and how much is in it."""
    from loma import cache as store

    _prepare(as_json)
    info = store.info()
    if as_json:
        _emit(info)
        return
    for key, value in info.items():
        click.echo(f"{key:<8} {value}")


@cache.command("clear")
@_json_option
def cache_clear(as_json: bool) -> None:
    """Delete every compiled module."""
    from loma import cache as store

    _prepare(as_json)
    removed = store.clear()
    if as_json:
        _emit({"removed": removed})
    else:
        click.echo(f"removed {removed} entries")


# -------------------------------------------------------------------------------------- helpers


def _read(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise _Refused(f"{file} is not UTF-8 text: {error.reason} at byte {error.start}") from error


def _parse(file: str) -> Module:
    from loma import pipeline

    return pipeline.parsed(_read(file), file)


def _differentiated(module: Module) -> Module:
    from loma import pipeline

    return pipeline.adjoint(module)


def _function(module: Module, name: str) -> Function:
    """The function to check, made by AD if the file asks for it; a usage error if there is none."""
    from loma import pipeline

    if any(derivative.name == name for derivative in module.derivatives):
        module = _differentiated(module)
    try:
        function = pipeline.find(module, name)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if not is_tensor_function(function):
        raise click.UsageError(
            f"'{name}' is a scalar function, and this checks functions of tensors: compare what "
            f"rev_diff({name}) and fwd_diff({name}) give; docs/tutorial.md shows both"
        )
    return function


def _signature(function: Function) -> str:
    """The function's head in loma, in one line."""
    from loma.printer import print_function

    text = print_function(function)
    head = text[text.index("def ") :].partition(":\n")[0]
    return " ".join(head.split()).replace("( ", "(").replace(", )", ")")


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


if __name__ == "__main__":
    main()
