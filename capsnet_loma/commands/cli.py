"""The ``capsnet-loma`` command: its group, ``compare``, ``profile``, and the main job."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from capsnet_loma.commands.cli_evaluate import evaluate_command, figures_command
from capsnet_loma.commands.cli_train import train_command
from capsnet_loma.commands.console import Output
from capsnet_loma.commands.device import device_option
from capsnet_loma.commands.guard import guarded
from capsnet_loma.commands.options import BATCH, FOLDER, Option, json_option, together
from loma.tools.cli_numbers import THREADS, Real

RESULTS = Path("capsnet-loma-results")
MAIN_BATCH, MAIN_SECONDS = 32, 14.0
PROFILE_BATCH, PROFILE_SECONDS = 100, 40.0


def _profile_options(batch: int, seconds: float) -> Option:
    """The options that the main job and ``profile`` share; they differ in the defaults."""
    return together(
        click.option("--batch", type=BATCH, default=batch, help="Images in a batch."),
        click.option(
            "--threads", type=THREADS, help="Threads of each version.  [default: all processors]"
        ),
        click.option(
            "--seconds", type=Real(0, 24 * 3600), default=seconds,
            help="About how long each version is measured.",
        ),
        device_option,
        click.option(
            "--output", type=FOLDER, default=RESULTS, help="Folder for the picture and the JSON."
        ),
        json_option,
    )  # fmt: skip


@click.group(
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@_profile_options(MAIN_BATCH, MAIN_SECONDS)
@click.pass_context
def main(context: click.Context, /, **options: Any) -> None:
    """CapsNet in loma: checked and measured against plain PyTorch.

    Without a command: compiles the layers, compares all gradients with PyTorch's autograd, and
    profiles the network beside plain PyTorch. That takes about three minutes on two cores. The exit
    code is 1 when a gradient is wrong.
    """
    if context.invoked_subcommand is None:
        _main_job(**options)
        return
    for name in options:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = "--json" if name == "as_json" else f"--{name}"
            raise click.UsageError(f"{option} belongs after '{context.invoked_subcommand}'")


@main.command("compare", short_help="Check all values and gradients against PyTorch.")
@click.option(
    "--function", "functions", multiple=True, metavar="NAME",
    help="Compare only this layer, or 'network'. May be given several times.",
)  # fmt: skip
@click.option(
    "--dtype", type=click.Choice(["float64", "float32", "both"]), default="both",
    help="Floating point type of the comparison.",
)  # fmt: skip
@device_option
@json_option
@guarded
def compare_command(functions: tuple[str, ...], dtype: str, device: str, as_json: bool) -> int:
    """Compare loma's values and gradients with autograd of the PyTorch reference.

    Every layer and the whole network with its loss, at several shapes and hard points. The exit
    code is 1 when an error is beyond the tolerance (relative, of the tensor's largest element:
    1e-9 in float64, 1e-4 in float32).
    """
    from capsnet_loma.layers import FUNCTIONS

    for name in functions:
        if name not in (*FUNCTIONS, "network"):
            known = ", ".join((*FUNCTIONS, "network"))
            raise click.UsageError(f"--function {name}: there is no such layer; there are {known}")
    out = Output(quiet=as_json)
    _compile(out, functions)
    report = _compare(out, functions, dtype, device)
    if as_json:
        click.echo(json.dumps(report.to_json(), indent=2))
    return 0 if report.ok else 1


@main.command("profile", short_help="Time, page faults and memory beside PyTorch.")
@_profile_options(PROFILE_BATCH, PROFILE_SECONDS)
@guarded
def profile_command(
    batch: int, threads: int | None, seconds: float, device: str, output: Path, as_json: bool
) -> int:
    """Measure plain PyTorch, loma from Python, and loma in a C++ program without Python.

    Time per iteration of forward and backward, page faults, peak memory and cache misses. PyTorch
    is measured with jemalloc and tcmalloc too, where they are installed.

    On a GPU: PyTorch and loma from Python; time, kernels, how long they run, and the GPU's memory.
    """
    out = Output(quiet=as_json)
    _compile(out)
    profile, files = _profile(out, batch, threads, seconds, output, device)
    if as_json:
        click.echo(json.dumps(profile.to_json(), indent=2))
    else:
        out.files(files)
    return 0


main.add_command(train_command)
main.add_command(evaluate_command)
main.add_command(figures_command)


@guarded
def _main_job(
    batch: int, threads: int | None, seconds: float, device: str, output: Path, as_json: bool
) -> int:
    out = Output(quiet=as_json)
    start = time.perf_counter()
    compiling = _compile(out)
    report = _compare(out, (), "both", device)
    profile, files = _profile(out, batch, threads, seconds, output, device)
    comparison_file = output / "compare.json"
    _write_json(comparison_file, report.to_json())
    if as_json:
        result = {
            "compile_seconds": compiling,
            "compare": report.to_json(),
            "profile": profile.to_json(),
            "files": [str(file) for file in (*files, comparison_file)],
        }
        click.echo(json.dumps(result, indent=2))
    else:
        out.files((*files, comparison_file))
        out.line(f"Done in {time.perf_counter() - start:.0f} s.")
    return 0 if report.ok else 1


def _compile(out: Output, functions: tuple[str, ...] = ()) -> float:
    """Compiles the layers that are compared, by default all; the seconds that it took."""
    from capsnet_loma import layers

    names: tuple[str, ...] = layers.NAMES
    if functions and "network" not in functions:
        names = tuple(dict.fromkeys(map(layers.file_of, functions)))
    start = time.perf_counter()
    with out.progress("compiling the layers") as update:
        layers.compile_layers(names, update)
    seconds = time.perf_counter() - start
    out.line(f"{len(names)} of {len(layers.NAMES)} layers compiled and loaded in {seconds:.1f} s.")
    return seconds


def _compare(out: Output, functions: tuple[str, ...], dtype: str, device: str) -> Any:
    import torch

    from capsnet_loma.profiling.compare import ALL, compare
    from capsnet_loma.profiling.tables import show_comparison

    dtypes = (torch.float64, torch.float32) if dtype == "both" else (getattr(torch, dtype),)
    with out.progress("comparing with PyTorch's autograd") as update:
        report = compare(dtypes, update, functions or ALL, device)
    show_comparison(out, report)
    return report


def _profile(
    out: Output, batch: int, threads: int | None, seconds: float, folder: Path, device: str
) -> tuple[Any, tuple[Path, ...]]:
    from capsnet_loma.native_program import build
    from capsnet_loma.profiling.plots import plot_profile
    from capsnet_loma.profiling.profile import profile
    from capsnet_loma.profiling.tables import show_profile

    with out.progress("profiling") as update:
        result = profile(
            (lambda: build(folder)) if device == "cpu" else None,
            batch=batch, threads=threads, seconds=seconds, device=device, progress=update,
        )  # fmt: skip
    show_profile(out, result)
    folder.mkdir(parents=True, exist_ok=True)
    picture, data = folder / "profile.png", folder / "profile.json"
    plot_profile(result, picture)
    _write_json(data, result.to_json())
    return result, (picture, data)


def _write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
