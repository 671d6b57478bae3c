"""The commands ``evaluate`` and ``figures``: what a trained network recognises, and pictures."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from capsnet_loma.commands.console import Output
from capsnet_loma.commands.device import device_option
from capsnet_loma.commands.guard import guarded
from capsnet_loma.commands.options import BATCH, FOLDER, RUN, Option, json_option, together
from loma.tools.cli_numbers import THREADS, Whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from capsnet_loma.data import Dataset
    from capsnet_loma.evaluation.evaluate import Evaluation
    from capsnet_loma.evaluation.model import Model
    from capsnet_loma.training.settings import Engine
    from loma.tools.pictures import Theme


def _network_options(engine: str | None) -> Option:
    """What both commands ask about the network and the images; ``engine`` is the default."""
    return together(
        click.option(
            "--data", type=click.Path(path_type=Path), metavar="DIR",
            help="Folder with the files of MNIST or Fashion-MNIST.  "
            "[default: what the network was trained with]",
        ),
        click.option(
            "--engine", type=click.Choice(["loma", "pytorch"]), default=engine,
            help="What computes the network."
            + ("" if engine else "  [default: what it was trained on]"),
        ),
        device_option,
        click.option("--threads", type=THREADS, help="Threads.  [default: all processors]"),
        click.option(
            "--batch", type=BATCH, default=100, help="Images that are computed at a time."
        ),
        json_option,
    )  # fmt: skip


@click.command("evaluate", short_help="Accuracy and confusion matrix of a trained network.")
@click.argument("checkpoint", type=click.Path(path_type=Path), default=RUN)
@_network_options(engine=None)
@click.option(
    "--output", type=FOLDER,
    help="Folder for a picture of the confusion matrix, and the numbers as JSON.",
)  # fmt: skip
@guarded
def evaluate_command(
    checkpoint: Path,
    data: Path | None,
    engine: Engine | None,
    device: str,
    threads: int | None,
    batch: int,
    output: Path | None,
    as_json: bool,
) -> int:
    """Test a trained network: accuracy, loss, what was taken for what.

    CHECKPOINT is a file that `capsnet-loma train` wrote, or the folder of a run, whose best
    checkpoint is then taken; by default the folder that `train` writes to by default.
    """
    out = Output(quiet=as_json)
    _use_threads(threads)
    model, file, images, same = _open(out, checkpoint, engine, data, device)
    result = _evaluate(out, model, images, batch)
    files: list[Path] = []
    if output is not None:
        from capsnet_loma.evaluation.confusion import confusion_figure
        from loma.tools.pictures import save

        picture, numbers = output / "confusion.png", output / "evaluation.json"
        save(confusion_figure(result, f"{images.name}: {file}"), picture)
        numbers.write_text(json.dumps(result.to_json(), indent=2) + "\n", encoding="utf-8")
        files = [picture, numbers]
    if as_json:
        report = {
            "checkpoint": str(file),
            "data": images.name,
            "engine": model.engine,
            "device": device,
            "trained_with_this_data": same,
            **result.to_json(),
            "files": [str(file) for file in files],
        }
        click.echo(json.dumps(report, indent=2))
    else:
        where = "" if device == "cpu" else f" on {device}"
        _show(out, result, f"{images.name}, {file}, computed by {model.engine}{where}")
        out.files(files)
    return 0


@click.command("figures", short_help="Pictures of training, reconstructions and capsules.")
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path), metavar="[RUN]...")
@_network_options(engine="loma")
@click.option(
    "--digit", "digits", type=Whole(0, 2**31 - 1), multiple=True, metavar="CLASS",
    help="Draw the perturbed capsules of this class only, larger. May be given several times.",
)  # fmt: skip
@click.option(
    "--output", type=FOLDER,
    help="Folder for the pictures.  [default: 'figures' in the first RUN]",
)  # fmt: skip
@click.option(
    "--theme", type=click.Choice(["light", "dark", "both"]), default="light",
    help="For light pages, for dark ones, as NAME-dark.png, or both.",
)  # fmt: skip
@guarded
def figures_command(
    runs: tuple[Path, ...],
    data: Path | None,
    engine: Engine,
    device: str,
    threads: int | None,
    batch: int,
    digits: tuple[int, ...],
    output: Path | None,
    theme: str,
    as_json: bool,
) -> int:
    """Draw curves, reconstructions, perturbed capsules and the confusion matrix.

    RUN is the folder of a run of `capsnet-loma train`. The curves of several runs go into one
    picture, to compare them; everything else is about the best checkpoint of the first.

    The perturbed capsules are figure 4 of the paper: each value of a digit's capsule is changed and
    decoded. It is changed by 8 of its standard deviations over the digit's images, and by 0.25 at
    least, as in the paper; colours show what that does to the strokes.
    """
    from capsnet_loma.evaluation.confusion import confusion_figure
    from capsnet_loma.evaluation.curves import curves_figure, read_curves
    from capsnet_loma.evaluation.perturbations import perturbation_figure
    from capsnet_loma.evaluation.reconstructions import reconstruction_figure
    from loma.tools.pictures import DARK, LIGHT, save_themes
    from capsnet_loma.training.run import Run

    out = Output(quiet=as_json)
    _use_threads(threads)
    folders = runs or (RUN,)
    curves = [
        read_curves(Run(run).metrics, name)
        for run, name in zip(folders, _names(folders), strict=True)
    ]
    model, _, images, _ = _open(out, folders[0], engine, data, device)
    labels = tuple(dict.fromkeys(digits)) or tuple(range(images.classes))
    for label in labels:
        if label >= images.classes:
            raise click.UsageError(f"--digit {label}: the classes are 0 to {images.classes - 1}")
    result = _evaluate(out, model, images, batch)
    folder = output or folders[0] / "figures"
    tested = f"Test images of {images.name}"
    name = "perturbations" + "".join(f"-{label}" for label in digits)
    with out.progress("drawing"):
        evaluated = model, images.test, result.predictions
        figures: dict[str, Callable[[Theme], Figure]] = {
            "curves": lambda theme: curves_figure(curves, f"CapsNet on {images.name}", theme),
            "reconstructions": lambda theme: reconstruction_figure(
                *evaluated, "A capsule's values are enough to draw its image again", theme=theme
            ),
            name: lambda theme: perturbation_figure(
                *evaluated, labels, "A capsule's values say how its image is drawn", theme=theme
            ),
            "confusion": lambda theme: confusion_figure(result, tested, theme),
        }
        themes = {"light": (LIGHT,), "dark": (DARK,), "both": (LIGHT, DARK)}[theme]
        files = []
        for title, draw in figures.items():
            files += save_themes(draw, folder / f"{title}.png", themes)
    if as_json:
        report = {"accuracy": result.accuracy, "files": [str(file) for file in files]}
        click.echo(json.dumps(report, indent=2))
    else:
        out.line(f"{_right(result)}.")
        out.files(files)
    return 0


def _use_threads(threads: int | None) -> None:
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def _open(
    out: Output, path: Path, engine: Engine | None, folder: Path | None, device: str
) -> tuple[Model, Path, Dataset, bool]:
    """The network, the file it is from, the data set that it is to be tested on, and whether it
    was trained with that."""
    from capsnet_loma.data import load
    from capsnet_loma.evaluation.model import check_sizes, checkpoint_file, open_model

    file = checkpoint_file(path)
    with out.progress("loading the network and the images"):
        model, found = open_model(file, engine, device)
        trained_with = found.settings.get("data")
        if folder is None and trained_with is not None:
            folder = Path(trained_with)
        images = load(folder)
    check_sizes(model, images, file, "the built-in data set" if folder is None else str(folder))
    same = found.data == images.digest
    if not same:
        out.line(f"{file} was trained with other data than {images.name}.", "yellow")
    return model, file, images, same


def _evaluate(out: Output, model: Model, images: Dataset, batch: int) -> Evaluation:
    from capsnet_loma.evaluation.evaluate import evaluate

    with out.progress("evaluating") as update:
        return evaluate(model, images.test, batch, update)


def _names(folders: Sequence[Path]) -> list[str]:
    """What runs are called: by their folder, or by the whole path where that is ambiguous."""
    short = [folder.resolve().name for folder in folders]
    return short if len(set(short)) == len(short) else [str(folder) for folder in folders]


def _show(out: Output, result: Evaluation, title: str) -> None:
    counts = result.confusion.tolist()
    classes = range(len(counts))
    rows = [
        [
            str(c),
            *(f"{n:,}" if n else "." for n in counts[c]),
            _percent(recall),
            _percent(precision),
        ]
        for c, recall, precision in zip(classes, result.recall, result.precision, strict=True)
    ]
    columns = ["class", *(f"as {c}" for c in classes), "recall", "precision"]
    out.table(title, columns, rows, set())
    out.line(f"{_right(result)}; loss {result.loss:.4f}.", "green")


def _right(result: Evaluation) -> str:
    return f"{result.right:,} of {result.images:,} images are recognised, {result.accuracy:.2%}"


def _percent(share: float | None) -> str:
    return "none" if share is None else f"{share:.1%}"
