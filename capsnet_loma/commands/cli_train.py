"""The command ``train``."""

from __future__ import annotations

import contextlib
import json
import shlex
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click
from click.core import ParameterSource

from capsnet_loma.commands.console import Output
from capsnet_loma.commands.device import check_processes, device_option
from capsnet_loma.commands.guard import guarded
from capsnet_loma.commands.one_of_several import OneOfSeveral, said_once
from capsnet_loma.commands.options import BATCH, FOLDER, RUN, Option
from capsnet_loma.config import Softmax
from capsnet_loma.training.settings import (
    CHANGEABLE,
    NAMES,
    NETWORKS,
    Engine,
    Optimiser,
    Settings,
    resumed,
)
from loma.tools.cli_numbers import SEED, THREADS, Real, Whole

if TYPE_CHECKING:
    import torch

    from capsnet_loma.data import Dataset
    from capsnet_loma.training.checkpoint import Checkpoint
    from capsnet_loma.training.distributed import Job
    from capsnet_loma.training.loop import Progress, Trainer
    from capsnet_loma.training.metrics import Row
    from capsnet_loma.training.run import Run

LARGEST = 1e38  # what float32 holds; training says itself when it diverges
DEFAULTS = Settings()
# Options that are named otherwise than what they set.
OPTIONS = {
    "learning_rate": "--lr", "routing_softmax": "--softmax", "routing_iterations": "--routing",
}  # fmt: skip


def _setting(name: str, kind: click.ParamType[Any], text: str, *aliases: str) -> Option:
    """The option that sets a field of the settings, by default to the field's own default."""
    default = getattr(DEFAULTS, name)
    return click.option(_option(name), *aliases, name, type=kind, default=default, help=text)


def _option(name: str) -> str:
    return OPTIONS.get(name, f"--{name.replace('_', '-')}")


@click.command(
    "train", cls=OneOfSeveral, short_help="Train the network, on loma or on plain PyTorch."
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder with the files of MNIST or Fashion-MNIST.  [default: scikit-learn's digits]",
)
@_setting(
    "engine",
    click.Choice(get_args(Engine)),
    "loma's network and optimisers, or their plain-PyTorch twins.",
)
@_setting(
    "network",
    click.Choice(list(NETWORKS)),
    "Sizes: those of the paper, a quarter of its channels, or next to nothing.",
)
@_setting("epochs", Whole(1, 1_000_000), "How often every image is seen.")
@_setting("batch", BATCH, "Images in a step, of all processes together.")
@_setting(
    "optimiser", click.Choice(get_args(Optimiser)), "How parameters are updated.", "--optimizer"
)
@_setting("learning_rate", Real(0, LARGEST, min_open=True), "Learning rate of the first epoch.")
@_setting(
    "decay", Real(0, 1, min_open=True), "What the learning rate is multiplied by after each epoch."
)
@_setting("momentum", Real(0, 1, max_open=True), "Of sgd.")
@click.option("--nesterov", is_flag=True, help="Nesterov's momentum, of sgd.")
@_setting("weight_decay", Real(0, LARGEST), "Of the optimiser: L2, decoupled with adamw.")
@_setting(
    "shift", Whole(0, 1_000_000), "Images are shifted by up to so many pixels in each direction."
)
@_setting("routing_iterations", Whole(1, 1000), "Iterations of the routing.")
@_setting(
    "routing_softmax",
    click.Choice(get_args(Softmax)),
    "What the coupling of the routing is normalised over; in the paper digit capsules.",
)
@_setting("seed", SEED, "Of first weights, order and shifts of the images.")
@click.option(
    "--output",
    type=FOLDER,
    default=RUN,
    help="Folder of the run: checkpoints, metrics.csv, tensorboard.",
)
@click.option(
    "--resume", is_flag=True, help="Go on from the folder's last checkpoint, bit for bit."
)
@click.option("--overwrite", is_flag=True, help="Replace the run that the folder has.")
@click.option(
    "--checkpoint-every",
    type=Whole(1, 10**9),
    default=100,
    metavar="STEPS",
    help="Checkpoints inside an epoch; there is always one after it.",
)
@device_option
@click.option(
    "--threads",
    type=THREADS,
    help="Threads of each process; as many as before with --resume, for other numbers round "
    "otherwise.  [default: all processors; OMP_NUM_THREADS]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON only, at the end.")
@click.pass_context
def train_command(context: click.Context, /, **options: Any) -> None:
    """Train a CapsNet as in Sabour, Frosst and Hinton 2017.

    Every derivative and every update of a parameter is compiled from .loma files; with --engine
    pytorch the same training runs in plain PyTorch. Ctrl-C saves and ends; --resume goes on.

    Several processes share the work under torchrun:
    torchrun --nproc-per-node 2 -m capsnet_loma train ...
    With --device cuda each of them has a GPU of its own.
    """
    given = {
        name: options[name] for name in NAMES
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT
    }  # fmt: skip
    own = {name: options.pop(name) for name in NAMES}
    for values in (given, own):
        if values.get("data") is not None:
            values["data"] = str(values["data"].resolve())
    with said_once():
        if options["resume"] and options["overwrite"]:
            raise click.UsageError("--resume and --overwrite exclude each other")
        if own["nesterov"] and (own["optimiser"] != "sgd" or own["momentum"] == 0):
            raise click.UsageError("--nesterov needs --optimiser sgd and a --momentum above 0")
        check_processes(options["device"])
    _train_job(settings=Settings(**own), given=given, **options)


@guarded
def _train_job(
    settings: Settings,
    given: dict[str, Any],
    output: Path,
    resume: bool,
    overwrite: bool,
    checkpoint_every: int,
    device: str,
    as_json: bool,
) -> int:
    import torch

    from capsnet_loma.data import load
    from capsnet_loma.training.distributed import job
    from capsnet_loma.training.metrics import Metrics
    from capsnet_loma.training.run import Run
    from capsnet_loma.training.signals import listening
    from capsnet_loma.training.warm_up import all_kernels_at_once

    run = Run(output)
    with contextlib.ExitStack() as stack:
        own = stack.enter_context(job(device))
        out = Output(quiet=as_json or not own.is_main, shows_progress=own.is_main)
        if own.is_main:
            stack.enter_context(run.held())
        source, found = own.from_main(lambda: _checkpoint(out, run)) if resume else (None, None)
        if found is not None:
            settings = _continued(found, given, run)
        elif own.is_main and not (overwrite or resume):
            run.check_free()
        data = load(None if settings.data is None else Path(settings.data))
        metrics = None
        if own.is_main:
            metrics = Metrics(run.metrics, run.board, 0 if found is None else found.epoch)
            stack.callback(metrics.close)
        if own.device.type == "cuda":  # cuDNN's fastest sums differ in their bits from run to run
            torch.backends.cudnn.deterministic = True
        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        settings = replace(settings, threads=torch.get_num_threads())
        all_kernels_at_once()
        trainer = _trainer(out, settings, data, own, found, source)
        with out.progress("making the kernels", announce=settings.engine == "loma") as update:
            trainer.prepare(update)
        _say_start(out, trainer, source, found)
        rows: list[Row] = []

        def progress(epoch: int) -> contextlib.AbstractContextManager[Progress]:
            return out.progress(f"epoch {epoch} of {settings.epochs}", announce=False)

        with listening() as stop:
            if metrics is not None:
                if found is None:
                    run.clear()
                    trainer.save(run)
                metrics.write()
            for row in trainer.epochs(run, metrics, stop, checkpoint_every, progress):
                rows.append(row)
                _say_row(out, row)
        status = _end(out, trainer, run, rows, stop.number, as_json)
        own.wait()  # torchrun ends all as soon as one has an exit code other than 0
        return status


def _checkpoint(out: Output, run: Run) -> tuple[Path | None, Checkpoint | None]:
    """What to go on from; None where a run was ended before its first checkpoint."""
    from capsnet_loma.training import TrainingError, checkpoint

    source = run.newest
    if source is None:
        out.line(f"{run.folder} has no checkpoint yet: starting from the beginning.")
        return None, None
    try:
        return source, checkpoint.read(source)
    except checkpoint.CheckpointError as error:
        if source != run.last:
            raise
        other = f"from {run.best.name}" if run.best.exists() else "from the beginning"
        raise TrainingError(f"{error} Without this file --resume goes on {other}.") from error


def _continued(found: Checkpoint, given: dict[str, Any], run: Run) -> Settings:
    settings, fixed = resumed(found.settings, given)
    if fixed:
        changes = ", ".join(
            f"{_option(name)} was {found.settings[name]}, now {given[name]}" for name in fixed
        )
        allowed = ", ".join(f"--{name}" for name in CHANGEABLE)
        raise click.UsageError(
            f"--resume goes on with the settings of {run.last}: {changes}. Leave these options "
            f"out, or start another run with --output. Only {allowed} may change."
        )
    return settings


def _trainer(
    out: Output,
    settings: Settings,
    data: Dataset,
    own: Job,
    found: Checkpoint | None,
    source: Path | None,
) -> Trainer:
    from capsnet_loma.training import TrainingError
    from capsnet_loma.training.loop import Trainer

    try:
        config = settings.config(data) if found is None else found.config
        if settings.engine == "loma":
            from capsnet_loma import layers

            with own.one_of_each_machine_first(), out.progress("compiling the layers") as update:
                layers.compile_layers(progress=update)
        trainer = Trainer(settings, config, data, own)
    except ValueError as error:  # sizes that do not fit each other
        raise TrainingError(str(error)) from error
    if found is not None:
        trainer.restore(found, source)
    return trainer


def _say_start(
    out: Output, trainer: Trainer, source: Path | None, found: Checkpoint | None
) -> None:
    s, data = trainer.settings, trainer.data
    parameters = sum(p.numel() for p in trainer.model.network.parameters())
    processes = ""
    if trainer.job.world > 1:
        each = "1 thread" if s.threads == 1 else f"{s.threads} threads"
        processes = f", {trainer.job.world} processes with {each} each"
    device = "" if trainer.job.device.type == "cpu" else f" on {_name(trainer.job.device)}"
    out.line(
        f"{data.name}: {len(data.train):,} images to train with, {len(data.test):,} to test with; "
        f"network '{s.network}', {parameters:,} parameters; {s.engine}, "
        f"{s.optimiser}{device}{processes}."
    )
    if found is not None:
        threads = found.settings["threads"]
        if threads not in (None, s.threads):
            out.line(f"{s.threads} threads instead of {threads}: numbers may be rounded otherwise.")
        out.line(
            f"Going on from {source}: {trainer.epoch} epochs and {trainer.step} of "
            f"{trainer.batches.steps} steps are done."
        )


def _name(device: torch.device) -> str:
    import torch

    return f"{device} ({torch.cuda.get_device_name(device)})"


def _say_row(out: Output, row: Row) -> None:
    out.line(
        f"epoch {row.epoch:3d}  train: loss {row.train_loss:.4f}, accuracy "
        f"{row.train_accuracy:7.2%}  test: loss {row.test_loss:.4f}, accuracy "
        f"{row.test_accuracy:7.2%}  {row.images_per_second:,.0f} images/s  {row.seconds:,.0f} s"
    )


def _end(
    out: Output, trainer: Trainer, run: Run, rows: list[Row], stopped: int, as_json: bool
) -> int:
    """Says what came out; the exit code."""
    done = trainer.epoch >= trainer.settings.epochs
    best = trainer.best
    if as_json and trainer.job.is_main:
        report = {
            "complete": done,
            "epoch": trainer.epoch,
            "step": trainer.step,
            "seconds": trainer.seconds,
            "best": best,
            "files": [str(f) for f in (run.best, run.last, run.metrics) if f.exists()],
        }
        click.echo(json.dumps(report, indent=2))
    if best:
        out.line(
            f"Best test accuracy: {best['accuracy']:.2%}, epoch {best['epoch']:.0f} ({run.best}).",
            "green",
        )
    if done:
        if not rows:
            out.line(f"All {trainer.epoch} epochs are done: give more with --epochs.")
        return 0
    if trainer.job.is_main:
        command = _command(trainer.job)
        out.warn(
            f"Stopped in epoch {trainer.epoch + 1} after step {trainer.step} of "
            f"{trainer.batches.steps}; {run.last} has all of it. Go on with: {command}"
        )
    return 128 + (stopped or signal.SIGINT)


def _command(own: Job) -> str:
    """The command line that goes on."""
    words = [word for word in sys.argv[1:] if word not in ("--resume", "--overwrite")]
    start = ["capsnet-loma"]
    if own.world > 1:
        start = ["torchrun", "--nproc-per-node", str(own.local_world), "-m", "capsnet_loma"]
    return shlex.join([*start, *words, "--resume"])
