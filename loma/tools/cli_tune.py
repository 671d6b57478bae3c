"""``loma tune`` and ``loma tuning``: looking for the fastest kernels, and what was found."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loma.errors.excerpts import one_line
from loma.tools import tuning as convolutions
from loma.tools.cli_reports import Refused, calling, emit, json_option
from loma.tuning import results
from loma.tuning.results import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from loma.tools.pictures import Theme


def tune(
    file: str,
    function: str,
    arguments: Mapping[str, object],
    seconds: float,
    dtype: str,
    backward: bool,
    threads: int | None,
    plot: str | None,
    device: str = "cpu",
) -> None:
    """Calls the function once, with the arguments, while its module looks for what is fastest."""
    if plot is not None:
        _check_plot(plot)

    import torch

    from loma import compiler, specialise
    from loma.tools import bench

    if device == "cuda" and not torch.cuda.is_available():
        raise Refused("--device cuda needs a GPU that torch can use, and it finds none")
    if threads is not None:
        torch.set_num_threads(threads)
    module = compiler.compile(Path(file))
    specialise.tune(module, seconds, again=True)
    given = bench.prepared(arguments, getattr(torch, dtype), backward, device)
    with calling():
        bench.calling(getattr(module, function), given, backward)()
    found = specialise.tuned()
    if not found:
        raise Refused(
            f"{function} has no kernel for known sizes to tune: it has no size and no int, or its "
            "kernels could not be made"
        )
    if plot is not None:
        picture(found).savefig(plot)
    emit({"path": file, "results": _records(found)}, found)


def _check_plot(plot: str) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise Refused("--plot needs matplotlib: pip install 'loma-torch[plot]'") from error
    known = Figure().canvas.get_supported_filetypes()
    kind = Path(plot).suffix.removeprefix(".").lower()
    if kind not in known:
        kinds = ", ".join(sorted(known))
        raise click.UsageError(f"--plot {one_line(plot)}: a picture's name ends in one of {kinds}")


def picture(found: Sequence[Result]) -> Figure:
    """The searches: each candidate's time, and that of the best so far, in the course of time."""
    from loma.tools.pictures import LIGHT, drawn

    return drawn(lambda theme: _searches(found, theme), LIGHT)


def _searches(found: Sequence[Result], theme: Theme) -> Figure:
    from matplotlib.figure import Figure

    from loma.tools.pictures import DPI, plain

    figure = Figure(figsize=(9.0, 3.4 * len(found)), dpi=DPI, layout="constrained")
    for result, axes in zip(found, figure.subplots(len(found), squeeze=False)[:, 0], strict=True):
        begin: list[list[float]] = [[0.0, 1.0, 1.0]]
        times, candidates, best = zip(*(begin + result.history), strict=True)
        axes.plot(
            times[1:], candidates[1:], "o", color=theme.peers[1], markersize=4, label="candidates"
        )
        axes.step(
            [*times, result.spent], [*best, best[-1]], where="post", color=theme.loma, linewidth=2,
            label="best so far",
        )  # fmt: skip
        adopted = result.tuned / result.usual
        axes.axhline(adopted, linestyle=":", color=theme.ink, label="adopted")
        axes.set_ylim(0.0, 2.0)  # what is slower than that is not measured to the end
        axes.set_title(
            f"{result.program}.{result.function} {result.dtype}: {adopted:.2f} of the usual time",
            loc="left", fontsize=12, fontweight="bold",
        )  # fmt: skip
        axes.set_xlabel("seconds of the search")
        axes.set_ylabel("part of the usual time")
        axes.grid(linewidth=0.8)
        axes.legend(frameon=False, fontsize=10, ncols=3, loc="upper right")
        plain(axes)
    return figure


@click.group(invoke_without_command=True)
@click.option("--clear", is_flag=True, help="Forget what was found: it is measured again.")
@json_option
@click.pass_context
def tuning(context: click.Context, clear: bool) -> None:
    """Show what was measured to be fastest, for which sizes.

    These are the form of each convolution, and the kernels that 'loma tune' has found.
    """
    if context.invoked_subcommand is not None:
        return
    if clear:
        removed = convolutions.clear() + results.clear()
        emit({"removed": removed}, [f"removed {removed} choices"])
        return
    choices, found = convolutions.choices(), results.stored()
    records = [{**dataclasses.asdict(choice), "path": str(choice.path)} for choice in choices]
    lines = [*map(str, choices), *map(_line, found)]
    emit({"choices": records, "results": _records(found)}, lines)


@tuning.command("export")
@click.argument("file", type=click.Path(dir_okay=False, writable=True))
@click.option("--program", help="Only results for the program of that name, without '.loma'.")
@json_option
def export(file: str, program: str | None) -> None:
    """Write what 'loma tune' has found on this machine to FILE, to be kept beside a program."""
    found = [r for r in results.stored() if not r.foreign() and program in (None, r.program)]
    if not found:
        what = "" if program is None else f" for {one_line(program)}"
        raise Refused(f"there are no results{what} that this machine can use: tune first")
    try:
        results.write(Path(file), found)
    except OSError as error:
        raise Refused(f"{one_line(file)} cannot be written: {error.strerror}") from error
    emit({"path": file, "exported": len(found)}, [f"exported {len(found)} results"])


@tuning.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@json_option
def import_(file: str) -> None:
    """Keep the results of FILE in the cache; loma.compile(..., tune="auto") uses them."""
    try:
        found = results.read(Path(file))
    except (OSError, ValueError) as error:
        raise Refused(str(error)) from error
    for result in found:
        results.store(result)
    lines = [f"imported {len(found)} results"]
    lines += [_line(result) for result in found if result.foreign()]
    emit({"path": file, "imported": len(found), "results": _records(found)}, lines)


def _line(result: Result) -> str:
    foreign = result.foreign()
    return f"{result}  (not used: from another {foreign})" if foreign else str(result)


def _records(found: Iterable[Result]) -> list[dict[str, Any]]:
    return [{**dataclasses.asdict(result), "foreign": result.foreign()} for result in found]
